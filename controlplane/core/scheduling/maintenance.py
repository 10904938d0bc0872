"""Maintenance: accelerators that are away until a known time, in reasons and forecasts."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace

from controlplane.core.scheduling.cordons import capacity_uncordoned
from controlplane.core.scheduling.pools import can_start, can_start_ever, room_of
from controlplane.core.values.explanations import Reason, reason
from controlplane.core.values.types import JobId, Snapshot

#: Seconds by which a decision may be early and still find a maintenance ended: rounding.
_EARLY_S = 1e-3


def maintenance_ends(snapshot: Snapshot) -> dict[JobId, float]:
    """Return when maintenance ends for the jobs that cannot start before.

    These are the jobs of whose minimum no accepted kind has enough outside nodes in maintenance.
    Jobs that could not start afterwards either, for their number or their project's limit, are left
    out.
    """
    if not snapshot.maintenance:
        return {}
    capacity = Counter(capacity_uncordoned(snapshot))
    left = [job for job in snapshot.jobs if not can_start(job, capacity)]
    ends: dict[JobId, float] = {}
    for one in sorted(snapshot.maintenance, key=lambda one: one.ends_at):
        capacity.update(accelerator.kind for accelerator in one.accelerators)
        ends |= {job.id: one.ends_at for job in left if can_start_ever(snapshot, job, capacity)}
        left = [job for job in left if job.id not in ends]
    return ends


def maintenance_over(snapshot: Snapshot) -> Snapshot:
    """Return a snapshot in which the maintenance that has ended by its time is over."""
    over = [one for one in snapshot.maintenance if one.ends_at <= snapshot.now + _EARLY_S]
    if not over:
        return snapshot
    known = {one.id for one in snapshot.accelerators}
    back = [one for row in over for one in row.accelerators if one.id not in known]
    order = sorted((*snapshot.accelerators, *back), key=lambda one: (one.node_id, one.index))
    return replace(
        snapshot,
        accelerators=tuple(order),
        cordoned=snapshot.cordoned.difference(one.node_id for one in over),
        maintenance=tuple(one for one in snapshot.maintenance if one not in over),
    )


def maintenance_reasons(
    snapshot: Snapshot, given: Collection[JobId], reasons: Mapping[JobId, str | Reason]
) -> dict[JobId, Reason]:
    """Return the reasons of waiting jobs for which accelerators in maintenance might do.

    Args:
        given: jobs that are given accelerators.
        reasons: the reason of each job without regard to maintenance.
    """
    ends = maintenance_ends(snapshot)
    capacity = capacity_uncordoned(snapshot)
    away: dict[float, Counter[str]] = {}
    for one in sorted(snapshot.maintenance, key=lambda one: one.ends_at):
        away.setdefault(one.ends_at, Counter()).update(row.kind for row in one.accelerators)
    found: dict[JobId, Reason] = {}
    for job in snapshot.jobs if away else ():
        if job.id in given or job.id not in reasons:
            continue
        if job.id in ends:
            found[job.id] = reason(
                "maintenance_waits",
                accelerators=job.min_accelerators,
                most=room_of(job, capacity),
                until=_text(ends[job.id]),
            )
            continue
        for ends_at, counts in away.items():
            if accepted := sum(n for kind, n in counts.items() if job.accepts(kind)):
                found[job.id] = reason(
                    "maintenance_note",
                    own=reasons[job.id],
                    accelerators=accepted,
                    until=_text(ends_at),
                )
                break
    return found


def _text(at: float) -> str:
    return datetime.datetime.fromtimestamp(at, datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
