"""Whole stories of jobs: the real services and policies, trainers that are played."""

from __future__ import annotations

import dataclasses
import hashlib
from datetime import timedelta

import pytest

from controlplane.core.protocol.node_messages import LogChunk
from controlplane.core.protocol.wire import ReportKind
from controlplane.core.values.lifecycle import GenerationPhase, JobStatus
from jobs.models import (
    Allocation,
    ClusterSetting,
    Event,
    Generation,
    Job,
    JobForecast,
    Node,
)
from jobs.selectors.forecast import expected_end_of
from jobs.services.cluster.cordons import Cordon, node_cordon
from jobs.services.cluster.nodes import nodes_expire
from jobs.services.reports.batches import batch_take
from jobs.services.scheduling.cycle import cycle_run
from jobs.services.submission.job_actions import job_cancel, job_pause, job_reprioritise, job_resume
from jobs.services.submission.standing import Standing
from tests.jobs.kinds_world import settled
from tests.jobs.losses import fresh
from tests.jobs.world import World, num_held
from tests.support.builders import at, job_make
from tests.support.present import present

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("time_for_forecasts")]
HOUR = timedelta(hours=1)


def test_a_job_starts_on_all_it_can_use_and_finishes() -> None:
    world = World()
    job = job_make(max_accelerators=3)
    settled(world, job, 3)
    assert fresh(job).status == JobStatus.STARTING
    world.train(job)
    assert fresh(job).status == JobStatus.RUNNING
    assert fresh(job).step == 10
    assert fresh(job).examples_per_s == 320.0
    world.finish(job)
    done = fresh(job)
    assert (done.status, done.metrics, done.digest) == (
        JobStatus.FINISHED,
        {"loss": 0.25},
        "d" * 64,
    )
    assert num_held(job) == 0
    assert [row.phase for row in job.generations.all()] == [GenerationPhase.CLOSED]


def test_a_job_whose_first_trainer_has_finished_is_not_resized_any_more() -> None:
    world = World()
    job = job_make(max_accelerators=4)
    settled(world, job, 4)
    world.train(job)
    leader = world.leader_of(job)[1]
    played, trainer = next(row for row in world.trainers_of(job) if row[1] is not leader)
    played.say(trainer, ReportKind.FINISHED, step=100, epoch=1, reason="steps")
    played.say(trainer, ReportKind.EXITED, exit_code=0)
    del played.trainers[trainer.job_id, trainer.slot]
    batch_take(played.node, played.batch(), world.now)
    assert num_held(job) == 3
    assert world.cycle() == set()
    world.finish(job)
    assert fresh(job).status == JobStatus.FINISHED
    assert job.generations.count() == 1


def test_a_second_job_shrinks_the_first_and_both_keep_their_slots() -> None:
    world = World()
    first = job_make()
    settled(world, first, 4)
    world.train(first)
    slots = {row.slot for row in first.allocations.all()}
    second = job_make()
    settled(world, second, 2)
    settled(world, first, 2)
    left = set(first.allocations.filter(released_at=None).values_list("slot", flat=True))
    assert left < slots
    assert {row.exit_code for row in first.allocations.exclude(released_at=None)} == {0}
    # When the first ends, the second grows over what it leaves.
    world.finish(first)
    settled(world, second, 4)


def test_every_resize_leaves_its_figures_in_an_event() -> None:
    world = World(num_nodes=1, num_accelerators=2)
    job = job_make(max_accelerators=1, num_virtual_nodes=4)
    settled(world, job, 1)
    world.train(job)
    Job.objects.filter(id=job.pk).update(max_accelerators=2)
    settled(world, job, 2)
    event = present(Event.objects.filter(job=job, kind="resize").first())
    data = event.data
    assert (data["num_before"], data["num_after"], data["step"]) == (1, 2, 10)
    assert (
        data["requested_at"] < data["ready_at"] <= data["switch_ordered_at"] < data["switched_at"]
    )
    assert (data["pause_ms"], data["bytes_moved"]) == (50.0, 4096)
    assert data["digest_before"] == data["digest_after"] != ""
    assert event.actor == "policy:weighted_fair"
    assert "1 → 2 accelerators at step 10, paused 50 ms" in event.message


def test_priority_moves_accelerators() -> None:
    world = World()
    low, high = job_make(priority=100), job_make(priority=100)
    settled(world, low, 2)
    settled(world, high, 2)
    job_reprioritise(high.pk, Standing(300), world.now, actor="user:root", reason="deadline")
    settled(world, high, 3)
    settled(world, low, 1)
    assert Event.objects.filter(job=high, kind="reprioritised").get().data == {
        "before": 100,
        "after": 300,
        "reason": "deadline",
    }


