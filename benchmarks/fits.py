"""Cost and accuracy of the fitted models: throughput of jobs, and the course of their loss.

Throughput (Pollux' measurements, all placements and all spread ones of six applications): the mean
of |predicted - measured| / measured seconds of a step over all configurations of an application,
then the mean over applications.

* throughput_error_all: fitted to all configurations of the application.
* throughput_error_8: fitted to 8 of them, drawn at random; judged on all; mean over the draws.
* throughput_fit_ms: a job is seen on one more configuration with every report, in random order, and
  each report is fitted from the last one on; median over all reports of all applications.

Loss (SLAQ's recorded series): after each report from the fifth on the loss 10 reports ahead is
foretold. The error is the original's own: for each report from the sixth on |predicted - actual| /
|actual|, predicted 10 reports before or else at the fifth; what is beyond the 99th percentile is
left out; mean. (With this the recorded errors of the original's plain extrapolation come out to the
last digit.)

* loss_error_10: mean over the series; the table has each beside the original's recorded one.
* loss_fit_ms: a report, from the last one on, both classes of curves; median over all reports.

The baseline beside both is a generic bounded solver that begins anew with each report: L-BFGS-B
without derivatives for throughput, scipy's `curve_fit` for losses, at every so many reports.

    python -m benchmarks.fits [--traces ../shared/traces] [--draws 20] [--every 10]
"""

from __future__ import annotations

import argparse
import csv
import re
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import OptimizeWarning, curve_fit, minimize

from benchmarks.figures import figures_print
from controlplane.core.estimates.loss_curves import DECAY, CurveClass
from controlplane.core.estimates.loss_prediction import (
    POINTS_LEAST,
    POINTS_LIMIT,
    LossFit,
    loss_fit,
)
from controlplane.core.estimates.throughput import ThroughputModel, ThroughputSample, throughput_fit

Floats = NDArray[np.float64]
Result = TypeVar("Result")

TRACES = Path(__file__).resolve().parents[2] / "shared" / "traces"
NUM_DRAWN, NUM_SEEN, AHEAD = 8, 64, 10
SEED = 0

#: Beginnings of the names of series to which the original fitted exponential curves.
ORIGINAL_EXPONENTIAL = ("logreg", "linreg", "exponential")


@dataclass(frozen=True)
class Timed:
    """Milliseconds that a baseline and our model took for the same fits."""

    ours_ms: list[float]
    theirs_ms: list[float]

    def ratio(self) -> float:
        """Give how many times as long the baseline takes, median of the pairs."""
        pairs = zip(self.ours_ms, self.theirs_ms, strict=True)
        return statistics.median(theirs / ours for ours, theirs in pairs)


def clock_ms(action: Callable[[], Result]) -> tuple[Result, float]:
    """Do something and give what came of it, and how long it took."""
    began = time.perf_counter()
    result = action()
    return result, (time.perf_counter() - began) * 1e3


# Throughput


def applications_read(traces: Path) -> dict[str, list[ThroughputSample]]:
    """Read what was measured of each application."""
    found = {}
    for folder in sorted((traces / "pollux").iterdir()):
        if not (folder / "placements.csv").exists():
            continue
        samples = []
        for name in ("placements.csv", "scalability.csv"):
            with (folder / name).open() as stream:
                samples += [sample_read(row) for row in csv.DictReader(stream)]
        found[folder.name] = samples
    return found


def sample_read(row: Mapping[str, str]) -> ThroughputSample:
    """Read one configuration; the digits of a placement are accelerators by node."""
    if "placement" in row:
        by_node = [int(digit) for digit in row["placement"] if digit != "0"]
        nodes, count = len(by_node), sum(by_node)
    else:
        nodes, count = int(row["num_nodes"]), int(row["num_replicas"])
    step_s, sync_s = float(row["step_time"]), float(row["sync_time"])
    return ThroughputSample(nodes, count, float(row["local_bsz"]), step_s, step_s - sync_s)


