"""Workloads and clusters: the input of a simulation."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from controlplane.core.values.projects import ProjectId, ProjectQuota
from controlplane.core.values.tiers import Tier
from controlplane.core.values.types import Accelerator, Sweep
from controlplane.simulator.applications.applications import Application
from controlplane.simulator.applications.profiled import ProfiledApplication
from controlplane.simulator.workloads.reading import MOST_COUNT

#: Latest arrival of a job, and longest run of one alone, in seconds: ten years.
LATEST_S = 10 * 365 * 86_400.0

#: Largest number of accelerators of a simulated cluster.
MOST_ACCELERATORS = 100_000


@dataclass(frozen=True, slots=True)
class TuningPlan:
    """Parallel tuning of a job: rounds of trials, as jobs of tier idle beside it.

    Attributes:
        trial_share: share of the job's work that a trial takes.
        max_parallel: trials of a round, at most.
        max_trials: trials in all, at most.
    """

    trial_share: float = 0.02
    max_parallel: int = 4
    max_trials: int = 20


@dataclass(frozen=True, slots=True)
class WorkloadJob:
    """One job of a workload.

    Attributes:
        name: for people; unique in the workload.
        submitted_at: seconds since the start of the workload.
        application: name of its application.
        requested: accelerators that its owner requested; given by policies with a fixed demand.
            None: nothing but its bounds, within which they choose as in the product.
        batch_size: examples of a step that its owner requested.
        is_fixed: whether it runs with `batch_size` even where the platform may choose batch sizes.
        min_accelerators, max_accelerators: its bounds; None: as many as its batch can be spread on.
        weight: its priority.
        tier: its tier, strict before all priorities.
        user: number of its owner; None: each job shares as a user of its own.
        user_factor: factor of the owner's claim on a share.
        accepted_kinds: empty: any.
        project: number of its project; None: it belongs to none.
        sweep: number of its sweep; None: it belongs to none.
        tuning: trials beside it, which change nothing of its own work; None: there are none.
    """

    name: str
    submitted_at: float
    application: str
    requested: int | None
    batch_size: int
    is_fixed: bool = False
    min_accelerators: int = 1
    max_accelerators: int | None = None
    weight: float = 1.0
    user: int | None = None
    user_factor: float = 1.0
    accepted_kinds: frozenset[str] = frozenset()
    tier: Tier = Tier.NORMAL
    project: ProjectId | None = None
    sweep: int | None = None
    tuning: TuningPlan | None = None


@dataclass(frozen=True)
class Workload:
    """Jobs in order of arrival, and their applications.

    Attributes:
        notes: sentences for people on assumptions and on differences from a recording.
        source: file that it was read from, or generator that made it.
        projects: quotas of the projects that have any.
        sweeps: limits of sweeps.

    Raises:
        ValueError: an application is missing, a name is not unique, or a number is impossible.
    """

    jobs: tuple[WorkloadJob, ...]
    applications: Mapping[str, Application] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    source: str = ""
    projects: Mapping[ProjectId, ProjectQuota] = field(default_factory=dict)
    sweeps: Mapping[int, Sweep] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ordered = tuple(sorted(self.jobs, key=lambda job: job.submitted_at))
        object.__setattr__(self, "jobs", ordered)
        names = [job.name for job in ordered]
        for job in ordered:
            if job.application not in self.applications:
                known = ", ".join(sorted(self.applications)) or "none"
                raise ValueError(
                    f"workload: job {job.name} runs {job.application!r}, of which there is no "
                    f"profile; there are {known}"
                )
            application = self.applications[job.application]
            if isinstance(application, ProfiledApplication):
                measured = application.bounds
                if not measured.initial <= job.batch_size <= measured.largest:
                    raise ValueError(
                        f"workload: the batch of job {job.name} has {job.batch_size} examples; "
                        f"{job.application} was measured with {measured.initial} to "
                        f"{measured.largest}"
                    )
            asked = 1 if job.requested is None else job.requested
            sizes = (asked, job.batch_size, job.min_accelerators)
            numbers = (*sizes, job.weight, job.user_factor)
            if job.batch_size > MOST_COUNT:
                raise ValueError(
                    f"workload: the batch of job {job.name} has {job.batch_size} examples; give at "
                    f"most {MOST_COUNT}"
                )
            if min(numbers) <= 0 or not math.isfinite(job.weight * job.user_factor):
                raise ValueError(
                    f"workload: job {job.name} needs positive numbers of accelerators and examples "
                    "and a positive priority and factor"
                )
            if not 0.0 <= job.submitted_at <= LATEST_S:
                raise ValueError(
                    f"workload: job {job.name} arrives {job.submitted_at:g} s after the start of "
                    f"the workload; give 0 to {LATEST_S:g}"
                )
            if job.max_accelerators is not None and job.max_accelerators < job.min_accelerators:
                raise ValueError(
                    f"workload: job {job.name} takes {job.min_accelerators} accelerators at least "
                    f"and {job.max_accelerators} at most; the most must not be less"
                )
        if len(set(names)) < len(names):
            twice, _ = Counter(names).most_common(1)[0]
            raise ValueError(f"workload: the name {twice!r} stands there twice")


@dataclass(frozen=True, slots=True)
class Cluster:
    """Nodes and their accelerators.

    Attributes:
        accelerators: ids from 0, sorted by node and index.
    """

    accelerators: tuple[Accelerator, ...]

    @property
    def per_node(self) -> dict[str, int]:
        """Accelerators of the largest node of each kind."""
        found: dict[str, int] = {}
        for (_, kind), number in Counter((a.node_id, a.kind) for a in self.accelerators).items():
            found[kind] = max(found.get(kind, 0), number)
        return found

    @property
    def kinds(self) -> dict[str, int]:
        """Count the accelerators of each kind, kinds in alphabetical order."""
        return dict(Counter(sorted(accelerator.kind for accelerator in self.accelerators)))


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes that are all alike.

    Raises:
        ValueError: a number is not positive, or the kind has no name.
    """

    kind: str
    num_nodes: int
    per_node: int

    def __post_init__(self) -> None:
        if not self.kind.strip() or not self.kind.isprintable():
            raise ValueError(f"a kind needs a name of printable characters, not {self.kind!r:.40}")
        if min(self.num_nodes, self.per_node) < 1:
            raise ValueError("nodes, accelerators and kinds must be positive numbers")


