"""Choice of the number of examples of a step, where a job leaves that to the platform.

The criterion is goodput (Pollux): examples per second, times the worth of an example in a batch of
that size. With step time T(M) = a + b*M on the present accelerators, submitted batch M0 and noise
scale phi (in examples):

    goodput(M) = M / T(M) * (phi + M0) / (phi + M)

Its only maximum is at M = sqrt(a * phi / b): the larger a step's fixed cost and the noise of its
gradient, the larger the batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from controlplane.core.estimates.step_time import (
    Sample,
    StepTime,
    sample_add,
    step_time_fit,
    sync_seconds,
)

#: Least relative gain in goodput of a change ...
CHANGE_GAIN = 0.05

#: ... least interval of changes in seconds, unless the accelerators change anyway ...
CHANGE_COOL_DOWN_S = 30.0

#: ... reports that the noise scale must rest on ...
NOISE_REPORTS = 20

#: ... and steps of a size that its step time must rest on.
TIMED_STEPS = 5

#: Largest factor of one change: a line fitted through few sizes is valid only near them.
CHANGE_FACTOR = 2

#: Least part of a step's time that is computing, whatever the estimate of the exchange.
LEAST_OWN_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class BatchBounds:
    """Allowed batch sizes of a job: multiples of `multiple` (virtual nodes) in [low, high]."""

    low: int
    high: int
    multiple: int

    def nearest(self, batch_size: float) -> int:
        """Return the allowed size nearest below `batch_size`, or the lowest one."""
        if batch_size >= self.high:
            return self.high
        return max(int(batch_size) // self.multiple * self.multiple, self.low)


def batch_bounds(
    low: int, high: int, num_virtual_nodes: int, *, at_most: int | None = None
) -> BatchBounds | None:
    """Return the sizes in [low, high] that split evenly over the virtual nodes; None without any.

    Args:
        at_most: another upper bound, as from memory or data size; None: there is none.
    """
    if at_most is not None:
        high = min(high, at_most)
    lowest = -(-low // num_virtual_nodes) * num_virtual_nodes
    highest = high // num_virtual_nodes * num_virtual_nodes
    if not 0 < lowest <= highest:
        return None
    return BatchBounds(lowest, highest, num_virtual_nodes)


@dataclass(frozen=True, slots=True)
class StepLine:
    """Seconds of a step by its batch on given accelerators: `base_s + slope_s * batch size`."""

    base_s: float
    slope_s: float

    def __call__(self, batch_size: float) -> float:
        """Return the seconds of a step over `batch_size` examples."""
        return self.base_s + self.slope_s * batch_size


#: Measurements: (number of accelerators, batch size) -> seconds of whole steps.
BatchTimes = Mapping[tuple[int, int], Sample]


def step_line(
    times: BatchTimes, num_accelerators: int, sync: StepTime | None = None
) -> StepLine | None:
    """Fit the step time on `num_accelerators`; None with fewer than two usable sizes.

    Two batch sizes measured on this number of accelerators suffice. Otherwise samples are pooled by
    examples per accelerator over all numbers of accelerators, and `sync` accounts for their
    different exchanges.
    """
    known = {key: sample for key, sample in times.items() if sample.count >= TIMED_STEPS}
    own = {size: sample for (number, size), sample in known.items() if number == num_accelerators}
    if len(own) >= 2:
        fitted = step_time_fit(own)
        assert fitted is not None
        return StepLine(fitted.base_s, fitted.slope_s)
    pooled: dict[int, Sample] = {}
    for (number, size), sample in sorted(known.items()):
        local = max(1, round(size / number))
        seconds = _own_seconds(sample.recent_s, sync, number)
        pooled[local] = sample_add(pooled.get(local), sample.count, seconds)
    fitted = step_time_fit(pooled) if len(pooled) >= 2 else None
    if fitted is None:
        return None
    base_s = fitted.base_s + sync_seconds(sync, num_accelerators)
    line = StepLine(base_s, fitted.slope_s / num_accelerators)
    for size, sample in own.items():  # at most one: the line has to pass through it
        factor = sample.recent_s / line(size)
        line = StepLine(line.base_s * factor, line.slope_s * factor)
    return line


def _own_seconds(seconds: float, sync: StepTime | None, num_accelerators: int) -> float:
    return max(seconds - sync_seconds(sync, num_accelerators), seconds * LEAST_OWN_SHARE)


def efficiency(batch_size: float, submitted: float, noise_scale: float) -> float:
    """Return the worth of an example, 1 in the submitted batch: (phi + M0) / (phi + M).

    Raises:
        ValueError: the noise scale is negative or not a number.
    """
    if not noise_scale >= 0.0:
        raise ValueError(f"a noise scale is not negative, got {noise_scale}")
    if math.isinf(noise_scale):
        return 1.0
    return (noise_scale + submitted) / (noise_scale + batch_size)


def goodput(line: StepLine, batch_size: float, submitted: float, noise_scale: float) -> float:
    """Return useful examples per second; see the head of this module."""
    return batch_size / line(batch_size) * efficiency(batch_size, submitted, noise_scale)


@dataclass(frozen=True, slots=True)
class BatchQuestion:
    """Input of the choice of a job's batch size.

    Attributes:
        batch_size: the present size.
        submitted: the size it was submitted with (M0).
        noise_scale: phi in examples, may be infinite.
        num_accelerators: accelerators that the job is going to have.
        line: the step time on them; None: not known yet.
    """

    batch_size: int
    submitted: int
    bounds: BatchBounds
    noise_scale: float
    num_accelerators: int
    line: StepLine | None


@dataclass(frozen=True, slots=True)
class BatchChoice:
    """Another batch size, the predicted factor of goodput, and the reason with numbers."""

    batch_size: int
    gain: float
    reason: str


def batch_size_choose(question: BatchQuestion, *, may_try: bool = True) -> BatchChoice | None:
    """Choose another batch size; None when no size is predicted to gain `CHANGE_GAIN`.

    Args:
        may_try: whether another size may be tried where only one has been timed.
    """
    if question.line is None:
        return _trial(question) if may_try else None
    now = question.batch_size
    new = _best(question, question.line)
    before, after = (
        goodput(question.line, size, question.submitted, question.noise_scale)
        for size in (now, new)
    )
    if new == now or after < before * (1.0 + CHANGE_GAIN):
        return None
    worth_before, worth_after = (
        efficiency(size, question.submitted, question.noise_scale) for size in (now, new)
    )
    reason = (
        f"noise scale {_number(question.noise_scale)}: {now} → {new} examples a step promise "
        f"{after / before:.2f}x the useful examples a second ({_number(before)} → "
        f"{_number(after)}; step {question.line(now) * 1e3:.0f} → {question.line(new) * 1e3:.0f} "
        f"ms on {_accelerators(question)}, an example is worth {worth_before:.2f} → "
        f"{worth_after:.2f})"
    )
    return BatchChoice(new, after / before, reason)


def _reach(question: BatchQuestion) -> tuple[int, int]:
    """Return the lowest and the highest size that one change may lead to."""
    bounds, now = question.bounds, question.batch_size
    low = -(-now // (CHANGE_FACTOR * bounds.multiple)) * bounds.multiple
    high = bounds.nearest(now * CHANGE_FACTOR)
    return min(max(low, bounds.low), high), high


def _best(question: BatchQuestion, line: StepLine) -> int:
    """Find the allowed size of most goodput, next to the maximum; ties go to the smallest."""
    low, high = _reach(question)
    peak = math.inf
    if line.base_s == 0.0:
        peak = 0.0
    elif line.slope_s > 0.0:
        peak = math.sqrt(line.base_s * question.noise_scale / line.slope_s)
    below = min(max(question.bounds.nearest(peak), low), high)
    above = min(below + question.bounds.multiple, high)
    return max(
        (below, above),
        key=lambda size: (goodput(line, size, question.submitted, question.noise_scale), -size),
    )


def _trial(question: BatchQuestion) -> BatchChoice | None:
    """Choose a size to be timed next, if its best case gains enough.

    In the best case a larger batch takes no longer, and a smaller one takes proportionally less
    time.
    """
    low, high = _reach(question)
    now = question.batch_size
    worth = efficiency(now, question.submitted, question.noise_scale)
    promises = {
        size: efficiency(size, question.submitted, question.noise_scale)
        / worth
        * max(size / now, 1.0)
        for size in (low, high)
        if size != now
    }
    best = max(promises, key=lambda size: promises[size], default=now)
    if best == now or promises[best] < 1.0 + CHANGE_GAIN:
        return None
    reason = (
        f"noise scale {_number(question.noise_scale)}: {now} → {best} examples a step could give "
        f"up to {promises[best]:.2f}x the useful examples a second on {_accelerators(question)}; "
        "tried, as only one size has been timed there"
    )
    return BatchChoice(best, promises[best], reason)


def _number(value: float) -> str:
    return f"{value:.3g}" if value < 1000.0 or math.isinf(value) else f"{value:.0f}"


def _accelerators(question: BatchQuestion) -> str:
    plural = "" if question.num_accelerators == 1 else "s"
    return f"{question.num_accelerators} accelerator{plural}"
