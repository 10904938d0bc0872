"""Proposals for the trials of a tuned job, by Optuna's tree-structured Parzen estimator.

A proposal is a function of the job's seed and of its search alone: the study is built anew from the
search's trials each time, which takes about a millisecond. So nothing is lost with a leader.
"""

from __future__ import annotations

import importlib
from typing import Any

from controlplane.core.protocol.tuning import TunableName, TuningSpec
from controlplane.core.tuning.batch_sizes import batch_sizes
from controlplane.core.tuning.convergence import Verdict
from controlplane.core.tuning.search import Search, Trial

#: Trials before proposals depend on their results.
NUM_RANDOM = 5
#: Result of a diverged trial, below that of every other one.
DIVERGED_RESULT = -1.0


class Proposals:
    """Proposals of one job's searches."""

    def __init__(self, spec: TuningSpec, seed: int, num_virtual_nodes: int) -> None:
        """Import Optuna, which takes a second that other jobs are spared."""
        self._optuna: Any = importlib.import_module("optuna")
        self._optuna.logging.set_verbosity(self._optuna.logging.WARNING)
        self._spec = spec
        self._seed = seed
        #: The batch sizes, which Optuna knows by their places.
        self._sizes: tuple[int, ...] = ()
        floats = self._optuna.distributions.FloatDistribution
        self._space = {
            name: floats(span.low, span.high, log=span.log)
            for name, span in sorted(spec.space.items())
        }
        if spec.batch_size is not None:
            self._sizes = batch_sizes(spec.batch_size, num_virtual_nodes)
            places = self._optuna.distributions.IntDistribution(0, len(self._sizes) - 1)
            self._space[TunableName.BATCH_SIZE] = places
        self._key: tuple[int, ...] = ()
        self._proposal: dict[str, float] = {}

    def next(self, search: Search) -> dict[str, float]:
        """Return the values for the search's next trial, known while the present one runs.

        They depend on the results of all trials but the running one.
        """
        key = (search.number, len(search.trials), search.running, search.trial_steps)
        if key != self._key:
            self._key, self._proposal = key, self._ask(search)
        return self._proposal

    def _ask(self, search: Search) -> dict[str, float]:
        seed = (self._seed + 1_000_003 * (search.trials[-1].number + 1)) % 2**32
        sampler = self._optuna.samplers.TPESampler(seed=seed, n_startup_trials=NUM_RANDOM)
        study = self._optuna.create_study(direction="maximize", sampler=sampler)
        for trial in search.trials:
            if trial.number != search.running:
                study.add_trial(self._told(trial))
        asked = study.ask(self._space)
        values = {name: float(asked.params[name]) for name in self._spec.names}
        if self._sizes:
            place = asked.params[TunableName.BATCH_SIZE]
            values[TunableName.BATCH_SIZE] = float(self._sizes[place])
        return values

    def _told(self, trial: Trial) -> Any:
        """Describe a trial to Optuna; values of the job's own may lie outside of the space."""
        ranges = self._spec.space
        values = {
            name: min(max(trial.values[name], ranges[name].low), ranges[name].high)
            for name in self._spec.names
        }
        if self._sizes:
            size = trial.values[TunableName.BATCH_SIZE]
            places = range(len(self._sizes))
            values[TunableName.BATCH_SIZE] = min(places, key=lambda k: abs(self._sizes[k] - size))
        is_diverged = trial.verdict is Verdict.DIVERGED
        return self._optuna.trial.create_trial(
            params=values,
            distributions=self._space,
            value=DIVERGED_RESULT if is_diverged else trial.speed,
        )
