"""A fast and a slow accelerator in one job: the planned split against the even one and all others.

Two trainers on this machine, each held by the kernel to a share of a core, so that one computes
about three times as fast as the other. (Shares of 3:1 were measured as 3.3:1, of 2.4:1 as 2.5:1;
the measured ratio is printed.) Each times its own virtual nodes while it gets ready, as orders with
`profile` ask for; steps of the even split give the seconds of the exchange and of both
computing, as every job reports them. They are the medians of several turns, because a turn of ten
steps lasts a second or two, in which the machine may well do something else; the product moves
nothing on less than 24 s of its reports either. From these the product's planner splits the virtual
nodes and predicts the step. Then both splits run in turns, paired, and every other split, too. All
in one job: a split is changed live.

* speedup: throughput of the planned split over the even one, median of the pairs.
* share_of_best: throughput of the planned split over that of the best of all splits, measured.
* prediction_error: |predicted - measured| / measured step time of the planned split. Predicted
  once, before it ever ran; measured is the median over all its turns.

    python -m benchmarks.heterogeneous [--repeats 5] [--steps 10] [--fast 0.6] [--slow 0.22]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agents.trainer.local.local_cluster import LocalJob
from benchmarks.cpu_quota import CpuQuota
from benchmarks.figures import figures_print
from benchmarks.specs import CONVOLUTIONS, spec_make
from controlplane.core.estimates.step_time import (
    Sample,
    StepTime,
    sample_add,
    step_time_fit,
    sync_seconds,
    sync_time_fit,
)
from controlplane.core.protocol.wire import ReportKind, TrainerReport
from controlplane.core.virtual_nodes.uneven_split import finish_s, plan_counts, runs

Split = tuple[int, ...]

NUM_VIRTUAL_NODES = 16
BATCH_SIZE = 256
#: Turns of the even split that are seen before it is planned.
NUM_SEEN = 5
#: Splits near the best of a first round are measured as often as the planned one.
NEAR_BEST = 1.2
START_LIMIT_S = 240.0


@dataclass(frozen=True)
class Pace:
    """Duration of steps of one split, from the reports of the job's leader.

    Attributes:
        step_s: mean seconds of a whole step.
        busy_s: mean seconds of each trainer's own computing.
    """

    step_s: float
    busy_s: tuple[float, ...]


class Bench:
    """The one job, and how fast it goes with each split."""

    def __init__(self, job: LocalJob, num_steps: int) -> None:
        self.job = job
        self.num_steps = num_steps
        self.paces: dict[Split, list[Pace]] = {}

    def start(self, quota: CpuQuota, shares: Sequence[float]) -> list[dict[int, Sample]]:
        """Start one trainer for each share; gives the profile that each measured of itself."""
        counts = even(len(shares))
        self.job.wants_profile = True
        membership = self.job.plan(len(shares), None, runs(counts))
        self.job.prepare(membership)
        self.job.wait(self._is_tracing, "trainers to trace", START_LIMIT_S)
        for slot, share in enumerate(shares):  # importing is not what is measured
            quota.limit(self.job.trainers[slot].process.pid, share)
        self.job.wait_ready(membership, START_LIMIT_S)
        self.job.go(membership)
        self.job.wait_switched(membership)
        return [self._profile(slot) for slot in range(len(shares))]

    def _is_tracing(self) -> bool:
        return all(
            any(r.kind is ReportKind.PHASE and r.data["phase"] == "tracing" for r in t.reports)
            for t in self.job.trainers.values()
        )

    def _profile(self, slot: int) -> dict[int, Sample]:
        report = self.job.trainers[slot].last(ReportKind.READY)
        assert report is not None, "it is ready"
        measured = report.data["profile"].items()
        return {int(number): sample_add(None, 1, seconds) for number, seconds in measured}

    def measure(self, counts: Split) -> Pace:
        """Go over to a split and time `num_steps` steps of it."""
        assert self.job.membership is not None
        membership = self.job.plan(len(counts), self.job.membership, runs(counts))
        self.job.go(membership)
        self.job.wait_switched(membership)
        generation = membership.generation
        self.job.wait(
            lambda: num_steps_of(self._reports(generation)) >= self.num_steps,
            f"steps of {counts}",
            120.0,
        )
        pace = self._pace(self._reports(generation))
        self.paces.setdefault(counts, []).append(pace)
        return pace

    def _reports(self, generation: int) -> list[TrainerReport]:
        """List a generation's `steps` reports but the first, which is of its first step alone."""
        reports = [
            report
            for report in self.job.trainers[0].reports
            if report.kind is ReportKind.STEPS and report.generation == generation
        ]
        return reports[1:]

    def _pace(self, reports: list[TrainerReport]) -> Pace:
        num = num_steps_of(reports)
        slots = [str(slot) for slot in sorted(self.job.trainers)]
        return Pace(
            sum(report.data["seconds"] for report in reports) / num,
            tuple(
                sum(r.data["compute_s"][slot] * num_steps_of([r]) for r in reports) / num
                for slot in slots
            ),
        )

    def step_s(self, counts: Split) -> float:
        """Give the median over all times that a split was measured."""
        return statistics.median(pace.step_s for pace in self.paces[counts])


def usual(paces: Sequence[Pace]) -> Pace:
    """Give the medians over several turns of one split."""
    busy = zip(*(pace.busy_s for pace in paces), strict=True)
    return Pace(
        statistics.median(pace.step_s for pace in paces),
        tuple(statistics.median(seconds) for seconds in busy),
    )


def num_steps_of(reports: Sequence[TrainerReport]) -> int:
    """Count the steps that some reports are about."""
    return sum(report.data["last_step"] - report.data["first_step"] + 1 for report in reports)


