"""Choice of a job's adaptive batch size, and the data behind it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from django.db.models import F, Sum

from controlplane.core.estimates.batch_size import (
    NOISE_REPORTS,
    BatchChoice,
    BatchQuestion,
    BatchTimes,
    batch_bounds,
    batch_size_choose,
    step_line,
)
from controlplane.core.estimates.memory import largest_slice, memory_need_read
from controlplane.core.estimates.step_time import Sample
from controlplane.core.values.lifecycle import NodeStatus
from jobs.models import Accelerator, Job, StepReport
from jobs.selectors.estimates.noise import noise_scale_of
from jobs.selectors.estimates.step_times import step_times_read


def batch_choice(job: Job, num_accelerators: int, *, may_try: bool) -> BatchChoice | None:
    """Choose another batch size for a job on `num_accelerators`; None: keep the present one.

    Args:
        may_try: a batch size without measured time may be tried.
    """
    if job.batch_size_min is None or job.batch_size_max is None:
        return None
    noise = noise_scale_of(job)
    if noise is None or noise.num_reports < NOISE_REPORTS:
        return None
    at_most = largest_batch(job, accelerator_sizes())
    bounds = batch_bounds(
        job.batch_size_min, job.batch_size_max, job.num_virtual_nodes, at_most=at_most
    )
    if bounds is None:
        return None
    sync = step_times_read([job])[job.pk].sync
    question = BatchQuestion(
        batch_size=job.batch_size_now,
        submitted=job.global_batch_size,
        bounds=bounds,
        noise_scale=noise.examples,
        num_accelerators=num_accelerators,
        line=step_line(batch_times_read(job), num_accelerators, sync),
    )
    return batch_size_choose(question, may_try=may_try)


@dataclass(frozen=True, slots=True)
class AcceleratorSize:
    """Memory and threads of accelerators of one kind; `threads` is 0 for a GPU."""

    kind: str
    memory_bytes: int
    threads: int


def largest_batch(job: Job, sizes: Iterable[AcceleratorSize]) -> int | None:
    """Return the largest batch that data and memory allow; None if unknown.

    The memory limit is that of the accepted kinds, except kinds on which not even the submitted
    batch size fits.

    Args:
        sizes: of all present accelerators.
    """
    limits = []
    num_examples = job.facts.get("num_examples")
    if isinstance(num_examples, int) and num_examples > 0:
        limits.append(num_examples)
    need = memory_need_read(job.facts)
    if need is not None:
        slices = [
            largest_slice(need, size.memory_bytes, is_gpu=size.threads == 0)
            for size in sizes
            if size.memory_bytes > 0 and (not job.accepted_kinds or size.kind in job.accepted_kinds)
        ]
        submitted = -(-job.global_batch_size // job.num_virtual_nodes)
        limits += [size * job.num_virtual_nodes for size in slices if size >= submitted]
    return min(limits, default=None)


def accelerator_sizes() -> list[AcceleratorSize]:
    """List the distinct sizes of all present accelerators, in one query."""
    present = Accelerator.objects.filter(
        is_present=True, node__status=NodeStatus.ONLINE, node__removed_at=None
    )
    rows = present.order_by().values_list("kind", "memory_bytes", "threads").distinct()
    return [AcceleratorSize(*row) for row in rows]


def epoch_examples(jobs: Iterable[Job]) -> dict[int, int]:
    """Count the examples that adaptive jobs have done in their present epoch, in one query."""
    adapting = [job.pk for job in jobs if job.adapts_batch_size]
    if not adapting:
        return {}
    reports = StepReport.objects.filter(job_id__in=adapting, epoch=F("job__epoch"))
    totals = reports.order_by().values("job_id").annotate(total=Sum("examples"))
    return {row["job_id"]: row["total"] for row in totals}


def examples_done(job: Job, per_epoch: int, in_epoch: int | None = None) -> int:
    """Count the examples that a job has trained on, earlier epochs included.

    With an adaptive batch size the reports of the present epoch count instead of steps.

    Args:
        in_epoch: examples of the present epoch (see `epoch_examples`); None: query them.
    """
    if not job.adapts_batch_size:
        return job.step * job.global_batch_size
    current = epoch_examples([job]).get(job.pk, 0) if in_epoch is None else in_epoch
    return job.epoch * per_epoch + min(current, per_epoch)


def batch_times_read(job: Job) -> BatchTimes:
    """Read the measured step times of a job by number of accelerators and batch size."""
    return {
        (int(number), int(size)): Sample(int(count), float(mean_s), float(recent_s))
        for key, (count, mean_s, recent_s) in job.batch_times.items()
        for number, size in [key.split("x")]
    }
