"""Losing all trainers, or again and again: a new start, or the end with a reason."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from controlplane.core.protocol.wire import ReportKind
from jobs.models import Job, Node
from jobs.selectors.desired_state.state import wanted_state
from jobs.services.failures import timeouts
from jobs.services.failures.timeouts import generations_expire
from tests.jobs.losses import (
    A,
    B,
    C,
    D,
    event,
    fresh,
    lose_node,
    newest,
    slots,
    training,
)
from tests.jobs.world import World
from tests.support.builders import job_make
from tests.support.rows import file_store

pytestmark = pytest.mark.django_db


def test_a_job_that_cannot_be_given_up_does_not_hold_up_others(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, recover = World(2), timeouts.job_recover
    first, second = (job_make(max_accelerators=2) for _ in range(2))
    world.cycle()
    world.now_s += settings.PREPARE_LIMIT_S + 1

    def fail(job: Job, now: datetime) -> bool:
        assert job.pk != first.pk, "a fault of its rows"
        return recover(job, now)

    with monkeypatch.context() as patched:
        patched.setattr(timeouts, "job_recover", fail)
        assert generations_expire(world.now) == {second.pk}
    assert generations_expire(world.now) == {first.pk}


class TestAllLost:
    def test_the_job_starts_anew(self) -> None:
        world, job = training()
        world.kill(job, A, B, C, D)
        job = fresh(job)
        assert (job.status, job.status_code, job.restarts) == ("pending", "crash", 1)
        assert "ended with status -9 (SIGKILL)" in job.status_reason
        world.until(lambda: fresh(job).status == "starting" and newest(job).phase == "active")

    def test_progress_makes_up_for_restarts(self, settings: Any) -> None:
        settings.RESTART_LIMIT = 1
        world, job = training(num_nodes=1)
        for _ in range(2):
            world.kill(job, *slots(newest(job)))
            assert fresh(job).status == "pending"
            world.until(lambda: newest(job).phase == "active")
            world.train(job)
        assert (fresh(job).restarts, fresh(job).attempts.restarts) == (2, 1)

    def test_without_progress_it_is_given_up(self, settings: Any) -> None:
        settings.RESTART_LIMIT = 2
        world, job = training(num_nodes=1)
        for _ in range(2):
            lose_node(world, world.nodes[0])
            assert fresh(job).status == "pending"
            Node.objects.update(status="online", last_seen_at=world.now)
            world.until(lambda: newest(job).phase == "active")
        lose_node(world, world.nodes[0])
        assert (fresh(job).status, fresh(job).status_code) == ("failed", "restart_limit")

    def test_joiners_that_only_listened_are_not_to_blame(self) -> None:
        world, job = training(max_accelerators=2)
        world.cap(job, 4)
        (other,) = [played for played in world.nodes if not played.trainers]
        (first,) = [played for played in world.nodes if played.trainers]
        world.follow(other)
        world.follow(first)  # the old ones switch, the joiners have not got their state yet
        assert (newest(job).phase, newest(job).num_switched) == ("active", 2)
        listener = slots(newest(job))[2]
        world.kill(job, A, B)
        assert slots(newest(job))[0] == listener
        told = {"code": "state_lost", "message": "nobody has it", "traceback": ""}
        other.say(other.trainers[job.pk, listener], ReportKind.FAILED, **told)
        world.tell(other)
        job = fresh(job)
        assert (job.status, job.status_code, job.restarts) == ("pending", "state_lost", 1)
        assert "slot 0 on played0 ended with status -9 (SIGKILL)" in job.status_reason
        assert "nobody was left who had the job's state" in job.status_reason
        assert not job.allocations.filter(released_at=None, stop_requested_at=None).exists()
        listened = job.allocations.get(slot=listener).accelerator_id
        assert not job.start_failures.filter(accelerator=listened).exists()
        world.until(lambda: newest(job).phase == "active" and newest(job).num_switched == 4)


class TestCrashLoops:
    def test_a_job_that_crashes_without_a_new_step_is_given_up(self, settings: Any) -> None:
        settings.CRASH_LIMIT = 3
        world, job = training()
        for _ in range(3):
            world.kill(job, slots(newest(job))[-1], exit_code=-11)
            assert fresh(job).status == "running"
            world.settle(4)
        world.kill(job, slots(newest(job))[-1], exit_code=-11)
        job = fresh(job)
        assert (job.status, job.status_code) == ("failed", "crash_loop")
        assert "4 times in a row" in job.status_reason
        assert "step 10" in job.status_reason
        assert "(SIGSEGV)" in job.status_reason

    def test_trainers_that_crash_together_are_one_crash(self) -> None:
        world, job = training()
        world.kill(job, A, C)
        world.kill(job, B)
        assert fresh(job).attempts.crashes == 1

    def test_a_new_step_in_between_forgives(self, settings: Any) -> None:
        settings.CRASH_LIMIT = 1
        world, job = training()
        for _ in range(2):
            world.kill(job, slots(newest(job))[-1])
            world.settle(4)
            world.train(job)
        assert fresh(job).status == "running"

    def test_recoveries_without_a_step_end_in_a_new_start(self, settings: Any) -> None:
        settings.RECOVERY_LIMIT = 2
        world, job = training(num_nodes=1)
        for _ in range(2):
            for slot in slots(newest(job)):
                world.stall(job, slot)
            world.follow_all()
            assert newest(job).phase == "active"
        for slot in slots(newest(job)):
            world.stall(job, slot)
        assert (fresh(job).status, fresh(job).status_code) == ("pending", "recovery_limit")


class TestTimeouts:
    def test_who_did_not_follow_a_recovery_is_left_behind(self, settings: Any) -> None:
        world, job = training()
        world.kill(job, D)
        world.follow(world.nodes[0])
        assert newest(job).phase == "active"  # the leader has switched; slot 2 never will
        world.kill(job, A)
        world.follow(world.nodes[0])
        world.now_s += settings.RECOVER_LIMIT_S + 1
        assert newest(job).phase == "active"

    def test_a_stuck_recovery_goes_on_with_those_who_switched(self, settings: Any) -> None:
        world, job = training()
        world.kill(job, D)
        world.follow(world.nodes[1])  # slot 2 follows, the leader does not
        assert newest(job).phase == "switching"
        world.now_s += settings.RECOVER_LIMIT_S + 1
        assert generations_expire(world.now) == {job.pk}
        assert slots(newest(job)) == [C]
        assert job.allocations.get(slot=A).lost_code == "timeout"

    def test_where_nobody_followed_the_job_starts_anew(self, settings: Any) -> None:
        world, job = training()
        world.kill(job, D)
        world.now_s += settings.RECOVER_LIMIT_S + 1
        assert generations_expire(world.now) == {job.pk}
        assert (fresh(job).status, fresh(job).status_code) == ("pending", "timeout")

    def test_a_late_first_joiner_is_done_without(self, settings: Any) -> None:
        world = World(num_nodes=2)
        job = job_make()
        world.cycle()
        world.follow(world.nodes[0])
        world.follow(world.nodes[1], boots=False)
        world.now_s += settings.PREPARE_LIMIT_S + 1
        assert generations_expire(world.now) == {job.pk}
        assert (newest(job).phase, slots(newest(job))) == ("switching", [A, B])


class TestCheckpointsBesideTheTraining:
    def test_they_are_told_and_change_nothing(self, settings: Any) -> None:
        world, job = training()
        assert wanted_state(world.nodes[0].node).trainers[0].spec.checkpoint_every_s == 300
        played, leader = world.leader_of(job)
        file_store(job, "checkpoint.npz", b"state", world.now)
        played.say(
            leader, ReportKind.CHECKPOINTED, step=8, epoch=0, file="checkpoint-8.npz",
            sha256="0" * 64, bytes=10, is_last=False,
        )  # fmt: skip
        world.tell(played)
        assert job.artifacts.get().step == 8
        assert event(job, "checkpointed").data["step"] == 8
        assert job.allocations.get(slot=leader.slot).left_at is None
        world.kill(job, leader.slot)
        assert leader.slot not in slots(newest(job))
        assert newest(job).membership.recover
