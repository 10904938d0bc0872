"""Progress of a job towards its stop condition."""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.core.protocol.wire import StopKind, Task
from jobs.models import Job


@dataclass(frozen=True, slots=True)
class ShownProgress:
    """Completed part of a job.

    Attributes:
        fraction: 0 to 1, against the limit for a metric stop; None if unknown.
    """

    text: str
    fraction: float | None

    @property
    def percent(self) -> int | None:
        """Whole per cent; 100 only when all work is done."""
        return None if self.fraction is None else int(self.fraction * 100)


def job_progress(
    job: Job, steps_per_epoch: int | None, num_examples: int | None = None
) -> ShownProgress:
    """Compare steps with the limit, or epochs (through steps if their length is known).

    A prediction job's text counts examples if their number is given. With changing batch sizes, a
    selection, or a fork's, steps are not comparable: then finished epochs count.
    """
    if not job.is_counted_by_steps or job.selection:
        steps_per_epoch = None
    if job.stop_kind == StopKind.STEPS:
        total_steps: int | None = job.stop_limit
        text = f"step {job.step:,} of {job.stop_limit:,}"
    else:
        total_steps = job.stop_limit * steps_per_epoch if steps_per_epoch else None
        # `job.epoch` counts finished epochs.
        done = job.step // steps_per_epoch if steps_per_epoch else job.epoch
        text = f"epoch {min(done, job.stop_limit):,} of "
        text += f"{'at most ' if job.stop_kind == StopKind.METRIC else ''}{job.stop_limit:,}"
    if job.task == Task.PREDICT:
        text = _predicted_text(job, steps_per_epoch, num_examples)
    if not total_steps:
        fraction = min(1.0, job.epoch / job.stop_limit) if job.stop_limit else None
        return ShownProgress(text, fraction)
    return ShownProgress(text, min(1.0, job.step / total_steps))


def _predicted_text(job: Job, num_batches: int | None, num_examples: int | None) -> str:
    if num_examples:
        return (
            f"{min(job.step * job.global_batch_size, num_examples):,} of {num_examples:,} examples"
        )
    return f"batch {job.step:,}" + (f" of {num_batches:,}" if num_batches else "")
