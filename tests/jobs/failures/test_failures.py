"""Failures of trainers and expired waits, and the control plane's answers to them."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.core.protocol.wire import ReportKind
from controlplane.core.values.lifecycle import JobStatus
from jobs.models import Allocation, Event, Job, Node
from jobs.selectors.desired_state.state import wanted_state
from jobs.services.cluster import nodes
from jobs.services.cluster.nodes import nodes_expire
from jobs.services.failures.timeouts import generations_expire
from jobs.services.reports.batches import batch_take
from jobs.services.submission.job_actions import job_cancel
from tests.jobs.world import World, settled
from tests.support.builders import at, job_make, node_make

pytestmark = pytest.mark.django_db


def fail(world: World, job: Job, code: str, slot: int = 0) -> None:
    played, trainer = next(row for row in world.trainers_of(job) if row[1].slot == slot)
    played.say(trainer, ReportKind.FAILED, code=code, message="it broke", traceback="Trace...")
    played.say(trainer, ReportKind.EXITED, exit_code=3)
    del played.trainers[job.pk, slot]
    batch_take(played.node, played.batch(), world.now)


def test_the_users_own_error_ends_the_job_with_its_traceback() -> None:
    world, job = settled()
    fail(world, job, "user_code")
    job.refresh_from_db()
    assert (job.status, job.status_code, job.status_reason) == ("failed", "user_code", "it broke")
    assert job.error_traceback == "Trace..."
    assert job.ended_at is not None
    world.settle(2)
    assert not Allocation.objects.filter(released_at=None).exists()


@pytest.mark.parametrize("code", ["peer_lost", "port_in_use", "internal"])
def test_other_failures_cost_the_trainer_and_not_the_job(code: str) -> None:
    world, job = settled()
    fail(world, job, code)
    job.refresh_from_db()
    assert (job.status, job.restarts) == ("starting", 0)
    generation = job.generations.get(number=2)
    assert [row["code"] for row in generation.lost] == [code]
    assert generation.membership.leader_slot == 4
    world.settle(8)
    now_open = set(job.allocations.filter(released_at=None).values_list("slot", flat=True))
    assert len(now_open) == 2
    assert 0 not in now_open


def test_a_crash_is_told_by_the_exit_alone() -> None:
    world, job = settled(max_accelerators=1)
    world.kill(job, 0)
    job.refresh_from_db()
    assert (job.status, job.status_code) == ("pending", "crash")
    assert "ended with status -9" in job.status_reason


def test_a_job_is_given_up_after_some_restarts(settings: Any) -> None:
    settings.RESTART_LIMIT = 1
    world, job = settled(max_accelerators=1)
    fail(world, job, "internal", slot=world.trainers_of(job)[0][1].slot)
    world.settle(8)
    fail(world, job, "internal", slot=world.trainers_of(job)[0][1].slot)
    job.refresh_from_db()
    assert (job.status, job.status_code) == ("failed", "restart_limit")
    world.settle(3)
    assert not Allocation.objects.filter(released_at=None).exists()


@pytest.mark.parametrize(
    ("code", "taken"),
    [("node_lost", "internal"), ("odd", "internal"), ("state_misfit", "state_misfit")],
)
def test_a_trainer_reports_no_loss_that_is_found_out_here(code: str, taken: str) -> None:
    world = World(num_nodes=1, num_accelerators=1)
    job = job_make(max_accelerators=1)
    world.cycle()
    world.follow(world.nodes[0], boots=False)
    fail(world, job, code, slot=0)
    job.refresh_from_db()
    assert (job.status, job.status_code) == ("pending", taken)
    assert job.attempts.restarts == 1


def test_a_joiner_that_fails_does_not_touch_the_members() -> None:
    world, job = settled(max_accelerators=1)
    member = set(job.allocations.values_list("slot", flat=True))
    world.cap(job, 2)
    (played,) = world.nodes
    world.follow(played, boots=False)
    (joiner,) = set(job.allocations.values_list("slot", flat=True)) - member
    fail(world, job, "port_in_use", slot=joiner)
    job.refresh_from_db()
    assert (job.status, job.restarts) == ("starting", 0)
    open_slots = set(job.allocations.filter(released_at=None).values_list("slot", flat=True))
    assert open_slots == member
    assert Event.objects.filter(job=job, kind="resize_given_up").exists()


def test_a_report_of_odd_shape_does_not_keep_out_the_others() -> None:
    world, job = settled()
    played, leader = world.leader_of(job)
    played.say(leader, ReportKind.STEPS, first_step="?")
    played.say(leader, ReportKind.EPOCH, epoch=0, step=9, logs={"loss": None, "acc": 0.5})
    batch_take(played.node, played.batch(), world.now)
    job.refresh_from_db()
    assert job.metrics == {"loss": None, "acc": 0.5}
    assert job.step_reports.count() == 0


def test_two_states_that_differ_are_told() -> None:
    world, job = settled()
    played, trainer = world.trainers_of(job)[0]
    played.say(trainer, ReportKind.DIGEST, step=0, sha256="f" * 64, role="after")
    batch_take(played.node, played.batch(), world.now)
    event = Event.objects.get(job=job, kind="digest_mismatch")
    assert event.data["got"] == "f" * 64


def test_a_finished_job_waits_for_its_trainers_but_not_for_ever(settings: Any) -> None:
    world, job = settled()
    played, leader = world.leader_of(job)
    played.say(leader, ReportKind.FINISHED, step=100, epoch=1, reason="steps", metrics={})
    batch_take(played.node, played.batch(), world.now)
    assert len(wanted_state(played.node).trainers) == 2
    assert generations_expire(world.now) == set()
    world.now_s += settings.LEAVE_LIMIT_S + 1
    assert generations_expire(world.now) == {job.pk}
    assert wanted_state(played.node).trainers == ()


def test_a_job_that_finishes_before_it_switches_sends_its_joiners_away() -> None:
    world, job = settled(max_accelerators=1)
    world.cap(job, 2)
    (played,) = world.nodes
    _, leader = world.leader_of(job)
    world.follow(played)
    assert job.generations.filter(phase="switching").exists()
    played.say(leader, ReportKind.FINISHED, step=100, epoch=1, reason="steps", metrics={})
    batch_take(played.node, played.batch(), world.now)
    assert [trainer.slot for trainer in wanted_state(played.node).trainers] == [leader.slot]
    assert job.generations.order_by("-number")[0].phase == "aborted"
    assert Job.objects.get(id=job.pk).status == JobStatus.FINISHED


def test_a_growth_that_never_gets_ready_is_given_up(settings: Any) -> None:
    world, job = settled(max_accelerators=1)
    world.cap(job, 2)
    world.now_s += settings.PREPARE_LIMIT_S + 1
    assert generations_expire(world.now) == {job.pk}
    job.refresh_from_db()
    assert (job.status, job.restarts) == ("starting", 0)
    assert len(wanted_state(world.nodes[0].node).trainers) == 1
    assert generations_expire(world.now) == set()


def test_a_switch_that_never_happens_restarts_the_job(settings: Any) -> None:
    world = World(num_nodes=1)
    job = job_make()
    world.cycle()
    (played,) = world.nodes
    world.follow(played)
    assert job.generations.get().phase == "switching"
    world.now_s += settings.SWITCH_LIMIT_S + 1
    assert generations_expire(world.now) == {job.pk}
    job.refresh_from_db()
    assert (job.status, job.restarts) == ("pending", 1)


def test_a_trainer_that_never_came_up_is_released_without_a_word() -> None:
    world = World(num_nodes=1)
    job = job_make()
    world.cycle()
    job_cancel(job.pk, world.now, actor="user:x")
    (played,) = world.nodes
    # The agent never saw the orders in between; its next heartbeat knows of nothing.
    batch_take(played.node, played.batch("an old version"), world.now)
    assert Allocation.objects.filter(released_at=None).count() == 2
    batch_take(played.node, played.batch(wanted_state(played.node).version), world.now)
    assert not Allocation.objects.filter(released_at=None).exists()


def test_a_node_is_lost_when_its_lease_is_over(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, _ = node_make(now=at(0))
    assert nodes_expire(at(settings.LEASE_S - 1)) == (set(), set())
    with monkeypatch.context() as patched:
        patched.setattr(nodes, "event_add", None)  # as if its worker was killed there
        with pytest.raises(TypeError):
            nodes_expire(at(settings.LEASE_S + 1))
    assert nodes_expire(at(settings.LEASE_S + 1)) == ({node.pk}, set())
    assert Node.objects.get().shown_status == "lost"
    assert Event.objects.filter(kind="node_lost").count() == 1
    assert nodes_expire(at(settings.LEASE_S + 1)) == (set(), set())


def test_a_leaver_that_crashes_after_the_switch_harms_nobody() -> None:
    world, job = settled()
    world.cap(job, 1)
    (played,) = world.nodes
    played_leader, leader = world.leader_of(job)
    (leaver,) = (t for _, t in world.trainers_of(job) if t is not leader)
    assert job.generations.get(number=2).phase == "switching"
    played.say(leader, ReportKind.SWITCHED, 2, step=5, pause_s=0.1, bytes_moved=0, joined=False)
    played.say(leaver, ReportKind.EXITED, exit_code=-11)
    del played.trainers[job.pk, leaver.slot]
    leader.generation = 2
    batch_take(played.node, played.batch(), world.now)
    assert played_leader is played
    job.refresh_from_db()
    assert (job.status, job.restarts) == ("starting", 0)
    assert job.generations.get(number=2).phase == "active"
    assert job.allocations.filter(released_at=None).count() == 1


def test_a_leaver_that_crashes_before_the_switch_is_a_loss() -> None:
    world, job = settled()
    world.cap(job, 1)
    world.kill(job, 4, exit_code=-11)
    job.refresh_from_db()
    assert (job.status, job.restarts) == ("starting", 0)
    recovery = job.generations.get(number=3)
    assert recovery.membership.slots == (0,)
    assert recovery.membership.recover
