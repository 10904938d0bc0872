"""Seconds to a target accuracy with the search for a learning rate, on accelerators that change.

A real site with two nodes of two emulated accelerators, each held to a share of a core. The arms
are those of `benchmarks.tuning_search`, as jobs of at most two accelerators, one arm after another:
a good learning rate (`hand`), a bad one (`default`, once, as it is the slowest), a job that begins
with the bad one and is tuned by its own trials (`tuned`) or by trials on the accelerators that it
leaves (`parallel`), and whole runs, each a job, proposed by Optuna's TPE with its Hyperband pruner
(`optuna`) or at random (`random`). Meanwhile the nodes are drained in turn, so that jobs move and
trials give way. The data are the digits in `COPIES` shifted and noisy copies.

`seconds` count from the first step of each job to the end of the epoch that reached the target;
`seconds_with_starts` from the first accelerator that it got. Neither has waits for validation.

    python -m benchmarks.tuning_times [--seeds 1 2 3 4 5] [--target 0.99] [--share 0.5]
        [--arms NAME ...]
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import optuna

from benchmarks.cpu_quota import CpuQuota
from benchmarks.figures import figures_print
from benchmarks.replay_fidelity import ENDED, trainers_limited
from benchmarks.whole_runs import (
    ARMS,
    BAD,
    HAND,
    HIGH,
    LOW,
    Report,
    drawn_at_random,
    proposed_by_optuna,
    until_reached,
)
from jobs import job_templates
from tests.support.stack import Stack, embedded_stack

COPIES, BATCH_SIZE, NUM_VIRTUAL_NODES = 8, 64, 4
CODE = (
    (Path(job_templates.__file__).parent / "digits_cnn.py").read_text()
    + f"""

build_plain = build


def build(settings):
    model, (images, labels), validation = build_plain(settings)
    draws = np.random.default_rng(1)
    copies = np.concatenate([
        np.roll(images, tuple(draws.integers(-1, 2, 2)), axis=(1, 2)) for _ in range({COPIES})
    ])
    noisy = np.clip(copies + draws.normal(0.0, 0.1, copies.shape), 0.0, 1.0).astype("float32")
    return model, (noisy, np.tile(labels, {COPIES})), validation
"""
)
RUN_EPOCHS, JOB_EPOCHS = 9, 60
METRIC = "val_accuracy"
SPACE = {"learning_rate": {"low": LOW, "high": HIGH, "log": True}}
SERIAL = {"space": SPACE, "objective": METRIC, "higher_is_better": True}
PARALLEL = {"space": SPACE, "parallel": True, "max_parallel": 2, "max_trials": 8}
#: Seconds between two changes of the nodes.
CHANGE_S = 30.0
RUN_LIMIT_S = 1800.0
LOOK_EVERY_S = 0.2


@dataclass(frozen=True)
class Cost:
    """Cost of a run, or of all runs of an arm, up to the target.

    Attributes:
        steps: of the jobs, trials in them included.
        with_starts: seconds from the first accelerator of each job.
    """

    seconds: float = 0.0
    with_starts: float = 0.0
    steps: int = 0
    num_runs: int = 0
    is_reached: bool = False

    def then(self, other: Cost) -> Cost:
        """Return the cost of this one and another run after it."""
        return Cost(
            self.seconds + other.seconds,
            self.with_starts + other.with_starts,
            self.steps + other.steps,
            self.num_runs + other.num_runs,
            other.is_reached,
        )


class ChangingSite:
    """A site whose nodes are drained in turn while jobs run."""

    def __init__(self, stack: Stack, target: float) -> None:
        self._stack = stack
        self._target = target
        numbers = [row["id"] for row in stack.get("nodes/")["results"]]
        self._actions = itertools.cycle(
            (number, action) for number in numbers for action in ("drain", "uncordon")
        )
        self._change_at = time.monotonic() + CHANGE_S

    def run(
        self,
        rate: float,
        seed: int,
        num_epochs: int,
        report: Report = lambda _epoch, _value: False,
        **fields: Any,
    ) -> Cost:
        """Run a job until it has reached the target, ended, or `report` gives it up."""
        body = {
            "name": "tuning",
            "code": CODE,
            "settings": {"learning_rate": rate},
            "global_batch_size": BATCH_SIZE,
            "num_virtual_nodes": NUM_VIRTUAL_NODES,
            "max_accelerators": 2,
            "stop": {"kind": "epochs", "limit": num_epochs},
            "seed": seed,
            **fields,
        }
        number = self._stack.post("jobs/", body, expect=201)["id"]
        num_told = 0

        def is_over() -> bool:
            nonlocal num_told
            self._change()
            epochs = self._stack.get(f"jobs/{number}/metrics/")["epochs"]
            values = [row["logs"][METRIC] for row in epochs]
            if any(value >= self._target for value in values):
                return True
            told, num_told = num_told, len(values)
            given_up = [report(epoch, values[epoch]) for epoch in range(told, num_told)]
            if any(given_up):
                return True
            return self._stack.get(f"jobs/{number}/")["status"] in ENDED

        self._stack.wait_for("the target", is_over, RUN_LIMIT_S, look_every_s=LOOK_EVERY_S)
        return self._ended(number)

    def _change(self) -> None:
        """Drain the next node, or open the drained one, when it is time."""
        if time.monotonic() >= self._change_at:
            node, action = next(self._actions)
            self._stack.post(f"nodes/{node}/{action}/", {"reason": "the benchmark"})
            self._change_at = time.monotonic() + CHANGE_S

    def _ended(self, number: int) -> Cost:
        """Cancel a job that still runs, wait until it holds nothing, and compute its cost."""
        path = f"jobs/{number}/"
        if self._stack.get(path)["status"] not in ENDED:
            self._stack.post(f"{path}cancel/", {"reason": "the benchmark"})
        self._stack.wait_for(
            "the end",
            lambda: (
                (row := self._stack.get(path))["status"] in ENDED
                and not row["num_accelerators"]
                and not self._stack.get("jobs/", trial_of=number, status="running")["results"]
            ),
            RUN_LIMIT_S,
        )
        epochs = self._stack.get(f"{path}metrics/")["epochs"]
        reached = [row for row in epochs if row["logs"][METRIC] >= self._target]
        if not epochs:
            return Cost(num_runs=1)
        last = (reached or epochs[-1:])[0]
        generations = self._stack.get(f"{path}generations/", page_size=200)["results"]
        begun = min(row["first_step_at"] for row in generations if row["first_step_at"])
        held = self._stack.get(f"{path}allocations/")["allocations"]
        granted = min(row["granted_at"] for row in held)
        return Cost(
            seconds=_seconds(begun, last["at"]),
            with_starts=_seconds(granted, last["at"]),
            steps=last["step"],
            num_runs=1,
            is_reached=bool(reached),
        )


def main() -> int:
    """Run all arms, print their table and the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--target", type=float, default=0.99, help="validation accuracy")
    parser.add_argument("--share", type=float, default=0.5, help="of a core for each accelerator")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    options = parser.parse_args()
    if not 0.0 < options.share <= 1.0:
        parser.error("--share must be above 0 and at most 1")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    found: dict[str, list[Cost]] = {arm: [] for arm in options.arms}
    with (
        tempfile.TemporaryDirectory(prefix="virtualflow-tuning-") as name,
        embedded_stack(Path(name)) as stack,
        CpuQuota() as quota,
        trainers_limited(stack, quota, options.share),
    ):
        site = ChangingSite(stack, options.target)
        for seed in options.seeds:
            for arm in options.arms:
                if arm == "default" and found[arm]:
                    continue
                cost = _arm(site, arm, seed)
                found[arm].append(cost)
                print(seed, arm, cost, flush=True)
    figures_print("tuning_times", {"target": options.target, **figures(found)})
    return 0


