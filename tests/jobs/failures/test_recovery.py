"""Losing trainers: the survivors go on at once, whatever was under way."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest

from controlplane.core.protocol.wire import ReportKind
from controlplane.core.values.lifecycle import JobStatus
from jobs.models import Allocation, Event, Job, JobAttempts, Node
from jobs.selectors.desired_state.state import wanted_state
from jobs.services.cluster.nodes import node_remove, nodes_expire
from jobs.services.submission.job_actions import job_pause
from tests.jobs.losses import (
    A,
    B,
    C,
    D,
    event,
    fresh,
    lose_node,
    newest,
    newest_slot,
    slots,
    training,
)
from tests.jobs.world import World
from tests.support.builders import job_make

pytestmark = pytest.mark.django_db


def end_here(*_: Any) -> None:
    """Play a process that is killed."""
    raise SystemExit


class TestSurvivors:
    def test_they_go_on_at_once_in_a_generation_of_their_own(self) -> None:
        world, job = training()
        before = newest(job)
        world.kill(job, C)
        after = newest(job)
        assert (after.number, after.phase, after.previous) == (before.number + 1, "switching", 1)
        assert slots(after) == [A, B, D]
        membership = after.membership
        assert (membership.recover, membership.parked, membership.restore) == (
            True, False, False,
        )  # fmt: skip
        assert membership.source_slot is None
        assert membership.cluster_addresses == before.membership.cluster_addresses
        assert [member.virtual_nodes for member in membership.members] == [(0,), (1,), (2, 3)]
        assert (fresh(job).status, fresh(job).restarts) == ("running", 0)
        orders = [row for n in world.nodes for row in wanted_state(n.node).trainers]
        assert sorted((row.slot, row.go, row.membership.recover) for row in orders) == [
            (A, True, True), (B, True, True), (D, True, True),
        ]  # fmt: skip

    def test_the_next_step_completes_the_event(self) -> None:
        world, job = training()
        world.kill(job, B, C)
        world.now_s += 0.5
        world.follow_all()
        assert newest(job).phase == "active"
        assert not Event.objects.filter(job=job, kind="recovered").exists()
        world.train(job)
        told = event(job, "recovered")
        assert [row["slot"] for row in told.data["lost"]] == [B, C]
        assert {row["code"] for row in told.data["lost"]} == {"crash"}
        assert (told.data["num_before"], told.data["num_after"]) == (4, 2)
        # The played leader's clock stands still, so the step counts as done at once.
        assert told.data["to_first_step_s"] == 0.0
        assert "went on from step 10 in memory" in told.message
        assert "slot 4 on played0 ended with status -9 (SIGKILL)" in told.message
        assert "slot 8 on played1 ended with status -9 (SIGKILL)" in told.message

    def test_the_leader_is_followed_by_the_senior(self) -> None:
        world, job = training()
        world.kill(job, A)
        assert newest(job).membership.leader_slot == B
        world.follow_all()
        assert newest(job).phase == "active"

    def test_the_job_grows_again_by_a_planned_resize(self) -> None:
        world, job = training()
        world.kill(job, D)
        world.settle(4)
        assert slots(newest(job)) == [A, B, C, newest_slot(job)]
        assert newest(job).phase == "active"
        assert not newest(job).membership.recover

    def test_a_lost_node_costs_its_trainers_only(self) -> None:
        world, job = training()
        assert lose_node(world, world.nodes[1]) == {job.pk}
        assert slots(newest(job)) == [A, B]
        assert [row["code"] for row in newest(job).lost] == ["node_lost", "node_lost"]
        world.follow(world.nodes[0])
        assert newest(job).phase == "active"
        assert fresh(job).restarts == 0

    def test_a_lost_node_whose_trainers_nobody_came_to_is_gone_through_later(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world, job = training()
        with monkeypatch.context() as patch:
            patch.setattr("jobs.services.cluster.nodes.node_trainers_lose", end_here)
            with pytest.raises(SystemExit):
                lose_node(world, world.nodes[1])
        assert slots(newest(job)) == [A, B, C, D]
        assert nodes_expire(world.now) == (set(), {job.pk})
        assert slots(newest(job)) == [A, B]
        assert nodes_expire(world.now) == (set(), set())

    def test_one_that_cannot_recover_keeps_no_other_job_from_it(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Rows that no move of the product makes: a membership that declares no slot."""
        world = World()
        broken = job_make(min_accelerators=3, max_accelerators=3)
        other = job_make(min_accelerators=1, max_accelerators=1)
        world.settle(8)
        shared = Node.objects.get(accelerators__allocations__in=other.allocations.all())
        assert broken.allocations.filter(accelerator__node=shared).count() == 1
        row = newest(broken)
        row.membership = dataclasses.replace(row.membership, cluster_addresses=())
        row.save()
        jobs = node_remove(shared, world.now, actor="user:root")
        assert jobs == {broken.pk, other.pk}
        assert not other.allocations.filter(released_at=None).exists()
        assert f"job {broken.pk} does not recover" in caplog.text

    def test_a_loss_while_recovering_makes_a_newer_recovery(self) -> None:
        world, job = training()
        world.kill(job, D)
        first = newest(job)
        world.kill(job, A)
        second = newest(job)
        first.refresh_from_db()
        assert first.phase == "aborted"
        assert (slots(second), second.membership.leader_slot) == ([B, C], B)
        assert [row["slot"] for row in second.lost] == [D, A]
        world.follow_all()
        assert newest(job).phase == "active"
        world.train(job)
        assert event(job, "recovered").data["num_before"] == 4

    def test_the_dead_are_not_missed_twice(self) -> None:
        world, job = training()
        world.kill(job, D)
        number = newest(job).number
        world.stall(job, A, D)  # of the generation before: its orders are on their way
        world.follow_all()
        assert newest(job).number == number


