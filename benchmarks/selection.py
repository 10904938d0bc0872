"""Selection of examples: its speed-up, its cost, its guard, and the error of its prediction.

Parts, each by itself with `--only`:

- `prediction`: the digits template trains on one accelerator. Its validation, in a process of its
  own as agents run it, measures the times from which the speed-up is predicted; the trainer's
  reports give the measured one. By the clock.
- `overhead`: share of an epoch with losses that is neither computing losses nor what as many plain
  training steps take. Processor time, plain and selecting epochs in turn in one process.
- `race`: cost and examples up to a fixed test error, on accelerators that change, for plain
  training, plain training whose rate decays fully within the best selection's cost, random
  selection, selection by losses, and the guard with control epochs. Costs are counted from examples
  and the processor times of `overhead`; seconds by the clock stand beside them.
- `guard`: cost of a selection that cannot pay, with the guard on, over plain training of as many
  epochs, on accelerators that change. The guard decides by the clock, the cost is counted.

    python -m benchmarks.selection [--only prediction,overhead,race,guard] [--seeds 5]
        [--cases redundant,digits,digits_10,text] [--epochs 30] [--repeats 3] [--pairs 20]
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from benchmarks.figures import figures_print
from benchmarks.selection_runs.costs import Costs, costs_measure
from benchmarks.selection_runs.guarded import guard_regret
from benchmarks.selection_runs.prediction import prediction_errors
from benchmarks.selection_runs.races import Case, Result, fewer_examples, race, regret, speed_up

PARTS = ("prediction", "overhead", "race", "guard")
#: Data with networks of their own, and the epochs of a job on them in the guard's part.
NETWORKS = {"digits": 30, "text": 15}
CASES = {
    case.name: case
    for case in (
        *(Case("redundant", flipped, 10) for flipped in (0.0, 0.01, 0.1, 0.2)),
        *(Case("digits", flipped, 30) for flipped in (0.0, 0.01, 0.1, 0.2)),
        # Its error stays above a half, so 1.2 times the last one is reached in the first epochs.
        Case("text", 0.0, 15, target_ratio=1.02),
    )
}
#: Cases of the goals: examples that repeat each other, and ones that do not.
REDUNDANT, HARD = "redundant", "text"


def main() -> int:
    """Run the parts, print their tables and the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(PARTS), help="parts, of " + ",".join(PARTS))
    parser.add_argument("--cases", default=",".join(CASES), help="whose data and networks")
    parser.add_argument("--seeds", type=int, default=5, help="of the race and the guard")
    parser.add_argument("--epochs", type=int, default=30, help="of the prediction")
    parser.add_argument("--repeats", type=int, default=3, help="of the prediction")
    parser.add_argument("--pairs", type=int, default=20, help="pairs of epochs for the costs")
    options = parser.parse_args()
    parts, names = options.only.split(","), options.cases.split(",")
    unknown = {*parts} - {*PARTS} | {*names} - {*CASES}
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    print(f"{os.cpu_count()} processors, other load at the start: {os.getloadavg()[0]:.1f}")
    figures: dict[str, Any] = {}
    if "prediction" in parts:
        errors = prediction_errors(options.epochs, options.repeats)
        figures |= {"prediction_error": max(errors.values()), "errors": errors}
    if {*parts} != {"prediction"}:
        networks = sorted({_network(name) for name in names})
        costs = {data: _costs(data, options.pairs) for data in networks}
        figures |= _counted_figures(parts, names, costs, range(1, options.seeds + 1))
    figures_print("selection", figures)
    return 0


def _counted_figures(
    parts: Sequence[str], names: Sequence[str], costs: dict[str, Costs], seeds: Sequence[int]
) -> dict[str, Any]:
    """Run the parts whose figures do not depend on the clock."""
    figures: dict[str, Any] = {}
    if "overhead" in parts:
        overheads = {data: round(found.overhead, 3) for data, found in costs.items()}
        figures |= {"overhead": max(overheads.values()), "overheads": overheads}
    if "race" in parts:
        figures |= _race_figures(
            {name: race(CASES[name], costs[_network(name)], seeds) for name in names}
        )
    if "guard" in parts:
        regrets = {
            data: guard_regret(data, found, NETWORKS[data], seeds) for data, found in costs.items()
        }
        figures |= {"guard_regret": max(regrets.values()), "guard_regrets": regrets}
    return figures


def _network(name: str) -> str:
    """Return the data whose network a case trains."""
    return "text" if CASES[name].data == "text" else "digits"


def _costs(data: str, num_pairs: int) -> Costs:
    costs = costs_measure({"data": data}, num_pairs)
    print(
        f"{data}, over a plain step: pass with losses {costs.loss:.3f}, without "
        f"{costs.choice:.3f}, step {costs.step:.3f}; overhead {costs.overhead:.3f}",
        flush=True,
    )
    return costs


def _race_figures(results: dict[str, dict[str, Result]]) -> dict[str, Any]:
    """Compute the speed-ups of all cases; None where the error was not reached."""
    speed_ups = {name: speed_up(found) for name, found in results.items()}
    return {
        "speedup_redundant": speed_ups.get(REDUNDANT),
        "speedup_hard": speed_ups.get(HARD),
        "speedups": speed_ups,
        "fewer_examples": {name: fewer_examples(found) for name, found in results.items()},
        "guard_regrets_to_error": {name: regret(found) for name, found in results.items()},
        "decayed_missed": {
            name: found["decayed"].num_missed
            for name, found in results.items()
            if "decayed" in found
        },
    }


if __name__ == "__main__":
    sys.exit(main())
