"""Exits of trainer processes, and the consequences of all losses in one batch."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from django.conf import settings

from controlplane.core.protocol.plain_text import parts_shown
from controlplane.core.protocol.wire import TrainerReport
from controlplane.core.values.lifecycle import ENDED_JOB_STATUSES, JobStatus
from jobs.models import Allocation, Job, JobAttempts, LogChunk
from jobs.services.failures.losses import MISSING, exit_text
from jobs.services.failures.recovery import job_recover
from jobs.services.lifecycle.attempts import crash_count, is_held_up
from jobs.services.lifecycle.events import event_add
from jobs.services.lifecycle.report_context import ReportContext
from jobs.services.lifecycle.transitions import allocation_release, job_end, job_settle

#: Characters of a trainer's log kept with a job that failed in a crash loop.
_TAIL_CHARACTERS = 4000


def exited_take(context: ReportContext, allocation: Allocation, report: TrainerReport) -> None:
    """Release the accelerator of an exited trainer; an unexpected exit is a crash.

    One that the node says to have lacked ended before: the database was restored from a backup.
    """
    now = context.now
    exit_code = report.data.get("exit_code")
    allocation.refresh_from_db(
        fields=["stop_requested_at", "left_at", "finished_at", "released_at"]
    )
    is_expected = any((allocation.stop_requested_at, allocation.left_at, allocation.finished_at))
    if not allocation_release(allocation, now, exit_code):
        return
    context.is_settle_due = True
    if is_expected or not context.is_live:
        return
    was_missing = report.data.get("was_missing") is True
    allocation.exit_code, allocation.lost_code = exit_code, MISSING if was_missing else "crash"
    Allocation.objects.filter(id=allocation.pk).update(lost_code=allocation.lost_code)
    context.is_loss_due = True
    if not was_missing:
        context.crashed.append(allocation)


def losses_settle(context: ReportContext) -> None:
    """Apply the consequences of all reports of a batch about one locked job."""
    job, now = context.job, context.now
    if context.is_loss_due:
        job.refresh_from_db()
        if job.status not in ENDED_JOB_STATUSES and not _crash_loop_end(context):
            job_recover(job, now, actor=f"node:{context.node.name}")
    if context.is_settle_due:
        job_settle(job, now)


def _crash_loop_end(context: ReportContext) -> bool:
    """End a job whose trainers crash repeatedly without a new step."""
    job = context.job
    crashes = [row for row in context.crashed if is_held_up(job, row)]
    attempts = [crash_count(job, row) for row in crashes]
    if not attempts or attempts[-1].crashes <= settings.CRASH_LIMIT:
        return False
    text = _crash_sentence(job, crashes[-1], attempts[-1])
    chunks = LogChunk.objects.filter(job=job, slot=crashes[-1].slot).order_by("-offset")[:8]
    tail = parts_shown("".join(chunk.text for chunk in reversed(chunks)))[-_TAIL_CHARACTERS:]
    job_end(
        job, JobStatus.FAILED, context.now, code="crash_loop", reason=text, error_traceback=tail
    )
    event_add(
        "failed",
        text,
        now=context.now,
        job=job,
        actor=f"node:{context.node.name}",
        data={
            "code": "crash_loop",
            "crashes": attempts[-1].crashes,
            "step": attempts[-1].furthest_step,
        },
    )
    return True


def _crash_sentence(job: Job, last: Allocation, attempts: JobAttempts) -> str:
    crashed = job.allocations.filter(lost_code="crash").select_related("accelerator__node")
    recent = list(crashed.order_by("-released_at")[: attempts.crashes])
    slots = sorted({row.slot for row in recent})
    nodes = sorted({row.accelerator.node.name for row in recent})
    return (
        f"Given up: {attempts.crashes} times in a row a trainer crashed before the job got past "
        f"step {attempts.furthest_step}. The last one ended{exit_text(last.exit_code)}; "
        f"slots {_listed(slots)} on {_listed(nodes)}. See the end of their logs."
    )


def _listed(items: Sequence[object]) -> str:
    return ", ".join(str(item) for item in items[:8]) + (" ..." if len(items) > 8 else "")


def rows_release(
    job: Job, rows: Sequence[Allocation], now: datetime.datetime, *, lost_code: str
) -> None:
    """Release the trainers of a lost node, and let their locked job recover."""
    for row in rows:
        was_needed = not (row.stop_requested_at or row.left_at or row.finished_at)
        allocation_release(row, now, exit_code=None)
        if was_needed:
            Allocation.objects.filter(id=row.pk).update(lost_code=lost_code)
    job_recover(job, now)
    job_settle(job, now)
