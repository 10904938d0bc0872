"""Rounds of parallel tuning: trials that run beside the job, as jobs of their own.

All trials of a round start from one state of the job and take equally many steps. The job itself
trains on from that state with its own values: it is one of the trials. A round is judged by the
rules of `convergence`, from the losses that were reported.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from controlplane.core.protocol.tuning import NUM_POINTS, TuningSpec
from controlplane.core.tuning.convergence import Verdict, convergence
from controlplane.core.tuning.search import TrialEnd

#: Steps of the job, in steps of a trial, and seconds after both of which a round waits for its
#: trials no longer. Trials pay for a start, which can take longer than their steps.
PATIENCE, PATIENCE_S = 4, 60.0
#: Bases of the Halton sequence; a space has at most three tunables.
_BASES = (2, 3, 5)


@dataclass(frozen=True, slots=True)
class LossSpan:
    """Mean loss of the steps from `first` to `last`; None if it is not finite."""

    first: int
    last: int
    loss: float | None


@dataclass(frozen=True, slots=True)
class TrialRun:
    """A trial at the end of its round.

    Attributes:
        points: mean losses of its tenths; None if it has not done all of its steps.
        is_diverged: its loss was not finite, so it ended early.
    """

    number: int
    points: tuple[float, ...] | None
    is_diverged: bool = False


@dataclass(frozen=True, slots=True)
class TrialOutcome:
    """Outcome of a trial; without a verdict if it has not done all of its steps."""

    number: int
    verdict: Verdict | None
    speed: float
    end: TrialEnd


def loss_points(spans: Iterable[LossSpan], first: int, num_steps: int) -> tuple[float, ...] | None:
    """Return the mean losses of the tenths of `num_steps` steps from `first` on.

    A span over several tenths counts for each with its mean. Steps that were repeated after a
    restart count once.

    Returns:
        `NUM_POINTS` means, nan where a span has no finite loss; None if a step is missing.
    """
    length = num_steps // NUM_POINTS
    sums, known = [0.0] * NUM_POINTS, first - 1
    last = first + NUM_POINTS * length - 1
    for span in sorted(spans, key=lambda span: (span.first, span.last)):
        if span.last <= known:
            continue
        if span.first > known + 1 or known >= last:
            break
        loss = math.nan if span.loss is None else span.loss
        for step in range(known + 1, min(span.last, last) + 1):
            sums[(step - first) // length] += loss
        known = min(span.last, last)
    return tuple(total / length for total in sums) if known == last else None


def round_judge(
    start_loss: float,
    present_loss: float,
    own: TrialRun,
    others: Sequence[TrialRun],
    num_steps: int,
) -> list[TrialOutcome]:
    """Judge a round; at most one trial is kept.

    Another trial is kept if it converges, its loss falls faster than that of the job itself, of
    equally fast ones the first, and has ended below the job's present loss: the job trains on while
    it waits, and to go on from a worse state would be a step back. If none does the job goes on as
    it is: its own trial is kept if it converges.
    """
    outcomes = [_judged(start_loss, run, num_steps) for run in (own, *others)]
    behind = {run.number for run in others if run.points and not run.points[-1] < present_loss}
    converging = [one for one in outcomes if one.verdict is Verdict.CONVERGING]
    level = [one for one in converging if one.number not in behind]
    best = max(level, key=lambda one: one.speed, default=None)  # the first of equal ones
    least_speed = 0.0 if best is None else best.speed
    ends = {one.number: TrialEnd.OVERTAKEN for one in converging if one.speed > least_speed}
    if best is not None:
        ends[best.number] = TrialEnd.KEPT
    return [replace(one, end=ends.get(one.number, one.end)) for one in outcomes]


def next_num_steps(num_steps: int, limit: float, outcomes: Iterable[tuple[str, str]]) -> int:
    """Return the steps of the next round's trials.

    Twice as many if no trial has converged, or if one did and was overtaken by the job while it
    started: then steps are few beside a start.

    Args:
        limit: most steps.
        outcomes: verdict and end of the trials of the round before.
    """
    found = list(outcomes)
    has_converged = any(verdict == Verdict.CONVERGING for verdict, _ in found)
    is_overtaken = any(end == TrialEnd.OVERTAKEN for _, end in found)
    is_long_enough = has_converged and not is_overtaken
    return num_steps if is_long_enough or 2 * num_steps > limit else 2 * num_steps


def proposal(spec: TuningSpec, seed: int, number: int) -> dict[str, float]:
    """Return the values of trial `number`: points that fill the space evenly, however many.

    They are those of a Halton sequence, moved by the seed (Cranley and Patterson, 1976).
    """
    values = {}
    for base, name in zip(_BASES, spec.names, strict=False):
        shift = random.Random(f"{seed}:{name}").random()  # noqa: S311  (no secret)
        part, span = (_radical_inverse(number, base) + shift) % 1.0, spec.space[name]
        if span.log:
            low, high = math.log(span.low), math.log(span.high)
            value = math.exp(low + part * (high - low))
        else:
            value = span.low + part * (span.high - span.low)
        values[name] = min(max(value, span.low), span.high)
    return values


def _judged(start_loss: float, run: TrialRun, num_steps: int) -> TrialOutcome:
    """Judge a trial as one that is not kept."""
    if run.is_diverged:
        return TrialOutcome(run.number, Verdict.DIVERGED, 0.0, TrialEnd.DIVERGED)
    if run.points is None:
        return TrialOutcome(run.number, None, 0.0, TrialEnd.UNFINISHED)
    found = convergence(start_loss, run.points, num_steps)
    ends: Mapping[Verdict, TrialEnd] = {
        Verdict.CONVERGING: TrialEnd.SLOWER,
        Verdict.UNSTABLE: TrialEnd.UNSTABLE,
        Verdict.DIVERGED: TrialEnd.DIVERGED,
    }
    return TrialOutcome(run.number, found.verdict, found.speed, ends[found.verdict])


def _radical_inverse(number: int, base: int) -> float:
    """Mirror the digits of a number at the point: 0.1, 0.01, 0.11 ... in base 2."""
    result, weight = 0.0, 1.0 / base
    while number:
        number, digit = divmod(number, base)
        result += digit * weight
        weight /= base
    return result
