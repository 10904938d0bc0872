"""Races to a fixed test error: plain training, random selection, and selection by losses.

The error of a case is `target_ratio` times the one that plain training ends with: the mean of its
last `LAST_EPOCHS` epochs, median over the seeds. Costs are in examples of plain training, computed
from counted examples and measured costs per example, so other load on the machine does not count.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.selection_runs.costs import Costs
from benchmarks.selection_runs.runs import BATCH_SIZE, Reached, job_spec, run
from benchmarks.specs import epochs_stop, steps_stop
from controlplane.core.protocol.selection import SelectionMethod, SelectionSpec
from controlplane.core.protocol.wire import StopCondition, StopKind

LAST_EPOCHS = 3
#: Epochs of an arm that selects, over those of plain training, at most.
MOST_EPOCHS = 2


def _stale(every: int, *, guard: bool = False, control_every: int | None = None) -> SelectionSpec:
    return SelectionSpec(
        method=SelectionMethod.STALE_SELECTIVE_BACKPROP,
        stale_every=every,
        guard=guard,
        control_every=control_every,
    )


ARMS = {
    "random": SelectionSpec(method=SelectionMethod.RANDOM),
    "selective": SelectionSpec(method=SelectionMethod.SELECTIVE_BACKPROP, guard=False),
    "stale_2": _stale(2),
    "stale_3": _stale(3),
    "guarded": _stale(3, guard=True, control_every=3),
}
BY_LOSSES = ("selective", "stale_2", "stale_3")


@dataclass(frozen=True)
class Case:
    """Data of a race, the epochs of plain training, and the error over its last one to reach."""

    data: str
    flipped: float
    num_epochs: int
    target_ratio: float = 1.2

    @property
    def name(self) -> str:
        """Name of the case in tables and figures."""
        return f"{self.data}_{round(100 * self.flipped)}" if self.flipped else self.data


@dataclass(frozen=True)
class Result:
    """One arm's median over the seeds; `cost` is infinite if most runs missed the error.

    Attributes:
        trained: examples of training steps.
        seconds: of steps and passes, by the clock.
    """

    cost: float
    trained: float
    seconds: float
    num_missed: int


def race(case: Case, costs: Costs, seeds: Sequence[int]) -> dict[str, Result]:
    """Run all arms of a case; prints a row for each."""
    plain = [_run(case, seed) for seed in seeds]
    finals = [1.0 - statistics.fmean(r.accuracy for r in rows[-LAST_EPOCHS:]) for rows in plain]
    target = 1.0 - case.target_ratio * statistics.median(finals)
    print(f"{case.name}: plain ends at an error of {statistics.median(finals):.4f}")
    found = {"plain": [reached(rows, target) for rows in plain]}
    for arm, selection in ARMS.items():
        found[arm] = [reached(_run(case, seed, selection, target), target) for seed in seeds]
    results = {arm: result_of(rows, costs) for arm, rows in found.items()}
    budget = min(results[arm].cost for arm in BY_LOSSES)
    if math.isfinite(budget):
        decayed = [_run(case, seed, num_steps=round(budget / BATCH_SIZE)) for seed in seeds]
        results["decayed"] = result_of([reached(rows, target) for rows in decayed], costs)
    for arm, result in results.items():
        print(
            f"  {arm}: cost {result.cost:.0f}, trained {result.trained:.0f}, "
            f"{result.seconds:.1f} s, missed {result.num_missed} of {len(seeds)}",
            flush=True,
        )
    return results


def speed_up(results: dict[str, Result]) -> float | None:
    """Return the better of plain and random over the best selection by losses; None: not reached.

    An arm that missed the error counts as infinitely dear.
    """
    best = min(results[arm].cost for arm in BY_LOSSES)
    baseline = min(results["plain"].cost, results["random"].cost)
    return round(baseline / best, 3) if math.isfinite(best) and math.isfinite(baseline) else None


def fewer_examples(results: dict[str, Result]) -> float | None:
    """Return the same quotient of trained examples, as if passes cost nothing; None: missed."""
    reached = {arm: found.trained for arm, found in results.items() if math.isfinite(found.cost)}
    baseline = [reached[arm] for arm in ("plain", "random") if arm in reached]
    selected = [reached[arm] for arm in BY_LOSSES if arm in reached]
    return round(min(baseline) / min(selected), 3) if baseline and selected else None


def regret(results: dict[str, Result]) -> float | None:
    """Return the cost with guard and control arm over that of plain training; None: missed."""
    ratio = results["guarded"].cost / results["plain"].cost
    return round(ratio, 3) if math.isfinite(ratio) else None


def _run(
    case: Case,
    seed: int,
    selection: SelectionSpec | None = None,
    target: float | None = None,
    num_steps: int | None = None,
) -> list[Reached]:
    """Train one arm: to the target accuracy, if given, or for a number of steps or epochs."""
    settings: dict[str, Any] = {"data": case.data, "flipped": case.flipped}
    stop = epochs_stop(case.num_epochs)
    if target is not None:
        limit = MOST_EPOCHS * case.num_epochs
        stop = StopCondition(
            kind=StopKind.METRIC, limit=limit, metric="val_accuracy", target=target
        )
    elif num_steps is not None:
        settings["decay_steps"] = num_steps
        stop = steps_stop(num_steps)
    return run(job_spec(settings, stop, selection, seed))


def reached(rows: Sequence[Reached], target: float) -> Reached | None:
    return next((row for row in rows if row.accuracy >= target), None)


def result_of(rows: Sequence[Reached | None], costs: Costs) -> Result:
    reached = [row for row in rows if row is not None]
    cost = [costs.of(row) for row in reached]
    cost += [math.inf] * (len(rows) - len(reached))
    nothing = [math.nan] * (not reached)
    return Result(
        cost=statistics.median_high(cost),
        trained=statistics.median([row.trained for row in reached] or nothing),
        seconds=statistics.median([row.seconds for row in reached] or nothing),
        num_missed=len(rows) - len(reached),
    )
