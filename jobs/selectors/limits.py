"""Limits of users: what an admin has chosen for one of them, or else the site's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.conf import settings

from controlplane.core.values.tiers import TIERS, Tier
from jobs.models import UserLimits
from jobs.selectors.access import Person, is_admin
from jobs.submission import PRIORITY_RANGE


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits in force for a user: an admin's choice, or else the site's.

    Attributes:
        storage_limit_bytes: 0: there is none.
        chosen: names of those that an admin chose.
    """

    priority_ceiling: int
    tier_ceiling: Tier
    share_factor: float
    live_jobs_limit: int
    storage_limit_bytes: int
    chosen: tuple[str, ...]

    @property
    def tiers(self) -> list[Tier]:
        """Tiers that the user may give jobs, highest first."""
        return [tier for tier in TIERS if tier.rank >= self.tier_ceiling.rank]


def limits_for(person: Person) -> Limits:
    """Return the limits of who asks; admins may give every priority and tier."""
    return limits_of(person.pk, is_admin=is_admin(person))


def limits_of(user_id: int | None, *, is_admin: bool) -> Limits:
    """Return the limits of a user, or those of an admin."""
    return limits_read(UserLimits.objects.filter(user_id=user_id or 0).first(), is_admin=is_admin)


def limits_read(row: UserLimits | None, *, is_admin: bool) -> Limits:
    """Return the limits in force for a user with this row."""
    row = row or UserLimits()
    found: dict[str, Any] = {
        "priority_ceiling": settings.PRIORITY_CEILING,
        "tier_ceiling": settings.TIER_CEILING,
        "share_factor": 1.0,
        "live_jobs_limit": settings.LIVE_JOBS_LIMIT,
        "storage_limit_bytes": settings.STORAGE_LIMIT_BYTES,
    }
    chosen = {
        name: getattr(row, name)
        for name in found
        if getattr(row, name) is not None and (name != "share_factor" or row.share_factor != 1.0)
    }
    found |= chosen
    if is_admin:
        found |= {"priority_ceiling": PRIORITY_RANGE[1], "tier_ceiling": TIERS[0]}
    found["tier_ceiling"] = Tier(found["tier_ceiling"])
    return Limits(**found, chosen=tuple(chosen))


def share_factors() -> dict[int, float]:
    """Return the share factors of the users for whom an admin chose another one than 1."""
    return dict(UserLimits.objects.exclude(share_factor=1.0).values_list("user", "share_factor"))
