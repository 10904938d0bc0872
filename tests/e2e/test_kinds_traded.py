"""Jobs try kinds and trade them under the default policy, through every process of the product.

Two jobs that compute the same are each ten times as slow on the other's kind. An admin's switch
from `weighted_fair`, which ignores speeds, to `goodput_fair` finds both on the wrong one, with no
accelerator idle: a ring of two jobs that wait for each other's place.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.core.policies import DEFAULT_POLICY
from jobs.demo.stack.ports import reserved_ports
from tests.e2e.added_nodes import PORTS, added_node
from tests.e2e.stack import Stack

pytestmark = [pytest.mark.nightly, pytest.mark.whole_stack, pytest.mark.timeout(600)]

CODE = (Path(__file__).parent / "two_speeds_job.py").read_text()
#: Seconds of an example while the go file is missing, and how many times that on the wrong kind.
PAUSE_S, FACTOR = 0.04, 10
NUM_STEPS = 600
DEADLINE_S = 180.0


class Trader:
    """A job on one accelerator that is slow on one of two kinds, seen by REST."""

    def __init__(self, stack: Stack, slow_kind: str) -> None:
        self.stack = stack
        self.go_file = stack.directory / f"go-slow-on-{slow_kind}"
        body = {
            "name": f"slow on {slow_kind}",
            "code": CODE,
            "settings": {
                "go_file": str(self.go_file),
                "pause_s": PAUSE_S,
                "factors": {f"node-{slow_kind}": FACTOR},
            },
            "global_batch_size": 4,
            "num_virtual_nodes": 2,
            "max_accelerators": 1,
            "accepted_kinds": ["left", "right"],
            "stop": {"kind": "steps", "limit": NUM_STEPS},
            "seed": 5,
        }
        self.id = stack.post("jobs/", body, expect=201)["id"]

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = self.stack.get(f"jobs/{self.id}/")
        assert state["status"] not in ("failed", "invalid", "finished"), state
        return state

    def generations(self) -> list[dict[str, Any]]:
        """List its memberships that have trained, oldest first."""
        found = self.stack.get(f"jobs/{self.id}/generations/", page_size=200)["results"]
        trained = [row for row in found if row["first_step_at"]]
        return sorted(trained, key=lambda row: row["number"])

    def told(self, text: str) -> bool:
        """Return whether one of its events says `text`."""
        found = self.stack.get(f"jobs/{self.id}/events/", page_size=200)["results"]
        return any(text in event["message"] for event in found)

    def wait_until_on(self, kind: str) -> None:
        """Wait until it trains on a kind and nothing is under way."""

        def is_there() -> bool:
            state = self.state()
            if (state["status"], state["num_accelerators"]) != ("running", 1):
                return False
            rows = self.stack.get(f"jobs/{self.id}/allocations/")["allocations"]
            held = [row["kind"] for row in rows if row["released_at"] is None]
            trains = [row["phase"] for row in self.generations()[-1:]]
            return (held, trains) == ([kind], ["active"])

        self.stack.wait_for(f"job {self.id} to train on {kind}", is_there, DEADLINE_S)

    def pause(self) -> None:
        """Pause it and wait until it holds nothing."""
        self.stack.post(f"jobs/{self.id}/pause/", {"reason": "another one's turn"})

        def is_out() -> bool:
            state = self.state()
            return (state["status"], state["num_accelerators"]) == ("paused", 0)

        self.stack.wait_for(f"job {self.id} to be paused", is_out, DEADLINE_S)

    def resume_on(self, kind: str) -> None:
        self.stack.post(f"jobs/{self.id}/resume/")
        self.wait_until_on(kind)

    def finish(self) -> dict[str, Any]:
        """Let it run to its end unpaced; give the job."""
        self.go_file.touch()

        def ended() -> dict[str, Any] | None:
            state: dict[str, Any] = self.stack.get(f"jobs/{self.id}/")
            assert state["status"] not in ("failed", "invalid"), state
            return state if state["status"] == "finished" else None

        found: dict[str, Any] = self.stack.wait_for(f"job {self.id} to end", ended, DEADLINE_S)
        return found


@pytest.fixture(autouse=True)
def _same_policy_again(stack: Stack) -> Iterator[None]:
    before = stack.get("policy/")["policy"]
    yield
    stack.rest.put("policy/", json={"policy": before})


def policy_set(stack: Stack, policy: str) -> None:
    assert stack.rest.put("policy/", json={"policy": policy}).json()["policy"] == policy


def test_jobs_try_kinds_and_trade_them(stack: Stack) -> None:
    with (
        reserved_ports(2, PORTS) as (left_ports, right_ports),
        added_node(stack, "left", 1, left_ports),
        added_node(stack, "right", 1, right_ports),
    ):
        policy_set(stack, DEFAULT_POLICY)
        first = Trader(stack, "left")
        first.wait_until_on("right")  # after a while on the left
        tried = first.generations()
        assert [row["reason"].partition(";")[0] for row in tried] == [
            "Is given 1 of 1 left",
            "Moves to 1 of 1 right to measure its speed",
        ]
        first.pause()
        policy_set(stack, "weighted_fair")
        second = Trader(stack, "right")
        second.wait_until_on("left")
        second.pause()
        first.resume_on("left")
        second.resume_on("right")
        before = [len(job.generations()) for job in (first, second)]
        policy_set(stack, DEFAULT_POLICY)
        first.wait_until_on("right")
        second.wait_until_on("left")
        assert first.told("would wait for each other") or second.told("would wait for each other")
        ended = [job.finish() for job in (first, second)]
    for job, number in zip((first, second), before, strict=True):
        moves = job.generations()
        assert any(row["actor"] == f"policy:{DEFAULT_POLICY}" for row in moves[number:])
        for row, following in itertools.pairwise(moves):
            assert row["step"] <= following["step"]
            # One that starts from a checkpoint has no trainer before it to compare with.
            assert following["digest_after"] in (following["digest_before"], "")
        assert any(row["digest_after"] for row in moves)
    assert [(job["step"], job["restarts"]) for job in ended] == [(NUM_STEPS, 0)] * 2
    # Both compute the same, whatever their pace, and each went another way.
    assert ended[0]["digest"] == ended[1]["digest"] != ""
