"""How far a job is on the way to its stop condition."""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.core.protocol.wire import StopKind, Task
from jobs.models import Job


@dataclass(frozen=True, slots=True)
class Progress:
    """What is done of what has to be done.

    Attributes:
        fraction: 0 to 1, against the limit for a metric stop; None when it cannot be known.
        remaining_s: at the present speed; None when it does not train or the end is not known.
    """

    text: str
    fraction: float | None
    remaining_s: float | None

    @property
    def percent(self) -> int | None:
        """Give whole percents; 100 only when nothing is left."""
        return None if self.fraction is None else int(self.fraction * 100)


def job_progress(
    job: Job, steps_per_epoch: int | None, num_examples: int | None = None
) -> Progress:
    """Count steps against steps, or epochs (through steps where their length is known).

    A job that predicts counts examples where their number is given.

    Where the batch size may change, steps are no measure: then finished epochs count.
    """
    if job.adapts_batch_size:
        steps_per_epoch = None
    if job.stop_kind == StopKind.STEPS:
        total_steps: int | None = job.stop_limit
        text = f"step {job.step:,} of {job.stop_limit:,}"
    else:
        total_steps = job.stop_limit * steps_per_epoch if steps_per_epoch else None
        # An epoch counts from 0 while it goes on and is reported when it is over.
        text = f"epoch {min(_epochs_done(job, steps_per_epoch), job.stop_limit):,} of "
        text += f"{'at most ' if job.stop_kind == StopKind.METRIC else ''}{job.stop_limit:,}"
    if job.task == Task.PREDICT:
        text = _predicted_text(job, steps_per_epoch, num_examples)
    if not total_steps:
        fraction = min(1.0, job.epoch / job.stop_limit) if job.stop_limit else None
        return Progress(text, fraction, None)
    fraction = min(1.0, job.step / total_steps)
    remaining_s = None
    if job.status == "running" and job.examples_per_s:
        remaining_s = max(0, total_steps - job.step) * job.global_batch_size / job.examples_per_s
    return Progress(text, fraction, remaining_s)


def _epochs_done(job: Job, steps_per_epoch: int | None) -> int:
    return job.step // steps_per_epoch if steps_per_epoch else job.epoch


def _predicted_text(job: Job, num_batches: int | None, num_examples: int | None) -> str:
    if num_examples:
        return (
            f"{min(job.step * job.global_batch_size, num_examples):,} of {num_examples:,} examples"
        )
    return f"batch {job.step:,}" + (f" of {num_batches:,}" if num_batches else "")