def cluster_build(groups: Sequence[NodeGroup]) -> Cluster:
    """Build a cluster of nodes of several sizes and kinds, in the order of the groups.

    Raises:
        ValueError: there is no group, or there are more than `MOST_ACCELERATORS`.
    """
    total = sum(group.num_nodes * group.per_node for group in groups)
    if not 1 <= total <= MOST_ACCELERATORS:
        raise ValueError(f"{total} accelerators are not between 1 and {MOST_ACCELERATORS}")
    nodes = [group for group in groups for _ in range(group.num_nodes)]
    places = [(node, group, index) for node, group in enumerate(nodes)
              for index in range(group.per_node)]  # fmt: skip
    return Cluster(
        tuple(
            Accelerator(i, node, index, group.kind) for i, (node, group, index) in enumerate(places)
        )
    )


def cluster_make(num_nodes: int, per_node: int, kinds: Mapping[str, int] | None = None) -> Cluster:
    """Make nodes that are all alike, or a number of nodes of each kind.

    Raises:
        ValueError: a number is not positive, or the nodes by kind are not `num_nodes`.
    """
    nodes = dict(kinds) if kinds else {"gpu": num_nodes}
    if sum(nodes.values()) != num_nodes:
        raise ValueError(f"kinds has {sum(nodes.values())} nodes, nodes says {num_nodes}")
    return cluster_build([NodeGroup(kind, number, per_node) for kind, number in nodes.items()])
