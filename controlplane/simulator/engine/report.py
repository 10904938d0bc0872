"""Results of a simulation: figures of every job and of the whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from controlplane.core.values.projects import ProjectId
from controlplane.core.values.tiers import TIERS, Tier
from controlplane.simulator.engine.fairness import alone_s, crowding
from controlplane.simulator.engine.jobs import SimulatedJob
from controlplane.simulator.engine.run import Records
from controlplane.simulator.workloads.workloads import Cluster

#: A job with a finish-time fairness above this counts as treated unfairly.
UNFAIR = 1.0


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """Outcome of one job. Times are seconds since the start of the workload.

    Attributes:
        completion_s: from submission to end.
        queued_s: from submission to the first accelerator.
        num_resizes: changes of its accelerators after its first start, restarts included.
        num_restarts: starts from nothing after its first one.
        fair_s: completion time alone on its fair share, one start included.
        fairness: completion_s / fair_s, without the last digits, in which equal times differ.
    """

    id: int
    name: str
    application: str
    submitted_at: float
    started_at: float
    ended_at: float
    completion_s: float
    queued_s: float
    num_resizes: int
    num_restarts: int
    accelerator_s: float
    fair_s: float
    fairness: float
    tier: str = Tier.NORMAL.value
    project: ProjectId | None = None


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """Figures of the jobs of one tier or project."""

    num_jobs: int
    mean_jct_s: float
    median_jct_s: float
    p90_jct_s: float
    mean_queued_s: float
    accelerator_s: float


@dataclass(frozen=True)
class Report:
    """Outcome of all jobs under one policy.

    Attributes:
        utilisation: held accelerator-seconds over available ones until the last job ended.
        unfair_share: share of the jobs with a fairness above 1.
        tiers: figures of each tier, highest first, where jobs have several.
        projects: figures of each project, where jobs have several; those without one: `none`.
        num_trials, trial_accelerator_s: trials of tuned jobs, which count in no other figure, and
            the accelerator-seconds that they held.
        held: (time, job id, accelerators held from then on).
        qualities: (time, mean quality of the jobs in the system, 0 to 1).
    """

    policy: str
    settings: Mapping[str, Any]
    jobs: tuple[JobOutcome, ...]
    num_accelerators: int
    mean_jct_s: float
    median_jct_s: float
    p90_jct_s: float
    p99_jct_s: float
    makespan_s: float
    mean_queued_s: float
    median_queued_s: float
    utilisation: float
    resizes_per_job: float
    restarts_per_job: float
    worst_fairness: float
    unfair_share: float
    mean_quality: float
    num_decisions: int
    decision_p50_ms: float
    decision_p99_ms: float
    tiers: Mapping[str, GroupOutcome] = field(default_factory=dict)
    projects: Mapping[str, GroupOutcome] = field(default_factory=dict)
    num_trials: int = 0
    trial_accelerator_s: float = 0.0
    held: tuple[tuple[float, int, int], ...] = field(repr=False, default=())
    qualities: tuple[tuple[float, float], ...] = field(repr=False, default=())

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON-compatible values."""
        return asdict(self)


def report_make(
    policy: str,
    settings: Mapping[str, Any],
    jobs: list[SimulatedJob],
    cluster: Cluster,
    records: Records,
    trials: Sequence[SimulatedJob],
) -> Report:
    """Compute the figures of a simulation of at least one job, in which every job has ended."""
    known = {job.id for job in jobs}
    ended = {job.id: job.ended_at for job in jobs if job.ended_at is not None}
    assert len(ended) == len(jobs), "every job has ended"
    crowds = crowding(jobs, ended)
    outcomes = tuple(_outcome(job, cluster, crowds[job.id]) for job in jobs)
    completion = np.array([row.completion_s for row in outcomes])
    queued = np.array([row.queued_s for row in outcomes])
    fairness = np.array([row.fairness for row in outcomes])
    makespan = max(row.ended_at for row in outcomes) - min(row.submitted_at for row in outcomes)
    held_s = sum(row.accelerator_s for row in outcomes)
    decision_ms = 1000.0 * np.array(records.decision_s)
    size = len(cluster.accelerators)
    return Report(
        policy=policy,
        settings=settings,
        jobs=outcomes,
        num_accelerators=size,
        mean_jct_s=float(completion.mean()),
        median_jct_s=float(np.median(completion)),
        p90_jct_s=float(np.percentile(completion, 90)),
        p99_jct_s=float(np.percentile(completion, 99)),
        makespan_s=makespan,
        mean_queued_s=float(queued.mean()),
        median_queued_s=float(np.median(queued)),
        utilisation=held_s / (size * makespan),
        resizes_per_job=sum(row.num_resizes for row in outcomes) / len(outcomes),
        restarts_per_job=sum(row.num_restarts for row in outcomes) / len(outcomes),
        worst_fairness=float(fairness.max()),
        unfair_share=float((fairness > UNFAIR).mean()),
        mean_quality=float(np.mean([value for _, value in records.qualities])),
        num_decisions=len(records.decision_s),
        decision_p50_ms=float(np.percentile(decision_ms, 50)),
        decision_p99_ms=float(np.percentile(decision_ms, 99)),
        tiers=_groups({one.value: [row for row in outcomes if row.tier == one] for one in TIERS}),
        projects=_projects(outcomes),
        num_trials=len(trials),
        trial_accelerator_s=sum(trial.attained_s for trial in trials),
        held=tuple(row for row in records.held if row[1] in known),
        qualities=tuple(records.qualities),
    )


def _outcome(job: SimulatedJob, cluster: Cluster, crowd: float) -> JobOutcome:
    assert job.ended_at is not None, f"job {job.spec.name} has ended"
    assert job.started_at is not None, f"job {job.spec.name} has started"
    completion_s = job.ended_at - job.spec.submitted_at
    fair_s = alone_s(job, cluster, len(cluster.accelerators) / crowd)
    return JobOutcome(
        id=job.id,
        name=job.spec.name,
        application=job.spec.application,
        submitted_at=job.spec.submitted_at,
        started_at=job.started_at,
        ended_at=job.ended_at,
        completion_s=completion_s,
        queued_s=job.started_at - job.spec.submitted_at,
        num_resizes=job.num_resizes,
        num_restarts=job.num_restarts,
        accelerator_s=job.attained_s,
        fair_s=fair_s,
        fairness=round(completion_s / fair_s, 9),
        tier=job.spec.tier.value,
        project=job.spec.project,
    )


def _projects(outcomes: Sequence[JobOutcome]) -> dict[str, GroupOutcome]:
    numbers = sorted({row.project for row in outcomes if row.project is not None})
    rows = {str(number): [row for row in outcomes if row.project == number] for number in numbers}
    return _groups({**rows, "none": [row for row in outcomes if row.project is None]})


def _groups(rows: Mapping[str, Sequence[JobOutcome]]) -> dict[str, GroupOutcome]:
    """Return the figures of each group of jobs; empty if all jobs are in the same."""
    found = {name: _group(members) for name, members in rows.items() if members}
    return found if len(found) > 1 else {}


def _group(members: Sequence[JobOutcome]) -> GroupOutcome:
    completion = np.array([row.completion_s for row in members])
    return GroupOutcome(
        num_jobs=len(members),
        mean_jct_s=float(completion.mean()),
        median_jct_s=float(np.median(completion)),
        p90_jct_s=float(np.percentile(completion, 90)),
        mean_queued_s=float(np.mean([row.queued_s for row in members])),
        accelerator_s=sum(row.accelerator_s for row in members),
    )
