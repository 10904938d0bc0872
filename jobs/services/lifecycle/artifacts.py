"""Storage of files that jobs produce, verified against their digest during the upload."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import io
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from django.conf import settings
from django.core.files import File
from django.db import DatabaseError, transaction
from django.db.models.fields.files import FieldFile

from controlplane.core.protocol.prediction_parts import part_of
from jobs.exceptions import ConflictError, InvalidInputError, TooLargeError
from jobs.files import stored_with_row
from jobs.models import Artifact, Job
from jobs.services.lifecycle.events import event_add
from jobs.services.lifecycle.transitions import job_lock

CHECKPOINT = "checkpoint.npz"
#: Files that agents upload.
ARTIFACT_NAMES = (CHECKPOINT, "model.keras", "model.weights.h5", "history.csv", "metrics.json")
#: Written by the control plane, from log chunks sent while the job ran.
LOG_NAME = "log.txt"
_REST_LEFT_OUT = b"\n[The rest of this log is left out.]\n"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_CHUNK_BYTES = 1024**2
_IN_MEMORY_BYTES = 4 * 1024**2


@contextlib.contextmanager
def new_files_undone(jobs: Sequence[Job]) -> Iterator[None]:
    """Delete code and states of new jobs if the block fails, and with it their transaction.

    Args:
        jobs: may grow in the block.
    """
    try:
        yield
    except BaseException:
        for job in jobs:
            job.code.delete(save=False)
        with contextlib.suppress(DatabaseError):
            for artifact in Artifact.objects.filter(job__in=[job.pk for job in jobs if job.pk]):
                artifact.file.delete(save=False)
        raise


class Readable(Protocol):
    """Source of a file's bytes."""

    def read(self, size: int, /) -> bytes: ...


def artifact_store(
    job: Job,
    name: str,
    generation: int,
    source: Readable,
    sha256: str,
    now: datetime.datetime,
) -> Artifact:
    """Store a file, replacing an older one of the same name.

    Raises:
        InvalidInputError: an unknown name, or a digest that does not match the bytes.
        TooLargeError: the file is larger than `ARTIFACT_LIMIT_BYTES`.
        ConflictError: a newer generation stored this file in the meantime, or the job's files were
            deleted.
    """
    if name not in ARTIFACT_NAMES and part_of(name) is None:
        raise InvalidInputError.of(name=f"Use one of {', '.join(ARTIFACT_NAMES)}.")
    if not _SHA256.fullmatch(sha256):
        raise InvalidInputError.of(x_sha256="Send the SHA-256 of the file in lower-case hex.")
    pieces = iter(lambda: source.read(_CHUNK_BYTES), b"")
    return _write(job, name, generation, pieces, now, expected_sha256=sha256)


def artifact_keep(job: Job, name: str, file: io.BufferedRandom, now: datetime.datetime) -> Artifact:
    """Add a file made by the control plane to a job's files, without a size limit."""
    file.seek(0)
    artifact = Artifact(
        job=job,
        name=name,
        sha256=hashlib.file_digest(file, "sha256").hexdigest(),
        size_bytes=file.tell(),
        generation=job.generation,
        at=now,
    )
    file.seek(0)
    artifact.file.save(name, File(file), save=False)
    return _replace(artifact)


def log_store(job: Job, text: Iterable[str], now: datetime.datetime) -> Artifact:
    """Store a job's log among its files, replacing an earlier version.

    Of the logs of many hundred trainers the last ones are left out.
    """
    return _write(job, LOG_NAME, job.generation, _cut(text), now, expected_sha256=None)


def _cut(text: Iterable[str]) -> Iterator[bytes]:
    """Yield pieces up to the size that a file may have, with a note in place of the rest."""
    left = settings.ARTIFACT_LIMIT_BYTES - len(_REST_LEFT_OUT)
    for piece in text:
        data = piece.encode()
        left -= len(data)
        if left < 0:
            yield _REST_LEFT_OUT
            return
        yield data


