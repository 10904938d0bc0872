"""Progress reports: phases, steps, epochs, digests. These reports change no desired state."""

from __future__ import annotations

from typing import Any

from controlplane.core.estimates.noise_scale import GradientNoise
from controlplane.core.protocol.reported_values import SECONDS_LEAST
from controlplane.core.protocol.wire import TrainerReport
from controlplane.core.values.lifecycle import JobStatus
from jobs.models import Allocation, EpochReport, Job, StepReport
from jobs.selectors.estimates.noise import noise_taken
from jobs.services.lifecycle.events import event_add, reported_event_add
from jobs.services.lifecycle.missed_reports import steps_unreported
from jobs.services.lifecycle.report_context import ReportContext, time_read
from jobs.services.lifecycle.resize_events import resize_event_write
from jobs.services.lifecycle.search_rows import metric_values_write
from jobs.services.lifecycle.transitions import status_change
from jobs.services.reports.nonfinite import loss_note, metrics_note
from jobs.services.reports.plausibility import is_learned_from, steps_refuse
from jobs.services.reports.profiles import speeds_take
from jobs.services.reports.row_pace import epochs_pace, steps_pace
from jobs.services.reports.selection import most_chosen_take

_SPEED_SMOOTHING = 0.3


def phase_take(_context: ReportContext, allocation: Allocation, report: TrainerReport) -> None:
    Allocation.objects.filter(id=allocation.pk).update(phase=report.data["phase"][:20])


def digest_take(context: ReportContext, allocation: Allocation, report: TrainerReport) -> None:
    generation = context.generation(report.generation)
    if generation is None:
        return
    name = "digest_before" if report.data["role"] == "before" else "digest_after"
    sha256 = report.data["sha256"][:64]
    old = getattr(generation, name)
    if old and old != sha256:
        reported_event_add(
            "digest_mismatch",
            f"Slot {allocation.slot} has another state than the others at step "
            f"{report.data['step']}",
            now=context.now,
            job=context.job,
            actor=f"node:{context.node.name}",
            data={"generation": generation.number, "expected": old, "got": sha256},
        )
        return
    setattr(generation, name, sha256)
    generation.save(update_fields=[name])
    resize_event_write(generation, context.now)


def steps_take(context: ReportContext, _allocation: Allocation, report: TrainerReport) -> None:
    first, last = report.data["first_step"], report.data["last_step"]
    steps_refuse(context, report)
    start = context.start_of(report.generation)
    spans = list(steps_unreported(context.job, start, first, last))
    if steps_pace.take(context.job.pk, len(spans)) < len(spans):
        raise ValueError("these are more reports of steps than a trainer sends")
    for span in spans:
        _span_take(context, report, *span, share=(span[1] - span[0] + 1) / (last - first + 1))


def _span_take(
    context: ReportContext, report: TrainerReport, first: int, last: int, share: float
) -> None:
    """Take the steps `first` to `last` of a report; `share` is their part of its steps."""
    job, data = context.job, report.data
    seconds = max(data["seconds"] * share, SECONDS_LEAST)
    row = StepReport(
        job=job,
        generation=report.generation,
        first_step=first,
        last_step=last,
        epoch=data["epoch"],
        examples=round(data["examples"] * share),
        candidates=round((data.get("candidates") or 0) * share),
        analysed=round((data.get("analysed") or 0) * share),
        pass_s=(data.get("pass_s") or 0.0) * share,
        seconds=seconds,
        loss=data.get("loss"),
        num_accelerators=data["num_accelerators"],
        batch_size=data.get("batch_size"),
        learning_rate=data.get("learning_rate"),
        at=time_read(context, report),
    )
    measured = data.get("noise")
    noise = GradientNoise(**measured) if measured and len(measured) == 2 else None
    if noise is not None:
        row.noise_sqr, row.noise_var = noise.sqr, noise.var
    StepReport.objects.bulk_create([row], ignore_conflicts=True)
    _first_step_note(context, row)
    if not context.is_live or (row.last_step < job.step and _is_late(context, row)):
        return
    present: dict[str, Any] = {}
    if context.job.tunes_batch_size and row.batch_size:
        present["batch_size"] = row.batch_size
    if is_learned_from(context, row, report):
        speeds_take(context, report)
        present |= _speeds(job, row)
    job.update_columns(
        **present,
        report_clock=job.report_clock,
        step=row.last_step,
        epoch=row.epoch,
        # Means over different steps would differ between equal jobs.
        loss=data.get("last_loss", row.loss),
        noise=job.noise if noise is None else noise_taken(job, noise, row.batch_size),
    )
    loss_note(context, row, data.get("nonfinite"))
    if job.status == JobStatus.STARTING:
        status_change(job, JobStatus.RUNNING, status_code="", status_reason="")
        event_add("running", "Training started", now=context.now, job=job)


