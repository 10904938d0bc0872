"""Jobs that predict: where they go on after a loss, and the one file that comes of their parts."""

from __future__ import annotations

import errno
import hashlib
import io
import zipfile
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from celery.exceptions import SoftTimeLimitExceeded
from django.core.files.storage import default_storage
from django.db.models.fields.files import FieldFile
from django.utils import timezone

from controlplane.core.protocol import prediction_parts
from controlplane.core.protocol.prediction_parts import parts_join
from controlplane.core.protocol.wire import Membership, ReportKind
from jobs import tasks
from jobs.exceptions import ConflictError
from jobs.models import Artifact, Event, Job
from jobs.selectors.desired_state.agent_files import upload_target
from jobs.selectors.desired_state.state import training_spec
from jobs.selectors.estimates.step_times import profile_key
from jobs.selectors.reproducibility import reproducibility_of
from jobs.services.lifecycle import predictions
from jobs.services.lifecycle.predictions import predictions_join_next
from jobs.services.lifecycle.retention import files_delete
from tests.jobs.world import World
from tests.support.builders import job_make
from tests.support.rows import PREDICTION, file_store
from tests.support.setups import setup_once

pytestmark = pytest.mark.django_db

ROWS = np.random.default_rng(2).normal(size=(64, 3)).astype(np.float32)


def part_bytes(first: int, end: int) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, scores=ROWS[first:end])
    return stream.getvalue()


def part_store(world: World, job: Job, first: int, end: int) -> None:
    """Let the leader leave a part, as its agent does: the file first, then the report."""
    content = part_bytes(first, end)
    played, trainer = world.leader_of(job)
    name = f"predictions-{first}-{end}.npz"
    target = upload_target(played.node, job.pk, trainer.slot, trainer.generation, name)
    file_store(target, name, content, world.now, trainer.generation)
    played.say(trainer, ReportKind.PART, first=first, end=end, file=name, bytes=len(content))
    world.tell(played)


@setup_once
def running(**other: Any) -> tuple[World, Job]:
    world = World(num_nodes=2)
    job = job_make(global_batch_size=8, num_virtual_nodes=4, **PREDICTION, **other)
    world.until(lambda: job.generations.filter(phase="active").exists())
    world.settle(4)
    world.train(job, 3)
    job.refresh_from_db()
    return world, job


def newest(job: Job) -> Membership:
    return job.generations.order_by("-number")[0].membership


def finish(world: World, job: Job) -> None:
    """Let every trainer say that the pass is over, and go."""
    leader = world.leader_of(job)[1]
    for played, trainer in world.trainers_of(job):
        results: dict[str, Any] = {}
        if trainer is leader:
            results = {"metrics": {}, "digest": "d" * 64, "files": [], "num_examples": 64}
        played.say(trainer, ReportKind.FINISHED, step=8, epoch=1, reason="epochs", **results)
        played.say(trainer, ReportKind.EXITED, exit_code=0)
        del played.trainers[trainer.job_id, trainer.slot]
        world.tell(played)
    job.refresh_from_db()


def test_trainers_are_told_what_to_do() -> None:
    spec = training_spec(job_make(**PREDICTION))
    assert (spec.task, spec.stop.limit, spec.shuffle) == ("predict", 1, False)
    assert spec.checkpoint_every_s == 0.0


def test_a_start_and_a_recovery_say_where_to_go_on_and_a_resize_does_not() -> None:
    world, job = running(max_accelerators=4)
    rows = [row.membership for row in job.generations.order_by("number")]
    assert rows[0].resume_at == 0
    assert all(row.resume_at is None for row in rows if row.source_slot is not None)
    part_store(world, job, 0, 16)
    part_store(world, job, 24, 32)  # after a gap: not safe
    leader = world.leader_of(job)[1].slot
    world.kill(job, leader)
    assert newest(job).recover
    assert newest(job).resume_at == 16
    world.follow_all()
    part_store(world, job, 16, 24)
    for _, trainer in world.trainers_of(job):
        world.kill(job, trainer.slot)
    world.until(lambda: newest(job).source_slot is None and not newest(job).recover)
    assert newest(job).resume_at == 32


def test_a_part_is_never_too_late_but_other_files_are() -> None:
    world, job = running(max_accelerators=1)
    (played, trainer), *_ = world.trainers_of(job)
    job.allocations.filter(slot=trainer.slot).update(stop_requested_at=world.now)
    for name in ("metrics.json", "predictions-8-0.npz"):
        with pytest.raises(ConflictError):
            upload_target(played.node, job.pk, trainer.slot, trainer.generation, name)
    part = "predictions-0-8.npz"
    assert upload_target(played.node, job.pk, trainer.slot, 0, part) == job


def test_the_parts_of_a_finished_job_become_one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    world, job = running()
    part_store(world, job, 0, 24)
    part_store(world, job, 16, 40)
    part_store(world, job, 40, 64)
    assert predictions_join_next(world.now) is None
    finish(world, job)
    assert job.status == "finished"
    deletion = FieldFile.delete
    deleted: list[str | None] = []

    def deletion_cut(file: FieldFile, save: bool = True) -> None:
        deleted.append(file.name)
        if len(deleted) == 1:
            raise OSError(errno.EIO, "Input/output error")
        deletion(file, save)
        if len(deleted) == 2:
            raise SoftTimeLimitExceeded

    monkeypatch.setattr(FieldFile, "delete", deletion_cut)
    with pytest.raises(SoftTimeLimitExceeded):
        tasks.join_predictions()
    assert predictions_join_next(world.now) is None
    names = set(job.artifacts.exclude(name="log.txt").values_list("name", flat=True))
    assert names == {"predictions.npz"}
    whole = Artifact.objects.get(job=job, name="predictions.npz")
    content = whole.file.read()
    assert whole.sha256 == hashlib.sha256(content).hexdigest()
    assert whole.size_bytes == len(content)
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        np.testing.assert_array_equal(archive["scores"], ROWS)
    event = Event.objects.get(job=job, kind="predictions_stored")
    assert event.data == {"num_examples": 64, "parts": 3}
    assert " kB)" in event.message


