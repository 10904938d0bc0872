"""Every policy on the same workloads: who finishes jobs soonest, and who treats them fairly.

Four worlds, each with the production policies, plans and placement in the simulator:

* "workload-6" of Pollux on 16 nodes of 4;
* "gavel": jobs at the speeds that Gavel measured on V100, P100 and K80, 16 nodes of 4;
* "synthetic": the workload shipped with the project, 16 nodes of 4;
* "three kinds": one like it, of 80 jobs, on kinds that are made up as well.

The first two need ../shared/traces and are left out without. Policies know of jobs what models
fitted to their own reports say, as on a live cluster.

* "30 s": every change of a job's accelerators costs it 30 s, as Pollux and Sia assume. Equal cost.
* "measured": what a change costs on this project. Only ours is run with it.

* mean_jct_s: mean completion time by policy, system against system: ours at its measured cost,
  all others at 30 s. On workload-6, or the synthetic workload where that is missing.
* ours_over_pollux, ours_over_sia: ratios of these. Pollux counts with the better of two clocks:
  asked at every arrival and end, or by the rules of its own simulator.
* ours_over_pollux_equal_cost: ratio at 30 s for both.
* ours_over_best: in each world, ours over the best of all others, all at 30 s.
* ours_worst_fairness: largest finish-time fairness of a job under ours, all worlds and costs. The
  job alone on its share that each is held against has to start, too (docs/simulator.md).
* ours_worst_fairness_no_start: stricter: against a job alone that need not.

    python -m benchmarks.policies [--worlds NAME ...] [--only NAME ...] [--knowledge true]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from controlplane.core.policies import POLICIES
from controlplane.simulator import (
    FLAT_30,
    MEASURED,
    Cluster,
    Report,
    ResizeCosts,
    Rules,
    Workload,
    cluster_make,
    pollux_workload,
    profiles_read,
    simulate,
)
from controlplane.simulator.published.gavel import gavel_workload
from controlplane.simulator.published.synthetic import synthetic_workload

TRACES = Path(__file__).resolve().parents[2] / "shared" / "traces"
POLLUX, THROUGHPUTS = TRACES / "pollux", TRACES / "gavel" / "simulation_throughputs.json"
OURS, PEERS = "goodput_fair", ("pollux", "sia")
WORKLOAD_6, GAVEL, SYNTHETIC, KINDS = "workload-6", "gavel", "synthetic", "three kinds"
WORLDS = (WORKLOAD_6, GAVEL, SYNTHETIC, KINDS)
COSTS: dict[str, ResizeCosts] = {"30 s": FLAT_30, "measured": MEASURED, "pollux' rules": FLAT_30}

#: Relative speeds of the kinds that are made up, and nodes of each.
SPEEDS = {"fast": 4.0, "middle": 2.0, "slow": 1.0}
NODES = {"fast": 4, "middle": 6, "slow": 6}

#: Nodes of each kind, and jobs in how many hours, in Gavel's world.
GAVEL_NODES = {"v100": 4, "p100": 6, "k80": 6}
GAVEL_JOBS, GAVEL_HOURS = 160, 4.0


@dataclass(frozen=True)
class Case:
    """One simulation."""

    world: str
    policy: str
    cost: str
    knowledge: str


@dataclass(frozen=True)
class Row:
    """What came of it. Times in seconds."""

    case: Case
    mean_s: float
    median_s: float
    p99_s: float
    makespan_s: float
    resizes: float
    fairness: float
    fairness_no_start: float
    unfair_share: float
    decision_ms: float
    took_s: float


@cache
def world_make(name: str) -> tuple[Workload, Cluster]:
    """Make the workload and the cluster of a world."""
    if name == WORKLOAD_6:
        applications = profiles_read(POLLUX)
        return pollux_workload(POLLUX / "workload-6.csv", applications), cluster_make(16, 4)
    if name == GAVEL:
        workload = gavel_workload(THROUGHPUTS, GAVEL_JOBS, GAVEL_HOURS)
        return workload, cluster_make(16, 4, GAVEL_NODES)
    if name == SYNTHETIC:
        return synthetic_workload(), cluster_make(16, 4)
    workload = synthetic_workload(num_jobs=80, hours=4.0, seed=1)
    for application in workload.applications.values():
        application.speeds = SPEEDS  # type: ignore[attr-defined]
    most = min(NODES.values()) * 4  # or policies with fixed demands could not start some
    jobs = tuple(replace(job, requested=min(job.requested, most)) for job in workload.jobs)
    return replace(workload, jobs=jobs), cluster_make(16, 4, NODES)


def case_run(case: Case) -> Row:
    """Run one simulation."""
    workload, cluster = world_make(case.world)
    costs = COSTS[case.cost]
    began = time.perf_counter()
    report = simulate(
        workload,
        cluster,
        case.policy,
        costs=costs,
        rules=Rules.POLLUX if case.cost == "pollux' rules" else Rules.OWN,
        knowledge=case.knowledge,
    )
    return Row(
        case=case,
        mean_s=report.mean_jct_s,
        median_s=report.median_jct_s,
        p99_s=report.p99_jct_s,
        makespan_s=report.makespan_s,
        resizes=report.resizes_per_job,
        fairness=report.worst_fairness,
        fairness_no_start=worst_fairness_no_start(report, costs.start_s),
        unfair_share=report.unfair_share,
        decision_ms=report.decision_p50_ms,
        took_s=time.perf_counter() - began,
    )


def worst_fairness_no_start(report: Report, start_s: float) -> float:
    """Give the worst finish-time fairness, against a job alone that need not start."""
    return max((job.completion_s / (job.fair_s - start_s) for job in report.jobs), default=0.0)


def worlds_there() -> list[str]:
    """List the worlds whose files are there, the main one first."""
    needs = {WORKLOAD_6: POLLUX, GAVEL: THROUGHPUTS}
    return [name for name in WORLDS if name not in needs or needs[name].exists()]


def cases_list(worlds: Sequence[str], only: Sequence[str], knowledge: str) -> list[Case]:
    """List what is to be run, the longest first."""
    chosen = [name for name in POLICIES if not only or name in only]
    cases = [Case(world, name, "30 s", knowledge) for world in worlds for name in chosen]
    if OURS in chosen:
        cases += [Case(world, OURS, "measured", knowledge) for world in worlds]
    if "pollux" in chosen and worlds_there()[0] in worlds:
        cases.append(Case(worlds_there()[0], "pollux", "pollux' rules", knowledge))
    slow = ("pollux", "sia", OURS)
    return sorted(
        cases, key=lambda case: slow.index(case.policy) if case.policy in slow else len(slow)
    )


def main() -> int:
    """Run everything, print the tables and the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worlds", nargs="*", default=[], choices=WORLDS)
    parser.add_argument("--only", nargs="*", default=[], choices=list(POLICIES))
    parser.add_argument("--knowledge", choices=["fitted", "true"], default="fitted")
    parser.add_argument("--processes", type=int, default=min(os.cpu_count() or 1, 2))
    options = parser.parse_args()
    worlds = [world for world in worlds_there() if world in (options.worlds or WORLDS)]
    missing = sorted(set(options.worlds or WORLDS) - set(worlds))
    if missing:
        print(f"left out: {', '.join(missing)}, as ../shared/traces is not there")
    cases = cases_list(worlds, options.only, options.knowledge)
    print(f"{len(cases)} simulations, the longest first, {options.processes} at a time",
          file=sys.stderr, flush=True)  # fmt: skip
    rows, began = list[Row](), time.perf_counter()
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for row in pool.imap_unordered(case_run, cases):
            rows.append(row)
            done = f"{len(rows)}/{len(cases)}"
            print(
                f"{done:>7} after {time.perf_counter() - began:.0f} s: {row.case.world}, "
                f"{row.case.policy}, {row.case.cost}: {row.mean_s:.0f} s (simulated in "
                f"{row.took_s:.0f} s)",
                file=sys.stderr,
                flush=True,
            )
    print_tables(rows)
    print(json.dumps({"benchmark": "policies", "figures": figures_of(rows)}))
    return 0