def applications_invent() -> dict[str, list[ThroughputSample]]:
    """Invent applications: the model's own steps, 8 % noise, and machines that slow each other."""
    truths = {
        "vision": ThroughputModel(0.02, 0.0008, 0.03, 0.002, 0.12, 0.003, 2.0),
        "speech": ThroughputModel(0.3, 0.024, 0.14, 0.012, 0.5, 0.009, 1.4),
        "ranking": ThroughputModel(0.007, 1e-6, 0.004, 0.0003, 0.015, 0.0005, 1.0),
    }
    generator = np.random.default_rng(SEED)
    found = {}
    for name, truth in truths.items():
        samples = []
        for nodes, each in ((1, 1), (1, 2), (1, 4), (2, 1), (2, 4), (4, 4), (8, 2), (16, 4)):
            for size in (16, 32, 64, 128, 256):
                grad_s = float(truth.grad_s(size)) * generator.lognormal(0.0, 0.08)
                step_s = float(truth.step_s(nodes * each, nodes, size))
                step_s *= generator.lognormal(0.0, 0.08) * (1.0 + 0.01 * nodes)
                samples.append(ThroughputSample(nodes, nodes * each, size, step_s, grad_s))
        found[name] = samples
    return found


def throughput_error(model: ThroughputModel, samples: Sequence[ThroughputSample]) -> float:
    """Give the mean relative error of the seconds of a step."""
    rows = [(s.num_accelerators, s.num_nodes, s.slice_size, s.step_s) for s in samples]
    count, nodes, size, step_s = np.array(rows, dtype=float).T
    return float(np.mean(np.abs(model.step_s(count, nodes, size) - step_s) / step_s))


def generic_throughput_fit(samples: Sequence[ThroughputSample]) -> ThroughputModel:
    """Fit the same cost from nothing, without derivatives, in the parameters as they are."""
    rows = [(s.num_accelerators, s.num_nodes, s.slice_size, s.step_s, s.grad_s) for s in samples]
    count, nodes, size, step_s, grad_s = np.array(rows, dtype=float).T

    def cost(p: Floats) -> float:
        model = ThroughputModel(*p)
        own = np.sqrt(np.mean((np.log(model.grad_s(size)) - np.log(grad_s)) ** 2))
        whole = np.sqrt(np.mean((np.log(model.step_s(count, nodes, size)) - np.log(step_s)) ** 2))
        growth = (p[3] / p[2]) ** 2 + (p[5] / p[4]) ** 2
        return float(own + whole + 1e-3 * (p[6] - 1.0) ** 2 + 1e-2 * growth)

    middle = float(np.mean(grad_s)) / 2.0
    start = [middle, middle / float(np.mean(size)), middle, 1e-3, middle, 1e-3, 1.001]
    bounds = [(1e-8, None)] * 6 + [(1.0, 10.0)]
    found = minimize(cost, start, method="L-BFGS-B", bounds=bounds)
    return ThroughputModel(*(float(value) for value in found.x))


