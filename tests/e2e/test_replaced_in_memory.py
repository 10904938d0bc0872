"""A job that needs every accelerator loses a trainer and goes on from memory, others waiting."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.failures.hits import DEADLINE_S, FatedJob
from tests.e2e.stack import Stack

# `make test` loses a leader in test_whole_stack.py; tests/jobs/failures has these decisions.
pytestmark = [pytest.mark.nightly, pytest.mark.whole_stack, pytest.mark.timeout(600)]

NUM_STEPS = 300
PACE = {"pace_s": 0.1, "slow_from": 200}
#: What happens to a job whose state leaves memory, or that loses what it has.
STOPPED = ("preemption_requested", "preempted", "restart", "digest_mismatch", "failed")


def ending(job: FatedJob) -> dict[str, Any]:
    state = job.finish()
    return {"digest": state["digest"], "step": state["step"], "epochs": job.epochs()}


def allocations(job: FatedJob) -> list[dict[str, Any]]:
    """List the trainers that a job ever had, the first one first."""
    found = job.stack.get(f"jobs/{job.id}/allocations/")["allocations"]
    return sorted(found, key=lambda row: row["slot"])


@pytest.fixture(scope="module")
def undisturbed(stack: Stack) -> dict[str, Any]:
    """Train alone on one accelerator; give what the job ended with."""
    return ending(FatedJob(stack, "alone", NUM_STEPS, PACE, max_accelerators=1))


@pytest.mark.parametrize("is_leader", [True, False], ids=["leader", "follower"])
def test_a_trainer_is_replaced_where_it_was(
    stack: Stack, undisturbed: dict[str, Any], is_leader: bool
) -> None:
    name = "leader" if is_leader else "follower"
    job = FatedJob(
        stack, name, NUM_STEPS, PACE, min_accelerators=4, max_accelerators=4, priority=900
    )
    slots = job.slots(4)
    waiting = FatedJob(stack, f"{name}-waiting", NUM_STEPS, PACE, priority=100)
    stack.wait_for("the other job to wait", lambda: waiting.state()["policy_reason"], DEADLINE_S)
    victim = slots[0 if is_leader else -1]
    job.hit([victim])
    lost = job.goes_on_without(victim)
    assert (lost["num_before"], lost["num_after"]) == (4, 3)
    again = job.slots(4)
    (held,) = job.events("held")
    assert held["data"] == {"num_left": 3, "min_accelerators": 4}
    (new,) = {*again} - {*slots}
    places = {row["slot"]: (row["node"], row["accelerator"]) for row in allocations(job)}
    assert places[new] == places[victim]
    assert not allocations(waiting)
    assert ending(job) == undisturbed
    assert job.state()["restarts"] == 0
    assert not job.events(*STOPPED)
