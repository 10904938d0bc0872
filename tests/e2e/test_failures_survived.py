"""Trainers, agents, lines and the control plane are lost; every job ends as if nothing had been.

All jobs here run the same code from the same seed, so each has to end with the digest, and the logs
of every epoch, of the one that trained undisturbed on one accelerator. `benchmarks.failure` loses
trainers in the other phases, too, and looks at the same.
"""

from __future__ import annotations

import signal
import time
from datetime import datetime, timedelta
from typing import Any

import pytest

from benchmarks.failures.hits import (
    DEADLINE_S,
    SITE,
    FatedJob,
    answers,
    node_signal,
    send,
    site_kill,
)
from tests.e2e.stack import Stack

pytestmark = [pytest.mark.whole_stack, pytest.mark.timeout(900)]

QUARANTINE_S = 8
#: Longer than a request or a turn of the control loop takes.
UNDER_WAY_S = 2
STACK_VARIABLES = {
    "VIRTUALFLOW_LEASE_S": "8",
    "VIRTUALFLOW_HEARTBEAT_S": "1",
    "VIRTUALFLOW_CHECKPOINT_EVERY_S": "2",
    # A job that loses trainers on both nodes says nothing about either.
    "VIRTUALFLOW_QUARANTINE_DEATHS": "2",
    "VIRTUALFLOW_QUARANTINE_S": str(QUARANTINE_S),
}
AGENT_OPTIONS = ["--pulse-limit", "4"]
HAS_LINKS = True

NUM_STEPS = 800
PACE = {"pace_s": 0.1, "slow_from": 600}
#: Longer than the six leases for which a control plane bears that all nodes are silent.
AWAY_S = 52.0


@pytest.fixture(scope="module")
def undisturbed(stack: Stack) -> dict[str, Any]:
    """Train alone on one accelerator; give what the job ended with."""
    job = FatedJob(stack, "undisturbed", NUM_STEPS, PACE, max_accelerators=1)
    return ending(job)


def ending(job: FatedJob) -> dict[str, Any]:
    state = job.finish()
    return {
        "digest": state["digest"],
        "step": state["step"],
        "metrics": state["metrics"],
        "epochs": job.epochs(),
    }


@pytest.mark.nightly  # tests/jobs/failures has these decisions
def test_code_that_fails_ends_its_job_and_a_node_that_kills_is_quarantined(
    stack: Stack, undisturbed: dict[str, Any]
) -> None:
    large = FatedJob(stack, "large", NUM_STEPS, PACE, max_accelerators=3)
    fails_by_its_own_code(stack)
    small = FatedJob(stack, "small", NUM_STEPS, PACE, max_accelerators=1)
    slots, (only,) = large.slots(3), small.slots(1)
    bad = stack.node_of(small.id, only)
    # The two on the other node are both of the large job.
    (beside,) = (slot for slot in slots if stack.node_of(large.id, slot) == bad)
    large.hit([beside])
    small.hit([only])
    shown = stack.wait_for("the quarantine", lambda: quarantined(stack, bad), DEADLINE_S)
    # The failure of before was the code's own fault.
    assert shown["quarantine_reason"] == "2 trainers of 2 jobs died there within 10 min"
    assert shown["status"] == "quarantined"
    large.goes_on_without(beside)
    stack.wait_for("the node to be back", lambda: not quarantined(stack, bad), DEADLINE_S)
    # Nobody else has room for the third one.
    large.slots(3)
    assert [ending(large), ending(small)] == [undisturbed, undisturbed]
    assert (large.state()["restarts"], small.state()["restarts"]) == (0, 1)
    back_at = datetime.fromisoformat(shown["quarantined_until"])
    quarantined_at = back_at - timedelta(seconds=QUARANTINE_S)
    given = [*given_to(large), *given_to(small)]
    # Both are noted with the moment at which they began, so one may not have seen the other.
    is_known_at = quarantined_at + timedelta(seconds=UNDER_WAY_S)
    assert not [node for at, node in given if is_known_at < at < back_at and node == bad]
    assert [node for at, node in given if back_at <= at and node == bad]


def fails_by_its_own_code(stack: Stack) -> None:
    # More examples than a validation reads, fewer than the steps do.
    settings = {**PACE, "fails_after": 2000}
    failing = FatedJob(stack, "failing", NUM_STEPS, settings, max_accelerators=1)
    state = stack.wait_for("the failure", lambda: failed(failing), DEADLINE_S)
    assert state["status_code"] == "user_code"
    assert "the examples are used up" in state["status_reason"]
    assert "LookupError" in state["error_traceback"]
    stack.wait_for("the end of its trainer", lambda: not stack.trainers_of(failing.id), DEADLINE_S)


def failed(job: FatedJob) -> dict[str, Any] | None:
    state: dict[str, Any] = job.stack.get(f"jobs/{job.id}/")
    return state if (state["status"], state["num_accelerators"]) == ("failed", 0) else None


def quarantined(stack: Stack, name: str) -> dict[str, Any] | None:
    """Return a node if it is in quarantine."""
    (node,) = (node for node in stack.get("nodes/")["results"] if node["name"] == name)
    return dict(node) if node["quarantined_until"] else None


def given_to(job: FatedJob) -> list[tuple[datetime, str]]:
    """List when a job was given its accelerators, and on which nodes."""
    allocations = job.stack.get(f"jobs/{job.id}/allocations/")["allocations"]
    return [(datetime.fromisoformat(row["granted_at"]), row["node"]) for row in allocations]


