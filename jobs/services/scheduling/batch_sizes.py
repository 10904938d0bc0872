"""Adaptive batch sizes: record step times per batch size, and plan size changes in the cycle."""

from __future__ import annotations

import datetime

from controlplane.core.estimates.batch_size import CHANGE_COOL_DOWN_S
from controlplane.core.estimates.step_time import sample_add
from controlplane.core.protocol.wire import TrainerReport
from controlplane.core.values.lifecycle import GenerationPhase, JobStatus
from controlplane.core.values.types import Plan, Resize
from jobs.models import Generation, Job
from jobs.selectors.estimates.batch_sizes import batch_choice, batch_times_read
from jobs.services.lifecycle.report_context import ReportContext

#: Remembered pairs of accelerators and batch size; the least sampled ones are dropped first.
_TIMES_LIMIT = 64


def batch_times_take(context: ReportContext, report: TrainerReport) -> None:
    """Record the step times of a job with an adaptive batch size."""
    job, data = context.job, report.data
    size = data.get("batch_size")
    if not job.adapts_batch_size or not isinstance(size, int) or not data.get("compute_s"):
        return  # the first step of a membership is not representative
    num_steps = int(data["last_step"]) - int(data["first_step"]) + 1
    seconds = float(data["seconds"]) / max(num_steps, 1)
    if num_steps < 1 or not seconds > 0.0:
        return
    times = dict(batch_times_read(job))
    key = (int(data["num_accelerators"]), size)
    times[key] = sample_add(times.get(key), num_steps, seconds)
    most = sorted(times, key=lambda pair: (pair != key, -times[pair].count, pair))[:_TIMES_LIMIT]
    job.batch_times = {
        f"{number}x{size}": [times[number, size].count, times[number, size].mean_s,
                             times[number, size].recent_s]
        for number, size in sorted(most)
    }  # fmt: skip
    Job.objects.filter(id=job.pk).update(batch_times=job.batch_times)


def batch_size_note(job: Job, generation: Generation) -> None:
    """Store a locked job's batch size from a generation that has become active."""
    batch_size = generation.membership.global_batch_size
    if job.adapts_batch_size and job.batch_size != batch_size:
        job.update_columns(batch_size=batch_size)


def batch_changes_plan(now: datetime.datetime, *, busy: set[int]) -> tuple[Plan, dict[int, int]]:
    """Plan the batch size changes that pay off now, for jobs with an adaptive batch size.

    Args:
        busy: jobs about to be resized; the resize chooses their batch size.

    Returns:
        The plan, and each planned job's generation at the time of reading.
    """
    since = now - datetime.timedelta(seconds=CHANGE_COOL_DOWN_S)
    rows = Generation.objects.filter(
        phase=GenerationPhase.ACTIVE,
        switched_at__lte=since,
        job__status=JobStatus.RUNNING,
        job__pause_requested=False,
        job__batch_size_min__isnull=False,
    ).select_related("job")
    resizes, generations = [], {}
    for row in rows:
        is_calm = row.number == row.job.generation and not row.is_parked
        if not is_calm or row.job_id in busy:
            continue
        choice = batch_choice(row.job, row.num_members, may_try=True)
        held = _accelerators(row) if choice is not None else ()
        if choice is not None and held:
            resizes.append(Resize(row.job_id, held, held, choice.reason, choice.batch_size))
            generations[row.job_id] = row.number
    return Plan(tuple(resizes), {}, {}), generations


def _accelerators(generation: Generation) -> tuple[int, ...]:
    """List the members' accelerators in member order; empty if a member is leaving."""
    rows = generation.job.allocations.filter(
        released_at=None, stop_requested_at=None, left_at=None, finished_at=None
    )
    by_slot = dict(rows.values_list("slot", "accelerator_id"))
    slots = generation.membership.slots
    return tuple(by_slot[slot] for slot in slots) if {*slots} <= {*by_slot} else ()