class TestResizesUnderWay:
    def grow(self, **other: Any) -> tuple[World, Job]:
        """Ask a job of two, on the first node, to grow by two."""
        world, job = training(max_accelerators=2, **other)
        world.cap(job, 4)
        assert newest(job).phase == "preparing"
        return world, job

    def test_ready_joiners_help_and_the_others_are_stopped(self) -> None:
        world, job = self.grow()
        asked = newest(job)
        joiners = [slot for slot in slots(asked) if slot not in (A, B)]
        (played,) = {n.node.pk: n for n in world.nodes if not n.trainers}.values()
        world.follow(played, boots=False)
        ready = next(t for t in played.trainers.values() if t.slot == joiners[0])
        ready.is_told_ready = True
        played.say(ready, ReportKind.READY, boot_s=1.0, build_s=1.0, trace_s=1.0)
        world.tell(played)
        world.kill(job, A)
        asked.refresh_from_db()
        assert asked.phase == "aborted"
        assert slots(newest(job)) == [B, joiners[0]]
        assert job.allocations.get(slot=joiners[1]).stop_requested_at is not None
        world.follow_all()
        assert newest(job).phase == "active"

    def test_a_switch_under_way_is_given_up_for_all_who_live(self) -> None:
        world, job = self.grow()
        (played,) = [n for n in world.nodes if not n.trainers]
        world.follow(played)
        assert newest(job).phase == "switching"
        joiners = slots(newest(job))[2:]
        world.kill(job, joiners[A])
        assert slots(newest(job)) == [A, B, joiners[1]]
        world.follow_all()
        assert newest(job).phase == "active"

    def test_who_was_to_leave_stays_when_the_others_are_lost(self) -> None:
        world, job = training()
        world.cap(job, 2)
        assert (newest(job).phase, slots(newest(job))) == ("switching", [A, B])
        world.kill(job, A, B)
        assert slots(newest(job)) == [C, D]
        assert not job.allocations.filter(
            released_at=None, release_requested_at__isnull=False
        ).exists()
        world.follow_all()
        assert newest(job).phase == "active"

    def test_those_who_go_on_are_counted_of_those_who_trained(self) -> None:
        """A shrink from four to two was under way; it is given up, so three go on, of four."""
        world, job = training()
        job_make(min_accelerators=2)
        world.cycle()
        assert (newest(job).phase, slots(newest(job))) == ("switching", [A, B])
        world.kill(job, A)
        assert slots(newest(job)) == [B, C, D]
        assert event(job, "recovery_requested").message.startswith("3 of 4 trainers go on: ")

    def test_a_lost_source_of_a_preemption_is_survived_and_asked_again(self) -> None:
        world, job = training()
        job_pause(job.pk, world.now, actor="user:x")
        assert (fresh(job).status, newest(job).num_members) == ("preempting", 0)
        world.kill(job, newest(job).membership.source_slot)
        assert (fresh(job).status, slots(newest(job))) == ("running", [B, C, D])
        world.until(lambda: fresh(job).status == "paused")
        assert job.artifacts.filter(name="checkpoint.npz").exists()
        assert fresh(job).restarts == 0

    def test_who_dies_after_the_state_is_saved_is_not_missed(self) -> None:
        world, job = training(num_nodes=2)
        job_pause(job.pk, world.now, actor="user:x")
        world.follow(world.nodes[0])  # slots 0, which saves, and 1
        number = newest(job).number
        world.kill(job, C, D)
        assert newest(job).number == number
        assert fresh(job).status == "paused"


