"""History of job resizes: number, times, and cost of each."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass

from django.db.models import Avg, Count, Max, Q

from controlplane.core.values.lifecycle import GenerationPhase
from jobs.models import Generation
from jobs.models.resizes import BATCH_ACTOR, MAPPING_ACTOR

#: Seconds assumed for a resize of a job that was never resized: about the pause of this platform's
#: trainers, with as much again for the slower first steps after it.
DEFAULT_RESIZE_S = 1.0

#: Weight of the default, in measured resizes.
_DEFAULT_WEIGHT = 1.0

#: Resizes with members both before and after.
WAS_RESIZED = Q(previous__isnull=False, num_members__gt=0, pause_s__isnull=False)


@dataclass(frozen=True, slots=True)
class ResizeHistory:
    """Past resizes of one job; `core.values.types.Job` explains their use."""

    num_resizes: int = 0
    changed_at: datetime.datetime | None = None
    running_since: datetime.datetime | None = None
    most_accelerators: int = 0
    resize_s: float = DEFAULT_RESIZE_S


def resize_histories(job_ids: Iterable[int]) -> dict[int, ResizeHistory]:
    """Summarise the memberships of jobs, in one query.

    Memberships with the same accelerators as before (another batch size, moved virtual nodes) do
    not count as resizes, nor do those aborted before they began.
    """
    holds = Q(num_members__gt=0)
    rows = (
        Generation.objects.filter(job_id__in=list(job_ids))
        .exclude(phase=GenerationPhase.ABORTED)
        .exclude(actor__in=(BATCH_ACTOR, MAPPING_ACTOR))
        .order_by()
        .values("job_id")
        .annotate(
            memberships=Count("id", filter=holds),
            changed_at=Max("requested_at"),
            running_since=Max("requested_at", filter=holds & Q(previous=None)),
            most=Max("num_members"),
            mean_pause_s=Avg("pause_s", filter=WAS_RESIZED),
            num_pauses=Count("pause_s", filter=WAS_RESIZED),
        )
    )
    return {
        row["job_id"]: ResizeHistory(
            num_resizes=max(row["memberships"] - 1, 0),
            changed_at=row["changed_at"],
            running_since=row["running_since"],
            most_accelerators=row["most"],
            resize_s=_expected_s(row["mean_pause_s"], row["num_pauses"]),
        )
        for row in rows
    }


def _expected_s(mean_s: float | None, number: int) -> float:
    if mean_s is None:
        return DEFAULT_RESIZE_S
    return (DEFAULT_RESIZE_S * _DEFAULT_WEIGHT + mean_s * number) / (_DEFAULT_WEIGHT + number)
