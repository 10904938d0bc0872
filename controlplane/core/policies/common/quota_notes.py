"""Notes on quotas in the reasons of jobs that have accelerators set apart."""

from __future__ import annotations

from collections import Counter

from controlplane.core.policies.common.parts import DecidedPart
from controlplane.core.policies.common.quota_groups import QuotaGroup
from controlplane.core.values.explanations import Reason, reason


def quota_note(group: QuotaGroup, part: DecidedPart) -> Reason:
    """Say what a group has, and its guarantees and limits."""
    return reason(
        "quota_note",
        whose=group.whose,
        accelerators=part.total,
        guaranteed=_guaranteed(group.guaranteed),
        ceiling=_ceiling(group.limit),
        kinds=_kind_notes(group, part.given) or None,
    )


def _kind_notes(group: QuotaGroup, given: Counter[str]) -> tuple[Reason, ...]:
    """Say how many of each kind with a quota a group has."""
    return tuple(
        reason(
            "quota_kind",
            given=given[kind],
            kind=kind,
            guaranteed=_guaranteed(group.guaranteed_by_kind.get(kind)),
            ceiling=_ceiling(group.limit_by_kind.get(kind)),
        )
        for kind in sorted({*group.guaranteed_by_kind, *group.limit_by_kind})
    )


def _guaranteed(count: int | None) -> Reason | None:
    return reason("quota_guaranteed", count=count) if count else None


def _ceiling(limit: int | None) -> Reason | None:
    return None if limit is None else reason("quota_limit", count=limit)
