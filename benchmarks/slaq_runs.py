"""SLAQ against fair sharing on jobs that follow recorded losses, simulated.

The workload is made as in the paper (SoCC 2017, section 6): 160 jobs on 640 cores (20 nodes of 32)
arrive at random, one in 15 s on average. Each follows one of the recorded series of losses, one
iteration a point, and ends with it. Iterations take core-seconds divided by the cores (the paper's
assumption) and may use any number of them. How large the paper's jobs are is not known: theirs are
drawn log-uniformly within a factor of ten, all scaled to a given load, the work that arrives over
what the cores can do (`--load`). Cores change hands for nothing, as Spark's tasks do; beside it
stands what our own resizes cost.

Quality is what the paper looks at: the mean of the normalised losses of the jobs in the system,
(loss - last) / (first - last), averaged over the time in which jobs arrive.

* slaq_quality_gain: by how much that mean is lower than under fair sharing, relatively.
* slaq_delay_change: mean time from submission until a job's loss has come down by 90 %, over that
  under fair sharing, less 1.

Forecasts are the product's (`loss_prediction`), fitted to the losses so far of each job.

    python -m benchmarks.slaq_runs [--traces ../shared/traces] [--load 1.0] [--seeds 3]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median

import numpy as np
from numpy.typing import NDArray

from benchmarks.scaled_application import ScaledApplication
from controlplane.core.loss_prediction import POINTS_LEAST, LossFit, loss_fit
from controlplane.core.performance import LossForecast
from controlplane.simulator import (
    FREE,
    MEASURED,
    Report,
    ResizeCosts,
    Workload,
    WorkloadJob,
    cluster_make,
    simulate,
)

NUM_JOBS, NUM_NODES, PER_NODE = 160, 20, 32
ARRIVAL_S = 15.0
ROUND_S = 5.0

#: Work that arrives over what the cores can do. Under fair sharing a loss then comes down by 90 %
#: after about 70 s on average, as it does in the paper.
LOAD = 1.0

#: Iterations of the largest jobs take so many times the core-seconds of the smallest.
SPREAD = 10.0

#: A job's delay ends when its loss has come down by this part of the whole way.
REDUCTION = 0.9

POLICIES = ("weighted_fair", "slaq")


@dataclass
class RecordedLoss(ScaledApplication):
    """A job whose loss follows a recorded series, one point an iteration.

    Attributes:
        losses: after 0, 1, 2 ... iterations.
    """

    losses: NDArray[np.float64] = field(default_factory=lambda: np.zeros(2))
    _fit: LossFit | None = None
    _num_fitted: int = 0

    def quality(self, epoch: int, progress: float) -> float:  # noqa: ARG002
        return 1.0 - float(np.interp(progress, np.arange(len(self.losses)), self.normalised))

    @property
    def normalised(self) -> NDArray[np.float64]:
        """The losses on their way from 1 to 0."""
        lowest = self.losses.min()
        return (self.losses - lowest) / (self.losses[0] - lowest)

    def forecast(self, epoch: int, progress: float) -> LossForecast | None:  # noqa: ARG002
        num_seen = int(progress) + 1
        return Foreseen(self, num_seen) if num_seen >= POINTS_LEAST else None

    def fitted(self, num_seen: int) -> LossFit:
        """Fit the losses up to then, from the last fit on."""
        if num_seen != self._num_fitted:
            points = [(float(k), float(loss)) for k, loss in enumerate(self.losses[:num_seen])]
            self._fit, self._num_fitted = loss_fit(points, self._fit), num_seen
        assert self._fit is not None, "there are enough points"
        return self._fit

    def iterations_until(self, reduction: float) -> float:
        """Give the iterations after which the loss has come down by that part of its way."""
        return float(np.argmax(self.normalised <= 1.0 - reduction + 1e-9))


@dataclass(frozen=True, slots=True)
class Foreseen:
    """What is foreseen of a job's loss after some reports; fitted when a policy first asks."""

    application: RecordedLoss
    num_points: int

    @property
    def normaliser(self) -> float:
        return self.application.fitted(self.num_points).normaliser

    def loss(self, examples: float) -> float:
        return self.application.fitted(self.num_points).loss(examples)


def series_read(folder: Path) -> dict[str, NDArray[np.float64]]:
    """Read the recorded series of losses by name.

    Raises:
        ValueError: there is none in `folder`.
    """
    found = {path.stem: np.loadtxt(path) for path in sorted(folder.glob("*.txt"))}
    if not found:
        raise ValueError(f"traces: {folder} has no series of losses (*.txt)")
    return found


