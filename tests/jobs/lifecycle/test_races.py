"""Races by interleaving: what two actors may do at once, in each order, without threads."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import IntegrityError, transaction

from controlplane.core.cycle import decide
from controlplane.core.protocol.wire import ReportKind
from controlplane.core.values.lifecycle import GenerationPhase, JobStatus
from controlplane.core.values.types import Plan, Resize
from jobs.models import Accelerator, Allocation, Generation, Job, Node
from jobs.selectors.cluster import cluster_snapshot
from jobs.services.cluster.cordons import Cordon, node_cordon
from jobs.services.reports.batches import batch_take
from jobs.services.scheduling.cycle import plan_apply
from jobs.services.submission.job_actions import job_cancel, job_pause
from tests.jobs.losses import training
from tests.jobs.world import World, num_held
from tests.support.builders import job_make
from tests.support.rows import allocation_make, generation_make

pytestmark = pytest.mark.django_db


def plan_of(world: World) -> tuple[Plan, dict[int, int]]:
    view = cluster_snapshot(world.now)
    return decide(view.snapshot, "weighted_fair"), view.generations


def apply(world: World, plan: tuple[Plan, dict[int, int]]) -> set[int]:
    return plan_apply(plan[0], plan[1], world.now, actor="policy:test")


def phases(job: Job) -> list[str]:
    return list(job.generations.order_by("number").values_list("phase", flat=True))


@pytest.mark.database
def test_two_planners_with_the_same_snapshot() -> None:
    world = World()
    job = job_make()
    first, second = plan_of(world), plan_of(world)
    assert apply(world, first) == {job.pk}
    apply(world, second)
    assert phases(job) == ["preparing"]
    assert Allocation.objects.count() == 4


def test_a_plan_for_a_job_that_was_cancelled_meanwhile() -> None:
    world = World()
    job = job_make()
    plan = plan_of(world)
    job_cancel(job.pk, world.now, actor="user:x")
    assert apply(world, plan) == set()
    assert not Generation.objects.exists()
    assert not Allocation.objects.exists()


def test_a_plan_for_a_job_that_is_to_pause() -> None:
    world = World()
    job = job_make()
    plan = plan_of(world)
    job_pause(job.pk, world.now, actor="user:x")
    apply(world, plan)
    assert Job.objects.get().status == JobStatus.PAUSED
    assert not Generation.objects.exists()


@pytest.mark.database
def test_a_plan_that_wants_an_accelerator_which_another_job_got() -> None:
    world = World(num_nodes=1)
    early, late = job_make(), job_make()
    places = tuple(Accelerator.objects.values_list("id", flat=True))
    generations = {early.pk: 0, late.pk: 0}
    for job in (early, late):
        plan = Plan((Resize(job.pk, (), places, "wants all"),), {}, {})
        plan_apply(plan, generations, world.now, actor="policy:test")
    assert phases(early) == ["preparing"]
    assert phases(late) == []
    late.refresh_from_db()
    # Nothing of the half that was done before the collision is left.
    assert (late.status, late.generation, late.next_slot) == (JobStatus.PENDING, 0, 0)


def test_a_plan_for_accelerators_that_went_meanwhile() -> None:
    world = World(num_nodes=1)
    job = job_make()
    plan = plan_of(world)
    Accelerator.objects.update(is_present=False)
    apply(world, plan)
    assert not Generation.objects.exists()
    job.refresh_from_db()
    assert (job.status, job.generation) == (JobStatus.PENDING, 0)


class TestNodeThatTakesNoMoreWork:
    """A node is closed between a snapshot and the plan that is made from it."""

    @pytest.fixture(params=[Cordon.CORDON, Cordon.DRAIN, "quarantined"])
    def closed(self, request: pytest.FixtureRequest) -> Callable[[World, Node], None]:
        def close(world: World, node: Node) -> None:
            if request.param != "quarantined":
                assert node_cordon(node, request.param, world.now, actor="user:x")
            else:
                until = world.now + timedelta(seconds=60)
                Node.objects.filter(id=node.pk).update(quarantined_until=until)

        return close

    def test_nobody_is_sent_there(self, closed: Callable[[World, Node], None]) -> None:
        world = World(num_nodes=1)
        job = job_make()
        plan = plan_of(world)
        closed(world, world.nodes[0].node)
        apply(world, plan)
        assert not Generation.objects.exists()
        job.refresh_from_db()
        assert (job.status, job.generation, job.next_slot) == (JobStatus.PENDING, 0, 0)

    def test_who_is_there_stays(self, closed: Callable[[World, Node], None]) -> None:
        """Who grows elsewhere at the same moment keeps what it holds there, until the next turn."""
        world = World(num_nodes=2, num_accelerators=1)
        job = job_make(max_accelerators=1)
        world.settle(4)
        Job.objects.filter(id=job.pk).update(max_accelerators=2)
        held = job.allocations.get().accelerator
        plan = plan_of(world)
        closed(world, held.node)
        assert apply(world, plan) == {job.pk}
        assert phases(job) == ["active", "preparing"]
        assert (
            job.allocations.filter(stop_requested_at=None, release_requested_at=None).count() == 2
        )


class TestSupersedeAgainstReady:
    """A preparing generation is replaced, or its last joiner gets ready: one of them, not both."""

    def story(self) -> tuple[World, Job, tuple[Plan, dict[int, int]]]:
        """Bring a job to grow from 1 to 2, and plan a second job's arrival in the meantime."""
        world = World(num_nodes=1)
        job = job_make(max_accelerators=1)
        world.settle(4)
        world.cap(job, 2)
        assert phases(job) == ["active", "preparing"]
        job_make(max_accelerators=1)
        return world, job, plan_of(world)

    def test_the_plan_first(self) -> None:
        world, job, plan = self.story()
        joiner = job.allocations.get(granted_generation=2)
        apply(world, plan)
        assert phases(job)[:2] == ["active", "aborted"]
        joiner.refresh_from_db()
        assert joiner.stop_requested_at is not None
        (node,) = world.nodes
        world.follow(node)  # the joiner's ready comes too late and changes nothing
        assert "switching" not in phases(job)[:2]
        world.settle(6)
        assert num_held(job) == 1

    def test_ready_first(self) -> None:
        world, job, plan = self.story()
        (node,) = world.nodes
        world.follow(node)
        assert phases(job) == ["active", "switching"]
        apply(world, plan)
        assert phases(job) == ["active", "switching"]
        world.settle(8)
        assert num_held(job) == 1
        assert Job.objects.get(id=job.pk).restarts == 0


