"""Bounds of adaptive batch sizes, and the examples that jobs have done with changing ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from django.db.models import F, Sum

from controlplane.core.estimates.memory import largest_slice, memory_need_read
from controlplane.core.values.lifecycle import NodeStatus
from jobs.models import Accelerator, Job, StepReport


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
    """Count how far jobs with a selection, or not counted by steps, are in their epoch, in a query.

    Of an epoch that selects the candidates count, not the examples that were trained on.
    """
    counted = [job.pk for job in jobs if not job.is_counted_by_steps or job.selection]
    if not counted:
        return {}
    reports = StepReport.objects.filter(job_id__in=counted, epoch=F("job__epoch"))
    totals = reports.order_by().values("job_id")
    rows = totals.annotate(trained=Sum("examples"), candidates=Sum("candidates"))
    return {row["job_id"]: max(row["trained"], row["candidates"]) for row in rows}


def examples_done(job: Job, per_epoch: int, in_epoch: int | None = None) -> int:
    """Count the examples that a job has trained on, earlier epochs included.

    Of a job not counted by steps the reports of the present epoch count.

    Args:
        in_epoch: examples of the present epoch (see `epoch_examples`); None: query them.
    """
    if job.is_counted_by_steps:
        return job.step * job.global_batch_size
    current = epoch_examples([job]).get(job.pk, 0) if in_epoch is None else in_epoch
    return job.epoch * per_epoch + min(current, per_epoch)
