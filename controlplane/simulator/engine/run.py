"""Base class of the simulation's two clocks, and the limits at which a simulation is stuck."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from controlplane.core.values.types import AcceleratorId
from controlplane.simulator.engine.estimates import Comparisons
from controlplane.simulator.engine.jobs import SimulatedJob, Terms
from controlplane.simulator.engine.records import Records
from controlplane.simulator.workloads.workloads import Cluster, Workload

#: Called with jobs ended, jobs in all and the simulated time: at every end, and every other second
#: of wall-clock time.
Progress = Callable[[int, int, float], None]

#: Consecutive rounds without training or change after which the simulation counts as stuck.
STUCK_ROUNDS = 2_000

#: Simulated seconds without an arrival or end after which the simulation counts as stuck.
LONGEST_S = 400 * 86_400.0


class StuckError(RuntimeError):
    """The policy leaves jobs waiting for ever."""


def stuck_text(policy: str, jobs: Sequence[SimulatedJob]) -> str:
    """Describe the jobs that would never end."""
    names = ", ".join(job.spec.name for job in jobs[:5])
    others = f" and {len(jobs) - 5} more" if len(jobs) > 5 else ""
    return f"under {policy} these jobs would never end: {names}{others}"


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
        self._projects = workload.projects
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
