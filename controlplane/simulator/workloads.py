"""What is submitted when: the input of a simulation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from controlplane.core.types import Accelerator
from controlplane.simulator.applications import Application


@dataclass(frozen=True, slots=True)
class WorkloadJob:
    """One job of a workload.

    Attributes:
        name: for people; unique in the workload.
        submitted_at: seconds since the start of the workload.
        application: name of what it computes.
        requested: accelerators that its owner asked for; what policies with a fixed demand give.
        batch_size: examples of a step that its owner asked for.
        is_fixed: it runs with `batch_size`, even where the platform may choose batch sizes.
        min_accelerators, max_accelerators: its bounds; None: as many as its batch can be spread on.
        weight: its priority.
        accepted_kinds: empty: any.
    """

    name: str
    submitted_at: float
    application: str
    requested: int
    batch_size: int
    is_fixed: bool = False
    min_accelerators: int = 1
    max_accelerators: int | None = None
    weight: float = 1.0
    accepted_kinds: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Workload:
    """Jobs in order of arrival, and what they compute.

    Raises:
        ValueError: an application is missing or a name stands twice.
    """

    jobs: tuple[WorkloadJob, ...]
    applications: Mapping[str, Application] = field(default_factory=dict)

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
            if job.requested < 1 or job.batch_size < 1 or job.min_accelerators < 1:
                raise ValueError(
                    f"workload: job {job.name} needs positive numbers of accelerators and examples"
                )
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"workload: the name {twice!r} stands there twice")


@dataclass(frozen=True, slots=True)
class Cluster:
    """Nodes and their accelerators.

    Attributes:
        accelerators: ids from 0, sorted by node and index.
    """

    accelerators: tuple[Accelerator, ...]

    @property
    def per_node(self) -> int:
        """Give the accelerators of the largest node."""
        counts: dict[int, int] = {}
        for accelerator in self.accelerators:
            counts[accelerator.node_id] = counts.get(accelerator.node_id, 0) + 1
        return max(counts.values())

    @property
    def kinds(self) -> dict[str, int]:
        """Count the accelerators of each kind, kinds in alphabetical order."""
        counts: dict[str, int] = {}
        for kind in sorted(accelerator.kind for accelerator in self.accelerators):
            counts[kind] = counts.get(kind, 0) + 1
        return counts


def cluster_make(
    num_nodes: int, per_node: int, kinds: Mapping[str, int] | None = None, default: str = "gpu"
) -> Cluster:
    """Make nodes that are all alike, or so many of each kind.

    Raises:
        ValueError: a number is not positive, or the nodes by kind are not `num_nodes`.
    """
    nodes = dict(kinds) if kinds else {default: num_nodes}
    if num_nodes < 1 or per_node < 1 or min(nodes.values()) < 1:
        raise ValueError("nodes, accelerators and kinds must be positive numbers")
    if sum(nodes.values()) != num_nodes:
        raise ValueError(f"kinds has {sum(nodes.values())} nodes, nodes says {num_nodes}")
    kind_of_node = [kind for kind, number in nodes.items() for _ in range(number)]
    return Cluster(
        tuple(
            Accelerator(node * per_node + index, node, index, kind)
            for node, kind in enumerate(kind_of_node)
            for index in range(per_node)
        )
    )
