"""Plausibility of reported step times, checked against the control plane's own clock.

A job may claim any time for its steps, and policies share by what they learn of it. Two bounds
follow from the clock that the control plane reads when a report arrives:

- Steps cannot take longer than the time that has passed since the report before. Time that no
  report has claimed may be claimed later, up to `UNCLAIMED_S` and the time without contact.
- A step cannot be much shorter than the time that passes per step: steps take at least
  `LEAST_SHARE` of it, the rest being validations, checkpoints and pauses.

A job that is really slow, or does less in a step than another, is no liar: neither can be told from
its clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

#: Tolerance for clocks that run at different speeds, and for delays on the way of a report.
CLOCK_ERROR, DELAY_S = 0.05, 2.0

#: Most seconds of earlier time that a report may claim besides the time since the last report.
UNCLAIMED_S = 60.0

#: Least share of the time that steps take. Less is taken for a false claim.
LEAST_SHARE = 0.1

#: The time per step is that of the last one to two of these periods, and of this time at least.
PERIOD_S, SETTLING_S = 60.0, 5.0

#: Largest ratio of a member's own computing to the whole step; both are means, over steps that
#: differ by a few.
COMPUTING_SHARE = 2.0


@dataclass(frozen=True, slots=True)
class StepClaim:
    """Measurements of one report of steps.

    Attributes:
        seconds: of all its steps together.
        compute_s: mean seconds per step of each member's own computing.
        accelerators: number of accelerators that the steps ran on.
    """

    num_steps: int
    seconds: float
    compute_s: tuple[float, ...]
    accelerators: int


@dataclass(frozen=True, slots=True)
class Implausible:
    """Contradiction between a report and the clock or the assignment of accelerators.

    Attributes:
        code: one of `CODES`.
        text: sentence with the numbers.
    """

    code: str
    text: str


CODES = ("too_slow", "too_fast", "computing", "accelerators", "profile")


@dataclass(frozen=True, slots=True)
class StepMark:
    """Time of a report, in seconds, and the steps reported until then."""

    at_s: float
    num_steps: int


@dataclass(frozen=True, slots=True)
class ReportClock:
    """Reports of one membership as the control plane's clock has seen them.

    Attributes:
        heard_s: time of the last report; at first, the earliest time of a first step.
        unclaimed_s: passed time that no report has claimed.
        limit_s: most of it that is kept.
        num_steps: reported after the first report.
        marks: ends of the last two periods, the older first; empty before the first report.
        is_settled: whether a report was compared with the time per step.
    """

    generation: int
    heard_s: float
    unclaimed_s: float = 0.0
    limit_s: float = UNCLAIMED_S
    num_steps: int = 0
    marks: tuple[StepMark, ...] = ()
    is_settled: bool = False


def claim_check(
    clock: ReportClock,
    claim: StepClaim,
    now_s: float,
    counts: Collection[int],
    *,
    away_s: float = 0.0,
) -> tuple[ReportClock, Implausible | None]:
    """Check one report of steps; return the clock after it, and the first contradiction found.

    Args:
        now_s: time of arrival, by the control plane's clock.
        counts: possible numbers of accelerators.
        away_s: seconds before it in which no report could arrive.
    """
    clock = _heard(clock, claim, now_s, away_s)
    found = _too_slow(clock, claim) or _too_fast(clock, claim, now_s) or _unlike(claim, counts)
    if not found:
        clock = replace(clock, unclaimed_s=max(0.0, clock.unclaimed_s - claim.seconds))
    return _marked(clock, now_s), found


def profile_check(seconds: Iterable[float], passed_s: float) -> Implausible | None:
    """Check the steps that a joiner timed against the time since it got its accelerator."""
    claimed_s = sum(seconds)
    if claimed_s <= _bound(passed_s):
        return None
    text = f"its profile claims {claimed_s:.4g} s of computing within {passed_s:.4g} s"
    return Implausible("profile", text)


def _heard(clock: ReportClock, claim: StepClaim, now_s: float, away_s: float) -> ReportClock:
    """Let the time since the last report pass, and count the steps."""
    limit_s = clock.limit_s + away_s
    passed_s = max(0.0, now_s - clock.heard_s)
    unclaimed_s = min(clock.unclaimed_s, limit_s) + passed_s
    marks, num_steps = clock.marks, clock.num_steps
    if marks:
        num_steps += claim.num_steps
        marks = tuple(replace(mark, at_s=mark.at_s + away_s) for mark in marks)
    return replace(
        clock,
        heard_s=max(now_s, clock.heard_s),
        unclaimed_s=unclaimed_s,
        limit_s=limit_s,
        num_steps=num_steps,
        marks=marks,
    )


def _bound(passed_s: float) -> float:
    return passed_s * (1.0 + CLOCK_ERROR) + DELAY_S


def _too_slow(clock: ReportClock, claim: StepClaim) -> Implausible | None:
    if claim.seconds <= _bound(clock.unclaimed_s):
        return None
    text = (
        f"{claim.num_steps} steps claim {claim.seconds:.4g} s, "
        f"but only {clock.unclaimed_s:.4g} s have passed"
    )
    return Implausible("too_slow", text)


def _too_fast(clock: ReportClock, claim: StepClaim, now_s: float) -> Implausible | None:
    if not _is_comparable(clock, now_s):
        return None
    mark = clock.marks[0]
    passed_s, num_steps = now_s - mark.at_s, clock.num_steps - mark.num_steps
    if claim.seconds / claim.num_steps >= LEAST_SHARE * passed_s / num_steps:
        return None
    text = (
        f"steps claim {claim.seconds / claim.num_steps:.4g} s each, "
        f"but {num_steps} steps were reported within {passed_s:.4g} s"
    )
    return Implausible("too_fast", text)


def _is_comparable(clock: ReportClock, now_s: float) -> bool:
    return bool(clock.marks) and now_s - clock.marks[0].at_s >= SETTLING_S


def _marked(clock: ReportClock, now_s: float) -> ReportClock:
    """Begin another period when the newest one is over."""
    is_settled = clock.is_settled or _is_comparable(clock, now_s)
    marks = clock.marks
    if not marks or now_s - marks[-1].at_s >= PERIOD_S:
        marks = (*marks, StepMark(now_s, clock.num_steps))[-2:]
    return replace(clock, marks=marks, is_settled=is_settled)


def _unlike(claim: StepClaim, counts: Collection[int]) -> Implausible | None:
    step_s = claim.seconds / claim.num_steps
    slowest_s = max(claim.compute_s, default=0.0)
    if slowest_s > COMPUTING_SHARE * step_s + DELAY_S:
        text = f"a trainer claims {slowest_s:.4g} s of computing in a step of {step_s:.4g} s"
        return Implausible("computing", text)
    if claim.accelerators not in counts:
        known = " or ".join(map(str, sorted(counts)))
        text = f"steps claim {claim.accelerators} accelerators, but the job has {known}"
        return Implausible("accelerators", text)
    return None


def steps_check(
    steps: range,
    examples: int,
    *,
    batch_size: int | None,
    largest_batch: int,
    from_step: int,
    to_step: int | None,
) -> None:
    """Check the numbers of one report of steps.

    Args:
        batch_size: examples of a full batch, as reported.
        largest_batch: most examples of a step.
        from_step: step of the state that the job was started or restarted from.
        to_step: last step of the job, if it ends with a number of steps.

    Raises:
        ValueError: the steps are none of this job, or have too many or too few examples.
    """
    if batch_size is not None and batch_size > largest_batch:
        raise ValueError(f"a batch of {batch_size} examples, where {largest_batch} are the most")
    if not steps:
        raise ValueError(f"steps {steps.start} to {steps.stop - 1}")
    if steps.start <= from_step:
        raise ValueError(f"step {steps.start}: the job was started from step {from_step}")
    if to_step is not None and steps[-1] > to_step:
        raise ValueError(f"step {steps[-1]}: the job ends with step {to_step}")
    if examples < len(steps):
        raise ValueError(f"{examples} examples in {len(steps)} steps")
    if examples > len(steps) * largest_batch:
        raise ValueError(
            f"{examples} examples in {len(steps)} steps of {largest_batch} examples at most"
        )
