"""Verdict on a selection of examples: by measured times, and against random selection.

Both are functions of the job's progress: of losses, and of times that the leader measures and sends
to all trainers, which so reach the same verdict at the same step; see docs/selection.md.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from controlplane.core.protocol.selection import EndReason, SelectionSpec
from controlplane.core.selection.cost import ExampleTimes, relative_cost

#: Passes that compute losses from which a cost is estimated.
WINDOW_PASSES = 16
#: Measured times of such passes, and of training steps, at least.
WINDOW_TIMES = 8
#: Windows in a row that must find the cost too high, unless one finds it clearly too high.
WINDOWS = 2
#: An epoch that selects must take less than this share of a plain one's time; from the second share
#: on it clearly does not.
HIGHEST_COST, CLEAR_COST = 0.95, 1.2
#: Control epochs to compare before selection may be given up.
CONTROLS = 3

#: Times of a batch that measures nothing, such as the first one of a membership.
NOT_MEASURED = ExampleTimes(0.0, 0.0)
#: More times are kept only while those of the other kind are missing.
_TIMES_LIMIT = 4 * WINDOW_PASSES


@dataclass(frozen=True, slots=True)
class GuardVerdict:
    """Selection does not pay; `ratio` as in `SelectionEnd`."""

    reason: EndReason
    ratio: float


@dataclass(frozen=True, slots=True)
class BreakEvenGuard:
    """Cost of selecting, estimated from the newest passes and steps of a job.

    Seconds depend on the accelerators. So the passes of each membership count by their quotient
    over the membership's own steps, and quotients of several memberships are put together. Both
    are medians, so a single slow step counts little.

    Attributes:
        generation: the membership of `loss_s` and `step_s`.
        loss_s, step_s: its seconds per example of passes and of training steps.
        quotients: of passes of earlier memberships, over the median of their steps.
        num_steps: measured steps of these memberships.
        passes, candidates, chosen: counts over all passes of the present window.
        num_costly: windows in a row, up to the newest full one, with too high a cost; one with a
            clearly too high cost counts as `WINDOWS`.
        cost: of an epoch that selects over a plain one's, in the newest full window.
        newest: median quotient in the newest full window; None before the first one.
    """

    generation: int = 0
    loss_s: tuple[float, ...] = ()
    step_s: tuple[float, ...] = ()
    quotients: tuple[float, ...] = ()
    num_steps: int = 0
    passes: int = 0
    candidates: int = 0
    chosen: int = 0
    num_costly: int = 0
    cost: float = 0.0
    newest: float | None = None

    @property
    def verdict(self) -> GuardVerdict | None:
        """Selection costs too much; None if it does not, or is not known to."""
        return GuardVerdict(EndReason.GUARD, self.cost) if self.num_costly >= WINDOWS else None

    @property
    def quotient(self) -> float | None:
        """Time of a pass that computes losses over that of a step, per example; None: unknown."""
        return self._present_quotient() if self.newest is None else self.newest

    def after_batch(
        self,
        spec: SelectionSpec,
        generation: int,
        times: ExampleTimes,
        *,
        candidates: int = 0,
        chosen: int = 0,
    ) -> BreakEvenGuard:
        """Return the guard after a batch of a membership.

        Args:
            times: of an earlier batch of the same membership; 0: not measured.
            candidates, chosen: of a pass that has computed losses.
        """
        guard = self if generation == self.generation else self._left(generation)
        loss_s = (times.loss_s,) if times.loss_s > 0.0 else ()
        step_s = (times.step_s,) if times.step_s > 0.0 else ()
        return replace(
            guard,
            loss_s=(*guard.loss_s, *loss_s)[-_TIMES_LIMIT:],
            step_s=(*guard.step_s, *step_s)[-WINDOW_PASSES:],
            passes=guard.passes + bool(candidates),
            candidates=guard.candidates + candidates,
            chosen=guard.chosen + chosen,
        ).judged(spec)

    def _left(self, generation: int) -> BreakEvenGuard:
        """Begin the times of another membership; those of the present one become quotients."""
        begun = replace(self, generation=generation, loss_s=(), step_s=())
        if not self.loss_s or not self.step_s:
            return begun
        num_steps = self.num_steps + len(self.step_s)
        return replace(begun, quotients=self._quotients()[-_TIMES_LIMIT:], num_steps=num_steps)

    def _quotients(self) -> tuple[float, ...]:
        if not self.step_s:
            return self.quotients
        step_s = statistics.median(self.step_s)
        return self.quotients + tuple(seconds / step_s for seconds in self.loss_s)

    def _present_quotient(self) -> float | None:
        """Return the median quotient of the present window; None while too few are known."""
        quotients = self._quotients()
        num_known = min(len(quotients), self.num_steps + len(self.step_s))
        return statistics.median(quotients) if num_known >= WINDOW_TIMES else None

    def judged(self, spec: SelectionSpec) -> BreakEvenGuard:
        """Estimate the cost if the window is full, and begin another one."""
        quotient = self._present_quotient() if self.passes >= WINDOW_PASSES else None
        if quotient is None:
            return self
        times = ExampleTimes(loss_s=quotient, step_s=1.0)
        cost = relative_cost(spec, times, self.chosen / self.candidates)
        weight = WINDOWS if cost >= CLEAR_COST else 1
        return BreakEvenGuard(
            self.generation,
            num_costly=self.num_costly + weight if cost >= HIGHEST_COST else 0,
            cost=cost,
            newest=quotient,
        )


@dataclass(frozen=True, slots=True)
class EpochFall:
    """An epoch's validation loss at its end, and the share of its candidates that was chosen.

    An epoch that trained on everything has no share: None.
    """

    loss: float
    share: float | None


def control_verdict(
    spec: SelectionSpec, epochs: Sequence[EpochFall], quotient: float | None
) -> GuardVerdict | None:
    """Compare the fall of the validation loss per time with that of random selection.

    An epoch's time is counted in plain epochs, from its share chosen and the computed losses: the
    accelerators may change from epoch to epoch. Each control epoch is compared with the mean of its
    two neighbours, which makes up for a fall that slows down. Selection is given up once `CONTROLS`
    such epochs are known and their falls add up to more than the neighbours'. One beside an epoch
    that did not select does not count.

    Args:
        epochs: all epochs so far, from 0 on; without validation data there is no verdict.
        quotient: time of a pass that computes losses over that of a step; None: no verdict yet.
    """
    if quotient is None:
        return None
    selecting = control = 0.0
    num_controls = 0
    for index in range(spec.start + 1, len(epochs) - 1):
        if not spec.is_control(index):
            continue
        before, here, after = (
            _fall_per_time(spec, epochs, near, quotient) for near in range(index - 1, index + 2)
        )
        if before is None or here is None or after is None:
            continue
        control += here
        selecting += (before + after) / 2
        num_controls += 1
    is_known = num_controls >= CONTROLS and math.isfinite(selecting) and control > 0.0
    if not is_known or selecting > control:
        return None
    return GuardVerdict(EndReason.CONTROL, selecting / control)


def _fall_per_time(
    spec: SelectionSpec, epochs: Sequence[EpochFall], index: int, quotient: float
) -> float | None:
    """Return an epoch's fall over its time in plain epochs; None if it did not select."""
    share = epochs[index].share
    if share is None:
        return None
    time = share + quotient * spec.forwards(index)
    return (epochs[index - 1].loss - epochs[index].loss) / max(time, 1e-9)
