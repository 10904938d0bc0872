"""Judging a move of virtual nodes by what it did: kept when it paid, otherwise taken back.

A prediction can be wrong for reasons that no model of a trainer sees: trainers that share a
processor get no faster by handing work to each other. So each move is a trial. The step time of the
membership before it was measured over a window, that after it is measured over another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median

from controlplane.core.virtual_nodes.step_window import Window, typical_step_s, window_closed

#: A move has paid when the step got shorter by at least this share of what was promised.
PAID_SHARE = 0.5

#: So many stretches, all of them slower than before the move by this factor, are enough to take it
#: back at once.
CLEAR_LOSS_STRETCHES = 4
CLEAR_LOSS = 1.2

#: Seconds between two moves of a job; twice as many after each move in a row that did not pay.
MOVE_COOL_DOWN_S = 60.0
MOVE_COOL_DOWN_LIMIT_S = 3600.0


@dataclass(frozen=True, slots=True)
class RebalanceTrial:
    """A move that is not judged yet.

    Attributes:
        generation: the membership that it made.
        counts: slot -> virtual nodes before it.
        before_s: measured seconds of a step before it.
        promised_s: expected seconds of a step after it.
    """

    generation: int
    counts: Mapping[int, int]
    before_s: float
    promised_s: float


@dataclass(frozen=True, slots=True)
class RebalancePlan:
    """What one job's moves have come to.

    Attributes:
        failures: how many in a row did not pay.
        until_s: no other move before then, in seconds of the caller's clock.
        trial: the move that is being tried.
    """

    failures: int = 0
    until_s: float = 0.0
    trial: RebalanceTrial | None = None

    def may_move(self, now_s: float) -> bool:
        """Say whether another move may be tried."""
        return self.trial is None and now_s >= self.until_s

    @property
    def is_doubtful(self) -> bool:
        """Say whether what members seem to differ in was tried last and made nothing faster."""
        return self.failures > 0

    def tried(self, trial: RebalanceTrial, now_s: float) -> RebalancePlan:
        """Begin a trial."""
        return RebalancePlan(self.failures, now_s + cool_down_s(self.failures), trial)

    def paid(self) -> RebalancePlan:
        """End a trial that paid."""
        return replace(self, failures=0, trial=None)

    def failed(self, now_s: float) -> RebalancePlan:
        """End a trial that did not pay; the next one has to wait longer."""
        failures = self.failures + 1
        return RebalancePlan(failures, now_s + cool_down_s(failures))

    def dropped(self) -> RebalancePlan:
        """End a trial that can no longer be judged."""
        return replace(self, trial=None)


def cool_down_s(failures: int) -> float:
    """Give the seconds to wait after so many moves in a row that did not pay."""
    doublings = min(failures, 32)
    return min(MOVE_COOL_DOWN_S * 2.0**doublings, MOVE_COOL_DOWN_LIMIT_S)


@dataclass(frozen=True, slots=True)
class RebalanceVerdict:
    """What a move did: the measured seconds of a step after it, and whether that is enough."""

    measured_s: float
    has_paid: bool


def move_verdict(trial: RebalanceTrial, window: Window) -> RebalanceVerdict | None:
    """Judge a move by the membership that it made; None while it is too early.

    A full window is asked for, or a few stretches that all are much slower than before.
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