def print_tables(rows: Sequence[Row]) -> None:
    """Print one table for each world, the best first."""
    for world in dict.fromkeys(row.case.world for row in sorted(rows, key=lambda r: r.case.world)):
        print(f"\n{world}")
        print(
            f"{'policy':<28}{'cost':<15}{'mean':>8}{'median':>8}{'p99':>8}{'makespan':>10}"
            f"{'resizes':>9}{'fairness':>10}{'no start':>10}{'unfair':>8}{'decision':>10}"
        )
        for row in sorted(rows, key=lambda row: row.mean_s):
            if row.case.world == world:
                print(
                    f"{row.case.policy:<28}{row.case.cost:<15}{row.mean_s:>7.0f}s"
                    f"{row.median_s:>7.0f}s{row.p99_s:>7.0f}s{row.makespan_s:>9.0f}s"
                    f"{row.resizes:>9.1f}{row.fairness:>10.2f}{row.fairness_no_start:>10.2f}"
                    f"{row.unfair_share:>8.0%}{row.decision_ms:>7.0f} ms"
                )


def figures_of(rows: Sequence[Row]) -> dict[str, object]:
    """Work out the figures of the head of this module; null where a policy was left out."""
    main_world = WORKLOAD_6 if POLLUX.exists() else SYNTHETIC
    means = {
        (row.case.policy, row.case.cost): row.mean_s for row in rows if row.case.world == main_world
    }
    by_policy = {policy: mean for (policy, cost), mean in means.items() if cost == "30 s"}
    equal = by_policy.get(OURS)
    if (OURS, "measured") in means:
        by_policy[OURS] = means[OURS, "measured"]
    if ("pollux", "pollux' rules") in means:
        by_policy["pollux"] = min(by_policy["pollux"], means["pollux", "pollux' rules"])
    ours = [row for row in rows if row.case.policy == OURS]

    def ratio(mine: float | None, other: str) -> float | None:
        theirs = by_policy.get(other)
        return round(mine / theirs, 4) if mine and theirs else None

    return {
        "workload": main_world,
        "mean_jct_s": {policy: round(mean, 1) for policy, mean in sorted(by_policy.items())},
        "ours_over_pollux": ratio(by_policy.get(OURS), "pollux"),
        "ours_over_sia": ratio(by_policy.get(OURS), "sia"),
        "ours_over_pollux_equal_cost": ratio(equal, "pollux"),
        "ours_over_best": over_best(rows),
        "ours_worst_fairness": round(max((row.fairness for row in ours), default=0.0), 3),
        "ours_worst_fairness_no_start": round(
            max((row.fairness_no_start for row in ours), default=0.0), 3
        ),
    }


def over_best(rows: Sequence[Row]) -> dict[str, float]:
    """Give ours over the best of all others by world, at 30 s; without worlds that lack either."""
    found: dict[str, float] = {}
    for world in WORLDS:
        equal = [row for row in rows if row.case.world == world and row.case.cost != "measured"]
        ours = [row.mean_s for row in equal if row.case.policy == OURS]
        others = [row.mean_s for row in equal if row.case.policy != OURS]
        if ours and others:
            found[world] = round(ours[0] / min(others), 4)
    return found


if __name__ == "__main__":
    sys.exit(main())
