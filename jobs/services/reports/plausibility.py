"""Checks of reported times, so that a job gains no accelerators by a false claim of its speed.

An implausible report is shown as reported, but nothing is learned from it. The job goes on.
"""

from __future__ import annotations

from controlplane.core.estimates.plausibility import (
    Implausible,
    ReportClock,
    StepClaim,
    claim_check,
    steps_check,
)
from controlplane.core.protocol.codec import decode, encode
from controlplane.core.protocol.wire import StopKind, TrainerReport
from jobs import counters
from jobs.models import Generation, Job, JobEstimates, StepReport, StepTimeProfile
from jobs.services.lifecycle.events import event_add
from jobs.services.lifecycle.report_context import ReportContext

EVENT_KIND = "report_implausible"


def steps_refuse(context: ReportContext, report: TrainerReport) -> None:
    """Raise ValueError for steps that the job cannot have done."""
    job, data, start = context.job, report.data, context.start_of(report.generation)
    steps_check(
        range(data["first_step"], data["last_step"] + 1),
        data["examples"],
        batch_size=data.get("batch_size"),
        largest_batch=job.largest_batch_size,
        from_step=0 if start is None else start.step or 0,
        to_step=job.stop_limit if job.stop_kind == StopKind.STEPS else None,
    )


def is_learned_from(context: ReportContext, row: StepReport, report: TrainerReport) -> bool:
    """Return whether the times of some reported steps are plausible; note it if they are not.

    Steps of a membership before the newest one that has reported are no measure of today's speed.
    The caller writes the job's `report_clock`, which this changes.
    """
    job, generation = context.job, context.generation(report.generation)
    if generation is None:
        return False
    clock = _clock_read(job, generation)
    if clock.generation > generation.number:
        return False
    claim = StepClaim(
        num_steps=row.last_step - row.first_step + 1,
        seconds=row.seconds,
        compute_s=tuple(filter(None, (report.data.get("compute_s") or {}).values())),
        accelerators=row.num_accelerators,
    )
    before = None if generation.previous is None else context.generation(generation.previous)
    counts = {row.num_members for row in (generation, before) if row is not None}
    was_settled = clock.is_settled
    clock, found = claim_check(clock, claim, context.now.timestamp(), counts, away_s=context.away_s)
    job.report_clock = encode(clock)
    if found is None:
        return True
    if not was_settled:  # reports that could not be compared yet may have been false as well
        _measurements_forget(job, generation)
    implausible_note(context, found)
    return False


def implausible_note(context: ReportContext, found: Implausible) -> None:
    """Count an implausible report, and tell the owner of the job's first one."""
    counters.count("reports_implausible", found.code)
    job = context.job
    if not job.events.filter(kind=EVENT_KIND).exists():
        text = f"Implausible measurements: {found.text}. The job's speed is not learned from them"
        event_add(EVENT_KIND, text, now=context.now, job=job, data={"code": found.code})


def _clock_read(job: Job, generation: Generation) -> ReportClock:
    """Return the job's clock; a new one if the membership is newer than it."""
    if job.report_clock:
        clock = decode(ReportClock, job.report_clock)
        if clock.generation >= generation.number:
            return clock
    begun_at = generation.switch_ordered_at or generation.requested_at
    return ReportClock(generation.number, begun_at.timestamp())


def _measurements_forget(job: Job, generation: Generation) -> None:
    """Delete all learned speeds of a job, and the profiles of its code."""
    generation.speeds = {}
    generation.save(update_fields=["speeds"])
    JobEstimates.objects.filter(job=job).update(samples=[], code_samples=[], throughput={})
    StepTimeProfile.objects.filter(code_sha256=job.code_sha256).delete()
    job.update_columns(throughput_by_count={}, examples_per_s=None)
