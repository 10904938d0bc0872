"""Rows of jobs that train: what they hold, and what their trainers have told."""

from __future__ import annotations

import hashlib
import io
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from jobs.models import (
    Accelerator,
    Allocation,
    Artifact,
    ClusterSetting,
    Generation,
    Job,
    LogChunk,
    Trial,
)
from jobs.services.lifecycle.artifacts import artifact_store
from tests.support.builders import START, membership_make

#: Fields of a job that predicts.
PREDICTION: dict[str, Any] = {
    "task": "predict", "stop_kind": "epochs", "stop_limit": 1, "shuffle": False,
}  # fmt: skip


def allocation_make(job: Job, accelerator: Accelerator | None, **other: Any) -> Allocation:
    """Let a job hold an accelerator from START on, with its first slot."""
    values = {"slot": 0, "granted_generation": 1, "granted_at": START, **other}
    return Allocation.objects.create(job=job, accelerator=accelerator, **values)


def artifact_make(job: Job, name: str = "checkpoint.npz", **other: Any) -> Artifact:
    """Make the row of a file of a job; there is no such file unless it is given."""
    values = {"file": "x", "sha256": "0" * 64, "size_bytes": 1, "generation": 1, "at": START}
    return Artifact.objects.create(job=job, name=name, **{**values, **other})


def file_store(
    job: Job, name: str, content: bytes, now: datetime = START, generation: int = 1
) -> Artifact:
    """Store a file of a job as its agent's upload does; the digest is in the row."""
    digest = hashlib.sha256(content).hexdigest()
    return artifact_store(job, name, generation, io.BytesIO(content), digest, now)


def generation_make(job: Job, number: int = 1, **other: Any) -> Generation:
    """Make an active generation of one member."""
    values = {"phase": "active", "membership": membership_make(number), "num_members": 1}
    values = {"number": number, "requested_at": START, **values, **other}
    return Generation.objects.create(job=job, **values)


def log_add(
    job: Job, text: str, *, slot: int = 0, offset: int | None = None, now: datetime = START
) -> None:
    """Store a piece of a trainer's log, the next one unless an offset is given."""
    if offset is None:
        offset = sum(job.log_chunks.filter(slot=slot).values_list("size_bytes", flat=True))
    values = {"slot": slot, "offset": offset, "size_bytes": len(text.encode()), "text": text}
    LogChunk.objects.create(job=job, at=now, **values)


def trial_make(job: Job, number: int = 1, **other: Any) -> Trial:
    """Make a trial of a job's first search, which has done no step."""
    values = {"search": 1, "values": {}, "steps": 0, "speed": 0.0, "generation": 1, "step": 0}
    return Trial.objects.create(job=job, number=number, **{**values, "at": START, **other})


def clock_settle() -> None:
    """Let the site have watched its nodes, and so its clock, for long."""
    now = timezone.now()
    watched = {"watched_at": now, "watch_since": now - timedelta(hours=1)}
    ClusterSetting.objects.update_or_create(id=1, defaults=watched)
