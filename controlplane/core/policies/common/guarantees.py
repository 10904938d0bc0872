"""Guaranteed accelerators that groups of jobs can use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from controlplane.core.policies.common.fair_fill import progressive_fill
from controlplane.core.policies.common.quota_choice import accepts_any
from controlplane.core.policies.common.quota_groups import QuotaGroup
from controlplane.core.scheduling.pools import room_of
from controlplane.core.values.types import Job


def guarantees_by_kind(
    groups: Sequence[QuotaGroup], capacity: Mapping[str, int]
) -> dict[str, dict[str, int]]:
    """Return how many of its guaranteed accelerators of each kind each group can use."""
    wanted: dict[str, dict[str, int]] = {group.key: {} for group in groups}
    for kind, total in capacity.items():
        able = {}
        for group in groups:
            guaranteed = min(group.guaranteed_by_kind.get(kind, 0), total)
            demands = (
                (job, job.max_accelerators)
                for job in group.jobs
                if job.accepts(kind) and job.min_accelerators <= guaranteed
            )
            able[group.key] = group.most(min(guaranteed, group.usable(demands)))
        weights = {group.key: group.guaranteed_by_kind.get(kind, 0) for group in groups}
        for key, count in _in_proportion(able, weights, total).items():
            if count:
                wanted[key][kind] = count
    return wanted


def guarantees(groups: Sequence[QuotaGroup], capacity: Mapping[str, int]) -> dict[str, int]:
    """Return how many of its guaranteed accelerators each group can use.

    Where the cluster has too few for all, they are shared in proportion to the guarantees.
    """
    wanted = {
        group.key: min(
            group.guaranteed,
            group.usable(
                (job, min(job.max_accelerators, room_of(job, capacity)))
                for job in group.jobs
                if job.min_accelerators <= min(group.guaranteed, room_of(job, capacity))
            ),
        )
        for group in groups
    }
    total = sum(capacity.values())
    for group in groups:
        usable = (
            group.most(n, kind) for kind, n in capacity.items() if accepts_any(group.jobs, kind)
        )
        wanted[group.key] = min(wanted[group.key], sum(usable))
    return _in_proportion(wanted, {group.key: group.guaranteed for group in groups}, total)


def _in_proportion(
    wanted: Mapping[str, int], weights: Mapping[str, int], capacity: int
) -> dict[str, int]:
    """Return counts, or, where they are too many together, shares of a capacity by weight."""
    if sum(wanted.values()) <= capacity:
        return dict(wanted)
    keys = [key for key, count in wanted.items() if count]
    demands = (
        Job(place, 0.0, float(weights[key]), wanted[key], 0, wanted[key])
        for place, key in enumerate(keys)
    )
    filled = progressive_fill(demands, capacity)
    return {**wanted, **{key: filled[place] for place, key in enumerate(keys)}}
