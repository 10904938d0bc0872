"""What a simulation assumes: what a resize costs, by which rules time goes, who chooses batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class ResizeCosts:
    """What a change of a job's accelerators costs.

    Attributes:
        start_s: from being given accelerators to the first step, for a job that trains nowhere.
        pause_s: without progress, when a job that trains goes over to other accelerators.
        growth_s: until new accelerators can take part; the job trains on with its old ones.
        release_s: until accelerators that a job gave up can be given to another one.
    """

    start_s: float
    pause_s: float
    growth_s: float
    release_s: float = 0.0

    def __post_init__(self) -> None:
        if min(self.start_s, self.pause_s, self.growth_s, self.release_s) < 0.0:
            raise ValueError("costs of a resize must not be negative")


#: As measured on this project (benchmarks.growth, two busy cores): see docs/simulator.md.
MEASURED = ResizeCosts(start_s=10.0, pause_s=0.8, growth_s=5.0, release_s=1.0)

#: A checkpoint and a restart, as Pollux and Sia assume.
FLAT_30 = ResizeCosts(start_s=30.0, pause_s=30.0, growth_s=0.0)

#: Nothing: what a policy could do if it could move jobs at will.
FREE = ResizeCosts(0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Failures:
    """How nodes fail.

    Attributes:
        mtbf_s: mean time between the return of a node and its next loss.
        mttr_s: mean time from its loss until it is back.
        lease_s: silence after which a node counts as lost (VIRTUALFLOW_LEASE_S).
        checkpoint_s: how often running jobs save their state (VIRTUALFLOW_CHECKPOINT_EVERY_S).
    """

    mtbf_s: float
    mttr_s: float
    lease_s: float = 20.0
    checkpoint_s: float = 300.0

    def __post_init__(self) -> None:
        if not min(self.mtbf_s, self.mttr_s, self.lease_s, self.checkpoint_s) > 0.0:
            raise ValueError("times between failures, of repairs and saving must be positive")


class Rules(StrEnum):
    """How time goes.

    OWN: as in the product: the policy is asked at every arrival and end and every round, plans are
        carried out in two phases, jobs change at any moment.
    POLLUX: as in the simulator of Pollux: everything happens in rounds of 60 s, the accelerators
        of a job change hands at once, a changed job stands still for 30 s.
    """

    OWN = "own"
    POLLUX = "pollux"


class Knowledge(StrEnum):
    """What policies know of a job's speed: models fitted to what was seen of it, or the truth."""

    FITTED = "fitted"
    TRUE = "true"


class BatchMode(StrEnum):
    """Who chooses batch sizes: the platform, or who submitted the job."""

    CHOSEN = "chosen"
    SUBMITTED = "submitted"


@dataclass(frozen=True, slots=True)
class Demand:
    """How the jobs of a workload look to a policy.

    Attributes:
        batch: who chooses batch sizes.
        is_rigid: a job asks for exactly what its owner requested.
    """

    batch: BatchMode
    is_rigid: bool = False


_RIGID = Demand(BatchMode.SUBMITTED, is_rigid=True)
_ELASTIC = Demand(BatchMode.SUBMITTED)
_ADAPTIVE = Demand(BatchMode.CHOSEN)

#: How each policy was meant: with demands, with elastic jobs, with batch sizes that it may choose.
DEMANDS: Mapping[str, Demand] = MappingProxyType(
    {
        "fifo": _RIGID,
        "priority": _RIGID,
        "tiresias": _RIGID,
        "gavel": _RIGID,
        "srtf": _RIGID,
        "weighted_fair": _ELASTIC,
        "weighted_fair_power_of_two": _ELASTIC,
        "optimus": _ELASTIC,
        "slaq": _ELASTIC,
        "pollux": _ADAPTIVE,
        "sia": _ADAPTIVE,
        "goodput_fair": _ADAPTIVE,
    }
)


def demand_of(policy: str) -> Demand:
    """Give how jobs look to a policy; one that is not known may do everything."""
    return DEMANDS.get(policy, _ADAPTIVE)
