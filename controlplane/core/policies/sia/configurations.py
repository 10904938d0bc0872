"""Sia's configurations: few per job, chosen so that they always fit beside each other on nodes.

On each kind a job has 1, 2, 4, ... accelerators of one node, or all accelerators of so many nodes
(SOSP 2023, section 3.3). This implementation adds the job's own bounds where none of these lies
within them, so that every job has a configuration, and ends at its maximum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from controlplane.core.policies.common.rates import packed_rates
from controlplane.core.values.types import Job


@dataclass(frozen=True, slots=True, order=True)
class Configuration:
    """Accelerators of one kind on so many nodes."""

    kind: str
    count: int
    num_nodes: int


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of accelerator.

    Attributes:
        node_sizes: those of the nodes of the whole cluster, the largest first.
        capacity: accelerators to give out, of the cluster or of a part of it.
    """

    name: str
    node_sizes: tuple[int, ...]
    capacity: int

    @property
    def per_node(self) -> int:
        """Accelerators of the largest node."""
        return self.node_sizes[0]


def counts_of(kind: Kind) -> tuple[int, ...]:
    """List the counts on a kind: powers of two up to a node, then whole nodes, and all."""
    counts = {1 << i for i in range(kind.per_node.bit_length()) if 1 << i <= kind.per_node}
    counts |= {int(total) for total in np.cumsum(kind.node_sizes)} | {kind.capacity}
    return tuple(sorted(counts))


def configurations_of(job: Job, kind: Kind, counts: Sequence[int]) -> list[Configuration]:
    """List a job's next configurations on a kind: within bounds, at most twice its largest count.

    The smallest is its minimum, on which a job that never ran starts.
    """
    if not job.accepts(kind.name) or job.min_accelerators > kind.capacity:
        return []
    most = min(job.max_accelerators, kind.capacity)
    within = [count for count in counts if job.min_accelerators <= count <= most]
    if job.min_accelerators not in within:
        within.insert(0, job.min_accelerators)
    cap = max(2 * job.most_accelerators, within[0])
    return [
        Configuration(kind.name, count, -(-count // kind.per_node))
        for count in within
        if count <= cap
    ]


def goodputs_of(
    job: Job, configurations: Sequence[Configuration], kinds: dict[str, Kind]
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the goodput of each configuration, or its accelerators where the speed is unknown."""
    found = np.zeros(len(configurations))
    for name in {one.kind for one in configurations}:
        own = [i for i, one in enumerate(configurations) if one.kind == name]
        counts = [configurations[i].count for i in own]
        found[own] = packed_rates(job, name, max(counts), kinds[name].per_node)[counts]
    return found
