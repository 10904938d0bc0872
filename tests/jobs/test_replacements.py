"""A job below its minimum gets accelerators for those it lost, and goes on from memory."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from controlplane.core.policies import POLICIES
from controlplane.core.wire import ReportKind
from jobs.models import Accelerator, Allocation, Event, Job, Node
from jobs.selectors.cluster import cluster_snapshot
from jobs.services.submission import job_cancel
from tests.builders import job_make
from tests.jobs.losses import A, B, C, D, event, fresh, lose_node, newest, slots, training
from tests.jobs.test_set_aside import fail_start
from tests.jobs.world import World

pytestmark = pytest.mark.django_db

#: A job that needs everything there is, in a world of two nodes with two accelerators each.
ALL = {"min_accelerators": 4, "max_accelerators": 4}


def on_all(policy: str = "weighted_fair", **other: Any) -> tuple[World, Job, Job]:
    """Let a job train on everything there is, and another one wait."""
    world = World(policy=policy)
    job = job_make(**(ALL | other))
    world.settle(4)
    world.train(job)
    waiting = job_make(submitted_at=world.now, stop_limit=10_000)
    world.settle(4)
    assert fresh(waiting).status == "pending", "the policy has others train undisturbed"
    return world, fresh(job), waiting


def accelerators_of(job: Job) -> set[int]:
    return set(job.allocations.filter(released_at=None).values_list("accelerator_id", flat=True))


def goes_on(world: World, job: Job, num_members: int = 4) -> None:
    """See a job train again on so many, without having been stopped."""
    world.until(lambda: newest(job).num_members == num_members and newest(job).phase == "active")
    job = fresh(job)
    assert (job.status, job.status_code, job.restarts) == ("running", "", 0)
    assert not Event.objects.filter(job=job, kind__in=["preemption_asked", "restart"]).exists()
    assert not job.artifacts.filter(name="checkpoint.npz").exists()


@pytest.mark.parametrize("policy", sorted(POLICIES))
class TestEveryPolicy:
    @pytest.mark.parametrize("slot", [A, D])
    def test_a_lost_trainer_is_replaced_where_it_was(self, policy: str, slot: int) -> None:
        world, job, waiting = on_all(policy)
        before = accelerators_of(job)
        world.kill(job, slot)
        assert newest(job).membership["hold"]
        goes_on(world, job)
        assert accelerators_of(job) == before
        assert not waiting.allocations.exists()

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

    def test_two_are_replaced_as_well(self, policy: str) -> None:
        world, job, waiting = on_all(policy)
        world.kill(job, A, D)
        goes_on(world, job)
        assert not waiting.allocations.exists()

    def test_a_job_of_one_starts_again_where_it_was(self, policy: str) -> None:
        world = World(num_nodes=1, num_accelerators=1, policy=policy)
        job = job_make()
        world.settle(4)
        world.train(job)
        waiting = job_make(submitted_at=world.now, stop_limit=10_000)
        world.settle(4)
        assert fresh(waiting).status == "pending", "the policy has others train undisturbed"
        world.kill(job, A)
        assert (fresh(job).status, fresh(job).restarts) == ("pending", 1)
        world.until(lambda: newest(job).num_members == 1 and newest(job).phase == "active")
        assert not waiting.allocations.exists()
