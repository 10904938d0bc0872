"""Adaptive batch sizes: changes for new accelerators, and for running jobs in the cycle."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence

from controlplane.core.estimates.batch_size import (
    CHANGE_COOL_DOWN_S,
    BatchChoice,
    batch_size_choose,
)
from controlplane.core.estimates.goodput import AdaptiveBatchPerformance
from controlplane.core.values.lifecycle import GenerationPhase, JobStatus
from controlplane.core.values.types import Plan, Resize
from jobs.models import Accelerator, Generation, Job
from jobs.selectors.estimates.batch_sizes import accelerator_sizes
from jobs.selectors.estimates.job import known_read
from jobs.selectors.estimates.step_times import step_times_read
from jobs.services.lifecycle.transitions import accelerators_kept


def batch_choices(held: Iterable[tuple[Job, Sequence[int]]]) -> dict[int, BatchChoice]:
    """Choose other batch sizes for jobs on given accelerators, by job; most keep theirs.

    A job on accelerators of several kinds keeps its size: no model covers such a step.
    """
    adapting = [(job, ids) for job, ids in held if job.adapts_batch_size and ids]
    if not adapting:
        return {}
    jobs = [job for job, _ in adapting]
    known = known_read(jobs, step_times_read(jobs), accelerator_sizes())
    every = {accelerator_id for _, ids in adapting for accelerator_id in ids}
    rows = Accelerator.objects.filter(id__in=every).values_list("id", "kind", "node_id")
    places = {accelerator_id: (kind, node_id) for accelerator_id, kind, node_id in rows}
    choices = {}
    for job, ids in adapting:
        performance = known[job.pk].performance
        kinds = {places[accelerator_id][0] for accelerator_id in ids}
        if not isinstance(performance, AdaptiveBatchPerformance) or len(kinds) != 1:
            continue
        num_nodes = len({places[accelerator_id][1] for accelerator_id in ids})
        choice = batch_size_choose(
            performance, job.batch_size_now, kinds.pop(), len(ids), num_nodes
        )
        if choice is not None:
            choices[job.pk] = choice
    return choices


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
    held = {
        row: accelerators_kept(row)
        for row in rows
        if row.number == row.job.generation and not row.is_parked and row.job_id not in busy
    }
    choices = batch_choices((row.job, ids) for row, ids in held.items())
    resizes, generations = [], {}
    for row, ids in held.items():
        choice = choices.get(row.job_id)
        if choice is not None:
            resizes.append(Resize(row.job_id, ids, ids, choice.reason, choice.batch_size))
            generations[row.job_id] = row.number
    return Plan(tuple(resizes), {}, {}), generations