def _arm(site: ChangingSite, arm: str, seed: int) -> Cost:
    """Run an arm with a seed up to the target."""
    match arm:
        case "hand":
            return site.run(HAND, seed, JOB_EPOCHS)
        case "default":
            return site.run(BAD, seed, JOB_EPOCHS)
        case "tuned":
            return site.run(BAD, seed, JOB_EPOCHS, tuning=SERIAL)
        case "parallel":
            return site.run(BAD, seed, JOB_EPOCHS, tuning=PARALLEL)
        case "optuna":
            return _whole_runs(site, proposed_by_optuna(seed, RUN_EPOCHS), seed)
    return _whole_runs(site, drawn_at_random(seed), seed)


def _whole_runs(site: ChangingSite, study: optuna.Study, seed: int) -> Cost:
    """Run jobs, one after another, until one reaches the target; returns the cost of all."""
    total = Cost()

    def run(rate: float, number: int, report: Report) -> bool:
        nonlocal total
        total = total.then(site.run(rate, 100 * seed + number, RUN_EPOCHS, report))
        return total.is_reached

    until_reached(study, run)
    return total


def figures(found: Mapping[str, Sequence[Cost]]) -> dict[str, Any]:
    """Compute medians of the arms, and the ratios that have goals."""
    seconds = {arm: _median(costs, lambda cost: cost.seconds) for arm, costs in found.items()}
    starts = {arm: _median(costs, lambda cost: cost.with_starts) for arm, costs in found.items()}
    pairs = {
        "over_optuna": ("optuna", "tuned"),
        "over_random": ("random", "tuned"),
        "within_hand": ("tuned", "hand"),
        "parallel_over_serial": ("parallel", "tuned"),
    }
    ratios = {
        f"{name}{ending}": round(times[above] / times[below], 2)
        for name, (above, below) in pairs.items()
        for ending, times in (("", seconds), ("_with_starts", starts))
        if {above, below} <= {*found}
    }
    return {
        **ratios,
        "seconds": seconds,
        "seconds_with_starts": starts,
        "steps": {arm: _median(costs, lambda cost: cost.steps) for arm, costs in found.items()},
        "num_runs": {arm: [cost.num_runs for cost in costs] for arm, costs in found.items()},
        "missed": {arm: sum(not cost.is_reached for cost in costs) for arm, costs in found.items()},
    }


def _median(costs: Sequence[Cost], value: Callable[[Cost], float]) -> float:
    return round(statistics.median(map(value, costs)), 1)


def _seconds(since: str, until: str) -> float:
    return (datetime.fromisoformat(until) - datetime.fromisoformat(since)).total_seconds()


if __name__ == "__main__":
    sys.exit(main())