class TestTooFew:
    def test_they_wait_with_their_state_and_say_so(self) -> None:
        world, job = training(min_accelerators=3)
        lose_node(world, world.nodes[1])
        assert newest(job).membership.parked
        job = fresh(job)
        assert (job.status, job.status_code) == ("running", "below_minimum")
        assert "2 of at least 3 accelerators are left" in job.status_reason
        assert event(job, "held").data == {"num_left": 2, "min_accelerators": 3}
        world.follow(world.nodes[0])
        assert newest(job).phase == "active"
        for _ in range(3):
            world.cycle()
            world.follow(world.nodes[0])
        assert (slots(newest(job)), newest(job).phase) == ([A, B], "active")

    def test_they_go_on_when_there_is_room_again(self) -> None:
        world, job = training(min_accelerators=3)
        world.kill(job, B, C)
        world.follow_all()
        assert newest(job).membership.parked
        world.until(lambda: newest(job).num_members == 4 and newest(job).phase == "active")
        assert fresh(job).status_code == ""
        assert newest(job).membership.source_slot == A
        assert fresh(job).restarts == 0

    def test_they_make_room_for_others_by_saving_first(self) -> None:
        world, job = training(min_accelerators=3)
        lose_node(world, world.nodes[1])
        world.follow(world.nodes[0])
        small = job_make(max_accelerators=1)
        for _ in range(6):
            world.cycle()
            world.follow(world.nodes[0])
        assert fresh(job).status == "pending"
        assert job.artifacts.filter(name="checkpoint.npz").exists()
        assert fresh(small).status == "starting"

    def test_two_that_wait_do_not_wait_for_each_other(self) -> None:
        world = World(num_nodes=2)
        one = job_make(min_accelerators=2, max_accelerators=2)
        two = job_make(min_accelerators=2, max_accelerators=2)
        world.settle(6)
        world.train(one)
        world.train(two)
        for job in (one, two):
            world.kill(job, slots(newest(job))[0])
        assert [fresh(job).status_code for job in (one, two)] == ["below_minimum"] * 2
        # The lost accelerators stay away for good, so that there is no room for both.
        for row in Allocation.objects.filter(lost_code="crash").select_related("accelerator"):
            row.accelerator.is_present = False
            row.accelerator.save()
        world.until(lambda: any(fresh(job).status == "pending" for job in (one, two)))
        world.settle(6)
        sizes = sorted(
            fresh(job).allocations.filter(released_at=None).count() for job in (one, two)
        )
        assert sizes == [0, 2]


class TestFirstGeneration:
    def test_those_who_are_left_start_without_the_lost(self) -> None:
        world = World(num_nodes=2)
        job = job_make()
        world.cycle()
        for played in world.nodes:
            world.follow(played, boots=False)
        world.kill(job, D)
        assert (newest(job).number, newest(job).phase) == (2, "preparing")
        assert slots(newest(job)) == [A, B, C]
        assert not newest(job).membership.recover
        for played in world.nodes:
            world.follow(played)
        world.follow_all()
        assert (newest(job).phase, fresh(job).restarts) == ("active", 0)

    def test_a_lost_node_before_the_first_step_costs_no_try(self) -> None:
        world = World(num_nodes=2)
        job = job_make(min_accelerators=4)
        world.cycle()
        world.follow_all()
        assert newest(job).phase == "switching"
        lose_node(world, world.nodes[1])
        job = fresh(job)
        assert (job.status, job.status_code) == ("pending", "node_lost")
        assert not JobAttempts.objects.exclude(restarts=0).exists()

    def test_a_loss_among_those_told_to_begin_is_a_recovery(self) -> None:
        world = World(num_nodes=2)
        job = job_make()
        world.cycle()
        world.follow_all()
        assert newest(job).phase == "switching"
        world.kill(job, A)
        assert newest(job).membership.recover
        assert newest(job).previous is None
        world.follow_all()
        assert (newest(job).phase, slots(newest(job))) == ("active", [B, C, D])


