"""New priority and tier of a job, checked against what a user may give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import User

from controlplane.core.values.tiers import Tier
from jobs.exceptions import InvalidInputError
from jobs.models import Job
from jobs.selectors.limits import Limits, limits_for
from jobs.submission import PRIORITY_RANGE


@dataclass(frozen=True, slots=True)
class Standing:
    """Priority and tier that a job is to have; None: as it is."""

    priority: int | None = None
    tier: Tier | None = None

    def changes(self, job: Job) -> dict[str, Any]:
        """Return the columns of a job that would change, with their new values."""
        wanted = {"tier": self.tier and self.tier.value, "priority": self.priority}
        return {
            name: value
            for name, value in wanted.items()
            if value is not None and value != getattr(job, name)
        }


#: Standing of a job that stays as it is.
UNCHANGED = Standing()


def standing_read(user: User, given: Mapping[str, Any]) -> Standing:
    """Check the fields `priority` and `tier` of a request, of which one is enough.

    Raises:
        InvalidInputError: there is neither, one is out of range, or above the user's ceiling.
    """
    return standing_within(limits_for(user), given)


def standing_within(limits: Limits, given: Mapping[str, Any]) -> Standing:
    """Check the fields as `standing_read`, against limits that have been read."""
    priority, tier = given.get("priority"), given.get("tier")
    if priority is None and tier is None:
        raise InvalidInputError.of(priority="Give a priority, a tier, or both.")
    errors: dict[str, str] = {}
    low, high = PRIORITY_RANGE[0], limits.priority_ceiling
    is_whole = isinstance(priority, int) and not isinstance(priority, bool)
    if priority is not None and not (is_whole and low <= priority <= high):
        errors["priority"] = f"Give a whole number from {low} to {high}."
    allowed = [one.value for one in limits.tiers]
    if tier is not None and tier not in allowed:
        errors["tier"] = f"Choose one of {', '.join(allowed)}."
    if errors:
        raise InvalidInputError.of(**errors)
    return Standing(priority, None if tier is None else Tier(tier))
