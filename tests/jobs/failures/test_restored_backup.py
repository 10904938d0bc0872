"""A database restored from a backup: trainers and files that are gone since it was made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jobs.models import Artifact, Event, Node
from jobs.selectors.desired_state.state import wanted_state
from jobs.services.lifecycle.artifacts import CHECKPOINT
from tests.jobs.losses import A, event, fresh, newest, training
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
