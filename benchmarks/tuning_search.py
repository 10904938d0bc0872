"""Steps to a target accuracy with the search for a learning rate: within one run, or over several.

The digits template, whose validation accuracy has to reach a target. Arms: its own learning rate
(`hand`), a bad one (`default`, once, as it is the slowest), a job that begins with the bad one and
is tuned (`tuned`, by the engine), the same job tuned by trials on idle accelerators (`parallel`),
and whole runs of at most `RUN_EPOCHS` epochs, one after another, with learning rates by Optuna's
TPE with its Hyperband pruner (`optuna`), or drawn at random (`random`). Cost is counted in training
steps of all runs and trials up to the target, which do not depend on the machine; all arms have the
same steps and validate once an epoch.

`parallel` alone counts the steps of the job, as trials run beside it where nothing else would:
`parallel_over_serial` is their median over that of `tuned`, below 1 if idle accelerators save time.
`parallel_steps_all` counts the steps of its trials too. Both leave out what is no step: the starts
of trials, and the way of states there and back (`benchmarks.parallel_trials` has the assumptions).

A second part, `retune`, trains `benchmarks.retuned_job` for `RETUNED_EPOCHS` epochs with searches
at plateaus and without. Its figure is the lowest validation loss without them over that with them,
so above 1 they pay. The number of steps is the same, those of trials included.

    python -m benchmarks.tuning_search [--only search,retune] [--seeds 5] [--target 0.985]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import optuna

from benchmarks import retuned_job
from benchmarks.figures import figures_print
from benchmarks.parallel_trials import parallel_run
from benchmarks.specs import epochs_stop, spec_make
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
from controlplane.core.protocol.tuning import TunableRange, TuningSpec
from controlplane.core.protocol.wire import (
    ReportKind,
    StopCondition,
    StopKind,
    TrainerReport,
    TrainingSpec,
)
from controlplane.core.tuning.search import TrialEnd
from jobs.job_templates import digits_cnn
from tests.support.steered_jobs import SteeredJob

TEMPLATE = Path(digits_cnn.__file__)
RETUNED_JOB = Path(retuned_job.__file__)
BATCH_SIZE = 64
RUN_EPOCHS, JOB_EPOCHS, RETUNED_EPOCHS = 30, 100, 50
LIMIT_S = 3600.0
SPACE = {"learning_rate": TunableRange(low=LOW, high=HIGH, log=True)}


def main() -> int:
    """Run the parts, print their tables and the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="search,retune", help="parts, of search,retune")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--target", type=float, default=0.985, help="validation accuracy")
    options = parser.parse_args()
    parts = options.only.split(",")
    if not {*parts} <= {"search", "retune"}:
        parser.error("--only takes search and retune")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    seeds = range(1, options.seeds + 1)
    figures: dict[str, Any] = {}
    if "search" in parts:
        figures |= _search_figures(seeds, options.target)
    if "retune" in parts:
        figures |= _retune_figures(seeds)
    figures_print("tuning_search", figures)
    return 0


def _search_figures(seeds: Sequence[int], target: float) -> dict[str, Any]:
    """Run all arms to the target accuracy and print the table."""
    steps: dict[str, list[int]] = {arm: [] for arm in ARMS}
    missed = dict.fromkeys(ARMS, 0)
    steps_all = []
    print("seed, then steps of each arm (* target not reached)")
    for seed in seeds:
        found = _arms(seed, target)
        found["parallel"], num_all = _parallel(seed, target)
        steps_all.append(num_all)
        for arm, (num_steps, is_reached) in found.items():
            steps[arm].append(num_steps)
            missed[arm] += not is_reached
        row = (f"{arm} {n}{'' if ok else '*'}" for arm, (n, ok) in found.items())
        print(seed, *row, flush=True)
    median = {arm: statistics.median(values) for arm, values in steps.items()}
    print("median", *(f"{arm} {value:g}" for arm, value in median.items()))
    return {
        "over_optuna": round(median["optuna"] / median["tuned"], 2),
        "over_random": round(median["random"] / median["tuned"], 2),
        "within_hand": round(median["tuned"] / median["hand"], 2),
        "parallel_over_serial": round(median["parallel"] / median["tuned"], 2),
        "parallel_steps_all": statistics.median(steps_all),
        "steps": median,
        "target": target,
        "missed": missed,
    }


def _arms(seed: int, target: float) -> dict[str, tuple[int, bool]]:
    """Run the arms of one seed; returns the steps of each, and whether it reached the target."""
    found = {
        "hand": _run(HAND, seed, JOB_EPOCHS, target),
        "tuned": _tuned(seed, target),
        "optuna": _whole_runs(proposed_by_optuna(seed, RUN_EPOCHS), seed, target),
        "random": _whole_runs(drawn_at_random(seed), seed, target),
    }
    if seed == 1:
        found["default"] = _run(BAD, seed, JOB_EPOCHS, target)
    return found


