"""A database restored from a backup: trainers and files that are gone since it was made."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from controlplane.core.protocol.wire import ReportKind
from jobs.exceptions import ConflictError
from jobs.models import Artifact, Event, Job, Node
from jobs.selectors.desired_state.agent_files import upload_target
from jobs.selectors.desired_state.state import wanted_state
from jobs.services.failures.timeouts import stalled_recover
from jobs.services.lifecycle.artifacts import CHECKPOINT
from tests.jobs.losses import A, B, C, D, event, fresh, newest, slots, training
from tests.jobs.world import World
from tests.support.builders import job_make
from tests.support.rows import file_store

pytestmark = pytest.mark.django_db


def test_a_trainer_that_was_ready_is_wanted_as_such() -> None:
    world = World(num_nodes=1)
    job_make(max_accelerators=1)
    world.cycle()
    assert [row.was_ready for row in wanted_state(world.nodes[0].node).trainers] == [False]
    world.settle(4)
    assert [row.was_ready for row in wanted_state(world.nodes[0].node).trainers] == [True]


@pytest.mark.parametrize("was_missing", [True, False])
def test_nodes_are_not_blamed_for_trainers_that_ended_before(
    settings: Any, was_missing: bool
) -> None:
    settings.QUARANTINE_DEATHS = 2
    world = World(num_nodes=1)
    jobs = [job_make(max_accelerators=1), job_make(max_accelerators=1)]
    world.settle(4)
    for job in jobs:
        world.kill(job, A, exit_code=0, was_missing=was_missing)
    (node,) = Node.objects.all()
    assert (node.quarantined_at is None) is was_missing
    if was_missing:
        message = event(jobs[0], "restart").message
        assert "its node no longer has it, as after a restored backup" in message
        assert [fresh(job).status for job in jobs] == ["pending", "pending"]


@pytest.mark.parametrize(
    ("there", "told"),
    [
        ([5, 9, 12], None),
        ([5, 9], "The saved state of step 12 is missing among the site's files: the job goes on "
                 "from step 9"),
        ([5], "The saved state of step 12, 9 is missing among the site's files: the job goes on "
              "from step 5"),
        ([], "The saved state of step 12, 9, 5 is missing among the site's files: the job starts "
             "from the beginning"),
    ],
)  # fmt: skip
def test_a_job_goes_on_from_the_newest_state_whose_file_is_there(
    there: list[int], told: str | None
) -> None:
    world, job = training(num_nodes=1, max_accelerators=1)
    for step in (5, 9, 12):
        world.now_s += 1
        stored = file_store(job, CHECKPOINT, f"state at {step}".encode(), world.now)
        Artifact.objects.filter(pk=stored.pk).update(step=step)
    digests = dict(Artifact.objects.values_list("step", "sha256"))
    for row in Artifact.objects.exclude(step__in=there):
        Path(row.file.path).unlink()
    world.kill(job, A, was_missing=True)
    world.cycle()
    assert newest(job).membership.restore is bool(there)
    (wanted,) = wanted_state(world.nodes[0].node).trainers
    assert wanted.checkpoint_sha256 == (digests[there[-1]] if there else None)
    texts = [row.message for row in Event.objects.filter(kind="checkpoint_missing")]
    assert texts == ([] if told is None else [told])
    assert sorted(Artifact.objects.values_list("step", flat=True)) == there


def test_no_state_is_given_up_while_the_whole_storage_is_away() -> None:
    world, job = training(num_nodes=1, max_accelerators=1)
    stored = file_store(job, CHECKPOINT, b"state", world.now)
    for file in (stored.file, job.code):
        Path(file.path).unlink()
    world.kill(job, A, was_missing=True)
    world.cycle()
    assert newest(job).membership.restore
    assert Artifact.objects.filter(pk=stored.pk).exists()
    assert not Event.objects.filter(kind="checkpoint_missing").exists()


def switched_since(world: World, job: Job, num_since: int = 1) -> None:
    """Let a job's trainers have switched so many times since the backup."""
    for _, trainer in world.trainers_of(job):
        trainer.generation, trainer.has_joined = newest(job).number + num_since, True


def say(world: World, job: Job, kind: ReportKind, slot: int = A) -> None:
    """Let a trainer report steps, or that it waits for the others."""
    if kind is ReportKind.STALLED:
        world.stall(job, slot)
        return
    played, trainer = next(row for row in world.trainers_of(job) if row[1].slot == slot)
    steps = {"first_step": 11, "last_step": 20, "epoch": 0, "examples": 10, "seconds": 1.0}
    played.say(trainer, kind, **steps, loss=0.5, num_accelerators=2)
    world.tell(played)


def check_goes_on(world: World, job: Job, expected: list[int]) -> None:
    """Check that these trainers meet again within the grace, with what they have in memory."""
    world.hear()
    world.now_s += 2.0
    stalled_recover(world.now)
    world.follow_all()
    world.follow_all()
    assert (newest(job).phase, slots(newest(job))) == ("active", expected)
    assert {row.generation for _, row in world.trainers_of(job)} == {newest(job).number}
    assert (fresh(job).restarts, fresh(job).status) == (0, "running")
    assert not job.allocations.filter(stalled_at__isnull=False, released_at=None).exists()


@pytest.mark.parametrize("kind", [ReportKind.STEPS, ReportKind.STALLED])
@pytest.mark.parametrize("num_since", [1, 3])
@pytest.mark.parametrize("gone", [(), (D,), (C, D)])
@pytest.mark.parametrize("is_told_first", [False, True])
def test_a_job_that_was_resized_since_goes_on(
    kind: ReportKind, num_since: int, gone: tuple[int, ...], is_told_first: bool
) -> None:
    world, job = training()
    switched_since(world, job, num_since)
    if is_told_first:
        world.kill(job, *gone, was_missing=True)
    say(world, job, kind)
    if not is_told_first:
        world.kill(job, *gone, was_missing=True)
    check_goes_on(world, job, [slot for slot in (A, B, C, D) if slot not in gone])


def test_a_job_that_was_starting_goes_on() -> None:
    world = World(num_nodes=1)
    job = job_make()
    world.cycle()
    (played,) = world.nodes
    for orders in wanted_state(played.node).trainers:
        world.trainer_follow(played, (job.pk, orders.slot), orders, boots=False)
    switched_since(world, job, 0)
    say(world, job, ReportKind.STEPS)
    check_goes_on(world, job, [A, B])


def test_numbers_of_generations_can_grow_after_a_forged_one() -> None:
    world, job = training()
    switched_since(world, job, 2**30)
    say(world, job, ReportKind.STEPS)
    assert fresh(job).generation == newest(job).number


@pytest.mark.parametrize(("since", "is_stored"), [(-1, False), (0, True), (1, True), (3, True)])
def test_what_a_job_leaves_that_was_resized_since_is_stored(since: int, is_stored: bool) -> None:
    world, job = training()
    world.cap(job, 3)
    world.settle(4)
    played, trainer = world.leader_of(job)
    number = newest(job).number + since
    with nullcontext() if is_stored else pytest.raises(ConflictError):
        target = upload_target(played.node, job.pk, trainer.slot, number, "model.keras")
        assert target == job