class TestTheEnd:
    def test_a_loss_after_the_leaders_last_word_does_not_matter(self) -> None:
        world, job = training()
        played, leader = world.leader_of(job)
        played.say(leader, ReportKind.FINISHED, step=100, epoch=1, reason="steps", metrics={})
        world.tell(played)
        world.kill(job, C, D)
        assert fresh(job).status == JobStatus.FINISHED
        assert newest(job).number == 1

    def test_a_loss_just_before_it_sends_the_others_home(self) -> None:
        world, job = training()
        world.kill(job, D)
        played, leader = world.leader_of(job)
        played.say(leader, ReportKind.FINISHED, 1, step=100, epoch=1, reason="steps", metrics={})
        world.tell(played)
        assert fresh(job).status == JobStatus.FINISHED
        assert newest(job).phase == "aborted"
        waiting = job.allocations.filter(released_at=None, stop_requested_at__isnull=False)
        assert sorted(waiting.values_list("slot", flat=True)) == [B, C]

    def test_a_lost_leader_with_results_to_write_is_survived(self) -> None:
        world, job = training()
        world.kill(job, A)
        world.follow_all()
        assert (fresh(job).status, newest(job).phase) == ("running", "active")
        world.finish(job)
        assert fresh(job).status == JobStatus.FINISHED


def test_a_node_that_comes_back_ends_its_late_trainers() -> None:
    world, job = training()
    late = world.nodes[1]
    world.now_s += 100
    Node.objects.exclude(id=late.node.pk).update(last_seen_at=world.now)
    nodes_expire(world.now)
    world.follow(world.nodes[0])
    assert newest(job).phase == "active"
    Node.objects.filter(id=late.node.pk).update(
        status="online", last_seen_at=world.now + timedelta(seconds=1)
    )
    trainer = next(iter(late.trainers.values()))
    late.say(trainer, ReportKind.SWITCHED, newest(job).number, step=11, pause_s=0.0, joined=False)
    before = newest(job).num_switched
    world.tell(late)
    assert len(late.stale) == 2
    assert newest(job).num_switched == before
    world.follow(late)
    assert not late.trainers


class TestEpochs:
    def tell(self, world: World, job: Job, epoch: int) -> None:
        played, leader = world.leader_of(job)
        logs = {"loss": 1.0 / (epoch + 1)}
        played.say(leader, ReportKind.EPOCH, epoch=epoch, step=4 * (epoch + 1), logs=logs)
        world.tell(played)

    def test_who_leads_next_is_asked_for_those_that_nobody_has_heard_of(self) -> None:
        world, job = training()
        for epoch in (0, 1, 3):
            self.tell(world, job, epoch)
        assert newest(job).membership.epochs_known == 0  # from its start
        world.kill(job, A)
        assert newest(job).membership.epochs_known == 2

    def test_one_that_is_told_again_stays_as_it_was(self) -> None:
        world, job = training()
        for epoch in (0, 1):
            self.tell(world, job, epoch)
        before = list(job.epoch_reports.values())
        world.kill(job, A)
        world.follow_all()
        world.now_s += 5.0
        self.tell(world, job, 0)
        assert list(job.epoch_reports.values()) == before
        assert (fresh(job).epoch, fresh(job).metrics) == (2, {"loss": 0.5})
        self.tell(world, job, 2)
        assert (fresh(job).epoch, job.epoch_reports.count()) == (3, 3)

    def test_a_leader_that_stays_is_not_asked(self) -> None:
        world, job = training(max_accelerators=1)
        world.cap(job, 2)
        assert newest(job).num_members == 2
        assert newest(job).membership.epochs_known is None
