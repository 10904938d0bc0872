"""Step time profiles measured by jobs, kept for later jobs of the same code.

A profile has two sources: joiners that time their virtual nodes while they prepare, and the seconds
that members report with their steps. Both are stored under the job's lock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controlplane.core.estimates.plausibility import profile_check
from controlplane.core.estimates.step_time import sample_add, samples_bounded
from controlplane.core.protocol.reported_values import COUNT_LIMIT, SECONDS_LEAST
from controlplane.core.protocol.wire import ReductionMode, TrainerReport
from controlplane.core.virtual_nodes.step_window import SETTLING_S, Interval, window_add
from controlplane.core.virtual_nodes.stragglers import typical_members
from controlplane.core.virtual_nodes.uneven_split import rows_of
from jobs.models import Allocation, Generation, StepTimeProfile
from jobs.selectors.estimates.step_times import (
    Key,
    kinds_by_place,
    measured_batch_size,
    members_read,
    profile_key,
    samples_read,
    step_times_read,
    window_read,
    window_written,
)
from jobs.services.lifecycle.report_context import ReportContext
from jobs.services.reports.plausibility import implausible_note

#: Weight of the newest report in a member's smoothed computing time.
_MEMBER_SMOOTHING = 0.5

#: Reports of a membership after which its times enter the profile: the 2nd, then every 10th.
_FEED_FIRST, _FEED_EVERY = 2, 10

#: Least time of an exchange; step time minus slowest computing time may come out at 0.
_LEAST_SYNC_S = 1e-6

#: Initial value of `Generation.speeds`.
_NOTHING_HEARD: Mapping[str, Any] = {
    "reports": 0,
    "steps": 0,
    "seconds": {},
    "step_s": None,
    "settled_s": 0.0,
    "window": [],
    "batch_size": None,
}

#: Profiles kept; those without an update for longest are dropped first.
PROFILES_LIMIT = 10_000

#: Points read from a trainer's own profile, which has only a few.
_POINTS_LIMIT = 32


def profile_take(context: ReportContext, allocation: Allocation, report: TrainerReport) -> bool:
    """Store the profile that a joiner measured while preparing; return whether it had one."""
    measured = report.data.get("profile")
    if not isinstance(measured, Mapping):
        return False
    points = {
        int(number): seconds
        for number, seconds in list(measured.items())[:_POINTS_LIMIT]
        if seconds and number.isdecimal() and 1 <= int(number) <= COUNT_LIMIT
    }
    passed_s = (context.now - allocation.granted_at).total_seconds()
    if found := profile_check(points.values(), passed_s):
        implausible_note(context, found)
        return False
    job, kind = context.job, allocation.accelerator.kind
    key = profile_key(job, job.global_batch_size)  # the batch size that a trainer starts with
    for number, seconds in points.items():
        _add(context, key, StepTimeProfile.COMPUTE, kind, number, 1, seconds)
    return bool(points)


def speeds_take(context: ReportContext, report: TrainerReport) -> None:
    """Store the computing times that a generation's members reported with their steps."""
    data = report.data
    generation = context.generation(report.generation)
    compute_s = data.get("compute_s")
    if generation is None or not isinstance(compute_s, Mapping):
        return
    slots = {str(member.slot) for member in generation.membership.members}
    seconds = {slot: value for slot, value in compute_s.items() if value and slot in slots}
    if not seconds:
        return  # the first step of a membership is not representative
    _generation_speeds_update(generation, seconds, data)
    if (
        generation.speeds["reports"] == _FEED_FIRST
        or not generation.speeds["reports"] % _FEED_EVERY
    ):
        _feed(context, generation)
        generation.speeds["steps"] = 0
    Generation.objects.filter(id=generation.pk).update(speeds=generation.speeds)


