"""Tiers of jobs: strict between them, while priorities are weights inside a tier."""

from __future__ import annotations

from enum import StrEnum


class Tier(StrEnum):
    """Tier of a job, highest first. A job of a lower tier gets only what higher ones leave."""

    URGENT = "urgent"
    NORMAL = "normal"
    IDLE = "idle"

    @property
    def rank(self) -> int:
        """Place among the tiers; 0 is the highest."""
        return TIERS.index(self)


#: All tiers, highest first.
TIERS = tuple(Tier)
