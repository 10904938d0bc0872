"""Tuning of a training job while it trains: which values are searched, and how much it may cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from controlplane.core.protocol.selection import BETA_RANGE

#: Means that summarise the losses of a trial.
NUM_POINTS = 10
#: Work of training on an example, in forward passes: its own, and a backward pass of twice as much
#: (Kaplan et al. 2020, arXiv 2001.08361, section 2.1).
STEP_PASSES = 3
TRIALS_RANGE = (2, 200)
SHARE_RANGE = (0.01, 0.9)
MAX_BRANCHES_RANGE = (2, 16)
MAX_PARALLEL_RANGE = (1, 16)
TRIAL_STEPS_RANGE = (2 * NUM_POINTS, 1_000_000)
#: Fields of searches inside the job alone, and fields of parallel trials alone.
SERIAL_FIELDS = ("max_share", "max_branches", "objective", "higher_is_better", "retune")
PARALLEL_FIELDS = ("max_parallel", "trial_steps")


class TunableName(StrEnum):
    """A value that a job may change between two steps without tracing its functions again."""

    LEARNING_RATE = "learning_rate"
    LEARNING_RATE_SCALE = "learning_rate_scale"  # multiplies the rate, schedules included
    MOMENTUM = "momentum"  # or beta_1 of optimizers of Adam's family
    WEIGHT_DECAY = "weight_decay"
    BATCH_SIZE = "batch_size"  # examples of a training step
    SELECTION_BETA = "selection_beta"  # exponent of the chance to be chosen


#: Bounds of a tunable's search range, both included; 0 only without `log`.
BOUNDS: Mapping[TunableName, tuple[float, float]] = {
    TunableName.LEARNING_RATE: (0.0, 1000.0),
    TunableName.LEARNING_RATE_SCALE: (0.0, 1e6),
    TunableName.MOMENTUM: (0.0, 0.9999),
    TunableName.WEIGHT_DECAY: (0.0, 10.0),
    TunableName.BATCH_SIZE: (1.0, 1e7),
    TunableName.SELECTION_BETA: BETA_RANGE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TunableRange:
    """Range of a tunable; `log` searches the logarithms evenly."""

    low: float
    high: float
    log: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningSpec:
    """Search for better tunables in short trials from a common state (arXiv 1803.07445).

    Attributes:
        space: the tunables and their ranges.
        max_trials: trials of a search, at most; the first one has the job's own values.
        max_share: share of the job's planned steps that trials may take, at most.
        max_branches: states of trials that are kept at a time, at most.
        objective: metric of an epoch's logs at whose plateau a new search begins.
        higher_is_better: of the objective.
        retune: search again at a plateau; otherwise only once, at the start.
        parallel: trials are jobs of their own, on idle accelerators, while the job trains on; the
            control plane begins and judges them (see `tuning.rounds`). `max_trials` is then of all
            rounds, and `SERIAL_FIELDS` mean nothing.
        max_parallel: parallel trials at a time, at most.
        trial_steps: steps of the first parallel trials.
    """

    space: dict[str, TunableRange]
    max_trials: int = 20
    max_share: float = 0.3
    max_branches: int = 4
    objective: str = "val_loss"
    higher_is_better: bool = False
    retune: bool = True
    parallel: bool = False
    max_parallel: int = 4
    trial_steps: int = 100

    def __post_init__(self) -> None:
        if not self.space:
            raise ValueError(
                f"tuning.space is empty; name at least one of {', '.join(TunableName)} with its "
                "low and high"
            )
        for name, span in self.space.items():
            _check_range(name, span)
        rates = {TunableName.LEARNING_RATE.value, TunableName.LEARNING_RATE_SCALE.value}
        if rates <= self.space.keys():
            raise ValueError(
                "tuning.space has learning_rate and learning_rate_scale, which multiply each "
                "other; keep one of them"
            )
        for title, value, (low, high) in (
            ("max_trials", self.max_trials, TRIALS_RANGE),
            ("max_share", self.max_share, SHARE_RANGE),
            ("max_branches", self.max_branches, MAX_BRANCHES_RANGE),
            ("max_parallel", self.max_parallel, MAX_PARALLEL_RANGE),
            ("trial_steps", self.trial_steps, TRIAL_STEPS_RANGE),
        ):
            if not low <= value <= high:
                raise ValueError(f"tuning.{title} must be from {low:g} to {high:g}, got {value}")
        if self.trial_steps % NUM_POINTS:
            raise ValueError(
                f"tuning.trial_steps must be a multiple of {NUM_POINTS}, as a trial is judged by "
                f"its tenths; got {self.trial_steps}"
            )
        if not self.objective:
            raise ValueError("tuning.objective is empty; name a metric such as val_loss")

    @property
    def num_kept_states(self) -> int:
        """States beside the present one, at most: parked ones, and one that moves at a resize."""
        if self.parallel:
            return 0
        return min(self.max_branches, self.max_trials) + 1

    @property
    def names(self) -> tuple[str, ...]:
        """The tunables in the order in which their values are sent and stored."""
        return tuple(sorted(self.space))

    @property
    def batch_size(self) -> TunableRange | None:
        """The range of the batch size; None if it is fixed."""
        return self.space.get(TunableName.BATCH_SIZE)

    @property
    def tunes_selection(self) -> bool:
        """Return whether trials differ in the exponent of their selection."""
        return TunableName.SELECTION_BETA in self.space

    @property
    def largest_batch_size(self) -> int:
        """Most examples of a trial's step; 0 if the batch size is fixed."""
        return 0 if self.batch_size is None else int(self.batch_size.high)


def _check_range(name: str, span: TunableRange) -> None:
    where = f"tuning.space.{name}"
    if name not in {known.value for known in TunableName}:
        raise ValueError(
            f"{where} is no tunable; choose from {', '.join(TunableName)}, and compare other "
            "values by forks of one state, each with its own"
        )
    low, high = BOUNDS[TunableName(name)]
    if not (math.isfinite(span.low) and low <= span.low):
        raise ValueError(f"{where}.low must be at least {low:g}, got {span.low}")
    if not (math.isfinite(span.high) and span.high <= high):
        raise ValueError(f"{where}.high must be at most {high:g}, got {span.high}")
    if span.low >= span.high:
        raise ValueError(f"{where}.low must be below its high, got {span.low} and {span.high}")
    if name == TunableName.BATCH_SIZE and not (span.low % 1.0 == span.high % 1.0 == 0.0):
        raise ValueError(
            f"{where} needs whole numbers as low and high, got {span.low} and {span.high}"
        )
    if span.log and span.low <= 0.0:
        raise ValueError(f"{where}.low must be above 0 with log, got {span.low}")