def _generation_speeds_update(
    generation: Generation, seconds: Mapping[str, float], data: Mapping[str, Any]
) -> None:
    """Merge one report into a generation's smoothed times and its window of recent steps.

    Selection passes before the steps are left out: they are neither computing nor exchange. Times
    of another batch size, which tuning may change within a generation, are dropped.
    """
    speeds = {**_NOTHING_HEARD, **(generation.speeds or {})}
    if speeds["batch_size"] not in (None, data.get("batch_size")):
        speeds = dict(_NOTHING_HEARD)
    speeds["batch_size"] = data.get("batch_size")
    num_steps = data["last_step"] - data["first_step"] + 1
    steps_s = max(data["seconds"] - (data.get("pass_s") or 0.0), SECONDS_LEAST)
    step_s = max(steps_s / num_steps, SECONDS_LEAST)
    before = speeds["seconds"]
    speeds["seconds"] = before | {
        slot: _smoothed(before.get(slot), value) for slot, value in seconds.items()
    }
    speeds["step_s"] = _smoothed(speeds["step_s"], step_s)
    speeds["reports"] += 1
    speeds["steps"] += num_steps
    latest = {int(slot): value for slot, value in seconds.items()}
    _window_add(generation, speeds, Interval(steps_s, num_steps, latest))
    generation.speeds = speeds


def _window_add(generation: Generation, speeds: dict[str, Any], latest: Interval) -> None:
    """Extend the window, once the membership has settled."""
    if speeds["settled_s"] < SETTLING_S:
        speeds["settled_s"] += latest.seconds
        return
    speeds["window"] = window_written(window_add(window_read(generation), latest))


def _smoothed(old: float | None, new: float) -> float:
    return new if old is None else old + _MEMBER_SMOOTHING * (new - old)


def _feed(context: ReportContext, generation: Generation) -> None:
    """Add the typical members' times to the profiles of the generation's kinds."""
    members = members_read(generation, kinds_by_place([generation]))
    times = step_times_read([context.job])[context.job.pk].by_kind
    speeds = generation.speeds
    key = profile_key(context.job, measured_batch_size(context.job, generation))
    kinds = sorted({member.kind for member in members})
    for kind in kinds:
        own = [member for member in members if member.kind == kind]
        by_count: dict[int, list[float]] = {}
        for member in typical_members(own, times.get(kind)):
            assert member.seconds is not None
            by_count.setdefault(member.num_virtual_nodes, []).append(member.seconds)
        for number, seconds in sorted(by_count.items()):
            mean_s = sum(seconds) / len(seconds)
            _add(context, key, StepTimeProfile.COMPUTE, kind, number, speeds["steps"], mean_s)
    if len(members) > 1 and len(speeds["seconds"]) == len(members):
        sync_s = max(speeds["step_s"] - max(speeds["seconds"].values()), _LEAST_SYNC_S)
        together = "+".join(kinds)[:200]
        is_exact = context.job.reduction == ReductionMode.EXACT
        num_rows = rows_of([member.num_virtual_nodes for member in members]) if is_exact else 1
        _add(
            context,
            key,
            StepTimeProfile.SYNC,
            together,
            len(members),
            speeds["steps"],
            sync_s,
            num_rows,
        )


def _add(
    context: ReportContext,
    key: Key,
    measures: str,
    kind: str,
    number: int,
    count: int,
    seconds: float,
    num_rows: int = 1,
) -> None:
    code_sha256, settings_sha256 = key
    row, is_new = StepTimeProfile.objects.select_for_update(no_key=True).get_or_create(
        code_sha256=code_sha256,
        settings_sha256=settings_sha256,
        measures=measures,
        kind=kind,
        num_rows=num_rows,
        defaults={"updated_at": context.now},
    )
    samples = samples_read(row)
    samples[number] = sample_add(samples.get(number), max(count, 1), seconds)
    row.samples = {
        str(point): [sample.count, sample.mean_s, sample.recent_s]
        for point, sample in samples_bounded(samples).items()
    }
    row.updated_at = context.now
    row.save(update_fields=["samples", "updated_at"])
    if is_new:
        newest_first = StepTimeProfile.objects.order_by("-updated_at", "-id")
        old = list(newest_first.values_list("id", flat=True)[PROFILES_LIMIT : PROFILES_LIMIT + 100])
        StepTimeProfile.objects.filter(id__in=old).delete()
