"""Cost of parallel tuning to other jobs, and the share of idle time that its trials use.

Workload-6 of Pollux on 16 x 4 accelerators, or a workload drawn by the published recipe where the
traces are missing, runs under every policy twice: as it is, and with a part of its jobs tuned. That
is repeated with several parts of the jobs, since one start more or less changes the whole course
of a simulation, and with it a mean by some percent to either side; means of them count. A tuned
job has rounds of trials beside it, as jobs of tier idle on accelerators that nobody uses
(controlplane/simulator/engine/trials.py). Resizes cost what was measured. In both runs the tuned
jobs keep their submitted batch, as tuning asks for.

Figures:

* others_completion_change: change of the mean completion time of all jobs but the trials, the
  largest of all policies; `others_completion_change_default` that of the default policy;
* changes_default: its changes, one for each part of the jobs;
* idle_share_used: accelerator-seconds of trials over those that no job holds in the run without
  tuning, until its last job ends, under the default policy;
* num_trials: trials under the default policy.

    python -m benchmarks.idle_tuning [--policies goodput_fair sia] [--every 3 4 5] [--parallel 4]
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from benchmarks.figures import figures_print
from benchmarks.policy_cases import DRAWN, REPORTING_SEEDS, WORKLOAD_6, profiles_there, world_make
from controlplane.core.policies import DEFAULT_POLICY, POLICIES
from controlplane.simulator import Cluster, Report, TuningPlan, Workload, simulate
from controlplane.simulator.native_output import native_output_dropped


@dataclass(frozen=True)
class Comparison:
    """A policy without and with trials, means over several parts of the jobs.

    Attributes:
        changes: of the mean completion time, as shares, one for each part.
        idle_share: part of the idle accelerator-seconds that trials hold.
    """

    policy: str
    mean_s: float
    changes: tuple[float, ...]
    idle_share: float
    num_trials: float

    @property
    def change(self) -> float:
        """The mean change."""
        return fmean(self.changes)


def tuned(workload: Workload, every: int, plan: TuningPlan | None) -> Workload:
    """Return the workload with every `every`-th job tuned, its batch fixed."""
    jobs = [
        dataclasses.replace(job, is_fixed=True, tuning=plan) if number % every == 0 else job
        for number, job in enumerate(workload.jobs)
    ]
    return dataclasses.replace(workload, jobs=tuple(jobs))


def compared(policy: str, without: Report, with_trials: Report) -> Comparison:
    """Compare two runs of the same jobs."""
    held_s = sum(job.accelerator_s for job in without.jobs)
    idle_s = without.num_accelerators * without.makespan_s - held_s
    return Comparison(
        policy=policy,
        mean_s=without.mean_jct_s,
        changes=(with_trials.mean_jct_s / without.mean_jct_s - 1.0,),
        idle_share=with_trials.trial_accelerator_s / idle_s,
        num_trials=with_trials.num_trials,
    )


def policy_compare(
    policy: str, workload: Workload, cluster: Cluster, parts: Sequence[int], plan: TuningPlan
) -> Comparison:
    """Run a policy without and with trials of every n-th job, for each n of `parts`."""
    rows = []
    with native_output_dropped():
        for every in parts:
            without = simulate(tuned(workload, every, None), cluster, policy)
            with_trials = simulate(tuned(workload, every, plan), cluster, policy)
            rows.append(compared(policy, without, with_trials))
    return merged(rows)


def merged(rows: Sequence[Comparison]) -> Comparison:
    """Return the means of comparisons of one policy, with all their changes."""
    return Comparison(
        policy=rows[0].policy,
        mean_s=fmean(row.mean_s for row in rows),
        changes=tuple(change for row in rows for change in row.changes),
        idle_share=fmean(row.idle_share for row in rows),
        num_trials=fmean(row.num_trials for row in rows),
    )


def figures_of(rows: Sequence[Comparison]) -> dict[str, Any]:
    """Return the figures of some policies; None where the default policy was not run."""
    default = next((row for row in rows if row.policy == DEFAULT_POLICY), None)
    return {
        "others_completion_change": round(max(row.change for row in rows), 4),
        "others_completion_change_default": None if default is None else round(default.change, 4),
        "changes_default": [round(one, 4) for one in default.changes] if default else None,
        "idle_share_used": None if default is None else round(default.idle_share, 3),
        "num_trials": None if default is None else default.num_trials,
    }


def options_parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--policies", nargs="+", default=list(POLICIES), choices=list(POLICIES))
    add("--every", type=int, nargs="+", default=[3, 4, 5, 6, 8], help="every n-th job is tuned")
    add("--parallel", type=int, default=4, help="trials of a round")
    add("--trials", type=int, default=20, help="trials of a job")
    add("--share", type=float, default=0.02, help="of a job's work that a trial takes")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the policies, print a table and the figures."""
    options = options_parse(arguments)
    plan = TuningPlan(options.share, options.parallel, options.trials)
    profiles = profiles_there()
    name, seed = (WORKLOAD_6, 6) if profiles == "pollux" else (DRAWN, REPORTING_SEEDS[0])
    if name == DRAWN:
        print("../shared/traces is not there: a drawn workload", file=sys.stderr, flush=True)
    workload, cluster = world_make(name, 1, 1.0, seed, profiles)
    rows = []
    print("| policy | mean completion s | change | idle share used | trials |")
    print("|---|---:|---:|---:|---:|", flush=True)
    for policy in options.policies:
        row = policy_compare(policy, workload, cluster, options.every, plan)
        rows.append(row)
        each = ", ".join(f"{change:+.1%}" for change in row.changes)
        cells = (f"{row.mean_s:.0f}", f"{row.change:+.2%} ({each})", f"{row.idle_share:.1%}")
        print(f"| {policy} | {' | '.join(cells)} | {row.num_trials:g} |", flush=True)
    figures_print("idle_tuning", figures_of(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
