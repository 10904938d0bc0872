"""Gains from more accelerators in the next seconds: decreases of losses, made comparable."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from controlplane.core.policies.common.rates import packed_rates
from controlplane.core.values.types import Job

#: Seconds for which shares are computed.
EPOCH_S = 15.0

#: A job with fewer loss reports than this gets its fair share.
REPORTS_LEAST = 5


@dataclass(frozen=True, slots=True)
class Gains:
    """Gain of one job as a function of its number of accelerators.

    Attributes:
        counts: numbers of accelerators, ascending, each faster than all before.
        rates: useful examples a second on each of them.
        is_known: whether there is enough history to predict gains.
    """

    job: Job
    counts: tuple[int, ...]
    rates: tuple[float, ...]
    is_known: bool

    def gain(self, place: int, seconds: float = EPOCH_S) -> float:
        """Return the weighted, normalised gain in `seconds` on `counts[place]` accelerators."""
        return self.job.weight * self.fall(place, seconds) / self.normaliser

    def fall(self, place: int, seconds: float = EPOCH_S) -> float:
        """Return the expected decrease of the job's loss."""
        loss = self.job.loss
        assert loss is not None, "gains are known of jobs with a loss only"
        examples = self.rates[place] * seconds
        if self.job.remaining_examples is not None:
            examples = min(examples, max(self.job.remaining_examples, 0.0))
        return max(loss.loss(0.0) - loss.loss(examples), 0.0)

    @property
    def normaliser(self) -> float:
        """The largest change of its loss so far."""
        return self.job.loss.normaliser if self.job.loss is not None else 1.0

    def place(self, count: int) -> int:
        """Return the last place with at most `count` accelerators."""
        return max(bisect_right(self.counts, count) - 1, 0)


def gains_of(job: Job, kind: str, capacity: int, per_node: int) -> Gains:
    """Find the numbers of accelerators of a kind that make a job faster, from its minimum on."""
    most = min(job.max_accelerators, capacity)
    rates = packed_rates(job, kind, most, per_node)[job.min_accelerators :]
    fastest = np.maximum.accumulate(rates)
    better = np.flatnonzero(np.append(True, fastest[1:] > fastest[:-1]))
    is_known = (
        job.loss is not None
        and job.performance is not None
        and job.loss.num_points >= REPORTS_LEAST
    )
    return Gains(
        job,
        tuple((better + job.min_accelerators).tolist()),
        tuple(rates[better].tolist()),
        is_known,
    )
