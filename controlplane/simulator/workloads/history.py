"""The history of a live cluster: written by `manage.py export_history`, read by simulations."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from controlplane.core.estimates.goodput import (
    AdaptiveBatchPerformance,
    FixedBatchPerformance,
    VirtualNodes,
)
from controlplane.core.estimates.measured_steps import MeasuredModel, measured_model
from controlplane.core.estimates.throughput import (
    ThroughputModel,
    ThroughputSample,
    samples_check,
)
from controlplane.core.values.explanations import counted
from controlplane.core.values.projects import ProjectId, ProjectQuota
from controlplane.core.values.tiers import Tier
from controlplane.core.values.types import Accelerator, Sweep
from controlplane.simulator.applications.steady import RecordedApplication, RecordedPerformance
from controlplane.simulator.settings import MEASURED, ResizeCosts
from controlplane.simulator.workloads.reading import json_read, number_of, row_of, tier_of, whole_of
from controlplane.simulator.workloads.workloads import Cluster, Workload, WorkloadJob

FORMAT = "virtualflow-history-1"

#: Numbers of batches that the platform chooses.
_BATCHES = ("submitted", "low", "high", "multiple")

#: Accelerators of an added node where no node of its kind is known.
_DEFAULT_PER_NODE = 4


@dataclass(frozen=True)
class HistoryJob:
    """One recorded job. Times are seconds since the epoch.

    Attributes:
        submitted_at: time from which it waited for accelerators, its code being found valid.
        started_at, ended_at: None: not by the end of the record.
        work: total useful examples, as far as known to have been done or planned.
        performance: its fitted speed.
        allow_mixed_kinds: whether it may hold accelerators of several kinds at once.
        user: number of its owner; None: not recorded.
        user_factor: factor of the owner's claim on a share.
        tier: its last tier.
        project: number of its last project.
        sweep: number of its sweep.
    """

    id: int
    name: str
    submitted_at: float
    started_at: float | None
    ended_at: float | None
    weight: float
    min_accelerators: int
    max_accelerators: int
    accepted_kinds: tuple[str, ...]
    batch_size: int
    work: float
    performance: RecordedPerformance
    allow_mixed_kinds: bool = False
    user: int | None = None
    user_factor: float = 1.0
    tier: Tier = Tier.NORMAL
    project: ProjectId | None = None
    sweep: int | None = None

    @property
    def label(self) -> str:
        """Unique name of the job in a workload."""
        return f"#{self.id} {self.name}"


@dataclass(frozen=True)
class History:
    """Record of a cluster between two times.

    Attributes:
        policy: the one in force for most of the time.
        nodes: (kind, number of accelerators) of each machine; one that mixes kinds counts as
            several.
        costs: measured costs of resizes.
        left_out: reason for which jobs of that time are missing -> their number.
        projects: quotas of the projects that have any, as they are at its end.
        sweeps: most jobs of each sweep that run at once, as they are at its end.
    """

    start_at: float
    end_at: float
    policy: str
    nodes: tuple[tuple[str, int], ...]
    jobs: tuple[HistoryJob, ...]
    costs: ResizeCosts = MEASURED
    left_out: Mapping[str, int] = field(default_factory=dict)
    projects: Mapping[ProjectId, ProjectQuota] = field(default_factory=dict)
    sweeps: Mapping[int, int] = field(default_factory=dict)

    @property
    def accelerators(self) -> dict[str, int]:
        """Count the accelerators by kind."""
        counts: Counter[str] = Counter()
        for kind, number in self.nodes:
            counts[kind] += number
        return dict(sorted(counts.items()))


def history_workload(history: History) -> Workload:
    """Convert a history to a workload that starts when the history does."""
    applications = {
        job.label: RecordedApplication(job.label, job.work, job.performance) for job in history.jobs
    }
    jobs = tuple(
        WorkloadJob(
            name=job.label,
            submitted_at=max(job.submitted_at - history.start_at, 0.0),
            application=job.label,
            requested=None,
            batch_size=job.batch_size,
            is_fixed=isinstance(job.performance, FixedBatchPerformance),
            min_accelerators=job.min_accelerators,
            max_accelerators=job.max_accelerators,
            weight=job.weight,
            user=job.user,
            user_factor=job.user_factor,
            accepted_kinds=frozenset(job.accepted_kinds),
            tier=job.tier,
            project=job.project,
            sweep=job.sweep,
        )
        for job in history.jobs
    )
    notes = history_notes(history)
    sweeps = {number: Sweep(most) for number, most in history.sweeps.items()}
    return Workload(jobs, applications, notes, projects=history.projects, sweeps=sweeps)


def history_notes(history: History) -> tuple[str, ...]:
    """Describe the jobs of a history that are left out, or simulated differently than they ran."""
    notes = [f"{counted(num, 'job')} left out: {why}." for why, num in history.left_out.items()]
    mixing = sum(job.allow_mixed_kinds for job in history.jobs)
    if mixing:
        notes.append(
            f"{counted(mixing, 'job')} may mix kinds of accelerators: simulated on one kind at a "
            "time, without what would have been lent of others."
        )
    return tuple(notes)


def history_cluster(history: History, accelerators: Mapping[str, int] | None = None) -> Cluster:
    """Return the cluster of a history, or one with other numbers of accelerators by kind.

    Added or removed machines have the most frequent size of their kind.
    """
    nodes = list(history.nodes)
    if accelerators is not None and dict(accelerators) != history.accelerators:
        nodes = [
            (kind, size)
            for kind, number in sorted(accelerators.items())
            for size in _machines(number, [n for k, n in history.nodes if k == kind])
        ]
    made: list[Accelerator] = []
    for node, (kind, number) in enumerate(nodes):
        made += [Accelerator(len(made) + index, node, index, kind) for index in range(number)]
    return Cluster(tuple(made))


def _machines(number: int, present: list[int]) -> list[int]:
    """Split accelerators into machines, present ones first."""
    typical = Counter(present).most_common(1)[0][0] if present else _DEFAULT_PER_NODE
    sizes: list[int] = []
    left = number
    for size in present:
        if left < size:
            break
        sizes.append(size)
        left -= size
    while left > 0:
        sizes.append(min(typical, left))
        left -= sizes[-1]
    return sizes


def history_write(history: History, path: Path) -> None:
    """Write a history as JSON."""
    path.write_text(json.dumps(history_to_dict(history), indent=1) + "\n")


def history_read(path: Path) -> History:
    """Read a file written by `history_write`.

    Raises:
        ValueError: the file is not a valid history; the text names the problem.
    """
    return history_from_dict(json_read(path, "--workload"), str(path))


def history_to_dict(history: History) -> dict[str, Any]:
    """Return a history as JSON-compatible values."""
    costs = history.costs
    return {
        "format": FORMAT,
        "start_at": history.start_at,
        "end_at": history.end_at,
        "policy": history.policy,
        "nodes": [list(node) for node in history.nodes],
        "costs": [costs.start_s, costs.pause_s, costs.growth_s, costs.release_s],
        "left_out": dict(history.left_out),
        "projects": [
            [
                *(number, quota.guaranteed, quota.limit, quota.user_limit),
                *(dict(quota.guaranteed_by_kind), dict(quota.limit_by_kind)),
            ]
            for number, quota in history.projects.items()
        ],
        "sweeps": [list(row) for row in history.sweeps.items()],
        "jobs": [
            {
                **vars(job),
                "accepted_kinds": list(job.accepted_kinds),
                "performance": _performance_to_dict(job.performance),
            }
            for job in history.jobs
        ],
    }


def history_from_dict(values: Any, source: str) -> History:
    """Read a history from values of JSON.

    Raises:
        ValueError: naming `source`, the job and the field that is missing or wrong.
    """
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise ValueError(
            f"--workload: {source} is no history: its format is not {FORMAT!r}; write one with "
            "manage.py export_history"
        )
    with row_of("--workload", source):
        rows = list(values["jobs"])
        nodes = tuple((str(kind), int(count)) for kind, count in values["nodes"])
        if not nodes or min(count for _, count in nodes) < 1:
            raise ValueError("'nodes' must name machines with one accelerator at least")
        head = History(
            start_at=number_of(values, "start_at"),
            end_at=number_of(values, "end_at"),
            policy=str(values["policy"]),
            nodes=nodes,
            jobs=(),
            costs=ResizeCosts(*(float(value) for value in values["costs"])),
            left_out={str(why): int(count) for why, count in values["left_out"].items()},
            projects={int(row[0]): _quota(row[1:]) for row in values.get("projects", [])},
            sweeps={int(number): int(most) for number, most in values.get("sweeps", [])},
        )
    return dataclasses.replace(head, jobs=tuple(_job_read(row, source) for row in rows))


def _job_read(row: Any, source: str) -> HistoryJob:
    label = row.get("id") if isinstance(row, dict) else row
    with row_of("--workload", f"job {label!r} of {source}"):
        return HistoryJob(
            id=whole_of(row, "id"),
            name=str(row["name"]),
            submitted_at=number_of(row, "submitted_at"),
            started_at=None if row["started_at"] is None else number_of(row, "started_at"),
            ended_at=None if row["ended_at"] is None else number_of(row, "ended_at"),
            weight=number_of(row, "weight"),
            min_accelerators=whole_of(row, "min_accelerators"),
            max_accelerators=whole_of(row, "max_accelerators"),
            accepted_kinds=tuple(str(kind) for kind in row["accepted_kinds"]),
            batch_size=whole_of(row, "batch_size"),
            work=number_of(row, "work"),
            performance=_performance_from_dict(row["performance"]),
            allow_mixed_kinds=bool(row.get("allow_mixed_kinds", False)),
            user=None if row.get("user") is None else whole_of(row, "user"),
            user_factor=number_of(row, "user_factor") if "user_factor" in row else 1.0,
            tier=tier_of(row),
            project=None if row.get("project") is None else whole_of(row, "project"),
            sweep=None if row.get("sweep") is None else whole_of(row, "sweep"),
        )


def _quota(row: Sequence[Any]) -> ProjectQuota:
    guaranteed, limit, user_limit, *by_kind = row
    guarantees, limits = (
        {str(kind): int(count) for kind, count in dict(counts).items()} for counts in by_kind
    )
    return ProjectQuota(
        int(guaranteed),
        None if limit is None else int(limit),
        None if user_limit is None else int(user_limit),
        guaranteed_by_kind=guarantees,
        limit_by_kind=limits,
    )


def _performance_to_dict(performance: RecordedPerformance) -> dict[str, Any]:
    split = performance.split
    assert isinstance(split, VirtualNodes), "jobs of our own run on virtual nodes"
    values: dict[str, Any] = {
        "models": {kind: list(model.parameters) for kind, model in performance.models.items()},
        "samples": {
            kind: [list(dataclasses.astuple(sample)) for sample in model.samples]
            for kind, model in performance.models.items()
            if isinstance(model, MeasuredModel) and model.samples
        },
        "speeds": dict(performance.speeds),
        "num_virtual_nodes": split.number,
    }
    if isinstance(performance, FixedBatchPerformance):
        return values | {"size": performance.size}
    batches = {name: getattr(performance, name) for name in _BATCHES}
    # JSON has no infinity.
    return values | batches | {"noise_scale": min(performance.noise_scale, 1e300)}


def _performance_from_dict(values: Mapping[str, Any]) -> RecordedPerformance:
    models = {str(kind): ThroughputModel(*map(float, p)) for kind, p in values["models"].items()}
    for kind, rows in values.get("samples", {}).items():
        samples = [ThroughputSample(*row) for row in rows]
        samples_check(samples)
        models[kind] = measured_model(models[kind], samples)
    speeds = {str(kind): float(speed) for kind, speed in values["speeds"].items()}
    split = VirtualNodes(int(values["num_virtual_nodes"]))
    if "size" in values:
        return FixedBatchPerformance(models, split, speeds=speeds, size=int(values["size"]))
    return AdaptiveBatchPerformance(
        models,
        split,
        speeds=speeds,
        **{name: int(values[name]) for name in _BATCHES},
        noise_scale=float(values["noise_scale"]),
    )