def test_pause_saves_the_state_and_resume_restores_it() -> None:
    world = World()
    job = job_make()
    settled(world, job, 4)
    world.train(job)
    assert fresh(job).policy_reason
    job_pause(job.pk, world.now, actor="user:owner")
    assert (fresh(job).status, fresh(job).policy_reason) == (JobStatus.PREEMPTING, "")
    world.until(lambda: fresh(job).status == JobStatus.PAUSED)
    assert num_held(job) == 0
    assert job.artifacts.get().step == 10
    world.settle(3)
    assert fresh(job).status == JobStatus.PAUSED
    job_resume(job.pk, world.now, actor="user:owner")
    settled(world, job, 4)
    newest = present(job.generations.order_by("-number").first())
    assert newest.membership.restore is True
    assert newest.membership.source_slot is None
    assert fresh(job).restarts == 0


def test_a_pause_during_a_switch_waits_for_its_end() -> None:
    world = World(num_nodes=1, num_accelerators=2)
    job = job_make(max_accelerators=1)
    settled(world, job, 1)
    Job.objects.filter(id=job.pk).update(max_accelerators=2)
    world.until(lambda: job.generations.filter(phase="switching").exists())
    job_pause(job.pk, world.now, actor="user:owner")
    assert fresh(job).pause_requested
    assert fresh(job).status != JobStatus.PREEMPTING
    world.until(lambda: fresh(job).status == JobStatus.PAUSED)
    assert not fresh(job).pause_requested


def test_cancel_ends_every_trainer() -> None:
    world = World()
    job = job_make()
    settled(world, job, 4)
    job_cancel(job.pk, world.now, actor="user:owner", reason="wrong data")
    assert fresh(job).status == JobStatus.CANCELLED
    assert num_held(job) == 4  # not free before the processes are gone
    world.until(lambda: num_held(job) == 0)
    assert set(job.allocations.values_list("exit_code", flat=True)) == {-15}
    assert not job.generations.filter(phase__in=["preparing", "switching", "active"]).exists()


def test_a_cancelled_jobs_accelerators_go_to_the_next_only_when_free() -> None:
    world = World(num_nodes=1, num_accelerators=2)
    first = job_make()
    settled(world, first, 2)
    job_cancel(first.pk, world.now, actor="user:owner")
    second = job_make()
    world.cycle()
    assert num_held(second) == 0
    settled(world, second, 2)


def test_a_cycle_that_began_before_a_release_grants_from_the_release_on() -> None:
    world = World()
    first = job_make(max_accelerators=4)
    settled(world, first, 4)
    world.train(first)
    world.finish(first)
    second = job_make(max_accelerators=4)
    world.settle(1)  # its code is tried
    Allocation.objects.filter(job=second).delete()
    Generation.objects.filter(job=second).delete()
    freed = {row.accelerator_id: row.released_at for row in Allocation.objects.filter(job=first)}
    assert cycle_run(at(world.now_s - 60.0)) == {second.pk}
    granted = {row.accelerator_id: row.granted_at for row in Allocation.objects.filter(job=second)}
    assert granted == freed


def test_a_job_whose_only_node_is_lost_starts_anew_elsewhere() -> None:
    world = World()
    job = job_make(max_accelerators=2)
    settled(world, job, 2)
    world.train(job)
    used = job.allocations.filter(released_at=None).first().accelerator.node_id
    (dead,) = (played for played in world.nodes if played.node.pk == used)
    world.nodes.remove(dead)
    world.now_s += 1000
    for played in world.nodes:
        played.node.__class__.objects.filter(id=played.node.pk).update(last_seen_at=world.now)
    lost, changed = nodes_expire(world.now)
    assert lost == {dead.node.pk}
    assert changed == {job.pk}
    assert (fresh(job).status, fresh(job).status_code) == (JobStatus.PENDING, "node_lost")
    assert fresh(job).restarts == 1
    settled(world, job, 2)
    assert fresh(job).status == JobStatus.STARTING


def test_a_draining_node_is_left() -> None:
    world = World()
    job = job_make(max_accelerators=2)
    settled(world, job, 2)
    used = {row.accelerator.node_id for row in job.allocations.all()}
    assert len(used) == 1
    (node,) = (played.node for played in world.nodes if played.node.pk in used)
    node_cordon(node, Cordon.DRAIN, world.now, actor="user:root", reason="new memory")

    def is_elsewhere() -> bool:
        rows = job.allocations.filter(released_at=None)
        return rows.count() == 2 and not rows.filter(accelerator__node=node).exists()

    world.until(is_elsewhere)
    assert fresh(job).restarts == 0


@pytest.mark.parametrize("how", ["drain", "quarantine", "maintenance"])
def test_a_job_leaves_a_node_for_places_that_others_have_to_leave_first(how: str) -> None:
    """The job trains on until the trainers of the idle tier are gone, and never stops."""
    world = World()
    job = job_make(max_accelerators=2)
    settled(world, job, 2)
    (node,) = {row.accelerator.node for row in job.allocations.all()}
    idle = job_make(max_accelerators=2, tier="idle")
    settled(world, idle, 2)
    if how == "drain":
        node_cordon(node, Cordon.DRAIN, world.now, actor="user:root", reason="new memory")
    elif how == "quarantine":
        Node.objects.filter(pk=node.pk).update(quarantined_until=world.now + HOUR)
    else:
        window = {"maintenance_from": world.now, "maintenance_until": world.now + HOUR}
        Node.objects.filter(pk=node.pk).update(**window)

    def is_elsewhere() -> bool:
        rows = job.allocations.filter(released_at=None, release_requested_at=None)
        assert rows.exists(), "it was stopped"
        return rows.count() == 2 and not rows.filter(accelerator__node=node).exists()

    world.until(is_elsewhere)
    assert not Event.objects.filter(job=job, kind="preempted").exists()
    assert fresh(idle).status == JobStatus.PENDING


