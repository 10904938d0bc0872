"""Readings of accelerators: now, over time, and accelerators that jobs hold without using them."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from django.conf import settings
from django.db.models import Count, F, FloatField, Max, Q, QuerySet, Sum
from django.db.models.functions import Cast

from jobs.exceptions import InvalidInputError
from jobs.models import Accelerator, Allocation, Node, ReadingBin

MINUTE_S, HOUR_S = 60, 3600
STEPS_S = (MINUTE_S, HOUR_S)
#: Most bins of one answer, of all accelerators together.
MAX_BINS = 20_000
#: A reading older than this tells nothing of the present.
STALE_S = 120


@dataclass(frozen=True, slots=True)
class IdleHeld:
    """An accelerator that a job holds and has hardly used: mean percent of `minutes`."""

    accelerator_id: int
    job_id: int
    percent: float
    minutes: float


@dataclass(frozen=True, slots=True)
class ReadingSeries:
    """Bins of one accelerator, oldest first."""

    accelerator: Accelerator
    bins: Sequence[ReadingBin]


@dataclass(frozen=True, slots=True)
class UseNow:
    """Newest readings and idle holdings, by accelerator."""

    readings: Mapping[int, ReadingBin]
    idle: Mapping[int, IdleHeld]


def use_now(accelerator_ids: Collection[int], now: datetime.datetime) -> UseNow:
    """Read the present use of some accelerators, in three queries."""
    idle = idle_held(now, accelerator__in=accelerator_ids)
    return UseNow(readings_now(accelerator_ids, now), {one.accelerator_id: one for one in idle})


def readings_now(accelerator_ids: Collection[int], now: datetime.datetime) -> dict[int, ReadingBin]:
    """Return the newest bin of a minute of each accelerator that was read lately."""
    rows = ReadingBin.objects.filter(
        accelerator__in=accelerator_ids,
        width_s=MINUTE_S,
        at__gte=now - datetime.timedelta(seconds=STALE_S + MINUTE_S),
        read_at__gte=now - datetime.timedelta(seconds=STALE_S),
    )
    return {row.accelerator_id: row for row in rows.order_by("at")}


def readings_between(
    node: Node, since: datetime.datetime, until: datetime.datetime, step_s: int | None = None
) -> tuple[list[ReadingSeries], int]:
    """Return the bins of a node's accelerators between two times, and their width.

    Args:
        step_s: one of `STEPS_S`; None: the smallest that is kept so long and within the limit.

    Raises:
        InvalidInputError: there would be more than `MAX_BINS` bins.
    """
    accelerators, rows, width_s = _bins(node, since, until, step_s)
    found: dict[int, list[ReadingBin]] = {one.pk: [] for one in accelerators}
    for row in rows.order_by("at"):
        found[row.accelerator_id].append(row)
    return [ReadingSeries(one, found[one.pk]) for one in accelerators], width_s


def measures_told(
    node: Node, since: datetime.datetime, until: datetime.datetime, names: Iterable[str]
) -> set[str]:
    """Return which of the values any device of a node told between two times, in one query."""
    counted = _bins(node, since, until)[1].aggregate(**{name: Count(name) for name in names})
    return {name for name, number in counted.items() if number}


def _bins(
    node: Node, since: datetime.datetime, until: datetime.datetime, step_s: int | None = None
) -> tuple[list[Accelerator], QuerySet[ReadingBin], int]:
    """Return a node's accelerators, their bins and the bins' width, as for `readings_between`."""
    accelerators = list(node.accelerators.filter(is_present=True).order_by("index"))
    seconds = max(0.0, (until - since).total_seconds())

    def is_within(width_s: int) -> bool:
        return seconds / width_s * len(accelerators) <= MAX_BINS

    if step_s is None:
        kept_s = settings.READING_MINUTE_DAYS * 86_400
        is_fine = seconds <= kept_s and is_within(MINUTE_S)
        step_s = MINUTE_S if is_fine else HOUR_S
    if not is_within(step_s):
        longer = "step=3600 or " if step_s == MINUTE_S else ""
        raise InvalidInputError.of(since=f"More than {MAX_BINS} bins; give {longer}a later time.")
    rows = ReadingBin.objects.filter(
        accelerator__in=accelerators, width_s=step_s, at__gte=since, at__lt=until
    )
    return accelerators, rows, step_s


def idle_held(now: datetime.datetime, **which: Iterable[int]) -> list[IdleHeld]:
    """List accelerators that were held for IDLE_MINUTES, with a mean use below IDLE_PERCENT.

    At least every second minute has to have readings, the newest of them lately.

    Args:
        which: `job__in` or `accelerator__in`; without them all held accelerators.
    """
    minutes = settings.IDLE_MINUTES
    since = now - datetime.timedelta(minutes=minutes)
    held = dict(
        Allocation.objects.filter(released_at=None, granted_at__lte=since, **which).values_list(
            "accelerator_id", "job_id"
        )
    )
    if not held:
        return []
    weight = Cast(F("num_readings"), FloatField())
    rows = (
        ReadingBin.objects.filter(accelerator__in=held, width_s=MINUTE_S, at__gte=since)
        .exclude(utilisation_percent=None)
        .order_by()
        .values("accelerator_id")
        .annotate(
            num_bins=Count("pk"),
            newest_at=Max("read_at"),
            percent=Sum(F("utilisation_percent") * weight, output_field=FloatField())
            / Sum(weight, output_field=FloatField()),
        )
        .filter(
            Q(percent__lt=settings.IDLE_PERCENT),
            num_bins__gte=max(1, int(minutes / 2)),
            newest_at__gte=now - datetime.timedelta(seconds=STALE_S),
        )
        .order_by("accelerator_id")
    )
    return [
        IdleHeld(row["accelerator_id"], held[row["accelerator_id"]], row["percent"], minutes)
        for row in rows
    ]
