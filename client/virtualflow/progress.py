"""Progress of a job towards its stop condition, from one answer of the site."""

from __future__ import annotations

from dataclasses import dataclass

from virtualflow.answers import Job


@dataclass(frozen=True, slots=True)
class JobProgress:
    """Progress of a job.

    Attributes:
        text: such as `step 40 of 100`.
        fraction: from 0 to 1; None where the end is unknown.
    """

    text: str
    fraction: float | None


def job_progress(job: Job) -> JobProgress:
    """Compare steps with the limit, or epochs where steps are not comparable."""
    limit, per_epoch = job["stop"]["limit"], job["facts"].get("steps_per_epoch")
    is_tuned = "batch_size" in job["tuning"].get("space", {})
    varies = job["batch_size_min"] is not None or is_tuned or job["selection"]
    if varies or not isinstance(per_epoch, int):
        per_epoch = None  # batches or what is trained on change, or it was not validated yet
    elif job["forked_from"] is not None and job["step"] // per_epoch != job["epoch"]:
        per_epoch = None  # the job before it had steps of another size
    if job["stop"]["kind"] == "steps":
        total: int | None = limit
        text = f"step {job['step']:,} of {limit:,}"
    else:
        total = limit * per_epoch if per_epoch else None
        epochs = job["step"] // per_epoch if per_epoch else job["epoch"]
        at_most = "at most " if job["stop"]["kind"] == "metric" else ""
        text = f"epoch {min(epochs, limit):,} of {at_most}{limit:,}"
    if job["task"] == "predict":
        text = _predicted(job, per_epoch)
    if not total:
        return JobProgress(text, min(1.0, job["epoch"] / limit) if limit else None)
    return JobProgress(text, min(1.0, job["step"] / total))


def _predicted(job: Job, num_batches: int | None) -> str:
    num_examples = job["facts"].get("num_examples")
    if isinstance(num_examples, int) and num_examples:
        done = min(job["step"] * job["global_batch_size"], num_examples)
        return f"{done:,} of {num_examples:,} examples"
    return f"batch {job['step']:,}" + (f" of {num_batches:,}" if num_batches else "")
