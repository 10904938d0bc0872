"""Search for a learning rate by whole runs, as Optuna proposes and prunes them."""

from __future__ import annotations

from collections.abc import Callable

import optuna

#: Lowest and highest learning rate of a search.
LOW, HIGH = 1e-5, 1.0
#: A good learning rate of the digits template, and a bad one.
HAND, BAD = 1e-3, LOW
RUNS_LIMIT = 40
ARMS = ("hand", "default", "tuned", "parallel", "optuna", "random")

#: Takes epoch and accuracy, returns whether to give the run up.
Report = Callable[[int, float], bool]
#: Run with a learning rate, a number and a report; returns whether it reached the target.
SearchRun = Callable[[float, int, Report], bool]


def proposed_by_optuna(seed: int, max_epochs: int) -> optuna.Study:
    """Make a study with Optuna's TPE and its Hyperband pruner."""
    return optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=seed),
        pruner=optuna.pruners.HyperbandPruner(max_resource=max_epochs),
    )


def drawn_at_random(seed: int) -> optuna.Study:
    """Make a study that draws at random and prunes nothing."""
    return optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.RandomSampler(seed=seed),
        pruner=optuna.pruners.NopPruner(),
    )


def until_reached(study: optuna.Study, run: SearchRun) -> None:
    """Run with rates of the study, one after another, until a run reaches the target."""
    for number in range(RUNS_LIMIT):
        trial = study.ask()
        rate = trial.suggest_float("learning_rate", LOW, HIGH, log=True)
        values = [0.0]

        def report(
            epoch: int,
            value: float,
            trial: optuna.Trial = trial,
            values: list[float] = values,
        ) -> bool:
            values.append(value)
            trial.report(value, epoch)
            return bool(trial.should_prune())

        if run(rate, number, report):
            return
        study.tell(trial, values[-1])
