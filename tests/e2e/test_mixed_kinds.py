"""Two kinds of accelerator in one job, through every process of the product."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from jobs.demo.environment import free_port_ranges
from tests.e2e.stack import Stack

pytestmark = [pytest.mark.whole_stack, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
CODE = (Path(__file__).parent / "two_speeds_job.py").read_text()
START_DEADLINE_S = 150.0
RESIZE_DEADLINE_S = 120.0
FINISH_DEADLINE_S = 270.0
PORTS = 40


@contextmanager
def slow_node(stack: Stack) -> Iterator[None]:
    """Add a node with two accelerators of another kind, and cordon one of the two that are there.

    So there are two of kind `cpu` and two of kind `slow`.
    """
    nodes = {node["name"]: node["id"] for node in stack.get("nodes/")["results"]}
    stack.post(f"nodes/{nodes['node-b']}/cordon/", {"reason": "two of each kind"})
    token = stack.post("enrolment-tokens/", {}, expect=201)["token"]
    (ports,) = free_port_ranges(1, PORTS)
    server = str(stack.rest.base_url).removesuffix("api/v1/").rstrip("/")
    command = [
        sys.executable, "-m", "agents", "--server", server, "--node", "node-slow",
        "--state-dir", str(stack.directory / "node-slow"), "--host", "127.0.0.1",
        "--ports", f"{ports.start}-{ports.stop - 1}",
        "--gpus", "none", "--emulate", "2", "--kind", "slow", "--standbys", "0",
    ]  # fmt: skip
    environment = {**os.environ, "VIRTUALFLOW_ENROLMENT_TOKEN": token}
    with (stack.directory / "logs" / "node-slow.log").open("wb") as log:
        agent = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
    try:
        yield
    finally:
        agent.terminate()
        agent.wait(30.0)
        stack.post(f"nodes/{nodes['node-b']}/uncordon/", {"reason": "over"})
        nodes = {node["name"]: node["id"] for node in stack.get("nodes/")["results"]}
        stack.rest.request("DELETE", f"nodes/{nodes['node-slow']}/", json={"reason": "over"})


class Submitted:
    """A job of two speeds, seen by REST."""

    def __init__(self, stack: Stack, name: str, **fields: Any) -> None:
        self.stack = stack
        self.go_file = stack.directory / f"go-{name}"
        body = {
            "name": name,
            "code": CODE,
            "settings": {"go_file": str(self.go_file), "pause_s": 0.05},
            "global_batch_size": 16,
            "num_virtual_nodes": 16,
            "stop": {"kind": "steps", "limit": 900},
            "seed": 5,
            **fields,
        }
        self.id = stack.post("jobs/", body, expect=201)["id"]

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = self.stack.get(f"jobs/{self.id}/")
        assert state["status"] not in ("failed", "invalid"), state
        return state

    def split(self) -> list[int]:
        """Give how many virtual nodes each member runs now, in their order."""
        rows = self.stack.get(f"jobs/{self.id}/generations/")["results"]
        active = next((row for row in rows if row["phase"] == "active"), None)
        return [] if active is None else [len(m["virtual_nodes"]) for m in active["members"]]

    def wait_until_split_over(self, num: int, deadline_s: float) -> list[int]:
        """Wait until the job trains on so many accelerators; give its split."""

        def is_there() -> bool:
            return self.state()["status"] == "running" and len(self.split()) == num

        self.stack.wait_for(f"job {self.id} on {num} accelerators", is_there, deadline_s)
        return self.split()

    def told(self, kind: str) -> list[str]:
        """List messages of one kind of event, oldest first."""
        found = self.stack.get(f"jobs/{self.id}/events/", page_size=200)["results"]
        return [event["message"] for event in reversed(found) if event["kind"] == kind]

    def finish(self) -> dict[str, Any]:
        """Let it run to its end unpaced; give the job."""
        self.go_file.touch()
        self.stack.wait_for(
            f"job {self.id} to finish",
            lambda: self.state()["status"] == "finished",
            FINISH_DEADLINE_S,
        )
        return self.state()


def test_idle_accelerators_of_another_kind_are_lent_split_by_speed_and_taken_back(
    stack: Stack,
) -> None:
    with slow_node(stack):
        alone = Submitted(stack, "alone", max_accelerators=1, accepted_kinds=["cpu"])
        expected = alone.finish()
        assert (expected["equality"], expected["kinds_used"]) == ("bitwise", ["cpu"])
        mixed = Submitted(stack, "mixed", mixes_kinds=True, accepted_kinds=["cpu", "slow"])
        split = mixed.wait_until_split_over(4, START_DEADLINE_S)
        assert sum(split) == 16
        # The slow ones joined last, and take about a third each of what the others take.
        assert max(split[2:]) < min(split[:2])
        other = Submitted(stack, "other", accepted_kinds=["slow"], min_accelerators=2)
        other.wait_until_split_over(2, RESIZE_DEADLINE_S)
        mixed.wait_until_split_over(2, RESIZE_DEADLINE_S)
        stack.post(f"jobs/{other.id}/cancel/", {"reason": "enough"})
        mixed.wait_until_split_over(4, RESIZE_DEADLINE_S)
        done = mixed.finish()
    told = mixed.told("mixing")
    assert told[0].startswith("One slow works along: its speed on this code is not known yet.")
    assert told[1].startswith("2 cpu + 2 slow mixed: ")
    assert len(mixed.told("kinds_mixed")) == 1
    assert (done["equality"], done["kinds_used"]) == ("tolerance", ["cpu", "slow"])
    # Both kinds are threads of this processor here, as many each: nothing rounds differently.
    assert done["digest"] == expected["digest"]
