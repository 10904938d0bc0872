"""Evaluation of a move of virtual nodes by its measured effect: kept if it paid, else reverted.

A prediction can be wrong for reasons outside any model of a trainer: trainers that share a
processor do not become faster by handing work to each other. So each move is a trial. The step time
of the membership before the move is measured over a window, that after the move over another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median

from controlplane.core.virtual_nodes.step_window import Window, typical_step_s, window_closed

#: A move has paid when the step got shorter by at least this share of the predicted gain.
PAID_SHARE = 0.5

#: A move is reverted at once after this many stretches that are all slower than before the move by
#: the factor `CLEAR_LOSS`.
CLEAR_LOSS_STRETCHES = 4
CLEAR_LOSS = 1.2

#: Seconds between two moves of a job; twice as many after each move in a row that did not pay.
MOVE_COOL_DOWN_S = 60.0
MOVE_COOL_DOWN_LIMIT_S = 3600.0


@dataclass(frozen=True, slots=True)
class RebalanceTrial:
    """A move that has not been evaluated yet.

    Attributes:
        generation: the membership created by the move.
        counts: slot -> virtual nodes before the move.
        before_s: measured seconds of a step before the move.
        promised_s: predicted seconds of a step after the move.
    """

    generation: int
    counts: Mapping[int, int]
    before_s: float
    promised_s: float


@dataclass(frozen=True, slots=True)
class RebalancePlan:
    """State of one job's moves.

    Attributes:
        failures: number of consecutive moves that did not pay.
        until_s: earliest time of the next move, in seconds of the caller's clock.
        trial: the move under trial.
    """

    failures: int = 0
    until_s: float = 0.0
    trial: RebalanceTrial | None = None

    def may_move(self, now_s: float) -> bool:
        """Return whether another move may be tried."""
        return self.trial is None and now_s >= self.until_s

    @property
    def is_doubtful(self) -> bool:
        """True if the last move, made for apparent differences of members, made nothing faster."""
        return self.failures > 0

    def tried(self, trial: RebalanceTrial, now_s: float) -> RebalancePlan:
        return RebalancePlan(self.failures, now_s + cool_down_s(self.failures), trial)

    def paid(self) -> RebalancePlan:
        return replace(self, failures=0, trial=None)

    def failed(self, now_s: float) -> RebalancePlan:
        """End a trial that did not pay; the next one has to wait longer."""
        failures = self.failures + 1
        return RebalancePlan(failures, now_s + cool_down_s(failures))

    def dropped(self) -> RebalancePlan:
        """End a trial that can no longer be evaluated."""
        return replace(self, trial=None)


def cool_down_s(failures: int) -> float:
    """Return the seconds to wait after so many consecutive moves that did not pay."""
    doublings = min(failures, 32)
    return min(MOVE_COOL_DOWN_S * 2.0**doublings, MOVE_COOL_DOWN_LIMIT_S)


@dataclass(frozen=True, slots=True)
class RebalanceVerdict:
    """Result of a move: the measured seconds of a step after it, and whether that is enough."""

    measured_s: float
    has_paid: bool


def move_verdict(trial: RebalanceTrial, window: Window) -> RebalanceVerdict | None:
    """Evaluate a move by the membership it created; None while it is too early.

    The evaluation needs a full window, or a few stretches that are all much slower than before.
    """
    measured_s = typical_step_s(window)
    if measured_s is not None:
        promised_gain_s = trial.before_s - trial.promised_s
        has_paid = trial.before_s - measured_s >= PAID_SHARE * promised_gain_s
        return RebalanceVerdict(measured_s, has_paid)
    steps = [stretch.step_s for stretch in window_closed(window)]
    if len(steps) >= CLEAR_LOSS_STRETCHES and min(steps) > CLEAR_LOSS * trial.before_s:
        return RebalanceVerdict(median(steps), has_paid=False)
    return None
