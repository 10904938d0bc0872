"""A job below its minimum gets accelerators for those it lost, and goes on from memory."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from controlplane.core.policies import POLICIES
from controlplane.core.protocol.wire import ReportKind
from jobs.models import Accelerator, Event, Job
from jobs.selectors.cluster import cluster_snapshot
from jobs.services.cluster.cordons import Cordon, node_cordon
from jobs.services.submission.job_actions import job_cancel
from tests.jobs.losses import A, B, C, D, fresh, lose_node, newest, slots
from tests.jobs.world import World
from tests.support.builders import job_make
from tests.support.cases import some
from tests.support.setups import setup_once

pytestmark = pytest.mark.django_db

#: A job that needs everything there is, in a world of two nodes with two accelerators each.
ALL: dict[str, Any] = {"min_accelerators": 4, "max_accelerators": 4, "stop_limit": 10_000}
#: No policy knows when such a job will end, so none prefers it to one that trains.
ENDLESS: dict[str, Any] = {"stop_kind": "metric", "stop_metric": "loss", "stop_target": 0.1}


@setup_once
def on_all(policy: str = "weighted_fair", **other: Any) -> tuple[World, Job, Job]:
    """Let a job train on everything there is, and another one wait."""
    world = World(policy=policy)
    job = job_make(**(ALL | other))
    world.settle(4)
    world.train(job)
    return world, fresh(job), waiting_make(world, job)


def waiting_make(world: World, job: Job) -> Job:
    """Submit a job that has to wait as long as nothing is lost."""
    waiting = job_make(submitted_at=world.now, **ENDLESS)
    world.settle(4)
    assert fresh(waiting).status == "pending", "the policy has others train undisturbed"
    world.train(job)
    return waiting


def accelerators_of(job: Job) -> set[int]:
    return set(job.allocations.filter(released_at=None).values_list("accelerator_id", flat=True))


def goes_on(world: World, job: Job, num_members: int = 4) -> None:
    """See a job train again on so many, without having been stopped."""
    world.until(lambda: newest(job).num_members == num_members and newest(job).phase == "active")
    job = fresh(job)
    assert (job.status, job.status_code, job.restarts) == ("running", "", 0)
    assert not Event.objects.filter(job=job, kind__in=["preemption_requested", "restart"]).exists()
    assert not job.artifacts.filter(name="checkpoint.npz").exists()


#: All others in `make nightly`: tests/core/scheduling/test_replacements.py tries every policy.
ONLY_FIFO = some(sorted(POLICIES), {*POLICIES} - {"fifo"})
ONLY_GOODPUT = some(sorted(POLICIES), {*POLICIES} - {"goodput_fair"})


class TestEveryPolicy:
    @pytest.mark.parametrize("policy", ONLY_FIFO)
    @pytest.mark.parametrize("slot", [A, pytest.param(D, marks=pytest.mark.nightly)])
    def test_a_lost_trainer_is_replaced_where_it_was(self, policy: str, slot: int) -> None:
        world, job, waiting = on_all(policy)
        before = accelerators_of(job)
        world.kill(job, slot)
        assert newest(job).membership.parked
        goes_on(world, job)
        assert accelerators_of(job) == before
        assert not waiting.allocations.exists()

    @pytest.mark.parametrize("policy", ONLY_GOODPUT)
    def test_the_cycle_may_run_at_any_moment_of_it(self, policy: str) -> None:
        world, job, waiting = on_all(policy)
        world.kill(job, B)
        for _ in range(3):  # the survivors have not even switched
            world.cycle()
        for played in world.nodes:
            world.follow(played)
            world.cycle()
        goes_on(world, job)
        assert not waiting.allocations.exists()

    @pytest.mark.parametrize("policy", ONLY_FIFO)
    def test_two_are_replaced_as_well(self, policy: str) -> None:
        world, job, waiting = on_all(policy)
        world.kill(job, A, D)
        goes_on(world, job)
        assert not waiting.allocations.exists()

    @pytest.mark.parametrize("policy", ONLY_GOODPUT)
    def test_a_job_of_one_starts_again_where_it_was(self, policy: str) -> None:
        world = World(num_nodes=1, num_accelerators=1, policy=policy)
        job = job_make(stop_limit=10_000)
        world.settle(4)
        world.train(job)
        waiting = waiting_make(world, job)
        world.kill(job, A)
        assert (fresh(job).status, fresh(job).restarts) == ("pending", 1)
        world.until(lambda: newest(job).num_members == 1 and newest(job).phase == "active")
        assert not waiting.allocations.exists()


def test_the_default_policy_does_not_stop_it_for_small_jobs() -> None:
    """Seen before: it was saved to disk for one of them, and started on the same four again."""
    world = World(policy="goodput_fair")
    job = job_make(**ALL)
    world.settle(4)
    for _ in range(6):
        world.train(job)
    small = [job_make(submitted_at=world.now, max_accelerators=1, **ENDLESS) for _ in range(4)]
    for _ in range(6):
        world.settle(1)
        world.train(job)
    assert {fresh(one).status for one in small} == {"pending"}
    world.kill(job, B)
    goes_on(world, job)


def beside_a_spare_node() -> tuple[World, Job, set[int]]:
    """Return a world whose job trains on two nodes of three, the job and these nodes."""
    world = World(num_nodes=3)
    job = job_make(**ALL)
    world.settle(4)
    world.train(job)
    allocations = job.allocations.select_related("accelerator")
    return world, job, {row.accelerator.node_id for row in allocations}


class TestWhatReplaces:
    def test_another_one_that_is_free_if_the_node_is_gone(self) -> None:
        world, job, on = beside_a_spare_node()
        lost = next(played for played in world.nodes if played.node.pk in on)
        (spare,) = [played for played in world.nodes if played.node.pk not in on]
        small = [job_make(submitted_at=world.now, max_accelerators=1) for _ in range(2)]
        lose_node(world, lost)
        world.hear(*(played for played in world.nodes if played is not lost))
        assert newest(job).membership.parked
        snapshot = cluster_snapshot(world.now).snapshot
        assert {one.id for one in snapshot.accelerators} == {*snapshot.held[job.pk]}
        assert {
            one.node_id for one in snapshot.accelerators if one.id in snapshot.kept[job.pk]
        } == {spare.node.pk}
        goes_on(world, job)
        assert {fresh(one).status for one in small} == {"pending"}

    @pytest.mark.parametrize("cordoned", ["its own", "the spare one"])
    def test_none_of_a_cordoned_node_but_beside_those_it_has_there(self, cordoned: str) -> None:
        world, job, on = beside_a_spare_node()
        lost, own = (played for played in world.nodes if played.node.pk in on)
        (spare,) = [played for played in world.nodes if played.node.pk not in on]
        node = own.node if cordoned == "its own" else spare.node
        node_cordon(node, Cordon.CORDON, world.now, actor="user:root")
        lose_node(world, lost)
        world.hear(own, spare)
        if cordoned == "its own":
            goes_on(world, job)
            held = Accelerator.objects.filter(id__in=accelerators_of(job))
            assert {one.node_id for one in held} == {own.node.pk, spare.node.pk}
        else:
            assert not cluster_snapshot(world.now).snapshot.kept
            world.settle(2)
            assert not spare.trainers

    @pytest.mark.parametrize("policy", ONLY_FIFO)
    def test_one_that_is_being_freed_is_waited_for(self, policy: str) -> None:
        world = World(policy=policy)
        small = job_make(max_accelerators=1)
        job = job_make(min_accelerators=3, max_accelerators=3)
        world.settle(4)
        world.train(job)
        waiting = job_make(submitted_at=world.now, tier="idle")  # preferred by no policy
        job_cancel(small.pk, world.now, actor="user:x")  # its trainer has not gone yet
        gone = job.allocations.get(slot=slots(newest(job))[-1])
        world.kill(job, gone.slot)
        Accelerator.objects.filter(id=gone.accelerator_id).update(is_present=False)
        (freed,) = small.allocations.filter(released_at=None)
        for _ in range(3):
            world.cycle()
            assert cluster_snapshot(world.now).snapshot.kept == {job.pk: (freed.accelerator_id,)}
        goes_on(world, job, 3)
        assert freed.accelerator_id in accelerators_of(job)
        assert not waiting.allocations.exists()

    def test_not_one_that_does_not_come_up_a_second_time(self) -> None:
        world, job, _ = on_all()
        world.kill(job, D)
        world.follow_all()
        world.cycle()
        for played in world.nodes:
            world.follow(played, boots=False)
        world.kill(job, slots(newest(job))[-1])
        assert not cluster_snapshot(world.now).snapshot.kept

    def test_not_more_than_there_is(self) -> None:
        world, _, _ = on_all()
        lose_node(world, world.nodes[1])
        assert not cluster_snapshot(world.now).snapshot.kept

    def test_not_for_longer_than_the_limit(self, settings: Any) -> None:
        world, job, _ = on_all()
        world.kill(job, D)
        assert cluster_snapshot(world.now).snapshot.kept
        later = world.now + timedelta(seconds=settings.REPLACE_LIMIT_S)
        assert not cluster_snapshot(later).snapshot.kept


class TestWhoIsServed:
    def test_a_job_of_higher_priority_that_comes_meanwhile(self) -> None:
        """It would have had its share before the loss, and does not wait for it now."""
        world, job, _ = on_all()
        world.kill(job, D)
        urgent = job_make(submitted_at=world.now, priority=900, **ALL)
        world.until(lambda: fresh(urgent).status == "starting")
        assert job.artifacts.filter(name="checkpoint.npz").exists()
        assert fresh(job).restarts == 0

    def test_a_job_that_was_preempted_is_kept_nothing(self) -> None:
        world, job, _ = on_all()
        world.kill(job, D)
        job_make(submitted_at=world.now, priority=900, **ALL)
        world.until(lambda: fresh(job).status == "pending")
        assert not cluster_snapshot(world.now).snapshot.kept

    def test_all_lost_at_once_start_again_on_the_same(self) -> None:
        world, job, waiting = on_all()
        before = accelerators_of(job)
        world.kill(job, A, B, C, D)
        assert (fresh(job).status, fresh(job).restarts) == ("pending", 1)
        world.until(lambda: newest(job).num_members == 4 and newest(job).phase == "active")
        assert accelerators_of(job) == before
        assert not waiting.allocations.exists()

    def test_the_users_own_error_ends_the_job(self) -> None:
        world, job, waiting = on_all()
        played, trainer = world.leader_of(job)
        failure = {"code": "user_code", "message": "it broke", "traceback": ""}
        played.say(trainer, ReportKind.FAILED, **failure)
        world.tell(played)
        assert fresh(job).status == "failed"
        world.until(lambda: fresh(waiting).status == "starting")
