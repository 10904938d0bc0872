"""Trainers, agents and the control plane are killed; every job ends as if nothing had happened.

All jobs here run the same code from the same seed, so each has to end with the digest of the one
that trained undisturbed on one accelerator.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import httpx
import pytest

from tests.e2e.stack import Stack
from tests.e2e.submitted import START_DEADLINE_S, Submitted, undisturbed_digest

pytestmark = [pytest.mark.whole_stack, pytest.mark.timeout(600)]

STACK_VARIABLES = {
    "VIRTUALFLOW_LEASE_S": "5",
    "VIRTUALFLOW_HEARTBEAT_S": "1",
    "VIRTUALFLOW_CHECKPOINT_EVERY_S": "2",
}
AGENT_OPTIONS = ["--pulse-limit", "4"]
STEP_DEADLINE_S = 60.0
CONTROL_PLANE = ("web", "stream", "worker", "beat")


def newest(job: Submitted) -> dict[str, Any]:
    rows = job.stack.get(f"jobs/{job.id}/generations/")["results"]
    return max(rows, key=lambda row: row["number"])


def settled(job: Submitted, least: int) -> list[int]:
    """Wait until a job does steps on so many accelerators or more; give its slots by seniority."""

    def members() -> list[int] | None:
        state = job.state()
        assert state["status"] not in ("failed", "invalid"), state
        rows = job.stack.get(f"jobs/{job.id}/generations/")["results"]
        row = max(rows, key=lambda row: row["number"], default=None)
        is_there = row is not None and row["phase"] == "active" and row["first_step_at"]
        if not is_there or row["num_members"] < least:
            return None
        return [member["slot"] for member in row["members"]]

    return job.stack.wait_for(f"{job.name} on {least}", members, START_DEADLINE_S)


def hit(job: Submitted, *slots: int, number: signal.Signals = signal.SIGKILL) -> None:
    pids = job.stack.trainers_of(job.id)
    for slot in slots:
        os.kill(pids[slot], number)


def recovered(job: Submitted, *slots: int, revives: bool = True) -> dict[str, Any]:
    """Wait for the event of a recovery that names all of these slots."""

    def told() -> dict[str, Any] | None:
        for event in reversed(job.events("recovered")):
            if {*slots} <= {row["slot"] for row in event["data"]["lost"]}:
                return event["data"]
        return None

    return job.stack.wait_for(f"a recovery without {slots}", told, STEP_DEADLINE_S, revives=revives)


def test_survivors_of_every_loss_end_like_the_undisturbed(stack: Stack) -> None:
    job = Submitted(stack, "survivor", max_accelerators=4)
    follower = settled(job, 4)[-1]
    hit(job, follower)
    assert recovered(job, follower)["to_first_step_s"] < 10
    leader = settled(job, 2)[0]
    hit(job, leader)
    assert recovered(job, leader)["num_after"] >= 1
    hung = settled(job, 3)[-1]
    hit(job, hung, number=signal.SIGSTOP)
    assert recovered(job, hung)["lost"][0]["code"] == "crash"
    two = settled(job, 4)[1:3]
    hit(job, *two)
    recovered(job, *two)
    slots = settled(job, 4)
    leaders_node = stack.node_of(job.id, slots[0])
    lost = [slot for slot in slots if stack.node_of(job.id, slot) != leaders_node]
    assert lost
    (node,) = {stack.node_of(job.id, slot) for slot in lost}
    os.kill(stack.supervisor.pids()[node], signal.SIGKILL)
    hit(job, *lost)
    data = recovered(job, *lost, revives=False)
    # Whichever is first: those who wait for them cannot reach them, or the lease is over.
    assert {row["code"] for row in data["lost"]} <= {"unreachable", "node_lost"}
    job.go()
    finished = job.wait_until_finished()
    assert finished["digest"] == undisturbed_digest(stack)
    assert finished["restarts"] == 0


def test_a_loss_while_the_control_plane_is_away_and_then_all(stack: Stack) -> None:
    job = Submitted(stack, "alone", max_accelerators=3)
    victim = settled(job, 3)[1]
    pids = stack.supervisor.pids()
    for name in CONTROL_PLANE:
        os.killpg(pids[name], signal.SIGKILL)
    hit(job, victim)
    stack.wait_for(
        "its end", lambda: victim not in stack.trainers_of(job.id), STEP_DEADLINE_S, revives=False
    )
    stack.wait_for("the control plane", lambda: answers(stack), STEP_DEADLINE_S)
    recovered(job, victim)
    assert job.state()["restarts"] == 0
    settled(job, 3)
    stack.wait_for("a checkpoint", lambda: job.events("checkpointed"), STEP_DEADLINE_S)
    hit(job, *stack.trainers_of(job.id))
    stack.wait_for("the restart", lambda: job.state()["restarts"] == 1, STEP_DEADLINE_S)
    settled(job, 1)
    job.go()
    assert job.wait_until_finished()["digest"] == undisturbed_digest(stack)


def answers(stack: Stack) -> bool:
    try:
        return stack.rest.get("nodes/").status_code == httpx.codes.OK
    except httpx.TransportError:
        return False
