"""Cases of `benchmarks.policies`: which workload, on which cluster, under which policy and cost.

Workloads are drawn by `controlplane.simulator.published.recipe`. Thresholds of policies may be
chosen on draws of TUNING_SEEDS alone, figures are made from draws of REPORTING_SEEDS alone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from controlplane.core.policies import POLICIES
from controlplane.simulator import (
    FLAT_30,
    MEASURED,
    Cluster,
    NodeGroup,
    Report,
    ResizeCosts,
    Workload,
    cluster_build,
    cluster_make,
    code_version,
    pollux_workload,
    profiles_read,
    simulate,
)
from controlplane.simulator.native_output import native_output_dropped
from controlplane.simulator.published.recipe import HOURS, NUM_JOBS, workload_draw
from controlplane.simulator.published.speeds import gavel_speeds
from controlplane.simulator.published.synthetic import MODELS, synthetic_applications

TRACES = Path(__file__).resolve().parents[2] / "shared" / "traces"
POLLUX, THROUGHPUTS = TRACES / "pollux", TRACES / "gavel" / "simulation_throughputs.json"
OURS, PEERS = "goodput_fair", ("pollux", "sia")

#: Seeds of draws on which thresholds may be chosen; no figure is made from them.
TUNING_SEEDS = tuple(range(200, 208))

#: Seeds of draws that figures are made from; nothing is chosen on them.
REPORTING_SEEDS = tuple(range(100, 116))

#: Relative loads: 80, 160 and 320 jobs in 8 hours.
LOADS = (1.0, 0.5, 2.0)

COSTS: dict[str, ResizeCosts] = {"30 s": FLAT_30, "measured": MEASURED}

#: Sia's mixed cluster by node sizes, with the kinds that Gavel measured from slow to fast.
THREE_KINDS = (NodeGroup("k80", 6, 4), NodeGroup("p100", 3, 8), NodeGroup("v100", 2, 8))

#: Speeds of these kinds for made-up applications.
MADE_UP_SPEEDS = {"k80": 1.0, "p100": 2.0, "v100": 4.0}

#: Name of the published workload, and of all drawn ones.
WORKLOAD_6, DRAWN = "workload-6", "drawn"


@dataclass(frozen=True, order=True)
class Case:
    """One simulation.

    Attributes:
        workload: `DRAWN`, or `WORKLOAD_6` with seed 6 and load 1.
        kinds: 1: 16 nodes of 4; 3: `THREE_KINDS`. Both 64 accelerators.
        profiles: origin of the applications: "pollux" or "synthetic".
    """

    workload: str
    kinds: int
    load: float
    seed: int
    policy: str
    cost: str
    knowledge: str = "fitted"
    profiles: str = "pollux"

    @property
    def world(self) -> tuple[str, int, float]:
        """Workload, kinds, load."""
        return self.workload, self.kinds, self.load


@dataclass(frozen=True, order=True)
class Row:
    """Outcome of a case under a version of the code. Times in seconds."""

    case: Case
    version: str
    mean_s: float
    median_s: float
    p99_s: float
    resizes: float
    fairness: float
    fairness_no_start: float
    unfair_share: float
    decision_ms: float
    took_s: float

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON-compatible values, those of the case among them."""
        values = asdict(self)
        return {**values.pop("case"), **values}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Row:
        """Read what `to_dict` returned."""
        rest = dict(values)
        names = Case.__dataclass_fields__
        return cls(Case(**{name: rest.pop(name) for name in names}), **rest)


def profiles_there() -> str:
    """Return the origin of the profiles: those of the traces if present, else the project's own."""
    return "pollux" if POLLUX.exists() and THROUGHPUTS.exists() else "synthetic"


def cases_list(
    seeds: Sequence[int],
    loads: Sequence[float] = LOADS,
    kinds: Sequence[int] = (1, 3),
    only: Sequence[str] = (),
    costs: Sequence[str] = tuple(COSTS),
) -> list[Case]:
    """List the cases, those that most figures need first: draw by draw, ours, Sia and Pollux."""
    profiles = profiles_there()
    names = [OURS, "sia", "pollux", *(set(POLICIES) - {OURS, *PEERS})]
    names[3:] = sorted(names[3:])
    worlds = [(DRAWN, kind, load, seed) for kind in kinds for load in loads for seed in seeds]
    if profiles == "pollux" and 1 in kinds and 1.0 in loads:
        worlds.append((WORKLOAD_6, 1, 1.0, 6))
    found = []
    for world in worlds:
        for name in names:
            if not only or name in only:
                found += [Case(*world, name, cost, profiles=profiles) for cost in costs]
        if (not only or OURS in only) and world[:3] == (DRAWN, 1, 1.0) and "measured" in costs:
            found.append(Case(*world, OURS, "measured", "true", profiles))
    return found


@cache
def world_make(
    workload: str, kinds: int, load: float, seed: int, profiles: str
) -> tuple[Workload, Cluster]:
    """Make the workload and the cluster of a case."""
    cluster = cluster_make(16, 4) if kinds == 1 else cluster_build(THREE_KINDS)
    if workload == WORKLOAD_6:
        return pollux_workload(POLLUX / "workload-6.csv", profiles_read(POLLUX)), cluster
    most = min(cluster.kinds.values())
    return workload_make(round(NUM_JOBS * load), most, kinds, seed, profiles), cluster


def workload_make(num_jobs: int, most: int, kinds: int, seed: int, profiles: str) -> Workload:
    """Draw jobs, each of at most `most` accelerators, with speeds on so many kinds of them."""
    if profiles == "pollux":
        speeds = gavel_speeds(THROUGHPUTS) if kinds > 1 else None
        return workload_draw(profiles_read(POLLUX, speeds), num_jobs, HOURS, seed, most=most)
    applications = synthetic_applications()
    if kinds > 1:
        for application in applications.values():
            application.speeds = MADE_UP_SPEEDS
    return workload_draw(applications, num_jobs, HOURS, seed, models=MODELS, most=most)


def case_run(case: Case) -> Row:
    """Run one simulation."""
    workload, cluster = world_make(case.workload, case.kinds, case.load, case.seed, case.profiles)
    costs, began = COSTS[case.cost], time.perf_counter()
    with native_output_dropped():
        report = simulate(workload, cluster, case.policy, costs=costs, knowledge=case.knowledge)
    return Row(
        case=case,
        version=code_version(),
        mean_s=round(report.mean_jct_s, 2),
        median_s=round(report.median_jct_s, 2),
        p99_s=round(report.p99_jct_s, 2),
        resizes=round(report.resizes_per_job, 3),
        fairness=round(report.worst_fairness, 4),
        fairness_no_start=round(fairness_no_start(report, costs.start_s), 4),
        unfair_share=round(report.unfair_share, 4),
        decision_ms=round(report.decision_p50_ms, 2),
        took_s=round(time.perf_counter() - began, 1),
    )


def fairness_no_start(report: Report, start_s: float) -> float:
    """Return the worst finish-time fairness, against a job alone that need not start."""
    return max((job.completion_s / (job.fair_s - start_s) for job in report.jobs), default=0.0)
