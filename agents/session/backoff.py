"""Delays between retries of a request."""

from __future__ import annotations

import random
from dataclasses import dataclass, field


@dataclass(slots=True)
class Backoff:
    """Capped exponential backoff with jitter: each delay is between half its bound and the bound.

    The bound doubles with each failure from `first_s` up to `cap_s`. The minimum of half the bound
    keeps many agents from retrying at once and from overloading a control plane that just returned.
    """

    first_s: float
    cap_s: float
    random: random.Random = field(default_factory=random.Random)
    failures: int = 0

    def next_delay_s(self, wished_s: float = 0.0) -> float:
        """Count one failure and return the delay after it.

        Args:
            wished_s: delay that the server asks for. More than `cap_s` is not granted: a proxy
                that asks for an hour must not cost a node its lease.
        """
        bound_s = min(self.cap_s, self.first_s * 2.0 ** min(self.failures, 32))
        self.failures += 1
        delay_s = bound_s * (0.5 + 0.5 * self.random.random())
        return max(delay_s, min(wished_s, self.cap_s))

    def reset(self) -> None:
        """Start over after a success."""
        self.failures = 0