def test_a_job_that_ends_with_a_gap_makes_what_is_missing_again() -> None:
    world, job = running()
    part_store(world, job, 0, 24)
    part_store(world, job, 40, 64)  # what was between went with a node
    finish(world, job)
    assert (job.status, job.status_code) == ("pending", "predictions_lost")
    world.until(lambda: job.generations.filter(phase="active").exists())
    assert newest(job).resume_at == 24 or newest(job).source_slot is not None
    part_store(world, job, 24, 40)
    finish(world, job)
    assert job.status == "finished"
    assert predictions_join_next(world.now) == job.pk


def _archive(header: bytes, *, is_encrypted: bool = False) -> bytes:
    """Return a part of one array, whose header and flags its job has written itself."""
    file = io.BytesIO()
    array = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("scores.npy", array)
    content = bytearray(file.getvalue())
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(mark) + offset] |= is_encrypted
    return bytes(content)


@pytest.mark.parametrize(
    "content",
    [
        b"no archive",
        _archive(b"-" * 9000),
        _archive(b"(" * 9000),
        _archive(b"{[]: 1}\n"),
        _archive(b"{'descr': '<f4', 'fortran_order': False, 'shape': (64,)}\n", is_encrypted=True),
    ],
    ids=["no archive", "signs", "brackets", "no name", "encrypted"],
)
def test_parts_that_cannot_be_joined_stay_and_say_so(content: bytes) -> None:
    world, job = running()
    file_store(job, "predictions-0-64.npz", content, world.now, job.generation)
    finish(world, job)
    assert predictions_join_next(world.now) == job.pk
    assert Event.objects.filter(job=job, kind="predictions_damaged").exists()
    assert job.artifacts.filter(name="predictions-0-64.npz").exists()
    assert predictions_join_next(world.now + timedelta(hours=1)) is None


def test_a_join_that_is_kept_from_its_end_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world, job = running()
    part_store(world, job, 0, 64)
    finish(world, job)
    failed = Mock(side_effect=OSError(errno.EIO, "Input/output error"))
    with monkeypatch.context() as patch:
        patch.setattr(prediction_parts._SmallReads, "read", failed)
        with pytest.raises((OSError, zipfile.BadZipFile)):
            predictions_join_next(world.now)
    assert not Event.objects.filter(job=job, kind="predictions_damaged").exists()
    assert predictions_join_next(world.now + timedelta(seconds=predictions.JOIN_LIMIT_S + 1))


def test_a_join_that_takes_too_long_keeps_no_other_one_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow, other = job_make(**PREDICTION), job_make(**PREDICTION)
    now = timezone.now()
    Job.objects.filter(pk__in=[slow.pk, other.pk]).update(status="finished", ended_at=now)
    later = now + timedelta(seconds=predictions.JOIN_LIMIT_S + 1)
    too_late = Mock(side_effect=SoftTimeLimitExceeded())
    with monkeypatch.context() as patch:
        patch.setattr(predictions, "parts_join", too_late)
        with pytest.raises(SoftTimeLimitExceeded):
            predictions_join_next(now)
    odd = Mock(side_effect=ValueError("\x1b[2J\u202e.npy" + " " * 9999))
    with monkeypatch.context() as patch:
        patch.setattr(predictions, "parts_join", odd)
        assert predictions_join_next(later) == other.pk
    monkeypatch.setattr(predictions, "parts_join", too_late)
    assert predictions_join_next(later) == slow.pk
    told = dict(Event.objects.filter(kind="predictions_damaged").values_list("job", "message"))
    assert "it takes too long" in told[slow.pk]
    assert told[other.pk].isprintable()
    assert len(told[other.pk]) < 600
    assert predictions_join_next(later + timedelta(hours=1)) is None


@pytest.mark.parametrize("when", ["before", "in the middle", "at the end"])
def test_nothing_is_stored_of_a_job_whose_files_were_deleted(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, job = running()
    part_store(world, job, 0, 64)
    finish(world, job)
    world.settle(3)

    def delete() -> None:
        files_delete(job.pk, world.now, actor="system")

    def join(*args: Any) -> None:
        if when == "in the middle":
            delete()
            raise FileNotFoundError("predictions-0-64.npz")
        parts_join(*args)
        delete()

    monkeypatch.setattr(predictions, "parts_join", join)
    if when == "before":
        delete()
    with pytest.raises(ConflictError) if when == "at the end" else nullcontext():
        predictions_join_next(world.now)
    assert predictions_join_next(world.now + timedelta(hours=1)) is None
    assert not job.artifacts.exists()
    assert not [*Path(default_storage.path(f"jobs/{job.pk}")).glob("*-predictions.npz")]
    assert Event.objects.filter(job=job).latest("pk").kind == "files_deleted"


def test_its_times_are_not_those_of_training_and_nothing_is_added_up() -> None:
    predicts = job_make(reduction="fast", **PREDICTION)
    trains = Job(**{name: getattr(predicts, name) for name in ("settings", "code_sha256")})
    trains.reduction, trains.num_virtual_nodes = "fast", predicts.num_virtual_nodes
    assert profile_key(predicts, 8) != profile_key(trains, 8)
    trains.task = "predict"
    assert profile_key(predicts, 8) == profile_key(trains, 8)
    assert reproducibility_of(predicts, ["cpu"])[0] == "bitwise"
    assert reproducibility_of(predicts, ["cpu", "slow"])[0] == "tolerance"
