"""The cluster as input of policies: the only translation from rows to the core's values."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from django.db import DatabaseError
from django.db.models import Count, Q, QuerySet

from controlplane.core.protocol.reported_values import COUNT_LIMIT
from controlplane.core.protocol.selection import SelectionSpec
from controlplane.core.protocol.wire import StopKind
from controlplane.core.scheduling.replacements import replacements_kept
from controlplane.core.values import types
from controlplane.core.values.lifecycle import (
    OPEN_PHASES,
    SCHEDULABLE_JOB_STATUSES,
    GenerationPhase,
    JobStatus,
    NodeStatus,
)
from controlplane.core.values.tiers import Tier
from jobs.models import (
    Accelerator,
    Allocation,
    Generation,
    Job,
    Node,
    StartFailure,
    Sweep,
)
from jobs.selectors.estimates.batch_sizes import accelerator_sizes, epoch_examples, examples_done
from jobs.selectors.estimates.job import Known, known_read
from jobs.selectors.estimates.resize_history import ResizeHistory, resize_histories
from jobs.selectors.estimates.step_times import StepTimes, step_times_read
from jobs.selectors.limits import share_factors
from jobs.selectors.maintenance import closed_by_window, in_maintenance
from jobs.selectors.projects import project_quotas
from jobs.selectors.selection import epoch_cost
from jobs.selectors.short_jobs import short_jobs

#: Columns of a job that no policy uses; reading them takes longer than all others.
_UNREAD = ("metrics", "moves", "error_traceback", "status_reason", "policy_reason")


@dataclass(frozen=True, slots=True)
class ClusterView:
    """A snapshot for a policy.

    Attributes:
        generations: each job's generation, the condition for applying a plan.
        unreadable: by job left out of the snapshot, the error in its values.
    """

    snapshot: types.Snapshot
    generations: dict[int, int]
    unreadable: dict[int, str]


def accelerators_open(now: datetime.datetime) -> QuerySet[Accelerator]:
    """Select the accelerators that may be given to jobs, held or not."""
    return (
        _accelerators_usable(now)
        .filter(node__is_cordoned=False)
        .exclude(closed_by_window(now, "node__"))
    )


def _accelerators_usable(
    now: datetime.datetime, without_nodes: Collection[int] = ()
) -> QuerySet[Accelerator]:
    """Select the accelerators on which trainers may be, those that get no new work included."""
    rows = Accelerator.objects.exclude(node__in=without_nodes).exclude(
        in_maintenance(now, "node__")
    )
    return rows.filter(
        Q(node__quarantined_until=None) | Q(node__quarantined_until__lte=now),
        is_present=True,
        node__status=NodeStatus.ONLINE,
        node__is_draining=False,
        node__removed_at=None,
    )


def cluster_snapshot(now: datetime.datetime, *, without_nodes: Collection[int] = ()) -> ClusterView:
    """Read the cluster for a policy, in a constant number of queries.

    A job with unreadable values is left out, with the accelerators that it holds.

    Args:
        without_nodes: nodes to leave out, as if they were drained.
    """
    all_jobs = list(
        Job.objects.filter(status__in=[*SCHEDULABLE_JOB_STATUSES], pause_requested=False)
        .defer(*_UNREAD)
        .order_by("submitted_at", "id")
    )
    allocations = list(Allocation.objects.filter(released_at=None).order_by("slot"))
    by_job: dict[int, list[Allocation]] = {}
    for row in allocations:
        by_job.setdefault(row.job_id, []).append(row)
    ids = [job.pk for job in all_jobs]
    opened = Generation.objects.filter(job_id__in=ids, phase__in=OPEN_PHASES)
    generations = {row.job_id: row for row in opened.order_by("number")}  # the newest one per job
    manned = {
        job.pk: places
        for job in all_jobs
        if (places := _held(generations.get(job.pk), by_job.get(job.pk, [])))
    }
    read = partial(_core_jobs, allocations=by_job, manned=manned, now=now)
    core_jobs, unreadable = _readable(all_jobs, read)
    jobs = [job for job in all_jobs if job.pk not in unreadable]
    manned = {job_id: row for job_id, row in manned.items() if job_id not in unreadable}
    in_hands = {accelerator for row in manned.values() for accelerator in row}
    kept_out = {row.accelerator_id for job_id in unreadable for row in by_job.get(job_id, [])}
    accelerators, cordoned = _accelerators(now, without_nodes)
    accelerators = tuple(row for row in accelerators if row.id not in kept_out)
    releasing = frozenset(row.accelerator_id for row in allocations) - in_hands - kept_out
    snapshot = types.Snapshot(
        now=now.timestamp(),
        seed=0,
        accelerators=accelerators,
        jobs=tuple(core_jobs),
        held=manned,
        releasing=releasing,
        vacating=_vacating(in_hands.difference(row.id for row in accelerators)),
        resizing=frozenset(
            job_id
            for job_id, generation in generations.items()
            if generation.phase == GenerationPhase.SWITCHING
            or _is_ending(generation, by_job.get(job_id, []))
        ),
        excluded=_accelerators_excluded(now),
        cordoned=cordoned,
        maintenance=_maintenance(now, without_nodes),
        sweeps=_sweeps({job.sweep_id for job in jobs if job.sweep_id is not None}),
        projects=project_quotas(),
    )
    snapshot = replacements_kept(snapshot, short_jobs(jobs, generations, manned, now))
    return ClusterView(snapshot, {job.pk: job.generation for job in jobs}, unreadable)


def _sweeps(sweep_ids: set[int]) -> dict[int, types.Sweep]:
    """Return sweeps with the number of their jobs that are being stopped."""
    if not sweep_ids:
        return {}
    is_leaving = Q(jobs__status=JobStatus.PREEMPTING) | Q(
        jobs__status__in=[*SCHEDULABLE_JOB_STATUSES], jobs__pause_requested=True
    )
    rows = Sweep.objects.filter(pk__in=sweep_ids).annotate(
        num_leaving=Count("jobs", filter=is_leaving)
    )
    return {row.pk: types.Sweep(row.max_running, row.num_leaving, row.is_paused) for row in rows}


def _readable(
    jobs: Sequence[Job], read: Callable[[Sequence[Job]], list[types.Job]]
) -> tuple[list[types.Job], dict[int, str]]:
    """Read as many jobs as possible, and return the error of each of the others."""
    try:
        return read(jobs), {}
    except DatabaseError:
        raise
    except Exception as error:
        unreadable = _unreadable(jobs, read, error)
        return read([job for job in jobs if job.pk not in unreadable]), unreadable


def _unreadable(
    jobs: Sequence[Job], read: Callable[[Sequence[Job]], list[types.Job]], error: Exception
) -> dict[int, str]:
    """Find by bisection the jobs whose reading together has failed with `error`."""
    if len(jobs) == 1:
        return {jobs[0].pk: f"{type(error).__name__}: {error}"[:200]}
    found: dict[int, str] = {}
    for half in (jobs[: len(jobs) // 2], jobs[len(jobs) // 2 :]):
        try:
            read(half)
        except DatabaseError:
            raise
        except Exception as cause:
            found |= _unreadable(half, read, cause)
    return found


def _core_jobs(
    jobs: Sequence[Job],
    allocations: Mapping[int, list[Allocation]],
    manned: Mapping[int, tuple[int, ...]],
    now: datetime.datetime,
) -> list[types.Job]:
    step_times = step_times_read(jobs)
    known = known_read(jobs, step_times, accelerator_sizes())
    in_epoch = epoch_examples(jobs)
    histories = resize_histories(job.pk for job in jobs)
    factors = share_factors()
    return [
        _core_job(
            job,
            allocations.get(job.pk, []),
            step_times[job.pk] if job.allow_mixed_kinds else StepTimes(),
            known[job.pk],
            histories.get(job.pk, ResizeHistory()),
            remaining=remaining_work(job, in_epoch.get(job.pk, 0)),
            is_holding=job.pk in manned,
            user_factor=factors.get(job.owner_id, 1.0),
            now=now,
        )
        for job in jobs
    ]


def _accelerators(
    now: datetime.datetime, without_nodes: Collection[int]
) -> tuple[tuple[types.Accelerator, ...], frozenset[int]]:
    """Return the usable accelerators, and the nodes among theirs that take no new work."""
    usable = _accelerators_usable(now, without_nodes)
    rows = list(usable.select_related("node").order_by("node_id", "index"))
    return tuple(
        types.Accelerator(id=row.pk, node_id=row.node_id, index=row.index, kind=row.kind)
        for row in rows
    ), frozenset(
        row.node_id for row in rows if row.node.is_cordoned or row.node.is_closed_by_window(now)
    )


def _vacating(held: Collection[int]) -> frozenset[int]:
    """Return those of the held accelerators, none of them usable, whose nodes still run."""
    if not held:
        return frozenset()
    running = Accelerator.objects.filter(
        pk__in=held, is_present=True, node__status=NodeStatus.ONLINE, node__removed_at=None
    )
    return frozenset(running.values_list("pk", flat=True))


def _maintenance(
    now: datetime.datetime, without_nodes: Collection[int]
) -> tuple[types.Maintenance, ...]:
    """Return the nodes that take no new work until a window ends, unless by hand as well."""
    nodes = (
        Node.objects.filter(removed_at=None, is_cordoned=False)
        .filter(closed_by_window(now))
        .exclude(pk__in=without_nodes)
        .order_by("pk")
    )
    return tuple(
        types.Maintenance(
            node.pk,
            node.maintenance_until.timestamp(),
            tuple(
                types.Accelerator(id=row.pk, node_id=node.pk, index=row.index, kind=row.kind)
                for row in node.accelerators.all()
                if row.is_present
            ),
        )
        for node in nodes.prefetch_related("accelerators")
        if node.maintenance_until is not None
    )


def _accelerators_excluded(now: datetime.datetime) -> dict[int, frozenset[int]]:
    """List by job the accelerators in cool-down after failed starts of its trainers."""
    rows = StartFailure.objects.filter(until_at__gt=now).values_list("job_id", "accelerator_id")
    by_job: dict[int, set[int]] = {}
    for job_id, accelerator_id in rows:
        by_job.setdefault(job_id, set()).add(accelerator_id)
    return {job_id: frozenset(found) for job_id, found in by_job.items()}


def _is_ending(generation: Generation, allocations: list[Allocation]) -> bool:
    """Return whether a member does no more steps: it has finished, or stalled due to a loss.

    The next change of the job comes from its leader's report or from its recovery.
    """
    if generation.phase != GenerationPhase.ACTIVE:
        return False
    training = {
        row.slot for row in allocations if row.finished_at is None and row.stalled_at is None
    }
    return any(member.slot not in training for member in generation.membership.members)


def _held(generation: Generation | None, allocations: list[Allocation]) -> tuple[int, ...]:
    """List the accelerators assigned to a job, in member order."""
    if generation is None:
        return ()
    by_slot = {row.slot: row.accelerator_id for row in allocations if row.stop_requested_at is None}
    slots = generation.membership.slots
    return tuple(by_slot[slot] for slot in slots if slot in by_slot)


def _core_job(
    job: Job,
    allocations: list[Allocation],
    step_times: StepTimes,
    known: Known,
    history: ResizeHistory,
    *,
    remaining: float | None,
    is_holding: bool,
    user_factor: float,
    now: datetime.datetime,
) -> types.Job:
    held_s = sum((now - row.granted_at).total_seconds() for row in allocations)
    return types.Job(
        id=job.pk,
        submitted_at=job.submitted_at.timestamp(),
        weight=float(job.priority),
        num_virtual_nodes=job.num_virtual_nodes,
        min_accelerators=job.min_accelerators,
        max_accelerators=job.max_accelerators,
        accepted_kinds=frozenset(job.accepted_kinds),
        global_batch_size=job.global_batch_size,
        examples_per_s=_measured_speeds(job),
        remaining_examples=None if remaining is None else remaining * known.worth,
        attained_accelerator_s=job.attained_accelerator_s + held_s,
        pending_since=_seconds(job.pending_since),
        allow_mixed_kinds=job.allow_mixed_kinds,
        step_times=step_times.by_kind,
        sync_time=step_times.sync,
        performance=known.performance,
        kind_speeds=known.kind_speeds,
        tried_kinds=known.tried_kinds,
        loss=known.loss,
        done_examples=known.done_examples,
        resize_s=history.resize_s,
        num_resizes=history.num_resizes,
        changed_at=_seconds(history.changed_at),
        running_since=_seconds(history.running_since) if is_holding else None,
        most_accelerators=history.most_accelerators,
        user=job.owner_id,
        user_factor=user_factor,
        tier=Tier(job.tier),
        sweep=job.sweep_id,
        project=job.project_id,
    )


def _measured_speeds(job: Job) -> dict[int, float]:
    """Read the measured examples per second by number of accelerators.

    Raises:
        ValueError: a number or a speed is out of its bounds.
    """
    speeds = {int(count): float(speed) for count, speed in job.throughput_by_count.items()}
    for count, speed in speeds.items():
        if not (1 <= count <= COUNT_LIMIT and 0.0 <= speed < math.inf):
            raise ValueError(f"throughput_by_count has {speed!r:.40} on {count!r:.40}")
    return speeds


def _seconds(at: datetime.datetime | None) -> float | None:
    return None if at is None else at.timestamp()


def remaining_examples(job: Job, in_epoch: int | None = None) -> float | None:
    """Return the number of examples left to train on until the stop condition; None if unknown.

    Of a job that selects its examples the number that is expected.

    Args:
        in_epoch: examples done in the present epoch (`epoch_examples`); None: query them.
    """
    selection = job.run_selection
    share = 1.0 if selection is None else selection.expected_share
    return _remaining(job, in_epoch, selection, share)


def remaining_work(
    job: Job, in_epoch: int | None = None, *, is_metric_missed: bool = False
) -> float | None:
    """Return what is left until the stop condition, in examples of plain training.

    An epoch that selects counts by its expected time over a plain one's, which its passes are part
    of. Divided by the speed of training steps alone it is a time that does not change when a job
    begins to select.

    Args:
        is_metric_missed: count up to the limit of epochs of a job that stops by a metric.
    """
    selection = job.run_selection
    cost = epoch_cost(job)
    left = _remaining(job, in_epoch, selection, cost, is_metric_missed=is_metric_missed)
    if left is None or selection is None or job.stop_kind != StopKind.STEPS:
        return left
    return left + _selecting_examples(job, selection, left) * (
        cost / selection.expected_share - 1.0
    )


def _remaining(
    job: Job,
    in_epoch: int | None,
    selection: SelectionSpec | None,
    weight: float,
    *,
    is_metric_missed: bool = False,
) -> float | None:
    """Count the examples left; those of epochs that select, stop by steps apart, by `weight`."""
    if job.stop_kind == StopKind.STEPS:
        return float(max(job.stop_limit - job.step, 0) * job.global_batch_size)
    per_epoch = job.facts.get("num_examples")
    if not isinstance(per_epoch, int):
        return None
    if job.stop_kind == StopKind.METRIC and not is_metric_missed:
        return None
    if selection is None:
        return float(max(job.stop_limit * per_epoch - examples_done(job, per_epoch, in_epoch), 0))
    epochs = range(min(job.epoch, job.stop_limit), job.stop_limit)
    num_selecting = selection.num_selecting(epochs)
    left = per_epoch * (len(epochs) - num_selecting + num_selecting * weight)
    if not epochs:
        return 0.0
    if in_epoch is None:
        in_epoch = epoch_examples([job]).get(job.pk, 0)
    done = min(in_epoch, per_epoch) * (weight if selection.selects(job.epoch) else 1.0)
    return left - done


def _selecting_examples(job: Job, selection: SelectionSpec, left: float) -> float:
    """Return how many of the examples left until a last step are expected of epochs that select."""
    per_epoch = job.facts.get("num_examples")
    if not isinstance(per_epoch, int):
        return 0.0
    if job.epoch < selection.start:
        left -= max(selection.start * per_epoch - job.step * job.global_batch_size, 0)
    if selection.end is not None:
        num_epochs = selection.num_selecting(range(job.epoch, selection.end))
        left = min(left, num_epochs * per_epoch * selection.expected_share)
    return max(left, 0.0)
