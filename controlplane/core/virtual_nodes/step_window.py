"""Step times of the last half minute of one membership, in stretches, for robust statistics.

A report holds the mean over half a second of training, which on a shared machine is too noisy. So
reports are joined into stretches of two seconds, of which the newest ones are kept. Only closed
stretches count, and no conclusion is drawn before there are enough of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

#: Seconds of training of a new trainer that are ignored.
SETTLING_S = 5.0

#: Seconds after which a stretch is closed.
STRETCH_S = 2.0

#: Closed stretches that are kept, beside the one that is still open.
STRETCHES_KEPT = 12

#: Seconds of training, and stretches, that a window needs for a conclusion.
WINDOW_S = 24.0
WINDOW_STRETCHES = 5


@dataclass(frozen=True, slots=True)
class Interval:
    """Some consecutive steps of one membership.

    Attributes:
        seconds: total time, everything included.
        num_steps: number of steps.
        busy_s: slot -> mean seconds of its own computing in a step.
    """

    seconds: float
    num_steps: int
    busy_s: Mapping[int, float]

    @property
    def step_s(self) -> float:
        """Mean seconds of a whole step."""
        return self.seconds / self.num_steps

    @property
    def is_closed(self) -> bool:
        return self.seconds >= STRETCH_S


Window = tuple[Interval, ...]


def window_add(window: Window, new: Interval) -> Window:
    """Append the newest report; drop the oldest stretch when there are too many."""
    if window and not window[-1].is_closed:
        return (*window[:-1], _joined(window[-1], new))
    return (*window, new)[-(STRETCHES_KEPT + 1) :]


def _joined(old: Interval, new: Interval) -> Interval:
    num_steps = old.num_steps + new.num_steps
    share = new.num_steps / num_steps
    busy_s = {**old.busy_s, **new.busy_s}
    for slot in old.busy_s.keys() & new.busy_s.keys():
        busy_s[slot] = old.busy_s[slot] * (1.0 - share) + new.busy_s[slot] * share
    return Interval(old.seconds + new.seconds, num_steps, busy_s)


def window_closed(window: Window) -> Window:
    """Leave out the stretch that is still open."""
    return window if not window or window[-1].is_closed else window[:-1]


def is_conclusive(window: Window) -> bool:
    """Return whether a window covers enough time for a conclusion."""
    closed = window_closed(window)
    long_enough = sum(stretch.seconds for stretch in closed) >= WINDOW_S
    return long_enough and len(closed) >= WINDOW_STRETCHES


def member_seconds(window: Window, slot: int) -> tuple[float, ...]:
    """List a member's own computing seconds per step, by stretch; empty: insufficient data."""
    if not is_conclusive(window):
        return ()
    busy = [stretch.busy_s.get(slot, 0.0) for stretch in window_closed(window)]
    known = tuple(seconds for seconds in busy if seconds > 0.0)
    return known if len(known) >= WINDOW_STRETCHES else ()


def typical_step_s(window: Window) -> float | None:
    """Return the median seconds of a whole step; None where the window is too short."""
    if not is_conclusive(window):
        return None
    return median(stretch.step_s for stretch in window_closed(window))


def low_decile(values: Sequence[float]) -> float:
    """Return the lower decile: nine in ten of `values` are not below it."""
    return sorted(values)[len(values) // 10]


def high_decile(values: Sequence[float]) -> float:
    """Return the upper decile: nine in ten of `values` are not above it."""
    return sorted(values)[-1 - len(values) // 10]
