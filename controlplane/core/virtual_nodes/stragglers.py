"""Speeds of the members of a running job, straggler detection, and revision of the split.

A kind's step time is known from all jobs that ever ran the same code on it. A member that takes far
longer than the others relative to its kind (a straggler: a busy machine, a hot device) is assigned
a step time so many times longer. On shared machines trainers differ by 20 to 30 % for seconds
without being slower, so the test covers half a minute: the median must differ clearly, and even the
best moments must be worse than usual among the others. Where only the median differs, the member's
speed may be changing: its median mixes two speeds, so no split is revised by it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import median

from controlplane.core.estimates.step_time import Sample, StepTime, step_time_fit
from controlplane.core.virtual_nodes.step_window import high_decile, low_decile
from controlplane.core.virtual_nodes.uneven_split import SecondsBySplit, finish_s, mapping_for

#: A member is slower or faster than the others when its median differs by more than this ...
DRIFT = 0.3

#: ... and even its best (or worst) moments differ by more than this.
ALWAYS = 0.15

#: Least relative gain in throughput for moving virtual nodes between members.
REVISION_GAIN = 0.15


@dataclass(frozen=True, slots=True)
class MemberSpeed:
    """One member of a running job.

    Attributes:
        seconds: recent seconds of its own computing in a step; None: unknown.
        over_time: the same by stretch of the last half minute; empty until that is over.
    """

    slot: int
    kind: str
    num_virtual_nodes: int
    seconds: float | None
    over_time: tuple[float, ...] = ()


def member_step_times(
    members: Sequence[MemberSpeed], step_times: Mapping[str, StepTime]
) -> list[StepTime | None]:
    """Return the step time of each member: its kind's, scaled where it differs from the others.

    A slowdown common to all members is irrelevant for the split and left out. A member of an
    unknown kind has its own measured time; None where there is no measurement.
    """
    factors = _factors(members, step_times)
    known = sorted(median(row) for row in factors if row)
    usual = known[(len(known) - 1) // 2] if len(known) > 1 else 1.0
    found: list[StepTime | None] = []
    for member, row, drift in zip(members, factors, _drifts(factors), strict=True):
        own = step_times.get(member.kind)
        if own is None:
            found.append(_measured(member))
        elif drift is _Drift.LASTING:
            found.append(own.scaled(median(row) / usual))
        else:
            found.append(own)
    return found


class _Drift(Enum):
    """Comparison of a member with the others."""

    NONE = "none"
    CHANGING = "changing"  # slower or faster most of the time, but not always
    LASTING = "lasting"


def _factors(
    members: Sequence[MemberSpeed], step_times: Mapping[str, StepTime]
) -> list[list[float]]:
    """Return each member's time relative to the one expected of its kind, by stretch."""
    found: list[list[float]] = []
    for member in members:
        step_time = step_times.get(member.kind)
        expected_s = 0.0 if step_time is None else step_time(member.num_virtual_nodes)
        found.append([s / expected_s for s in member.over_time] if expected_s > 0.0 else [])
    return found


def _drifts(factors: Sequence[Sequence[float]]) -> list[_Drift]:
    """Compare each member with the typical value among the others."""
    found: list[_Drift] = []
    for i, own in enumerate(factors):
        others = [value for j, row in enumerate(factors) if j != i for value in row]
        found.append(_drift(own, median(others)) if own and others else _Drift.NONE)
    return found


def _drift(own: Sequence[float], others: float) -> _Drift:
    middle = median(own)
    if others / (1.0 + DRIFT) <= middle <= others * (1.0 + DRIFT):
        return _Drift.NONE
    is_slower = low_decile(own) > others * (1.0 + ALWAYS)
    is_faster = high_decile(own) * (1.0 + ALWAYS) < others
    return _Drift.LASTING if is_slower or is_faster else _Drift.CHANGING


