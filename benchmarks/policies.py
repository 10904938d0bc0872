"""Every policy on the same workloads: mean completion times, and fairness to single jobs.

Workloads are drawn by the published recipe (controlplane/simulator/published/recipe.py) on 64
accelerators of one and of three kinds, at half, once and twice the published load; workload-6 of
Pollux is a row beside them. Profiles are those of ../shared/traces, or made up where these are
missing. Policies know of jobs what models fitted to their own reports say, as on a live cluster.
Each peer is compared three times:

* system against system: ours at the resize cost measured on this project, the peer at 30 s, which
  Pollux and Sia assume;
* equal measured cost: both at the measured cost;
* equal 30 s: both at 30 s.

Figures are of drawn workloads of REPORTING_SEEDS; ratios are of mean completion times on the same
draw, and the mean of these is given; at the published load and one kind unless the name says more:

* ours_over_pollux, ours_over_sia: system against system;
* ours_over_pollux_equal_measured, ours_over_sia_equal_measured: both at the measured cost;
* ours_over_pollux_equal_cost, ours_over_sia_equal_cost: both at 30 s; *_worst_draw: the largest;
* ours_over_sia_three_kinds_equal_cost: both at 30 s, three kinds;
* worst_fairness: largest finish-time fairness of a job under ours, all draws, loads and costs;
* resizes_per_job_overload: ours at twice the load and 30 s;
* regret_over_oracle: ours over itself with the true speeds, measured cost, less 1;
* num_draws: draws behind each of them. Figures of fewer than eight draws are preliminary;
* num_older: those of them whose peer ran with another version of the code than ours ("older" in the
  tables).

Finished rows are kept by case and version of the code, so an interrupted run goes on:

    python -m benchmarks.policies --draws 8 --loads 1 --kinds 1 --only goodput_fair sia pollux
    python -m benchmarks.policies --tuning --draws 4     on the seeds for choosing thresholds
    python -m benchmarks.policies --write                no run: kept rows into docs
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.figures import figures_print
from benchmarks.policy_cases import (
    COSTS,
    LOADS,
    OURS,
    REPORTING_SEEDS,
    TUNING_SEEDS,
    Case,
    Row,
    case_run,
    cases_list,
    profiles_there,
)
from benchmarks.policy_figures import STORED, figures_of, page_write, rows_write, tables
from controlplane.core.policies import POLICIES
from controlplane.simulator import code_version

ROWS = Path(__file__).resolve().parents[1] / "var" / "benchmarks" / "policies.json"


def rows_read(path: Path) -> list[Row]:
    """Read kept rows of all versions; none if there is no file.

    Raises:
        ValueError: the file does not hold rows.
    """
    if not path.exists():
        return []
    try:
        return [Row.from_dict(values) for values in json.loads(path.read_text())]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"--rows: {path} holds no rows ({error}); delete it") from error


def missing_run(cases: Sequence[Case], path: Path, processes: int) -> list[Row]:
    """Run the cases without a kept row of this version, and return the rows of all cases."""
    version, kept = code_version(), rows_read(path)
    found = {row.case: row for row in kept if row.version == version}
    todo = [case for case in cases if case not in found]
    _tell(f"{len(cases) - len(todo)} of {len(cases)} simulations are kept in {path}")
    began = time.perf_counter()
    for number, row in enumerate(_rows_run(todo, processes), start=1):
        kept.append(row)
        found[row.case] = row
        rows_write(kept, path)
        _tell(
            f"{number}/{len(todo)} after {time.perf_counter() - began:.0f} s: {row.case}: "
            f"{row.mean_s:.0f} s (simulated in {row.took_s:.0f} s)"
        )
    return [found[case] for case in cases]


def _rows_run(cases: Sequence[Case], processes: int) -> Iterator[Row]:
    if processes == 1:
        yield from map(case_run, cases)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap(case_run, cases)


def reportable(rows: Sequence[Row], stored: Sequence[Row] = ()) -> list[Row]:
    """Choose the rows of this version of the code that figures may be made from, in order.

    Peers keep the `stored` rows of earlier versions of what is not run with this one: a change of
    our own policy does not ask for hours of theirs. The page says which version each has.

    Raises:
        ValueError: there is none of this version.
    """
    version, profiles = code_version(), profiles_there()
    found = sorted(
        row for row in rows
        if row.version == version
        and row.case.profiles == profiles
        and row.case.seed not in TUNING_SEEDS
    )  # fmt: skip
    if not found:
        raise ValueError(f"--write: no row of version {version} is kept; run some draws first")
    cases = {row.case for row in found}
    earlier = [row for row in stored if row.case.policy != OURS and row.case not in cases]
    return sorted([*found, *earlier])


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def options_parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--draws", type=int, default=8, help=f"1 to {len(REPORTING_SEEDS)} drawn workloads")
    add("--loads", nargs="+", type=float, default=list(LOADS), choices=LOADS)
    add("--kinds", nargs="+", type=int, default=[1, 3], choices=[1, 3])
    add("--costs", nargs="+", default=list(COSTS), choices=list(COSTS))
    add("--only", nargs="+", default=[], choices=list(POLICIES), help="policies; none: all")
    add("--tuning", action="store_true", help="draws of TUNING_SEEDS, without figures")
    add("--rows", type=Path, default=ROWS, help="file of finished rows")
    add("--processes", type=int, default=1)
    add("--write", action="store_true", help="write the kept rows into docs")
    options = parser.parse_args(arguments)
    seeds = TUNING_SEEDS if options.tuning else REPORTING_SEEDS
    if not 1 <= options.draws <= len(seeds):
        parser.error(f"--draws: give 1 to {len(seeds)}, not {options.draws}")
    options.seeds = seeds[: options.draws]
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing, print the tables and the figures."""
    options = options_parse(arguments)
    if options.write:
        rows = reportable(rows_read(options.rows), rows_read(STORED))
        page_write(rows)
    else:
        if profiles_there() == "synthetic":
            _tell("../shared/traces is not there: applications are made up")
        cases = cases_list(options.seeds, options.loads, options.kinds, options.only, options.costs)
        rows = missing_run(cases, options.rows, options.processes)
    print("\n".join(tables(rows)))
    if not options.tuning:
        figures_print("policies", figures_of(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
