"""Every process of the product on PostgreSQL and Redis, asked by REST only.

All jobs here run the same code from the same seed for the same number of steps, so each of them has
to end with the digest of the one that trained undisturbed on one accelerator.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.stack import Stack

pytestmark = [pytest.mark.whole_stack, pytest.mark.timeout(600)]

CODE = (Path(__file__).parent / "paced_job.py").read_text()
NUM_STEPS = 2000
#: While its go file is missing a job takes this long per example: 240 ms a step on one accelerator.
PAUSE_S = 0.015
BATCH = 16
START_DEADLINE_S = 150.0
RESIZE_DEADLINE_S = 120.0
FINISH_DEADLINE_S = 120.0


@pytest.fixture(scope="module")
def undisturbed_digest(stack: Stack) -> str:
    """Train the job alone on one accelerator and give the digest that it ends with."""
    job = Submitted(stack, "undisturbed", max_accelerators=1)
    job.go()
    return job.wait_until_finished()["digest"]


class Submitted:
    """A paced job of this file, seen by REST."""

    def __init__(self, stack: Stack, name: str, **fields: Any) -> None:
        self.stack = stack
        self.name = name
        self.go_file = stack.directory / f"go-{name}"
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
        generations = self.stack.get(f"jobs/{self.id}/generations/")["results"]
        return next((row["num_members"] for row in generations if row["phase"] == "active"), 0)

    def wait_until_trains_on(self, num_accelerators: int, deadline_s: float) -> None:
        """Wait until the job does steps on that many accelerators.

        Raises:
            AssertionError: it took too long, or the job ended before.
        """

        def is_there() -> bool:
            state = self.state()
            assert state["status"] not in ("failed", "invalid", "finished"), state
            return state["status"] == "running" and self.num_training() == num_accelerators

        self.stack.wait_for(f"{self.name} training on {num_accelerators}", is_there, deadline_s)

    def wait_until_holds_nothing(self, status: str, deadline_s: float) -> dict[str, Any]:
        """Wait until the job has that status and all its accelerators are free; give the job."""

        def is_there() -> bool:
            state = self.state()
            assert state["status"] not in {"failed", "invalid"} - {status}, state
            return (state["status"], state["num_accelerators"]) == (status, 0)

        self.stack.wait_for(f"{self.name} to be {status}", is_there, deadline_s)
        return self.state()

    def wait_until_finished(self) -> dict[str, Any]:
        return self.wait_until_holds_nothing("finished", START_DEADLINE_S + FINISH_DEADLINE_S)


def test_resized_and_preempted_jobs_end_like_the_undisturbed_one(
    stack: Stack, undisturbed_digest: str
) -> None:
    """1 → 3 → 2 → 4 for one job, and 3 → 1 → 2 → 0 → all for its neighbour, by priorities alone."""
    neighbour = Submitted(stack, "neighbour", max_accelerators=3, priority=300)
    neighbour.wait_until_trains_on(3, START_DEADLINE_S)
    resized = Submitted(stack, "resized", max_accelerators=4, priority=100)
    resized.wait_until_trains_on(1, START_DEADLINE_S)
    resized.do("reprioritise", priority=900, reason="3 of 4")
    resized.wait_until_trains_on(3, RESIZE_DEADLINE_S)
    neighbour.wait_until_trains_on(1, RESIZE_DEADLINE_S)
    resized.do("reprioritise", priority=300, reason="half each")
    resized.wait_until_trains_on(2, RESIZE_DEADLINE_S)
    neighbour.wait_until_trains_on(2, RESIZE_DEADLINE_S)
    neighbour.do("pause", reason="everything for the other")
    neighbour.wait_until_holds_nothing("paused", RESIZE_DEADLINE_S)
    resized.wait_until_trains_on(4, RESIZE_DEADLINE_S)
    resized.go()
    assert resized.wait_until_finished()["digest"] == undisturbed_digest
    assert resized_counts(resized) == [(0, 1), (1, 3), (3, 2), (2, 4)]
    neighbour.do("resume")
    neighbour.go()
    assert neighbour.wait_until_finished()["digest"] == undisturbed_digest
    for event in [*moves(resized), *moves(neighbour)]:
        check_resize_event(event)


def resized_counts(job: Submitted) -> list[tuple[int, int]]:
    return [
        (event["data"]["num_before"], event["data"]["num_after"]) for event in job.events("resize")
    ]


def moves(job: Submitted) -> list[dict[str, Any]]:
    """List the resizes of a job that was training before and after."""
    return [event for event in job.events("resize") if event["data"]["num_before"] > 0]


def check_resize_event(event: dict[str, Any]) -> None:
    """Check that a resize tells when it came about, how long it took and what it moved."""
    data = event["data"]
    assert data["asked_at"] <= data["ready_at"] <= data["switched_at"]
    assert 0 < data["pause_ms"] < 30_000
    assert len(data["digest_before"]) == 64
    assert data["digest_before"] == data["digest_after"]
    if data["num_after"] > data["num_before"]:
        assert data["bytes_moved"] > 0


def test_a_killed_agent_takes_its_trainers_up_again(stack: Stack, undisturbed_digest: str) -> None:
    job = Submitted(stack, "orphaned", max_accelerators=4)
    job.wait_until_trains_on(4, START_DEADLINE_S)
    trainers = set(stack.trainer_pids())
    agent = stack.supervisor.pids()["node-b"]
    os.kill(agent, signal.SIGKILL)
    stack.wait_for("a new agent", lambda: stack.supervisor.pids().get("node-b", agent) != agent, 30)
    step = job.state()["step"]
    stack.wait_for("more steps", lambda: job.state()["step"] > step, 30)
    assert set(stack.trainer_pids()) == trainers
    job.go()
    finished = job.wait_until_finished()
    assert finished["digest"] == undisturbed_digest
    assert finished["restarts"] == 0


def test_a_cancelled_job_leaves_no_process_and_frees_its_accelerators(stack: Stack) -> None:
    job = Submitted(stack, "cancelled", max_accelerators=2)
    job.wait_until_trains_on(2, START_DEADLINE_S)
    job.do("cancel", reason="not needed any more")
    job.wait_until_holds_nothing("cancelled", RESIZE_DEADLINE_S)
    stack.wait_for("the end of all trainers", lambda: not stack.trainer_pids(), 30)