def even(num_trainers: int) -> Split:
    """Give the split that knows nothing of speeds."""
    return (NUM_VIRTUAL_NODES // num_trainers,) * num_trainers


@dataclass(frozen=True)
class Plan:
    """The split that the product would choose, and the speed that it predicts."""

    counts: Split
    step_times: tuple[StepTime, ...]
    sync: StepTime | None

    def predict(self, counts: Split) -> float:
        """Give the expected seconds of a step with any split."""
        return finish_s(self.step_times, counts) + sync_seconds(self.sync, len(counts))


def plan(profiles: list[dict[int, Sample]], seen: Split, pace: Pace, num_steps: int) -> Plan:
    """Plan from the joiners' profiles and from the steps of one split that was seen."""
    fitted: list[StepTime] = []
    for samples, count, seconds in zip(profiles, seen, pace.busy_s, strict=True):
        live = {count: sample_add(None, num_steps, seconds)}
        step_time = step_time_fit({**samples, **live})
        assert step_time is not None
        fitted.append(step_time)
    beyond = max(pace.step_s - max(pace.busy_s), 1e-6)
    sync = sync_time_fit({len(seen): sample_add(None, num_steps, beyond)})
    counts = plan_counts(fitted, NUM_VIRTUAL_NODES)
    return Plan(counts, tuple(fitted), sync)


def main() -> int:
    """Run everything, print the table and the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10, help="steps of each split at a time")
    parser.add_argument("--fast", type=float, default=0.6, help="share of a core")
    parser.add_argument("--slow", type=float, default=0.22, help="share of a core")
    parser.add_argument("--filters", type=int, default=48)
    options = parser.parse_args()
    spec = spec_make({"filters": options.filters}, BATCH_SIZE, NUM_VIRTUAL_NODES)
    with tempfile.TemporaryDirectory(prefix="virtualflow-mix-") as folder, CpuQuota() as quota:
        code = Path(folder) / "job.py"
        code.write_text(CONVOLUTIONS)
        print(f"shares of a core: {options.fast} and {options.slow}, kept by {quota.how}")
        with LocalJob(spec, code, Path(folder) / "trainers", num_slots=2) as job:
            bench = Bench(job, options.steps)
            profiles = bench.start(quota, (options.fast, options.slow))
            figures = run(bench, profiles, options.repeats)
    figures_print("heterogeneous", figures)
    return 0


def run(bench: Bench, profiles: list[dict[int, Sample]], repeats: int) -> dict[str, float]:
    """Plan, measure in pairs, try everything; gives the figures."""
    same = even(2)
    bench.measure(same)  # the first steps of a job are slower
    bench.paces.clear()
    seen = usual([bench.measure(same) for _ in range(NUM_SEEN)])
    made = plan(profiles, same, seen, NUM_SEEN * bench.num_steps)
    slow_s, fast_s = made.step_times[1](same[1]), made.step_times[0](same[0])
    print(f"measured: {describe(made, same)}, ratio {slow_s / fast_s:.1f}:1")
    print(f"planned: {made.counts}\n")
    bench.paces.clear()
    speedups = []
    for repeat in range(repeats):
        pair = (same, made.counts) if repeat % 2 == 0 else (made.counts, same)
        paces = {counts: bench.measure(counts) for counts in pair}
        planned_s = paces[made.counts].step_s
        speedups.append(paces[same].step_s / planned_s)
        print(
            f"pair {repeat + 1}: even {paces[same].step_s * 1e3:.0f} ms, planned "
            f"{planned_s * 1e3:.0f} ms, {speedups[-1]:.2f}x",
            flush=True,
        )
    try_all(bench, made, repeats)
    print_table(bench, made)
    planned_s = bench.step_s(made.counts)
    best_s = min(bench.step_s(counts) for counts in bench.paces)
    return {
        "speedup": round(statistics.median(speedups), 3),
        "share_of_best": round(best_s / planned_s, 3),
        "prediction_error": round(abs(made.predict(made.counts) - planned_s) / planned_s, 4),
    }


def try_all(bench: Bench, made: Plan, repeats: int) -> None:
    """Measure every split once, then those that were near the best beside the planned one."""
    for fast in range(1, NUM_VIRTUAL_NODES):
        bench.measure((fast, NUM_VIRTUAL_NODES - fast))
    limit_s = NEAR_BEST * min(bench.step_s(counts) for counts in bench.paces)
    near = [counts for counts in bench.paces if bench.step_s(counts) <= limit_s]
    for _ in range(repeats - 1):
        for counts in {*near, made.counts}:
            bench.measure(counts)


def describe(made: Plan, counts: Split) -> str:
    """Write down what the planner knew."""
    parts = [
        f"trainer {slot} {step_time(count) * 1e3:.0f} ms for {count} virtual nodes"
        for slot, (step_time, count) in enumerate(zip(made.step_times, counts, strict=True))
    ]
    return ", ".join([*parts, f"exchange {sync_seconds(made.sync, len(counts)) * 1e3:.1f} ms"])


def print_table(bench: Bench, made: Plan) -> None:
    """Print every split, predicted and measured."""
    print(f"\n{'split':>9}{'predicted':>13}{'measured':>12}{'error':>9}{'examples/s':>13}")
    for counts in sorted(bench.paces):
        step_s, expected_s = bench.step_s(counts), made.predict(counts)
        mark = "  planned" if counts == made.counts else "  even" if counts == even(2) else ""
        print(
            f"{counts[0]:>5} +{counts[1]:>2}{expected_s * 1e3:>10.0f} ms{step_s * 1e3:>9.0f} ms"
            f"{(expected_s - step_s) / step_s:>+9.1%}{BATCH_SIZE / step_s:>13.0f}{mark}"
        )
    print()


if __name__ == "__main__":
    sys.exit(main())
