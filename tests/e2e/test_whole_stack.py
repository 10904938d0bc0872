"""Every process of the product on PostgreSQL and Redis, asked by REST only.

All jobs here run the same code from the same seed for the same number of steps, so each of them has
to end with the digest of the one that trained undisturbed on one accelerator.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from tests.e2e.stack import Stack
from tests.e2e.submitted import RESIZE_DEADLINE_S, START_DEADLINE_S, Submitted, undisturbed_digest

pytestmark = [pytest.mark.whole_stack, pytest.mark.timeout(600)]


def test_resized_bereft_and_preempted_a_job_ends_like_the_undisturbed_one(stack: Stack) -> None:
    """3 → 2 → 3; an agent is killed at 2, the leader at 3; the neighbour is cancelled."""
    job = Submitted(stack, "moved", max_accelerators=3, priority=100)
    job.wait_until_trains_on(3, START_DEADLINE_S)
    neighbour = Submitted(stack, "neighbour", max_accelerators=2, priority=300)
    neighbour.wait_until_trains_on(2, START_DEADLINE_S)
    job.wait_until_trains_on(2, RESIZE_DEADLINE_S)
    kill_an_agent(stack, job)
    neighbour.do("cancel", reason="not needed any more")
    neighbour.wait_until_holds_nothing("cancelled", RESIZE_DEADLINE_S)
    expected = [(0, 3), (3, 2), (2, 3)]
    stack.wait_for("the growth", lambda: resized_counts(job) == expected, RESIZE_DEADLINE_S)
    for event in moves(job):
        check_resize_event(event)
    kill_the_leader(stack, job)
    job.wait_until_trains_on(3, RESIZE_DEADLINE_S)
    job.do("pause", reason="a break")
    job.wait_until_holds_nothing("paused", RESIZE_DEADLINE_S)
    stack.wait_for("the end of all trainers", lambda: not stack.trainer_pids(), 30)
    job.do("resume")
    job.go()
    finished = job.wait_until_finished()
    assert finished["digest"] == undisturbed_digest(stack)
    assert finished["restarts"] == 0


def kill_an_agent(stack: Stack, job: Submitted) -> None:
    """Kill an agent; the one that is started again takes up its trainers, which go on."""
    trainers = set(stack.trainer_pids())
    agent = stack.supervisor.pids()["node-b"]
    os.kill(agent, signal.SIGKILL)
    stack.wait_for("a new agent", lambda: stack.supervisor.pids().get("node-b", agent) != agent, 30)
    step = job.state()["step"]
    stack.wait_for("more steps", lambda: job.state()["step"] > step, RESIZE_DEADLINE_S)
    assert set(stack.trainer_pids()) == trainers


def kill_the_leader(stack: Stack, job: Submitted) -> None:
    """Kill the trainer that leads; the others go on without it, from memory."""
    leader = job.leader()
    os.kill(stack.trainers_of(job.id)[leader], signal.SIGKILL)
    stack.wait_for("the loss", lambda: job.events("recovered"), RESIZE_DEADLINE_S)
    (lost,) = job.events("recovered")[0]["data"]["lost"]
    assert lost["slot"] == leader


@pytest.mark.nightly  # the story above is its smaller one
def test_resized_and_preempted_jobs_end_like_the_undisturbed_one(stack: Stack) -> None:
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
    assert resized.wait_until_finished()["digest"] == undisturbed_digest(stack)
    assert resized_counts(resized) == [(0, 1), (1, 3), (3, 2), (2, 4)]
    neighbour.do("resume")
    neighbour.go()
    assert neighbour.wait_until_finished()["digest"] == undisturbed_digest(stack)
    for event in [*moves(resized), *moves(neighbour)]:
        check_resize_event(event)


def resized_counts(job: Submitted) -> list[tuple[int, int]]:
    """List the numbers of accelerators before and after; a busy machine also moves mere slices."""
    counts = [
        (event["data"]["num_before"], event["data"]["num_after"]) for event in job.events("resize")
    ]
    return [(before, after) for before, after in counts if before != after]


def moves(job: Submitted) -> list[dict[str, Any]]:
    """List the resizes of a job that was training before and after."""
    return [event for event in job.events("resize") if event["data"]["num_before"] > 0]


def check_resize_event(event: dict[str, Any]) -> None:
    """Check that a resize tells when it came about, how long it took and what it moved."""
    data = event["data"]
    assert data["requested_at"] <= data["ready_at"] <= data["switched_at"]
    assert 0 < data["pause_ms"] < 30_000
    assert len(data["digest_before"]) == 64
    assert data["digest_before"] == data["digest_after"]
    if data["num_after"] > data["num_before"]:
        assert data["bytes_moved"] > 0


@pytest.mark.nightly  # the first story kills an agent, too
def test_a_killed_agent_takes_its_trainers_up_again(stack: Stack) -> None:
    job = Submitted(stack, "orphaned", max_accelerators=4)
    job.wait_until_trains_on(4, START_DEADLINE_S)
    kill_an_agent(stack, job)
    job.go()
    finished = job.wait_until_finished()
    assert finished["digest"] == undisturbed_digest(stack)
    assert finished["restarts"] == 0


@pytest.mark.nightly  # the first story cancels a job, too
def test_a_cancelled_job_leaves_no_process_and_frees_its_accelerators(stack: Stack) -> None:
    job = Submitted(stack, "cancelled", max_accelerators=2)
    job.wait_until_trains_on(2, START_DEADLINE_S)
    job.do("cancel", reason="not needed any more")
    job.wait_until_holds_nothing("cancelled", RESIZE_DEADLINE_S)
    stack.wait_for("the end of all trainers", lambda: not stack.trainer_pids(), 30)