def workload(series: Mapping[str, NDArray[np.float64]], load: float, seed: int) -> Workload:
    """Make the jobs of one run."""
    random = np.random.default_rng(seed)
    capacity = NUM_NODES * PER_NODE
    names = [sorted(series)[number % len(series)] for number in range(NUM_JOBS)]
    random.shuffle(names)
    sizes = SPREAD ** random.random(NUM_JOBS)
    arrivals = np.cumsum(random.exponential(ARRIVAL_S, NUM_JOBS))
    works = np.array([len(series[name]) - 1 for name in names]) * sizes
    sizes *= load * capacity * arrivals[-1] / works.sum()
    jobs, applications = [], {}
    for number, (name, size, at) in enumerate(zip(names, sizes, arrivals, strict=True)):
        label = f"{number}-{name}"
        rates = np.arange(capacity + 1) / float(size)
        applications[label] = RecordedLoss(
            label, float(len(series[name]) - 1), rates, losses=series[name]
        )
        jobs.append(WorkloadJob(label, float(at), label, 1, 1, is_fixed=True))
    return Workload(tuple(jobs), applications)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one run: mean normalised loss, mean delay [s], and resizes of a job."""

    loss: float
    delay_s: float
    report: Report


def run(jobs: Workload, policy: str, costs: ResizeCosts) -> Outcome:
    """Let one policy run the jobs."""
    cluster = cluster_make(NUM_NODES, PER_NODE)
    report = simulate(jobs, cluster, policy, costs=costs, knowledge="true", round_s=ROUND_S)
    last = jobs.jobs[-1].submitted_at
    losses = [1.0 - quality for at, quality in report.qualities if at <= last]
    return Outcome(fmean(losses), fmean(delays_s(jobs, report, costs)), report)


def delays_s(jobs: Workload, report: Report, costs: ResizeCosts) -> list[float]:
    """Work out for each job the time until its loss has come down, from what it held when."""
    held: dict[int, list[tuple[float, int]]] = {row.id: [] for row in report.jobs}
    for at, job_id, count in report.held:
        held[job_id].append((at, count))
    delays = []
    for row in report.jobs:
        application = jobs.applications[row.application]
        assert isinstance(application, RecordedLoss), "all jobs of this workload are"
        left = application.iterations_until(REDUCTION)
        changes = held[row.id]
        reached = row.ended_at
        for (at, count), (until, _) in zip(changes, [*changes[1:], (row.ended_at, 0)], strict=True):
            idle_s = costs.pause_s if at > row.started_at else costs.start_s
            training_s = max(until - at - idle_s, 0.0)
            done = training_s * float(application.rates[count])
            if done >= left > 0.0:
                reached = at + idle_s + left / float(application.rates[count])
                break
            left -= done
        delays.append(reached - row.submitted_at)
    return delays


def measure(folder: Path, load: float = LOAD, num_seeds: int = 3) -> dict[str, float]:
    """Run both policies on several workloads, print the table and give the figures."""
    series = series_read(folder)
    print(f"\nSLAQ, {NUM_JOBS} jobs on {NUM_NODES * PER_NODE} cores, load {load:g}")
    print(f"{'resizes':<10}{'seed':>5}{'policy':>16}{'mean loss':>12}{'delay':>10}{'resizes':>10}")
    gains: dict[str, list[float]] = {"free": [], "measured": []}
    changes: dict[str, list[float]] = {"free": [], "measured": []}
    for label, costs in (("free", FREE), ("measured", MEASURED)):
        for seed in range(num_seeds if label == "free" else 1):
            outcomes = {}
            for policy in POLICIES:
                outcomes[policy] = one = run(workload(series, load, seed), policy, costs)
                print(
                    f"{label:<10}{seed:>5}{policy:>16}{one.loss:>12.4f}{one.delay_s:>8.1f} s"
                    f"{one.report.resizes_per_job:>10.1f}",
                    flush=True,
                )
            fair, ours = outcomes["weighted_fair"], outcomes["slaq"]
            gains[label].append(1.0 - ours.loss / fair.loss)
            changes[label].append(ours.delay_s / fair.delay_s - 1.0)
    return {
        "slaq_quality_gain": round(median(gains["free"]), 4),
        "slaq_delay_change": round(median(changes["free"]), 4),
        "slaq_quality_gain_measured": round(median(gains["measured"]), 4),
        "slaq_delay_change_measured": round(median(changes["measured"]), 4),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its figures as the last line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=Path, default=Path("../shared/traces"))
    parser.add_argument("--load", type=float, default=LOAD)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args(arguments)
    folder = options.traces / "slaq"
    if not folder.is_dir():
        print(f"{folder} is missing: nothing to compare with", file=sys.stderr)
        return 1
    print(json.dumps(measure(folder, options.load, options.seeds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
