"""Expected starts of waiting jobs against their real ones, in simulated time.

Workloads are drawn by the published recipe (controlplane/simulator/published/recipe.py), a
quarter of the jobs on a quarter of its cluster: 40 or 80 jobs in 8 hours on 4 nodes of 4. Policies
use models fitted to the reports of each job. After every decision, waiting jobs are
forecast as the control plane does it (controlplane/core/expected_starts.py). The first range of a
job is compared with its first start. Jobs that start in the decision after they are submitted have
none.

Figures are of draws of REPORTING_SEEDS; factors of the forecast may be chosen on TUNING_SEEDS:

* inside_share: part of the ranges that hold the start (goal 0.8), over all policies and draws;
* inside_share_POLICY: the same under one policy;
* median_width_s: median of latest less earliest;
* told_share: part of the jobs that wait past a decision which get a range before they start;
* num_told: number of ranges;
* median_jump_s: median of the seconds by which the next range of a job leaves the one that it was
  told, while no job comes, ends or is resized between the two;
* changed_share: part of these next ranges at which the control plane tells another one.

    python -m benchmarks.expected_start [--draws 4] [--loads 1] [--only POLICY] [--tuning]
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from benchmarks.figures import figures_print
from benchmarks.policy_cases import (
    OURS,
    REPORTING_SEEDS,
    TUNING_SEEDS,
    profiles_there,
    workload_make,
)
from controlplane.core.expected_starts import ExpectedStart, expected_starts
from controlplane.core.policies import POLICIES
from controlplane.core.values.types import JobId, Plan, Snapshot
from controlplane.simulator import Cluster, Workload, cluster_make, simulate
from controlplane.simulator.native_output import native_output_dropped
from controlplane.simulator.published.recipe import NUM_JOBS

#: Policies: ours, and queues of fixed demands, where jobs wait.
NAMES = (OURS, "fifo", "srtf", "tiresias")

#: A quarter of the published cluster: nodes of 4 accelerators, and jobs at the published load.
NUM_NODES, JOBS = 4, NUM_JOBS // 4

#: Seconds after which jobs that nothing could be told are forecast again.
AGAIN_S = 600.0

#: Decisions of a forecast: what half a second is enough for on such a cluster.
NUM_DECISIONS = 32


@dataclass(frozen=True)
class Told:
    """A range as first told, in seconds of simulated time; `started_at` is filled in later."""

    policy: str
    told_at: float
    start: ExpectedStart
    started_at: float

    @property
    def is_inside(self) -> bool:
        """True if the job started within the range."""
        waited_s = self.started_at - self.told_at
        return self.start.earliest_s <= waited_s <= self.start.latest_s

    @property
    def width_s(self) -> float:
        """Width of the range."""
        return self.start.latest_s - self.start.earliest_s


@dataclass
class Teller:
    """Forecasts of the waiting jobs, with the first range of each.

    All are forecast again after `AGAIN_S`, or with the next new one.

    Attributes:
        waiting: jobs that have waited past a decision.
        first: job -> time and range of its first forecast.
        shown: job -> the same of its present forecast.
        jumps_s: seconds by which ranges left those shown, where nothing had changed.
        num_changed: how many of them replaced those shown.
    """

    policy: str
    looked_at: float = -math.inf
    waiting: set[JobId] = field(default_factory=set)
    first: dict[JobId, tuple[float, ExpectedStart]] = field(default_factory=dict)
    shown: dict[JobId, tuple[float, ExpectedStart]] = field(default_factory=dict)
    jumps_s: list[float] = field(default_factory=list)
    num_changed: int = 0
    _state: object = None

    def __call__(self, snapshot: Snapshot, plan: Plan) -> None:
        assert plan.allocation is not None
        given = plan.allocation.accelerators
        new = {job.id for job in snapshot.jobs if job.changed_at is None and job.id not in given}
        is_due = not new <= self.waiting or snapshot.now >= self.looked_at + AGAIN_S
        self.waiting |= new
        if new and is_due:
            self.looked_at = snapshot.now
            found = expected_starts(snapshot, plan, self.policy, NUM_DECISIONS)
            state = (frozenset(job.id for job in snapshot.jobs), dict(given))
            self._tell(snapshot.now, {i: found[i] for i in new & found.keys()}, state)

    def _tell(self, now: float, found: Mapping[JobId, ExpectedStart], state: object) -> None:
        """Tell ranges as the control plane does: those told before stay while confirmed."""
        is_calm, self._state = state == self._state, state
        before, self.shown = self.shown, {}
        for job_id, start in found.items():
            self.first.setdefault(job_id, (now, start))
            self.shown[job_id] = (now, start)
            if job_id not in before:
                continue
            told = before[job_id][1].after(now - before[job_id][0])
            is_confirmed = start.confirms(told)
            if is_confirmed:
                self.shown[job_id] = (now, told)
            if is_calm:
                early_s = told.earliest_s - start.earliest_s
                self.jumps_s.append(max(early_s, start.latest_s - told.latest_s, 0.0))
                self.num_changed += not is_confirmed


@dataclass(frozen=True)
class Outcome:
    """Ranges told in a simulation, and the number of jobs that waited past a decision.

    Attributes:
        jumps_s, num_changed: as in the teller.
    """

    told: tuple[Told, ...]
    num_waiting: int
    jumps_s: tuple[float, ...] = ()
    num_changed: int = 0


def outcome_of(workload: Workload, cluster: Cluster, policy: str) -> Outcome:
    """Simulate a workload at the measured cost of resizes; returns the ranges shown to its jobs."""
    teller = Teller(policy)
    with native_output_dropped():
        report = simulate(workload, cluster, policy, watch=teller)
    started = {job.id: job.started_at for job in report.jobs}
    rows = (
        Told(policy, at, start, started[job_id]) for job_id, (at, start) in teller.first.items()
    )
    jumps_s = tuple(teller.jumps_s)
    return Outcome(tuple(rows), len(teller.waiting), jumps_s, teller.num_changed)


def figures_of(outcomes: Mapping[str, Sequence[Outcome]]) -> dict[str, float]:
    """Return the figures of the outcomes by policy; none where nothing was told."""
    rows = [one for found in outcomes.values() for one in found]
    told = [one for row in rows for one in row.told]
    if not told:
        return {}
    figures = {
        "inside_share": round(sum(one.is_inside for one in told) / len(told), 3),
        "median_width_s": round(median(one.width_s for one in told), 1),
        "told_share": round(len(told) / sum(row.num_waiting for row in rows), 3),
        "num_told": len(told),
    }
    jumps_s = [jump_s for row in rows for jump_s in row.jumps_s]
    if jumps_s:
        figures["median_jump_s"] = round(median(jumps_s), 1)
        figures["changed_share"] = round(sum(row.num_changed for row in rows) / len(jumps_s), 3)
    for policy, found in outcomes.items():
        own = [one.is_inside for row in found for one in row.told]
        if own:
            figures[f"inside_share_{policy}"] = round(sum(own) / len(own), 3)
    return figures


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate every draw under every policy, print a table and the figures."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--draws", type=int, default=4, help="drawn workloads for each load")
    parser.add_argument("--loads", nargs="+", type=float, default=[1.0])
    parser.add_argument("--only", nargs="+", default=list(NAMES), choices=list(POLICIES))
    parser.add_argument("--tuning", action="store_true", help="draws of TUNING_SEEDS")
    options = parser.parse_args(arguments)
    seeds = (TUNING_SEEDS if options.tuning else REPORTING_SEEDS)[: options.draws]
    cluster = cluster_make(NUM_NODES, 4)
    outcomes: dict[str, list[Outcome]] = {name: [] for name in options.only}
    print(
        f"{'policy':<18}{'load':>5}{'seed':>6}{'waiting':>9}{'told':>6}{'inside':>8}{'width':>10}"
    )
    for policy in options.only:
        for load, seed in ((load, seed) for load in options.loads for seed in seeds):
            workload = workload_make(
                round(JOBS * load), NUM_NODES * 4, kinds=1, seed=seed, profiles=profiles_there()
            )
            found = outcome_of(workload, cluster, policy)
            outcomes[policy].append(found)
            own = figures_of({policy: [found]})
            inside, width = own.get("inside_share", 0.0), own.get("median_width_s", 0.0)
            print(
                f"{policy:<18}{load:>5g}{seed:>6}{found.num_waiting:>9}{len(found.told):>6}"
                f"{inside:>8.2f}{width:>8.0f} s",
                flush=True,
            )
    figures_print("expected_start", figures_of(outcomes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
