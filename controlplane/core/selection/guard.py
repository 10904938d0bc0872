"""Verdict on a selection of examples: by measured times, and against random selection.

Both are functions of what one trainer, the leader, has measured. Their verdict is a fact of the
run, which travels with a step to all trainers; see docs/selection.md.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.core.protocol.selection import EndReason, SelectionSpec
from controlplane.core.selection.cost import ExampleTimes, relative_cost

#: Passes that compute losses, and training steps, from which a cost is estimated, at least.
WINDOW_PASSES = 32
WINDOW_STEPS = 8
#: Windows in a row that must find the cost too high.
WINDOWS = 2
#: An epoch that selects must take less than this share of a plain one's time.
HIGHEST_COST = 0.95
#: Control epochs to compare before selection may be given up.
CONTROLS = 3

_REASONS = tuple(EndReason)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Selection does not pay; `ratio` as in `SelectionEnd`."""

    reason: EndReason
    ratio: float

    def to_note(self) -> tuple[float, float]:
        """Convert to two numbers that are sent with a step; zeros stand for no verdict."""
        return float(1 + _REASONS.index(self.reason)), self.ratio

    @classmethod
    def from_note(cls, note: Sequence[float]) -> Verdict | None:
        """Parse the result of `to_note`."""
        code = int(note[0]) if note else 0
        return cls(_REASONS[code - 1], float(note[1])) if code else None


class BreakEvenGuard:
    """Estimates the cost of selecting from the newest passes and steps of one membership.

    Times per example are medians over a window, so a single slow step counts little. The first pass
    and the first step after a change of trainers are left out.
    """

    def __init__(self, spec: SelectionSpec) -> None:
        self._spec = spec
        self._num_skipped = [1, 1]
        self._num_costly = 0
        self.verdict: Verdict | None = None
        self._clear()

    def _clear(self) -> None:
        self._loss_s: list[float] = []
        self._step_s: list[float] = []
        self._candidates = 0
        self._chosen = 0

    def add_pass(self, candidates: int, chosen: int, seconds: float) -> None:
        """Record a selection pass that has computed its candidates' losses."""
        if self._num_skipped[0]:
            self._num_skipped[0] -= 1
            return
        newest = self._loss_s[-4 * WINDOW_PASSES :]  # more only while steps are missing
        self._loss_s = [*newest, seconds / candidates]
        self._candidates += candidates
        self._chosen += chosen
        self._judge()

    def add_step(self, examples: int, seconds: float) -> None:
        """Record a training step, in any epoch."""
        if self._num_skipped[1]:
            self._num_skipped[1] -= 1
            return
        self._step_s = [*self._step_s[-WINDOW_PASSES:], seconds / examples]
        self._judge()

    def _judge(self) -> None:
        """Estimate the cost once the window is full, and begin another one."""
        if len(self._loss_s) < WINDOW_PASSES or len(self._step_s) < WINDOW_STEPS:
            return
        times = ExampleTimes(
            loss_s=statistics.median(self._loss_s), step_s=statistics.median(self._step_s)
        )
        if times.step_s <= 0.0:
            return
        cost = relative_cost(self._spec, times, self._chosen / self._candidates)
        self._num_costly = self._num_costly + 1 if cost >= HIGHEST_COST else 0
        self.verdict = Verdict(EndReason.GUARD, cost) if self._num_costly >= WINDOWS else None
        self._clear()


@dataclass(frozen=True, slots=True)
class EpochFall:
    """An epoch's validation loss at its end, the seconds that it took, and whether it selected."""

    epoch: int
    loss: float
    seconds: float
    has_selected: bool = True


def control_verdict(spec: SelectionSpec, epochs: Sequence[EpochFall]) -> Verdict | None:
    """Compare the fall of the validation loss per second with that of random selection.

    Each control epoch is compared with the mean of its two neighbours, which makes up for a fall
    that slows down. Selection is given up once `CONTROLS` such epochs are known and their falls
    add up to more than the neighbours'. One beside an epoch that did not select does not count.

    Args:
        epochs: all epochs so far, from 0 on; without validation data there is no verdict.
    """
    selecting = control = 0.0
    num_controls = 0
    for index in range(spec.start + 1, len(epochs) - 1):
        beside = epochs[index - 1 : index + 2]
        if not spec.is_control(index) or not all(epoch.has_selected for epoch in beside):
            continue
        control += _fall_per_s(epochs, index)
        selecting += (_fall_per_s(epochs, index - 1) + _fall_per_s(epochs, index + 1)) / 2
        num_controls += 1
    is_known = num_controls >= CONTROLS and math.isfinite(selecting) and control > 0.0
    if not is_known or selecting > control:
        return None
    return Verdict(EndReason.CONTROL, selecting / control)


def _fall_per_s(epochs: Sequence[EpochFall], index: int) -> float:
    fall = epochs[index - 1].loss - epochs[index].loss
    return fall / max(epochs[index].seconds, 1e-9)