def _retune_figures(seeds: Sequence[int]) -> dict[str, Any]:
    """Train with searches at plateaus and without them, and print the table.

    Where only the first search has kept a trial (`kept` is 1), the gain is chance.
    """
    gains, again = [], []
    print(
        "seed: lowest val_loss without searches at plateaus, with them, searches that kept a trial"
    )
    for seed in seeds:
        (once, _), (more, kept) = _lowest(seed, retune=False), _lowest(seed, retune=True)
        gains.append(once / more)
        again.append(kept)
        print(f"{seed}: {once:.4f} {more:.4f} {kept}", flush=True)
    return {"retune_gain": round(statistics.median(gains), 3), "kept": again}


def _lowest(seed: int, *, retune: bool) -> tuple[float, int]:
    """Train a tuned job to its end; returns its lowest validation loss, and the trials kept."""
    stop, tuning = epochs_stop(RETUNED_EPOCHS), TuningSpec(space=SPACE, retune=retune)
    _, reports = _tuned_run(seed, stop, tuning, RETUNED_JOB)
    losses = [row.data["logs"]["val_loss"] for row in reports if row.kind is ReportKind.EPOCH]
    return min(losses), _trials_print(reports)


def _run(
    rate: float,
    seed: int,
    num_epochs: int,
    target: float,
    report: Report = lambda _epoch, _value: False,
) -> tuple[int, bool]:
    """Train with Keras's `fit`; returns the steps, and whether the target was reached."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(seed)
    model, (x, y), validation = digits_cnn.build({"learning_rate": rate})  # type: ignore[no-untyped-call]
    best: list[float] = []

    def judge(epoch: int, logs: dict[str, float]) -> None:
        best.append(logs["val_accuracy"])
        if best[-1] >= target or report(epoch, best[-1]):
            model.stop_training = True

    model.fit(
        x,
        y,
        batch_size=BATCH_SIZE,
        epochs=num_epochs,
        validation_data=validation,
        callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=judge)],
        verbose=0,
    )
    return len(best) * -(-len(x) // BATCH_SIZE), best[-1] >= target


def _whole_runs(study: optuna.Study, seed: int, target: float) -> tuple[int, bool]:
    """Train runs until one reaches the target; returns the steps of all."""
    total, is_reached = 0, False

    def run(rate: float, number: int, report: Report) -> bool:
        nonlocal total, is_reached
        steps, is_reached = _run(rate, 100 * seed + number, RUN_EPOCHS, target, report)
        total += steps
        return is_reached

    until_reached(study, run)
    return total, is_reached


def _tuned(seed: int, target: float) -> tuple[int, bool]:
    """Train a job that is tuned on one trainer; returns its steps, those of trials included."""
    stop = StopCondition(
        kind=StopKind.METRIC, limit=JOB_EPOCHS, metric="val_accuracy", target=target
    )
    tuning = TuningSpec(space=SPACE, objective="val_accuracy", higher_is_better=True)
    result, reports = _tuned_run(seed, stop, tuning)
    _trials_print(reports)
    return result["step"], result["reason"] == StopKind.METRIC


def _parallel(seed: int, target: float) -> tuple[tuple[int, bool], int]:
    """Train a job beside its trials; returns its steps and whether it is there, and all steps."""
    stop = epochs_stop(JOB_EPOCHS)
    spec = _spec(seed, stop, TuningSpec(space=SPACE, parallel=True))
    found = parallel_run(spec, TEMPLATE, "val_accuracy", target)
    for number, trials in enumerate(found.rounds, start=1):
        rates = (f"{values.get('learning_rate', 'own')} {end}" for values, end in trials)
        print(f"  round {number}:", ", ".join(rates))
    return (found.steps, found.is_reached), found.steps + found.trial_steps


def _tuned_run(
    seed: int, stop: StopCondition, tuning: TuningSpec, code: Path = TEMPLATE
) -> tuple[dict[str, Any], list[TrainerReport]]:
    """Train a job that begins with the bad rate; returns its result and reports."""
    with (
        tempfile.TemporaryDirectory() as folder,
        SteeredJob(_spec(seed, stop, tuning, code), code, Path(folder) / "trainers") as job,
    ):
        job.resize(1)
        result = job.wait_finished(LIMIT_S)
        (trainer,) = job.trainers.values()
        return result, trainer.reports


def _spec(
    seed: int, stop: StopCondition, tuning: TuningSpec, code: Path = TEMPLATE
) -> TrainingSpec:
    """Describe a tuned job that begins with the bad rate."""
    return spec_make(
        {"learning_rate": BAD},
        BATCH_SIZE,
        entry_file=code.name,
        seed=seed,
        stop=stop,
        tuning=tuning,
    )


def _trials_print(reports: Sequence[TrainerReport]) -> int:
    """Print the trials of a run; returns how many were kept, at most one of a search."""
    newest = {row.data["number"]: row.data for row in reports if row.kind is ReportKind.TRIAL}
    for trial in newest.values():
        rate = trial["values"]["learning_rate"]
        print(f"  trial {trial['number']}: {rate:.2g}, {trial['steps']} steps, {trial['end']}")
    return sum(trial["end"] == TrialEnd.KEPT for trial in newest.values())


if __name__ == "__main__":
    sys.exit(main())
