"""Quotas of projects: what is guaranteed to their jobs, and what they may have at most."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

ProjectId = int
UserId = int


@dataclass(frozen=True, slots=True)
class ProjectQuota:
    """Accelerators of a project, of all kinds that its jobs accept together.

    Attributes:
        guaranteed: accelerators that its jobs get at once if they can use them.
        limit: most that its jobs may hold together; None: there is none.
        user_limit: most that the jobs of one user may hold in it; None: there is none.
        outside: user -> accelerators given to jobs of the project that are not in the snapshot:
            jobs of higher tiers, and jobs that stay on cordoned nodes.
    """

    guaranteed: int = 0
    limit: int | None = None
    user_limit: int | None = None
    outside: Mapping[UserId | None, int] = field(default_factory=dict)

    @property
    def most(self) -> float:
        """Most accelerators that one job may ever hold."""
        return min(math.inf if one is None else one for one in (self.limit, self.user_limit))

    @property
    def guaranteed_left(self) -> int:
        """The part of the guarantee that is left for the jobs of the snapshot."""
        return max(self.guaranteed - sum(self.outside.values()), 0)

    @property
    def limit_left(self) -> int | None:
        """The part of the limit that is left for the jobs of the snapshot; None: no limit."""
        return None if self.limit is None else max(self.limit - sum(self.outside.values()), 0)

    def user_limit_left(self, user: UserId | None) -> int | None:
        """Return the part of a user's limit that is left for the jobs of the snapshot."""
        if self.user_limit is None:
            return None
        return max(self.user_limit - self.outside.get(user, 0), 0)

    def without(self, given: Mapping[UserId | None, int]) -> ProjectQuota:
        """Return the quota for the other jobs, once some of them were given accelerators."""
        users = [*self.outside, *(user for user in given if user not in self.outside)]
        return replace(
            self, outside={one: self.outside.get(one, 0) + given.get(one, 0) for one in users}
        )
