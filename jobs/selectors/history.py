"""Cluster history in the simulator's form: jobs with their measured speeds."""

from __future__ import annotations

import dataclasses
import datetime
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from django.db.models import Avg, Count, F, Q

from controlplane.core.estimates.goodput import AdaptiveBatchPerformance, FixedBatchPerformance
from controlplane.core.values.lifecycle import ENDED_JOB_STATUSES, JobStatus
from controlplane.core.values.projects import ProjectId, ProjectQuota
from controlplane.core.values.tiers import Tier
from controlplane.simulator.settings import MEASURED, ResizeCosts
from controlplane.simulator.workloads.history import History, HistoryJob
from jobs.models import Accelerator, ClusterSetting, Event, Generation, Job, Sweep
from jobs.selectors.cluster import remaining_work
from jobs.selectors.estimates.batch_sizes import accelerator_sizes, epoch_examples
from jobs.selectors.estimates.job import Known, known_read
from jobs.selectors.estimates.resize_history import WAS_RESIZED
from jobs.selectors.estimates.step_times import step_times_read
from jobs.selectors.limits import share_factors
from jobs.selectors.projects import project_quotas

#: Most jobs of one history; the newest are taken.
MOST_JOBS = 5_000

_NEVER_TRAINED = "never trained, speed unknown"
_NO_END = "in training, with an end that cannot be predicted"
_NO_WORK = "ended before the first step"
_NO_ROOM = "larger than what there is now of any accepted kind"
_OVER_LIMIT = "larger than what the project may hold now"
_TOO_MANY = f"older than the newest {MOST_JOBS}"


def history_read(start_at: datetime.datetime, end_at: datetime.datetime) -> History:
    """Read the history between two times, in a constant number of queries.

    The history holds jobs submitted in that time with their whole work: all work until their end,
    or work done plus work remaining. Jobs that cannot be simulated are left out and counted.
    """
    submitted = Job.objects.filter(submitted_at__gte=start_at, submitted_at__lte=end_at)
    rows = submitted.order_by("-id")
    jobs = list(rows[:MOST_JOBS])
    left_out: Counter[str] = Counter()
    if len(jobs) == MOST_JOBS:
        left_out[_TOO_MANY] = rows.count() - MOST_JOBS
    known = known_read(jobs, step_times_read(jobs), accelerator_sizes())
    factors = share_factors()
    in_epoch = epoch_examples(jobs)
    # A job waits for accelerators from its validation on.
    passed = Event.objects.filter(kind="validated", job__in=[job.pk for job in jobs])
    ready_at = dict(passed.order_by("-id").values_list("job_id", "at"))
    quotas, nodes = project_quotas(), _nodes()
    kept = []
    for job in reversed(jobs):
        row = _job(job, known[job.pk], ready_at.get(job.pk), in_epoch.get(job.pk, 0))
        if not isinstance(row, str):
            row = _fitting(row, nodes, quotas)
        if isinstance(row, str):
            left_out[row] += 1
        else:
            kept.append(dataclasses.replace(row, user_factor=factors.get(job.owner_id, 1.0)))
    sweeps = Sweep.objects.filter(pk__in={job.sweep for job in kept if job.sweep is not None})
    return History(
        start_at=start_at.timestamp(),
        end_at=end_at.timestamp(),
        policy=_policy_between(min([job.submitted_at for job in jobs], default=start_at), end_at),
        nodes=nodes,
        jobs=tuple(kept),
        costs=resize_costs(job.pk for job in jobs),
        left_out=+left_out,
        projects=quotas,
        sweeps=dict(sweeps.values_list("pk", "max_running")),
    )