def test_a_superseded_growth_keeps_the_joiners_that_are_still_wanted() -> None:
    world = World()
    job = job_make()
    world.cycle()
    booting = set(job.allocations.values_list("slot", flat=True))
    assert len(booting) == 4
    job_make()
    world.cycle()
    assert phases(job) == ["aborted", "preparing"]
    wanted = set(job.generations.get(number=2).membership.slots)
    assert len(wanted) == 2
    assert wanted < booting
    kept = job.allocations.filter(stop_requested_at=None)
    assert set(kept.values_list("slot", flat=True)) == wanted
    assert set(kept.values_list("granted_generation", flat=True)) == {2}
    world.settle(8)
    assert num_held(job) == 2


def test_two_joiners_on_two_nodes_get_ready_one_after_the_other() -> None:
    world = World()
    job = job_make()
    world.cycle()
    first, second = world.nodes
    world.follow(first)
    assert phases(job) == ["preparing"]
    world.follow(second)
    assert phases(job) == ["switching"]


@pytest.mark.database
def test_a_batch_that_comes_twice_changes_nothing() -> None:
    world = World(num_nodes=1)
    job = job_make()
    world.settle(4)
    played = world.steps_say(job, 1, 10)
    batch = played.batch()
    batch_take(played.node, batch, world.now)
    events = job.events.count()
    batch_take(played.node, batch, world.now)
    assert job.step_reports.count() == 1
    assert job.events.count() == events
    assert Job.objects.get().status == JobStatus.RUNNING