def test_a_cordoned_node_keeps_its_jobs_and_gets_no_others() -> None:
    """Not even where the jobs could grow: the whole cluster is cordoned, and then not."""
    world = World()
    staying = job_make(max_accelerators=2)
    settled(world, staying, 2)
    Job.objects.filter(id=staying.pk).update(max_accelerators=4)
    for played in world.nodes:
        node_cordon(played.node, Cordon.CORDON, world.now, actor="user:root")
    waiting = job_make(max_accelerators=1)
    before = set(staying.allocations.values_list("id", "accelerator", "released_at"))
    world.settle(4)
    assert set(staying.allocations.values_list("id", "accelerator", "released_at")) == before
    assert fresh(staying).policy_reason.startswith("Stays on 2 accelerators")
    assert not waiting.allocations.exists()
    assert fresh(waiting).policy_reason.startswith("Cannot start")
    for played in world.nodes:
        node_cordon(played.node, Cordon.UNCORDON, world.now, actor="user:root")
    world.until(lambda: waiting.allocations.count() == 1 and staying.allocations.count() > 2)


def test_the_clock_of_a_job() -> None:
    world = World(num_nodes=1, num_accelerators=1)
    job = job_make()
    settled(world, job, 1)
    world.now_s = 500.0
    world.finish(job)
    done = fresh(job)
    assert done.ended_at == at(500.0)
    granted = job.allocations.get().granted_at
    assert done.attained_accelerator_s == pytest.approx((at(500.0) - granted).total_seconds())
    assert Generation.objects.filter(job=job).count() == 1


def test_the_log_is_among_the_files_once_nothing_runs_any_more() -> None:
    world = World()
    job = job_make(max_accelerators=1)
    settled(world, job, 1)
    world.train(job)
    played, trainer = world.leader_of(job)

    def write(offset: int, text: str) -> None:
        chunk = LogChunk(job_id=job.pk, slot=trainer.slot, offset=offset, text=text)
        batch_take(played.node, dataclasses.replace(played.batch(), logs=(chunk,)), world.now)

    write(0, "epoch 1\n")
    assert not job.artifacts.exists()
    world.finish(job)
    log = job.artifacts.get(name="log.txt")
    assert log.file.read().decode() == f"\n── trainer {trainer.slot} ──\nepoch 1\n"
    assert log.sha256 == hashlib.sha256(log.file.open().read()).hexdigest()
    # What an agent could not send before comes in too.
    write(8, "the end\n")
    log = job.artifacts.get(name="log.txt")
    assert log.file.read().decode().endswith("epoch 1\nthe end\n")


def test_a_waiting_job_has_a_range_of_its_expected_start() -> None:
    """Job 1 has 90 steps of 32 examples left, at 320 a second: 9 s, at least 7.5, at most 10.8."""
    world = World()
    ClusterSetting.objects.update_or_create(id=1, defaults={"policy": "fifo"})
    first = job_make(max_accelerators=4)
    settled(world, first, 4)
    world.train(first)
    second = job_make(max_accelerators=4)
    world.settle(1)  # its code is tried
    Job.objects.filter(id=second.pk).update(policy_reason="")
    JobForecast.objects.filter(job=second).delete()
    told: list[str] = []
    changed = cycle_run(world.now, lambda _: told.append(fresh(second).policy_reason))
    assert (changed, told) == ({second.pk}, [""])  # the plan is applied before starts are forecast
    waiting = fresh(second)
    assert JobForecast.of(waiting).expected_start_earliest_at == at(world.now_s + 7.5)
    assert JobForecast.of(waiting).expected_start_latest_at == at(world.now_s + 10.8)


def test_a_job_that_will_grow_has_a_range_with_its_later_accelerators() -> None:
    """Both do 320 examples a second on two; job 1 has 2880 left, job 2 6080.

    Job 1 ends after 9 s; then job 2 has 3200 left, at 640 a second: 14 s in all, not 19.
    """
    world = World()
    first, second = job_make(max_accelerators=2), job_make(max_accelerators=4, stop_limit=200)
    for job in (first, second):
        settled(world, job, 2)
        world.train(job)
    cycle_run(world.now)
    growing = fresh(second)
    assert JobForecast.of(growing).resized_end_earliest_at == at(world.now_s + 14.0 / 1.2)
    assert JobForecast.of(growing).resized_end_latest_at == at(world.now_s + 14.0 * 1.2)
    assert JobForecast.of(fresh(first)).resized_end_latest_at is None
    end = present(expected_end_of(growing, world.now))
    assert end.earliest_at == JobForecast.of(growing).resized_end_earliest_at
    assert (
        end.latest_at > JobForecast.of(growing).resized_end_latest_at
    )  # if another job takes what job 1 leaves
