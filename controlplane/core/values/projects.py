"""Quotas of projects: what is guaranteed to their jobs, and what they may have at most."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

ProjectId = int
UserId = int


@dataclass(frozen=True, slots=True)
class ProjectQuota:
    """Accelerators of a project: of all kinds that its jobs accept together, and of single kinds.

    A guarantee of a kind counts towards that of all kinds, where there are both.

    Attributes:
        guaranteed: accelerators that its jobs get at once if they can use them.
        limit: most that its jobs may hold together; None: there is none.
        user_limit: most that the jobs of one user may hold in it; None: there is none.
        outside: user -> accelerators given to jobs of the project that are not in the snapshot:
            jobs of higher tiers, and jobs that stay on cordoned nodes.
        guaranteed_by_kind, limit_by_kind: the same of one kind; a kind that is missing has none.
        outside_by_kind: kind -> the accelerators of `outside`.
    """

    guaranteed: int = 0
    limit: int | None = None
    user_limit: int | None = None
    outside: Mapping[UserId | None, int] = field(default_factory=dict)
    guaranteed_by_kind: Mapping[str, int] = field(default_factory=dict)
    limit_by_kind: Mapping[str, int] = field(default_factory=dict)
    outside_by_kind: Mapping[str, int] = field(default_factory=dict)

    def most(self, kinds: Collection[str]) -> float:
        """Return the most accelerators of one of some kinds that one job may ever hold.

        Args:
            kinds: those that the job accepts; empty: any, also such as have no limit.
        """
        of_kind = max((self.limit_by_kind.get(kind, math.inf) for kind in kinds), default=math.inf)
        of_all = (math.inf if one is None else one for one in (self.limit, self.user_limit))
        return min(of_kind, *of_all)

    @property
    def guaranteed_left(self) -> int:
        """The part of the guarantee that is left for the jobs of the snapshot."""
        return max(self.guaranteed - sum(self.outside.values()), 0)

    @property
    def limit_left(self) -> int | None:
        """The part of the limit that is left for the jobs of the snapshot; None: no limit."""
        return None if self.limit is None else max(self.limit - sum(self.outside.values()), 0)

    @property
    def guaranteed_left_by_kind(self) -> dict[str, int]:
        """The parts of the guarantees of kinds that are left for the jobs of the snapshot."""
        return self._left(self.guaranteed_by_kind)

    @property
    def limit_left_by_kind(self) -> dict[str, int]:
        """The parts of the limits of kinds that are left for the jobs of the snapshot."""
        return self._left(self.limit_by_kind)

    def _left(self, counts: Mapping[str, int]) -> dict[str, int]:
        return {kind: max(n - self.outside_by_kind.get(kind, 0), 0) for kind, n in counts.items()}

    def user_limit_left(self, user: UserId | None) -> int | None:
        """Return the part of a user's limit that is left for the jobs of the snapshot."""
        if self.user_limit is None:
            return None
        return max(self.user_limit - self.outside.get(user, 0), 0)

    def without(self, user: UserId | None, given: Mapping[str, int]) -> ProjectQuota:
        """Return the quota for other jobs, once jobs of a user were given accelerators by kind."""
        return replace(
            self,
            outside={**self.outside, user: self.outside.get(user, 0) + sum(given.values())},
            outside_by_kind=Counter(self.outside_by_kind) + Counter(given),
        )