@pytest.mark.database
def test_an_exit_that_comes_twice_is_counted_once() -> None:
    world = World(num_nodes=1)
    job = job_make()
    world.settle(4)
    job_cancel(job.pk, world.now, actor="user:x")
    (played,) = world.nodes
    trainers = list(played.trainers.values())
    for trainer in trainers:
        played.say(trainer, ReportKind.EXITED, exit_code=-15)
    batch = played.batch()
    for _ in range(2):
        batch_take(played.node, batch, world.now)
    spent = sum((row.released_at - row.granted_at).total_seconds() for row in job.allocations.all())
    assert Job.objects.get().attained_accelerator_s == pytest.approx(spent)


@pytest.mark.database
def test_the_database_itself_refuses_two_holders() -> None:
    World(num_nodes=1)
    accelerator = Accelerator.objects.first()
    for number, job in enumerate((job_make(), job_make())):
        refusal = pytest.raises(IntegrityError) if number else contextlib.nullcontext()
        with refusal, transaction.atomic():
            allocation_make(job, accelerator)
    assert Allocation.objects.count() == 1


@pytest.mark.database
def test_one_resize_is_under_way_at_a_time() -> None:
    job = job_make()

    def add(number: int, phase: GenerationPhase) -> None:
        with transaction.atomic():
            generation_make(job, number, phase=phase.value)

    add(1, GenerationPhase.ACTIVE)
    add(2, GenerationPhase.PREPARING)
    for phase in (GenerationPhase.PREPARING, GenerationPhase.SWITCHING, GenerationPhase.ACTIVE):
        with pytest.raises(IntegrityError):
            add(3, phase)


class TestLossAgainstOthers:
    """A loss and something else at the same moment, in each order."""

    def test_a_plan_from_before_the_loss_is_stale(self) -> None:
        world, job = training()
        Job.objects.filter(id=job.pk).update(max_accelerators=2)
        plan = plan_of(world)
        assert plan[0].resizes
        world.kill(job, 12)
        apply(world, plan)
        assert phases(job) == ["active", "switching"]
        assert job.generations.get(number=2).membership.recover

    def test_a_loss_right_after_the_plan_takes_its_place(self) -> None:
        world, job = training()
        Job.objects.filter(id=job.pk).update(max_accelerators=2)
        apply(world, plan_of(world))
        world.kill(job, 12)
        assert phases(job) == ["active", "aborted", "switching"]
        world.settle(6)
        assert num_held(job) == 2
        assert Job.objects.get(id=job.pk).restarts == 0

    def test_a_cancel_wins_over_a_recovery(self) -> None:
        world, job = training()
        world.kill(job, 12)
        job_cancel(job.pk, world.now, actor="user:x")
        world.follow_all()
        assert phases(job) == ["closed", "aborted"]
        world.kill(job, 0, 4, 8)
        assert Job.objects.get(id=job.pk).status == JobStatus.CANCELLED

    def test_a_pause_during_a_recovery_waits_for_its_end(self) -> None:
        world, job = training()
        world.kill(job, 12)
        job_pause(job.pk, world.now, actor="user:x")
        assert phases(job) == ["active", "switching"]
        world.settle(4)
        assert Job.objects.get(id=job.pk).status == JobStatus.PAUSED
        assert job.artifacts.filter(name="checkpoint.npz").exists()

    def test_a_late_switch_to_a_recovery_that_was_overtaken(self) -> None:
        world, job = training()
        world.kill(job, 12)
        played, leader = world.leader_of(job)
        played.say(leader, ReportKind.SWITCHED, 2, step=10, pause_s=0.1, joined=False)
        world.kill(job, 8)
        batch_take(played.node, played.batch(), world.now)
        assert phases(job)[-1] == "switching"
        assert phases(job)[0] in ("active", "closed")
        world.follow_all()
        assert phases(job)[-1] == "active"
