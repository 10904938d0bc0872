"""Assumptions of a simulation: cost of a resize, rules of time, choice of batch sizes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

#: Largest cost of a resize that users may give, in seconds: a day.
MOST_COST_S = 86_400.0


@dataclass(frozen=True, slots=True)
class ResizeCosts:
    """Costs of a change of a job's accelerators, in seconds.

    Attributes:
        start_s: from the assignment of accelerators to the first step, for a job that trains
            nowhere.
        pause_s: pause of a training job when it changes to other accelerators.
        growth_s: until new accelerators can take part; the job trains on with its old ones.
        release_s: until accelerators that a job gave up can be given to another one.
    """

    start_s: float
    pause_s: float
    growth_s: float
    release_s: float = 0.0

    def __post_init__(self) -> None:
        costs = (self.start_s, self.pause_s, self.growth_s, self.release_s)
        if not all(0.0 <= seconds < math.inf for seconds in costs):
            raise ValueError("costs of a resize must be finite and not negative; give 0 or more")

    @classmethod
    def flat(cls, seconds: float) -> ResizeCosts:
        """Return the costs of a job that stands still for `seconds` at every start and resize."""
        return cls(start_s=seconds, pause_s=seconds, growth_s=0.0)

    def __str__(self) -> str:
        return (
            f"start {self.start_s:g} s, pause {self.pause_s:g} s, growth {self.growth_s:g} s, "
            f"release {self.release_s:g} s"
        )


#: As measured on this project (benchmarks.growth, two busy cores): see docs/simulator.md.
MEASURED = ResizeCosts(start_s=10.0, pause_s=0.8, growth_s=5.0, release_s=1.0)

#: A checkpoint and a restart, as Pollux and Sia assume.
FLAT_30 = ResizeCosts.flat(30.0)

#: No cost: shows what a policy could achieve if it could move jobs at will.
FREE = ResizeCosts(0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Failures:
    """Failure model of nodes.

    Attributes:
        mtbf_s: mean time between the return of a node and its next loss.
        mttr_s: mean time from its loss until it is back.
        lease_s: silence after which a node counts as lost (VIRTUALFLOW_LEASE_S).
        checkpoint_s: interval of checkpoints of running jobs (VIRTUALFLOW_CHECKPOINT_EVERY_S).
        replace_s: time after a loss for which accelerators are kept for a job that is left below
            its minimum (VIRTUALFLOW_REPLACE_LIMIT_S).
    """

    mtbf_s: float
    mttr_s: float
    lease_s: float = 20.0
    checkpoint_s: float = 300.0
    replace_s: float = 60.0

    def __post_init__(self) -> None:
        if not min(self.mtbf_s, self.mttr_s, self.lease_s, self.checkpoint_s) > 0.0:
            raise ValueError("times between failures, of repairs and saving must be positive")


class Rules(StrEnum):
    """Rules by which time passes.

    OWN: as in the product: the policy runs at every arrival and end and every round, plans are
        carried out in two phases, jobs change at any moment.
    POLLUX: as in the simulator of Pollux: everything happens in rounds of 60 s, the accelerators
        of a job change hands at once, a changed job pauses for 30 s.
    """

    OWN = "own"
    POLLUX = "pollux"


class Knowledge(StrEnum):
    """Source of job speeds for policies: models fitted to observations, or the true values."""

    FITTED = "fitted"
    TRUE = "true"