def _measured(member: MemberSpeed) -> StepTime | None:
    if member.seconds is None or member.seconds <= 0.0:
        return None
    return step_time_fit({member.num_virtual_nodes: Sample(1, member.seconds, member.seconds)})


def speed_factor(member: MemberSpeed, step_time: StepTime) -> float:
    """Return a member's time relative to `step_time`; 1 where it is unknown."""
    expected = step_time(member.num_virtual_nodes)
    if member.seconds is None or expected <= 0.0:
        return 1.0
    return member.seconds / expected


def typical_members(
    members: Sequence[MemberSpeed], step_time: StepTime | None
) -> list[MemberSpeed]:
    """Choose the members of one kind that represent the speed of the kind.

    These are the members within `DRIFT` of the typical (lower median) factor, or faster: of two
    members that differ the faster one is typical, so a straggler never distorts the profile of its
    kind.
    """
    known = [member for member in members if member.seconds]
    reference = step_time or next(map(_measured, known), None)
    if not known or reference is None:
        return []
    factors = {member.slot: speed_factor(member, reference) for member in known}
    ordered = sorted(factors.values())
    limit = ordered[(len(ordered) - 1) // 2] * (1.0 + DRIFT)
    return [member for member in known if factors[member.slot] <= limit]


@dataclass(frozen=True, slots=True)
class Revision:
    """Another split among the same members, and the reason for it, with numbers.

    Attributes:
        before_s: present seconds of a step.
        after_s: expected seconds of a step after the revision.
    """

    counts: tuple[int, ...]
    before_s: float
    after_s: float
    reason: str


def revision_between(
    members: Sequence[MemberSpeed],
    step_times: Mapping[str, StepTime],
    exchange: SecondsBySplit | None = None,
    measured_s: float | None = None,
) -> Revision | None:
    """Revise the split of virtual nodes over running members; None when that gains too little.

    Members stay the same and in their order. All of them must have reported for half a minute, and
    the speed of none may be changing.

    Args:
        exchange: seconds of the exchange by split, as far as known.
        measured_s: present seconds of a step, to which predictions are scaled.
    """
    if len(members) < 2 or not all(member.over_time for member in members):
        return None
    if _Drift.CHANGING in _drifts(_factors(members, step_times)):
        return None
    functions = member_step_times(members, step_times)
    known = [function for function in functions if function is not None]
    if len(known) < len(members):
        return None
    old = [member.num_virtual_nodes for member in members]
    new = [len(run) for run in mapping_for(sum(old), functions, exchange)]
    before_s, after_s = finish_s(known, old), finish_s(known, new)
    if exchange is not None:
        before_s, after_s = before_s + exchange(old), after_s + exchange(new)
    if new == old or before_s < after_s * (1.0 + REVISION_GAIN):
        return None
    if measured_s is not None:
        before_s, after_s = measured_s, measured_s * after_s / before_s
    reason = f"{_cause(members, known, new)}; a step takes {after_s * 1e3:.0f} ms"
    return Revision(tuple(new), before_s, after_s, f"{reason} instead of {before_s * 1e3:.0f} ms")


def _cause(members: Sequence[MemberSpeed], known: Sequence[StepTime], new: Sequence[int]) -> str:
    """Describe the member whose part changes most, and its speed relative to the others'."""
    paces = [
        f(m.num_virtual_nodes) / m.num_virtual_nodes for f, m in zip(known, members, strict=True)
    ]
    changes = [count - member.num_virtual_nodes for count, member in zip(new, members, strict=True)]
    most = max(range(len(members)), key=lambda i: (abs(changes[i]), changes[i] < 0, -i))
    others = median(pace for i, pace in enumerate(paces) if i != most)
    ratio = paces[most] / others
    word = f"{ratio:.1f}x slower" if ratio >= 1.0 else f"{1.0 / ratio:.1f}x faster"
    member = members[most]
    return f"slot {member.slot} is {word}: {member.num_virtual_nodes} → {new[most]} virtual nodes"