def _write(
    job: Job,
    name: str,
    generation: int,
    pieces: Iterable[bytes],
    now: datetime.datetime,
    *,
    expected_sha256: str | None,
) -> Artifact:
    with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES) as spool:
        size_bytes = 0
        digest = hashlib.sha256()
        for piece in pieces:
            size_bytes += len(piece)
            if size_bytes > settings.ARTIFACT_LIMIT_BYTES:
                raise TooLargeError(f"At most {settings.ARTIFACT_LIMIT_BYTES} bytes a file.")
            digest.update(piece)
            spool.write(piece)
        sha256 = digest.hexdigest()
        if expected_sha256 not in (None, sha256):
            raise InvalidInputError.of(x_sha256="The bytes that came have another digest.")
        spool.seek(0)
        artifact = Artifact(
            job=job, name=name, sha256=sha256, size_bytes=size_bytes, generation=generation, at=now
        )
        # The file before the row: a row must never refer to a missing file.
        artifact.file.save(name, File(spool), save=False)
    return _replace(artifact)


def _replace(artifact: Artifact) -> Artifact:
    with stored_with_row(artifact.file), transaction.atomic():
        job = job_lock(artifact.job_id)
        if job.files_deleted_at is not None:
            raise ConflictError("The files of this job were deleted meanwhile.", code="gone")
        old = Artifact.objects.filter(job_id=artifact.job_id, name=artifact.name).first()
        if old is not None and old.generation > artifact.generation:
            raise ConflictError("A newer generation stored this file.", code="stale_generation")
        is_kept = old is not None and artifact.name == CHECKPOINT and _keep(old)
        if old is not None and not is_kept:
            artifact.pk = old.pk
            _remove_later(old)
        artifact.save()
    return artifact


def checkpoint_choose(job: Job, now: datetime.datetime) -> bool:
    """Choose the newest checkpoint whose file is there to start from; return whether there is one.

    Rows without a file, as of a restored backup, are deleted, and an event says so; not while the
    job's code is missing, too, as then the whole storage may be away for a time.
    """
    kept = Artifact.objects.filter(job=job, name__startswith="checkpoint").order_by("-at", "-id")
    missing: list[Artifact] = []
    found = None
    for row in kept:
        if _is_stored(row.file):
            found = row
            break
        missing.append(row)
    if missing:
        if not _is_stored(job.code):
            return True
        steps = ", ".join(str(row.step) for row in missing)
        way = "starts from the beginning" if found is None else f"goes on from step {found.step}"
        text = f"The saved state of step {steps} is missing among the site's files: the job {way}"
        event_add("checkpoint_missing", text, now=now, job=job)
        Artifact.objects.filter(id__in=[row.pk for row in missing]).delete()
        if found is not None:
            Artifact.objects.filter(id=found.pk).update(name=CHECKPOINT)
    return found is not None


def _is_stored(file: FieldFile) -> bool:
    return file.name is not None and file.storage.exists(file.name)


def _keep(old: Artifact) -> bool:
    """Keep a replaced checkpoint under the name of its step; return False if it is not to stay.

    Of older ones with that step, and of all beyond the limit, none stays.
    """
    earlier = Artifact.objects.filter(job_id=old.job_id, name__startswith="checkpoint-")
    name = None if old.step is None else f"checkpoint-{old.step}.npz"
    num_kept = settings.KEPT_CHECKPOINTS - 1 - (name is not None)
    for place, other in enumerate(earlier.exclude(name=name or "").order_by("-at", "-id")):
        if place >= num_kept:
            other.delete()
            _remove_later(other)
    if name is None or num_kept < 0:
        return False
    for other in earlier.filter(name=name):
        other.delete()
        _remove_later(other)
    Artifact.objects.filter(id=old.pk).update(name=name)
    return True


def _remove_later(old: Artifact) -> None:
    """Remove a file on commit. Readers can finish: each stored file has its own name."""
    old_file = old.file
    transaction.on_commit(lambda: _file_remove(old_file))


def _file_remove(old_file: File) -> None:
    with contextlib.suppress(OSError):
        old_file.delete(save=False)  # type: ignore[attr-defined]