def throughput_run(
    applications: Mapping[str, list[ThroughputSample]], draws: int, every: int
) -> dict[str, float]:
    """Fit everything, print the table, give the figures."""
    print(f"\n{'application':<14}{'points':>8}{'all':>9}{'from 8':>9}{'generic 8':>11}", end="")
    print(f"{'fit':>10}{'generic':>11}{'slower':>9}")
    errors_all, errors_8, fit_ms = [], [], []
    for name, samples in applications.items():
        generator = np.random.default_rng(SEED)
        ours, theirs = [], []
        for draw in range(draws):
            drawn = generator.choice(len(samples), min(NUM_DRAWN, len(samples)), replace=False)
            few = [samples[i] for i in drawn]
            ours.append(throughput_error(throughput_fit(few), samples))
            if draw < max(draws // 2, 1):
                theirs.append(throughput_error(generic_throughput_fit(few), samples))
        errors_all.append(throughput_error(throughput_fit(samples), samples))
        errors_8.append(statistics.mean(ours))
        reports, timed = throughput_reports(samples, generator, every)
        fit_ms += reports
        print(
            f"{name:<14}{len(samples):>8}{errors_all[-1]:>9.1%}{errors_8[-1]:>9.1%}"
            f"{statistics.mean(theirs):>11.1%}{statistics.median(reports):>7.2f} ms"
            f"{statistics.median(timed.theirs_ms):>8.1f} ms{timed.ratio():>8.0f}x",
            flush=True,
        )
    figures = {
        "throughput_error_all": round(statistics.mean(errors_all), 4),
        "throughput_error_8": round(statistics.mean(errors_8), 4),
        "throughput_fit_ms": round(statistics.median(fit_ms), 3),
    }
    print(
        f"{'mean':<14}{'':>8}{figures['throughput_error_all']:>9.1%}"
        f"{figures['throughput_error_8']:>9.1%}{'':>11}{figures['throughput_fit_ms']:>7.2f} ms"
        f"   p95 {np.quantile(fit_ms, 0.95):.1f} ms"
    )
    return figures


def throughput_reports(
    samples: Sequence[ThroughputSample], generator: np.random.Generator, every: int
) -> tuple[list[float], Timed]:
    """Let a job be seen on one more configuration with each report; time all fits."""
    order = generator.permutation(len(samples))[:NUM_SEEN]
    model, reports, pairs = None, [], Timed([], [])
    for number in range(1, len(order) + 1):
        seen = [samples[i] for i in order[:number]]
        model, ours_ms = clock_ms(partial(throughput_fit, seen, model))
        reports.append(ours_ms)
        if number % every == 0:
            _, theirs_ms = clock_ms(partial(generic_throughput_fit, seen))
            pairs.ours_ms.append(ours_ms)
            pairs.theirs_ms.append(theirs_ms)
    return reports, pairs


# Loss


@dataclass(frozen=True)
class Series:
    """Losses of one job, and the original's recorded error 10 reports ahead, if there is one."""

    name: str
    losses: list[float]
    recorded: float | None


def series_read(traces: Path) -> list[Series]:
    """Read the recorded series and the errors of the original (decay 0.8)."""
    pattern = re.compile(r"for (\S+)/cf_\w+_0\.8\.log for .* are \[(.*)\]")
    text = (traces / "slaq" / "prediction_error_all.dat").read_text()
    recorded = {name: float(row.split(",")[2]) for name, row in pattern.findall(text)}
    return [
        Series(path.stem, [float(line) for line in path.read_text().split()], recorded[path.stem])
        for path in sorted((traces / "slaq").glob("*.txt"))
        if path.stem in recorded
    ]


def series_invent() -> list[Series]:
    """Invent losses: both classes, with a little noise that falls along."""
    generator = np.random.default_rng(SEED)
    steps = np.arange(150, dtype=float)
    falls = {
        "sublinear": 1.0 / (0.002 * steps**2 + 0.06 * steps + 0.5),
        "exponential": 2.0 * np.exp(-0.05 * steps),
    }
    return [
        Series(name, list(0.4 + fall * generator.lognormal(0.0, 0.01, steps.size)), None)
        for name, fall in falls.items()
    ]


def original_class(name: str) -> CurveClass:
    """Give the class that the original fitted to a series."""
    is_exponential = name.startswith(ORIGINAL_EXPONENTIAL)
    return CurveClass.EXPONENTIAL if is_exponential else CurveClass.SUBLINEAR


def error_ahead(losses: Sequence[float], foretold: Mapping[int, Sequence[float]]) -> float:
    """Give the original's error 10 reports ahead; `foretold` is by report (from 1), 1 to 10 on."""
    errors = []
    for report in range(POINTS_LEAST + 1, len(losses) + 1):
        made = max(report - AHEAD, POINTS_LEAST)
        actual = losses[report - 1]
        errors.append(abs(foretold[made][report - made - 1] - actual) / abs(actual))
    kept = np.array(errors)
    return float(np.mean(kept[kept <= np.percentile(kept, 99)]))


def generic_loss_fit(
    points: Sequence[tuple[float, float]], curve_class: CurveClass
) -> Callable[[float], float]:
    """Fit one class from nothing with a generic bounded solver; the last loss where it fails."""
    x, y = np.array(points[-POINTS_LIMIT:]).T
    sigma = DECAY ** np.arange(len(x), dtype=float)
    try:
        if curve_class is CurveClass.EXPONENTIAL:
            bounds = ([0.0] * 3, [1.0, np.inf, np.inf])
            p = curve_fit(lambda k, a, b, c: a ** (k - b) + c, x, y, sigma=sigma, bounds=bounds)[0]
            return lambda k: float(p[0] ** (k - p[1]) + p[2])
        p = curve_fit(
            lambda k, a, b, c, d: 1.0 / (a * k * k + b * k + c) + d,
            x,
            y,
            sigma=sigma,
            bounds=([0.0] * 4, [np.inf] * 4),
        )[0]
        return lambda k: float(1.0 / (p[0] * k * k + p[1] * k + p[2]) + p[3])
    except (RuntimeError, ValueError):
        return lambda _: float(y[-1])


def loss_run(all_series: Sequence[Series], every: int) -> dict[str, float]:
    """Foretell all series, print the table, give the figures."""
    print(f"\n{'series':<14}{'reports':>8}{'error +10':>11}{'original':>11}{'ratio':>8}", end="")
    print(f"{'sublinear':>11}{'stays':>9}{'fit':>10}{'generic':>11}{'slower':>9}")
    errors, fit_ms = [], []
    for series in all_series:
        losses = series.losses
        points = [(float(i + 1), loss) for i, loss in enumerate(losses)]
        original = original_class(series.name)
        fit: LossFit | None = None
        foretold, stays, is_sublinear, reports = {}, {}, [], []
        pairs = Timed([], [])
        for report in range(POINTS_LEAST, len(points) + 1):
            known = points[:report]
            fit, ours_ms = clock_ms(partial(loss_fit, known, fit))
            assert fit is not None
            foretold[report] = [fit.loss(float(ahead)) for ahead in range(1, AHEAD + 1)]
            stays[report] = [losses[report - 1]] * AHEAD
            is_sublinear.append(fit.curve_class is CurveClass.SUBLINEAR)
            reports.append(ours_ms)
            if report % every == 0:
                _, theirs_ms = clock_ms(partial(generic_loss_fit, known, original))
                pairs.ours_ms.append(ours_ms)
                pairs.theirs_ms.append(theirs_ms)
        errors.append(error_ahead(losses, foretold))
        fit_ms += reports
        recorded = "-" if series.recorded is None else f"{series.recorded:.5f}"
        ratio = "-" if series.recorded is None else f"{errors[-1] / series.recorded:.2f}"
        print(
            f"{series.name:<14}{len(points):>8}{errors[-1]:>11.5f}{recorded:>11}{ratio:>8}"
            f"{statistics.mean(is_sublinear):>11.0%}{error_ahead(losses, stays):>9.5f}"
            f"{statistics.median(reports):>7.2f} ms{statistics.median(pairs.theirs_ms):>8.1f} ms"
            f"{pairs.ratio():>8.0f}x",
            flush=True,
        )
    print(f"{'mean':<14}{'':>8}{statistics.mean(errors):>11.5f}{'':>47}", end="")
    print(f"p95 of a fit {np.quantile(fit_ms, 0.95):.1f} ms\n")
    return {
        "loss_fit_ms": round(statistics.median(fit_ms), 3),
        "loss_error_10": round(statistics.mean(errors), 5),
    }


def main() -> int:
    """Run everything, print the tables and the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--traces", type=Path, default=TRACES)
    parser.add_argument("--draws", type=int, default=20, help="draws of 8 points")
    parser.add_argument("--every", type=int, default=10, help="reports from baseline to baseline")
    options = parser.parse_args()
    warnings.simplefilter("ignore", OptimizeWarning)
    np.seterr(over="ignore", divide="ignore", invalid="ignore")
    is_there = (options.traces / "pollux").is_dir() and (options.traces / "slaq").is_dir()
    if not is_there:
        print(f"no traces in {options.traces}: all data below are invented")
    applications = applications_read(options.traces) if is_there else applications_invent()
    figures = throughput_run(applications, options.draws, options.every)
    figures |= loss_run(series_read(options.traces) if is_there else series_invent(), options.every)
    figures_print("fits", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
