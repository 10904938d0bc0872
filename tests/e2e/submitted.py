"""A paced job that trains on a running stack, seen by REST."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.e2e.stack import Stack

CODE = (Path(__file__).parent / "paced_job.py").read_text()
NUM_STEPS = 160
#: While its go file is missing a job takes this long per example: 4 s a step on one accelerator.
PAUSE_S = 0.25
BATCH = 16
START_DEADLINE_S = 150.0
RESIZE_DEADLINE_S = 120.0
FINISH_DEADLINE_S = 120.0
#: How often the site is asked; each answer costs it some milliseconds of a processor.
LOOK_EVERY_S = 0.5


#: What undisturbed jobs ended with, by code: the same on every stack of a test run.
_UNDISTURBED: dict[str, str] = {}


def undisturbed_digest(stack: Stack) -> str:
    """Train the job alone on one accelerator, once, and give the digest that it ends with."""
    if CODE not in _UNDISTURBED:
        job = Submitted(stack, "undisturbed", max_accelerators=1)
        job.go()
        _UNDISTURBED[CODE] = str(job.wait_until_finished()["digest"])
    return _UNDISTURBED[CODE]


class Submitted:
    """A paced job; all of them compute the same."""

    def __init__(self, stack: Stack, name: str, **fields: Any) -> None:
        self.stack = stack
        self.name = name
        self.go_file = stack.directory / f"go-{name}"
        self.go_file.unlink(missing_ok=True)  # an earlier test may have had a job of this name
        body = {
            "name": name,
            "code": CODE,
            "settings": {"go_file": str(self.go_file), "pause_s": PAUSE_S},
            "global_batch_size": BATCH,
            "num_virtual_nodes": 8,
            "stop": {"kind": "steps", "limit": NUM_STEPS},
            "seed": 5,
            **fields,
        }
        self.id = stack.post("jobs/", body, expect=201)["id"]

    def go(self) -> None:
        """Let it train as fast as it can from now on."""
        self.go_file.touch()

    def state(self) -> dict[str, Any]:
        return self.stack.get(f"jobs/{self.id}/")

    def do(self, action: str, **body: Any) -> None:
        self.stack.post(f"jobs/{self.id}/{action}/", body)

    def events(self, kind: str) -> list[dict[str, Any]]:
        """List events of one kind, oldest first."""
        found = self.stack.get(f"jobs/{self.id}/events/", page_size=200)["results"]
        return [event for event in reversed(found) if event["kind"] == kind]

    def num_training(self) -> int:
        """Count the members of the membership that does steps now, resizes under way left out."""
        return len(self._members())

    def leader(self) -> int:
        """Return the slot of the trainer that leads the steps now."""
        return int(self._members()[0]["slot"])

    def _members(self) -> list[dict[str, Any]]:
        generations = self.stack.get(f"jobs/{self.id}/generations/")["results"]
        active = next((row for row in generations if row["phase"] == "active"), {"members": []})
        return list(active["members"])

    def wait_until_trains_on(self, num_accelerators: int, deadline_s: float) -> None:
        """Wait until the job does steps on that many accelerators.

        Raises:
            AssertionError: it took too long, or the job ended before.
        """

        def is_there() -> bool:
            state = self.state()
            assert state["status"] not in ("failed", "invalid", "finished"), state
            return state["status"] == "running" and self.num_training() == num_accelerators

        self._wait_for(f"training on {num_accelerators}", is_there, deadline_s)

    def wait_until_holds_nothing(self, status: str, deadline_s: float) -> dict[str, Any]:
        """Wait until the job has that status and all its accelerators are free; give the job."""

        def is_there() -> bool:
            state = self.state()
            assert state["status"] not in {"failed", "invalid"} - {status}, state
            return (state["status"], state["num_accelerators"]) == (status, 0)

        self._wait_for(f"to be {status}", is_there, deadline_s)
        return self.state()

    def wait_until_finished(self) -> dict[str, Any]:
        return self.wait_until_holds_nothing("finished", START_DEADLINE_S + FINISH_DEADLINE_S)

    def _wait_for(self, what: str, is_there: Callable[[], bool], deadline_s: float) -> None:
        self.stack.wait_for(f"{self.name} {what}", is_there, deadline_s, look_every_s=LOOK_EVERY_S)
