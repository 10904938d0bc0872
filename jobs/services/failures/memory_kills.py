"""Trainers that the kernel killed because their node ran out of memory.

The kernel kills a large process, so the job that loses a trainer may not be the one that used too
much memory: the first kill is handled like any other loss. A second kill before the job has made
progress ends the job: it is too large itself, or cannot run beside its neighbours on that node.
"""

from __future__ import annotations

from jobs.models import Allocation, Event, Job
from jobs.selectors.estimates.memory import out_of_memory_text
from jobs.services.lifecycle.attempts import is_held_up
from jobs.services.lifecycle.events import event_add
from jobs.services.lifecycle.report_context import ReportContext

#: Code of the report and of the loss, and kind of the event.
MEMORY_KILL = "memory_kill"


def memory_kill_again(job: Job, allocation: Allocation) -> str:
    """Describe since when this is a locked job's second such loss; empty if it is not."""
    before = _last_counted(job)
    if before is None or not _is_counted(job, allocation, before):
        return ""
    step = int(before.data["step"])
    return "" if job.step > step else f"twice before the job got past step {step}"


def memory_kill_report(context: ReportContext, allocation: Allocation, message: str) -> None:
    """Add the event of such a loss, with advice in case the job itself is too large."""
    job = context.job
    is_counted = _is_counted(job, allocation, _last_counted(job))
    warning = "; if it happens again before a new step is done, it ends" if is_counted else ""
    advice = out_of_memory_text(job, allocation.accelerator.kind)
    event_add(
        MEMORY_KILL,
        f"Slot {allocation.slot} on {context.node.name}: {message}. Others may have used it up, so "
        f"the job goes on{warning}. In case it is this job: {advice[:1].lower()}{advice[1:]}",
        now=context.now,
        job=job,
        actor=f"node:{context.node.name}",
        data={
            "slot": allocation.slot,
            "code": MEMORY_KILL,
            "step": job.step,
            "generation": job.generation,
            "is_counted": is_counted,
        },
    )


def _last_counted(job: Job) -> Event | None:
    return job.events.filter(kind=MEMORY_KILL, data__is_counted=True).order_by("-id").first()


def _is_counted(job: Job, allocation: Allocation, before: Event | None) -> bool:
    """Return whether a loss held the job up and belongs to another try than the one before.

    Trainers killed together are one try (see `attempts`): without a new step, a loss counts only
    for a trainer whose generation is newer than the previous loss.
    """
    allocation.refresh_from_db(fields=["joined_at", "left_at", "finished_at"])
    if allocation.left_at or allocation.finished_at or not is_held_up(job, allocation):
        return False
    began = max(allocation.granted_generation, allocation.switched_generation)
    return before is None or began > before.data["generation"] or job.step > before.data["step"]