def _speeds(job: Job, row: StepReport) -> dict[str, Any]:
    """Return the newest speed, and the means with that of its steps, as columns of the job.

    Policies divide the work left by the mean, which has no selection passes (`remaining_work`).
    """
    newest = row.examples / row.seconds
    speed = row.examples / max(row.seconds - row.pass_s, SECONDS_LEAST)
    by_count = dict(job.throughput_by_count)
    key = str(row.num_accelerators)
    old = by_count.get(key, speed)
    by_count[key] = old + _SPEED_SMOOTHING * (speed - old)
    return {"examples_per_s": newest, "throughput_by_count": by_count}


def _is_late(context: ReportContext, row: StepReport) -> bool:
    """Return whether the job was further already: a late report is no measure of today's speed."""
    newer = StepReport.objects.filter(
        job=context.job, generation__gte=row.generation, last_step__gt=row.last_step
    )
    return newer.exists()


def _first_step_note(context: ReportContext, row: StepReport) -> None:
    """Record the first step of a generation; the event of a recovery waits for this time."""
    generation = context.generation(row.generation)
    if generation is None or generation.first_step_at is not None:
        return
    generation.first_step_at = row.at
    generation.save(update_fields=["first_step_at"])
    if generation.is_recovery:
        resize_event_write(generation, context.now)


def epoch_take(context: ReportContext, _allocation: Allocation, report: TrainerReport) -> None:
    """Take an epoch; `epochs_settle` writes it, with those that follow in the batch."""
    logs, number, step = (report.data[name] for name in ("logs", "epoch", "step"))
    is_newest = number >= max(context.job.epoch - 1, *context.epochs, 0)
    context.epochs[number] = EpochReport(
        job=context.job,
        epoch=number,
        generation=report.generation,
        step=step,
        logs=logs,
        at=time_read(context, report),
    )
    if is_newest:
        most_chosen_take(context.job, report.data)
        metrics_note(context, logs, step, report.data.get("nonfinite"))


def epochs_settle(context: ReportContext) -> None:
    """Write the epochs of a batch that are not written yet: of a small job there are many.

    Where they are too many (`epochs_pace`) some newest ones are written, and one at least.
    """
    job, rows, context.epochs = context.job, context.epochs, {}
    same = EpochReport.objects.filter(job=job, epoch__in=rows)
    known = {epoch: rest for epoch, *rest in same.values_list("epoch", "step", "logs")}
    # A new leader may repeat its predecessor's report: then the time of the first report stays.
    new = [rows[number] for number in sorted(rows, reverse=True)]
    new = [row for row in new if known.get(row.epoch) != [row.step, row.logs]]
    num_written = max(1, epochs_pace.take(job.pk, len(new)))
    EpochReport.objects.bulk_create(
        new[:num_written],
        update_conflicts=True,
        unique_fields=["job", "epoch"],
        update_fields=["generation", "step", "logs", "at"],
    )
    if new:
        metric_values_write(job, {row.epoch: row.logs for row in new})
    newest = rows[max(rows)]
    if newest.epoch + 1 >= job.epoch:
        job.update_columns(epoch=newest.epoch + 1, metrics=newest.logs)