def _job(
    job: Job, known: Known, ready_at: datetime.datetime | None, in_epoch: int
) -> HistoryJob | str:
    """Return a job of the history, or the reason why it cannot be simulated."""
    performance = known.performance
    if not isinstance(performance, FixedBatchPerformance | AdaptiveBatchPerformance):
        return _NEVER_TRAINED
    has_ended = job.status in ENDED_JOB_STATUSES
    work = known.done_examples
    if not has_ended:
        left = remaining_work(job, in_epoch)
        if left is None:
            return _NO_END
        work += left * known.worth
    if work <= 0.0:
        return _NO_WORK
    # A job that ended otherwise occupied accelerators as well, but has no completion time.
    ended_at = job.ended_at if job.status == JobStatus.FINISHED else None
    return HistoryJob(
        id=job.pk,
        name=job.name,
        submitted_at=(ready_at or job.submitted_at).timestamp(),
        started_at=None if job.started_at is None else job.started_at.timestamp(),
        ended_at=None if ended_at is None else ended_at.timestamp(),
        weight=float(job.priority),
        min_accelerators=job.min_accelerators,
        max_accelerators=job.max_accelerators,
        accepted_kinds=tuple(sorted(job.accepted_kinds)),
        batch_size=job.global_batch_size,
        work=work,
        performance=performance,
        allow_mixed_kinds=job.allow_mixed_kinds,
        user=job.owner_id,
        tier=Tier(job.tier),
        project=job.project_id,
        sweep=job.sweep_id,
    )


def _nodes() -> tuple[tuple[str, int], ...]:
    """List the present nodes, one entry per kind of accelerator in each."""
    rows = (
        Accelerator.objects.filter(is_present=True, node__removed_at=None)
        .order_by()
        .values("node_id", "kind")
        .annotate(number=Count("id"))
        .order_by("node_id", "kind")
    )
    return tuple((row["kind"], row["number"]) for row in rows)


def _fitting(
    job: HistoryJob,
    nodes: Iterable[tuple[str, int]],
    quotas: Mapping[ProjectId, ProjectQuota],
) -> HistoryJob | str:
    """Return a job, or the reason why it could never start on the nodes that there are."""
    rooms: Counter[str] = Counter()
    for kind, number in nodes:
        if not job.accepted_kinds or kind in job.accepted_kinds:
            rooms[kind] += number
    if job.min_accelerators > max(rooms.values(), default=0):
        return _NO_ROOM
    quota = None if job.project is None else quotas.get(job.project)
    if quota is not None and all(
        job.min_accelerators > min(number, quota.most([kind])) for kind, number in rooms.items()
    ):
        return _OVER_LIMIT
    return job


def _policy_between(start_at: datetime.datetime, end_at: datetime.datetime) -> str:
    """Return the policy that was in force for most of the time."""
    changes = Event.objects.filter(kind="policy", at__gt=start_at).order_by("at", "id")
    now = ClusterSetting.objects.filter(id=1).values_list("policy", flat=True).first() or ""
    lasted: defaultdict[str, float] = defaultdict(float)
    since = start_at
    for at, data in changes.values_list("at", "data"):
        until = min(at, end_at)
        lasted[str(data.get("before", ""))] += max((until - since).total_seconds(), 0.0)
        since = until
    lasted[now] += max((end_at - since).total_seconds(), 0.0)
    return max(sorted(lasted), key=lambda name: lasted[name])


def resize_costs(job_ids: Iterable[int]) -> ResizeCosts:
    """Average the measured costs of resizes; without measurements use the simulator's defaults."""
    found = (
        Generation.objects.filter(job_id__in=list(job_ids), num_members__gt=0)
        .exclude(switched_at=None)
        .aggregate(
            start=Avg(F("switched_at") - F("requested_at"), filter=Q(previous=None)),
            growth=Avg(
                F("switched_at") - F("requested_at"), filter=WAS_RESIZED & Q(bytes_moved__gt=0)
            ),
            pause=Avg("pause_s", filter=WAS_RESIZED),
        )
    )
    return ResizeCosts(
        start_s=_seconds(found["start"], MEASURED.start_s),
        pause_s=found["pause"] if found["pause"] is not None else MEASURED.pause_s,
        growth_s=_seconds(found["growth"], MEASURED.growth_s),
        release_s=MEASURED.release_s,
    )


def _seconds(mean: datetime.timedelta | None, default: float) -> float:
    return default if mean is None else max(mean.total_seconds(), 0.0)