@pytest.mark.nightly  # tests/agents/trainer/peers/test_peer_failures.py has these phases one by one
def test_lost_in_many_phases(stack: Stack, undisturbed: dict[str, Any]) -> None:
    job = FatedJob(stack, "phases", NUM_STEPS, PACE, min_accelerators=2, max_accelerators=3)
    # Fates are set before the loss that leads to the growth in which they are met.
    slots = job.slots(3)
    job.fates.set("rehearsing", slots[1])
    job.lose("reducing", slots[2])
    job.goes_on_without(job.meets("rehearsing").slot)
    slots = job.slots(3)
    job.fates.set_joiner("joining", slots)
    job.fates.set("computing", slots[2])
    job.goes_on_without(job.meets("joining").slot)
    leader, first, second = job.slots(3)
    job.fates.set("recovering", first)
    job.hit([second])
    job.meets("recovering")
    job.goes_on_without(first, second)
    assert job.events("held")
    job.lose("evaluating", leader)
    hung = job.slots(2)[-1]
    lost = job.lose("computing", hung, signal.SIGSTOP)["lost"]
    assert {row["code"] for row in lost if row["slot"] == hung} == {"crash"}
    job.fates.set("saving", job.slots(2)[0])
    job.fates.go()
    job.meets("saving")
    assert ending(job) == undisturbed
    assert job.state()["restarts"] == 0
    assert not job.events("digest_mismatch")


@pytest.mark.nightly  # tests/jobs/failures has these without trainers, tests/agents with one agent
def test_cut_off_asleep_away_and_all_lost(stack: Stack, undisturbed: dict[str, Any]) -> None:
    job = FatedJob(stack, "cuts", NUM_STEPS, PACE, max_accelerators=3)
    control_plane_away(job)
    cut_off_from_peers(job)
    cut_off_from_the_control_plane(job)
    asleep(job)
    assert job.state()["restarts"] == 0
    # Nobody is left to say that those beside this agent are gone, until it is started again.
    beside, _ = node_signal(stack, job, "node-a", signal.SIGKILL)
    job.hit({*stack.trainers_of(job.id)} - {*beside})
    stack.wait_for("the restart", lambda: job.state()["restarts"] == 1, DEADLINE_S)
    job.slots(1)
    assert ending(job) == undisturbed
    assert job.state()["restarts"] == 1
    assert not job.events("digest_mismatch")


def cut_off_from_peers(job: FatedJob) -> None:
    """Let no packets reach a trainer whose agent talks to the control plane."""
    victim = job.slots(3)[-1]
    job.fates.cut(victim)
    lost = job.goes_on_without(victim)["lost"]
    assert [(row["slot"], row["code"]) for row in lost] == [(victim, "unreachable")]


def cut_off_from_the_control_plane(job: FatedJob) -> None:
    """Let the leader's agent not be heard; its trainers go on with the others for a lease."""
    slots, node = spread(job)
    num_epochs = len(job.epochs())
    cut = job.stack.directory / f"cut-{node}"
    cut.touch()
    lost = [slot for slot in slots if job.stack.node_of(job.id, slot) == node]
    data = job.goes_on_without(*lost)
    assert {row["code"] for row in data["lost"]} <= {"node_lost", "unreachable"}
    cut.unlink()
    # The leader's own reports of these epochs are refused.
    job.stack.wait_for("more epochs", lambda: len(job.epochs()) > num_epochs + 2, DEADLINE_S)
    assert [row[0] for row in job.epochs()] == [*range(len(job.epochs()))]


def asleep(job: FatedJob) -> None:
    """Let the leader's node, agent and trainers, sleep for longer than its lease and wake up."""
    slots, node = spread(job)
    agent = job.stack.supervisor.pids()[node]
    sleeping, _ = node_signal(job.stack, job, node, signal.SIGSTOP)
    try:
        job.goes_on_without(*(slot for slot in sleeping if slot in slots), revives=False)
    finally:
        send(agent, signal.SIGCONT)
        job.hit(sleeping, signal.SIGCONT)
    job.stack.wait_for(
        "those who slept to be ended",
        lambda: not {*sleeping} & {*job.stack.trainers_of(job.id)},
        DEADLINE_S,
    )


def control_plane_away(job: FatedJob) -> None:
    """Take the control plane away for longer than any lease; then a trainer is lost as well."""
    slots = job.slots(3)
    num_epochs = len(job.epochs())
    site_kill(job.stack)
    until = time.monotonic() + AWAY_S

    def is_over() -> bool:
        return time.monotonic() > until and not {*SITE} & {*job.stack.supervisor.pids()}

    job.stack.wait_for("all leases to end", is_over, 2 * AWAY_S, revives=False)
    assert {*slots} <= {*job.stack.trainers_of(job.id)}
    job.hit(slots[1:2])
    job.stack.wait_for("the control plane", lambda: answers(job.stack), DEADLINE_S)
    job.goes_on_without(slots[1])
    assert len(job.epochs()) > num_epochs + 2
    # Nobody else was lost over it.
    assert {*slots[:1], *slots[2:]} <= {*job.stack.trainers_of(job.id)}


def spread(job: FatedJob) -> tuple[list[int], str]:
    """Wait until the job is on both nodes; give its slots and the node of its leader."""
    found: list[list[int]] = []

    def is_spread() -> bool:
        found[:] = [job.slots(2)]
        return len({job.stack.node_of(job.id, slot) for slot in found[0]}) == 2

    job.stack.wait_for(f"{job.name} on both nodes", is_spread, DEADLINE_S)
    return found[0], job.stack.node_of(job.id, found[0][0])
