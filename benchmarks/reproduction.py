"""The figures that others published, simulated anew with the production policies.

Pollux' own simulator (petuum/adaptdl, osdi21-artifact) on its workload-6, 160 jobs on 16 nodes of 4
accelerators, by its rules (rounds of 60 s, 30 s a restart):

* tiresias_error, optimus_error, pollux_error: |simulated - published| / published mean completion
  time. Optimus knows the truth, as there; Pollux the models fitted to what each job has shown.
* pollux_restarts_per_job: of the same run.

The heads of `virtualflow_runs` and `slaq_runs` define the figures of VirtualFlow's and SLAQ's
comparisons.

    python -m benchmarks.reproduction [--traces ../shared/traces] [--only pollux virtualflow slaq]
        [--seeds 1] [--slaq-seeds 3] [--slaq-load 1.0]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import slaq_runs, virtualflow_runs
from benchmarks.figures import figures_print
from controlplane.simulator import Report, cluster_make, pollux_workload, profiles_read, simulate

#: Mean completion times in seconds, of the run that was published and of ours.
PUBLISHED = {"tiresias": 3469.69375, "optimus": 5301.875, "pollux": 2446.0}

#: Parts, by the folders of their traces.
PARTS = ("pollux", "virtualflow", "slaq")

#: Source of the speeds that policies use.
KNOWLEDGE = {"tiresias": "true", "optimus": "true", "pollux": "fitted"}


def pollux_measure(folder: Path, num_seeds: int) -> dict[str, float]:
    """Simulate workload-6 under the three policies, print the table and give the figures."""
    workload = pollux_workload(folder / "workload-6.csv", profiles_read(folder))
    cluster = cluster_make(16, 4)
    print(f"{'workload-6, 16 x 4':<20}{'published':>12}{'simulated':>12}{'error':>9}"
          f"{'restarts':>10}{'took':>9}")  # fmt: skip
    figures: dict[str, float] = {}
    for policy, published in PUBLISHED.items():
        began = time.perf_counter()
        reports: list[Report] = [
            simulate(
                workload, cluster, policy, rules="pollux", knowledge=KNOWLEDGE[policy], seed=seed
            )
            for seed in range(num_seeds if policy == "pollux" else 1)
        ]
        took_s = time.perf_counter() - began
        mean_s = statistics.fmean(report.mean_jct_s for report in reports)
        restarts = statistics.fmean(report.restarts_per_job for report in reports)
        error = abs(mean_s - published) / published
        figures[f"{policy}_error"] = round(error, 6)
        if policy == "pollux":
            figures["pollux_restarts_per_job"] = round(restarts, 3)
        print(f"{policy:<20}{published:>10.1f} s{mean_s:>10.1f} s{error:>9.3%}"
              f"{restarts:>10.2f}{took_s:>7.1f} s", flush=True)  # fmt: skip
    return figures


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its figures as the last line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=Path, default=Path("../shared/traces"))
    parser.add_argument("--seeds", type=int, default=1, help="of Pollux' search")
    parser.add_argument("--slaq-seeds", type=int, default=3)
    parser.add_argument("--slaq-load", type=float, default=slaq_runs.LOAD)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    options = parser.parse_args(arguments)
    missing = [name for name in options.only if not (options.traces / name).is_dir()]
    if missing:
        print(
            f"{', '.join(missing)} not found in {options.traces}: what was published cannot be "
            "compared without the traces. Name their folder with --traces.",
            file=sys.stderr,
        )
        return 1
    figures: dict[str, float] = {}
    for name in options.only:
        folder = options.traces / name
        match name:
            case "pollux":
                figures |= pollux_measure(folder, options.seeds)
            case "virtualflow":
                figures |= virtualflow_runs.measure(folder)
            case "slaq":
                figures |= slaq_runs.measure(folder, options.slaq_load, options.slaq_seeds)
    figures_print("reproduction", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
