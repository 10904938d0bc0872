"""Accelerators of several speeds in one job, through every process of the product."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from jobs.demo.stack.ports import reserved_ports
from tests.e2e.added_nodes import PORTS, START_DEADLINE_S, added_node
from tests.e2e.stack import Stack

pytestmark = [pytest.mark.whole_stack, pytest.mark.timeout(600)]

CODE = (Path(__file__).parent / "two_speeds_job.py").read_text()
RESIZE_DEADLINE_S = 120.0
FINISH_DEADLINE_S = 270.0


def runs_of(generation: dict[str, Any]) -> dict[int, int]:
    """Give how many virtual nodes each slot has in a generation, in the order of its members."""
    return {member["slot"]: len(member["virtual_nodes"]) for member in generation["members"]}


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

    def generations(self) -> list[dict[str, Any]]:
        """List its newest generations, newest first."""
        found = self.stack.get(f"jobs/{self.id}/generations/")["results"]
        return sorted(found, key=lambda row: -row["number"])

    def split(self) -> dict[int, int]:
        """Give how many virtual nodes run in each slot now, in the order of the members."""
        active = next((row for row in self.generations() if row["phase"] == "active"), None)
        return {} if active is None else runs_of(active)

    def hold_up(self, slot: int) -> None:
        """Let the trainer in a slot take three times as long from now on."""
        self.go_file.with_name(f"{self.go_file.name}-held-up-{slot}").touch()

    def wait_until_split_over(self, num: int, deadline_s: float) -> dict[int, int]:
        """Wait until the job trains on so many accelerators; give its split."""

        def is_there() -> bool:
            return self.state()["status"] == "running" and len(self.split()) == num

        self.stack.wait_for(f"job {self.id} on {num} accelerators", is_there, deadline_s)
        return self.split()

    def told(self, kind: str) -> list[str]:
        """List messages of one kind of event, oldest first."""
        found = self.stack.get(f"jobs/{self.id}/events/", page_size=200)["results"]
        return [event["message"] for event in reversed(found) if event["kind"] == kind]

    def go(self) -> None:
        """Let it run unpaced from now on."""
        self.go_file.touch()

    def finish(self) -> dict[str, Any]:
        """Let it run to its end unpaced; give the job."""
        self.go()
        self.stack.wait_for(
            f"job {self.id} to finish",
            lambda: self.state()["status"] == "finished",
            FINISH_DEADLINE_S,
        )
        return self.state()


@pytest.mark.nightly  # tests/jobs/scheduling has these decisions
def test_kinds_are_lent_split_by_speed_refused_and_taken_back_and_stragglers_relieved(
    stack: Stack,
) -> None:
    # It trains beside all the others, on two accelerators of its own.
    drifting = Submitted(
        stack, "drifting", min_accelerators=2, max_accelerators=2, accepted_kinds=["cpu"]
    )
    with (
        reserved_ports(2, PORTS) as (slow_ports, snail_ports),
        added_node(stack, "slow", 2, slow_ports),
        added_node(stack, "snail", 1, snail_ports),
    ):
        expected = Submitted(stack, "alone", max_accelerators=1, accepted_kinds=["cpu"]).finish()
        assert (expected["reproducibility"], expected["kinds_used"]) == ("bitwise", ["cpu"])
        mixed = Submitted(stack, "mixed", allow_mixed_kinds=True, accepted_kinds=["cpu", "slow"])
        straggler = held_up(drifting)
        split = [*mixed.wait_until_split_over(4, START_DEADLINE_S).values()]
        assert sum(split) == 16
        # The slow ones joined last, and take about a third each of what the others take.
        assert max(split[2:]) < min(split[:2])
        other = Submitted(
            stack,
            "other",
            allow_mixed_kinds=True,
            accepted_kinds=["slow", "snail"],
            min_accelerators=2,
        )
        other.wait_until_split_over(2, RESIZE_DEADLINE_S)
        mixed.wait_until_split_over(2, RESIZE_DEADLINE_S)
        refuses(other)
        stack.post(f"jobs/{other.id}/cancel/", {"reason": "enough"})
        mixed.wait_until_split_over(4, RESIZE_DEADLINE_S)
        relieved(drifting, straggler)
        drifting.go()
        ended = [mixed.finish(), drifting.finish()]
    told = mixed.told("mixing")
    assert told[0].startswith("One slow works along: its speed on this code is not known yet.")
    # As it is found first, by what the first steps took; both slow ones work along in the end.
    pays = re.fullmatch(
        r"2 cpu \+ [12] slow mixed: (\d+) ms a step instead of (\d+) ms on 2 cpu\.", told[1]
    )
    assert pays, told
    assert int(pays[1]) < int(pays[2])
    assert any("2 cpu + 2 slow mixed: " in reason for reason in mixed.told("resize_requested"))
    assert len(mixed.told("kinds_mixed")) == 1
    levels = [(job["reproducibility"], job["kinds_used"]) for job in ended]
    assert levels == [("tolerance", ["cpu", "slow"]), ("bitwise", ["cpu"])]
    # Both kinds are threads of this processor here, as many each: nothing rounds differently.
    assert [job["digest"] for job in ended] == [expected["digest"]] * 2


def refuses(job: Submitted) -> None:
    """Wait until a job was told why it is not lent the snail that it tried, and is without it."""

    def told() -> list[str]:
        return [text for text in job.told("mixing") if text.startswith("Not mixed: ")]

    text, *_ = job.stack.wait_for("a mix to be refused", told, RESIZE_DEADLINE_S)
    numbers = re.fullmatch(
        r"Not mixed: 2 slow \+ 1 snail would need (\d+) ms a step, 2 slow need (\d+) ms\.", text
    )
    assert numbers, text
    # One example takes the snail 2 s; eight take a slow one 1.2 s.
    assert 1200 <= int(numbers[2]) < 2000 <= int(numbers[1])
    job.wait_until_split_over(2, RESIZE_DEADLINE_S)


def held_up(job: Submitted) -> int:
    """Let one of two trainers take three times as long as before; give its slot."""
    even = job.wait_until_split_over(2, START_DEADLINE_S)
    assert [*even.values()] == [8, 8]
    straggler = [*even][1]
    job.hold_up(straggler)
    return straggler


def relieved(job: Submitted, straggler: int) -> None:
    """Wait until the control plane has taken virtual nodes from a straggler."""

    def moved() -> dict[str, Any] | None:
        rows = [row for row in job.generations() if row["actor"] == "system:mapping"]
        return rows[-1] if rows and rows[-1]["first_step_at"] else None

    move = job.stack.wait_for("a move", moved, RESIZE_DEADLINE_S)
    assert re.match(rf"slot {straggler} is [2-4]\.\dx slower: 8 → [345] virtual ", move["reason"])
    split = runs_of(move)
    assert sum(split.values()) == 16
    assert split[straggler] <= 5
    text = f"Virtual nodes move among the same 2 accelerators: {move['reason']}"
    assert any(told.startswith(text) for told in job.told("resize_requested"))
