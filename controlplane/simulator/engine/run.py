"""Base class of the simulation's two clocks, and the limits at which a simulation is stuck."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from controlplane.core.values.explanations import percent
from controlplane.core.values.types import AcceleratorId
from controlplane.simulator.engine.estimates import Comparisons
from controlplane.simulator.engine.jobs import SimulatedJob, Terms
from controlplane.simulator.workloads.workloads import Cluster, Workload

#: Called with jobs ended, jobs in all and the simulated time: at every end, and every other second
#: of wall-clock time.
Progress = Callable[[int, int, float], None]

#: Consecutive rounds without training or change after which the simulation counts as stuck.
STUCK_ROUNDS = 2_000

#: Simulated seconds without an arrival or end after which the simulation counts as stuck.
LONGEST_S = 400 * 86_400.0


#: Losses of nodes in which jobs have to do `LEAST_DONE` of their work on average, for good, or the
#: simulation counts as stuck: it would take half a million losses, and hours, if it ended at all.
MOST_LOSSES, LEAST_DONE = 500, 1e-3


class StuckError(RuntimeError):
    """Jobs would never end: they wait, or lose with the nodes what they do."""


def stuck_text(policy: str, jobs: Sequence[SimulatedJob], *, are_lost: bool = False) -> str:
    """Describe the jobs that would never end, and the option to change where nodes are lost."""
    names = ", ".join(job.spec.name for job in jobs[:5])
    others = f" and {len(jobs) - 5} more" if len(jobs) > 5 else ""
    text = f"under {policy} these jobs would never end: {names}{others}"
    return f"--failures: {text}; give fewer hours until a node is back" if are_lost else text


def lost_text(jobs: Sequence[SimulatedJob]) -> str:
    """Describe jobs that lose their work with the nodes faster than they do it."""
    return (
        f"--failures: in {MOST_LOSSES} losses of nodes {len(jobs)} jobs did less than "
        f"{percent(LEAST_DONE, 1)} of their work for good, so they would hardly ever end; give "
        "more hours between two losses of a node"
    )


@dataclass
class Records:
    """Records of a simulation: all inputs of a report besides the jobs themselves.

    Attributes:
        held: (time, job id, accelerators held from then on), in order of time.
        qualities: (time, mean quality of the jobs in the system).
        decision_s: wall-clock seconds of each decision.
    """

    held: list[tuple[float, int, int]] = field(default_factory=list)
    qualities: list[tuple[float, float]] = field(default_factory=list)
    decision_s: list[float] = field(default_factory=list)


class Run:
    """One simulation: its jobs on its cluster, and what is recorded of them."""

    def __init__(
        self,
        workload: Workload,
        cluster: Cluster,
        policy: str,
        terms: Terms,
        *,
        seed: int,
        progress: Progress | None = None,
    ) -> None:
        self.cluster, self.policy, self.seed = cluster, policy, seed
        self.jobs = [
            SimulatedJob(number, spec, workload.applications[spec.application], terms)
            for number, spec in enumerate(workload.jobs, start=1)
        ]
        self.records = Records()
        self.now = 0.0
        self._projects, self._sweeps = workload.projects, workload.sweeps
        self._progress = progress
        self._carried: object | None = None
        self._comparisons = Comparisons()
        self._nodes: dict[int, list[AcceleratorId]] = {}
        for one in cluster.accelerators:
            self._nodes.setdefault(one.node_id, []).append(one.id)

    def _compare_kinds(self, jobs: Sequence[SimulatedJob]) -> bool:
        """Update each job's relative speeds of kinds from the others; return if there are new."""
        is_changed = self._comparisons.update((job.code, job.memory) for job in jobs)
        for job in jobs:
            job.speeds = self._comparisons.of(job.code)
            job.tried = self._comparisons.kinds(job.code)
        return is_changed
