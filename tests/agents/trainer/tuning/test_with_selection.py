"""The cursor of a job that tunes and selects: epochs with trials are plain ones, as a whole."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from agents.trainer.model.branches import Branches
from agents.trainer.model.progress import Activity, Progress
from agents.trainer.model.schedule import TrainingSchedule
from agents.trainer.tuning.proposals import Proposals
from agents.trainer.tuning.tuner import Tuner
from controlplane.core.protocol.selection import SelectionMethod, SelectionSpec
from controlplane.core.protocol.tuning import TunableRange, TuningSpec
from controlplane.core.protocol.wire import StopCondition, StopKind
from controlplane.core.tuning.course import course_epoch

SPEC = TuningSpec(space={"weight_decay": TunableRange(low=0.0, high=0.1)}, max_trials=4)
NUM_TRAIN, BATCH = 90, 10


@dataclass
class Run:
    """A job of one trainer without a model.

    Attributes:
        epochs: per epoch, whether it selected and whether a search ran in it.
    """

    schedule: TrainingSchedule
    seed: int
    progress: Progress = field(default_factory=Progress)
    epochs: list[tuple[bool, bool]] = field(default_factory=list)

    def go(self) -> None:
        random = np.random.default_rng(self.seed)
        tuner = Tuner(SPEC, Proposals(SPEC, self.seed, 1), _state(), self.schedule)
        kinds: set[Activity] = set()
        has_tried = False
        while not self.progress.is_over:
            before = self.progress
            self.progress = tuner.begin(self.progress)
            assert self.progress.activity is before.activity, "its batch has been fetched"
            has_tried |= self.progress.is_trying
            kinds.add(self.progress.activity)
            queued = self.progress.queued
            self._batch(tuner, random)
            if self.progress.is_trying:
                assert self.progress.queued == queued, "the queue waits"
            if self.schedule.is_activity_over(self.progress):
                epoch = self.progress.epoch
                progress = self.schedule.after_activity(self.progress, {"loss": 1.0})
                assert progress.tuning is not None
                tuning = course_epoch(progress.tuning, SPEC, {"val_loss": 1.0})
                self.progress = self.schedule.with_tuning(progress, tuning)
                assert self.progress.epoch == epoch + 1
                self.epochs.append((Activity.SELECT in kinds, has_tried))
                kinds, has_tried = set(), False
            stored = json.loads(json.dumps(self.progress.to_json()))
            assert Progress.from_json(stored) == self.progress

    def _batch(self, tuner: Tuner, random: np.random.Generator) -> None:
        if self.progress.activity is Activity.SELECT:
            low, high = self.schedule.bounds(self.progress)
            chosen = int(random.integers(0, high - low + 1))
            self.progress = self.schedule.after_pass(self.progress, chosen, 0.1)
            return
        trial = self.progress.tuning and self.progress.tuning.active
        steps = trial.trial.steps if trial else self.progress.step
        loss = 2.0 - 0.01 * steps * random.uniform(0.9, 1.0)
        note = tuner.note(self.progress)
        self.progress = tuner.after_step(self.progress, float(loss), BATCH, note)
        self.progress = self.schedule.after_batch(self.progress, 0.1)


def _state() -> Any:
    tunables = SimpleNamespace(values={"weight_decay": 0.01}, assign=lambda values: None)
    return SimpleNamespace(
        tunables=tunables,
        branches=Branches(lambda: [0], lambda values: None),
        metric_values=list,
        put_metrics=lambda values: None,
    )


@pytest.mark.parametrize("kind", [StopKind.EPOCHS, StopKind.STEPS])
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2))]
)
def test_an_epoch_selects_or_searches(kind: StopKind, seed: int) -> None:
    selection = SelectionSpec(method=SelectionMethod.SELECTIVE_BACKPROP, start=1, guard=False)
    limit = {StopKind.EPOCHS: 60, StopKind.STEPS: 400}[kind]
    stop = StopCondition(kind=kind, limit=limit)
    run = Run(TrainingSchedule(NUM_TRAIN, 0, BATCH, stop, selection=selection), seed)
    run.go()
    assert run.progress.tuning is not None
    assert run.progress.tuning.search is not None
    assert run.progress.tuning.search.number == 2, "it never searched again"
    assert not any(selects and searches for selects, searches in run.epochs)
    plain = [number for number, (selects, _) in enumerate(run.epochs) if not selects]
    searched = [number for number, (_, searches) in enumerate(run.epochs) if searches]
    assert plain == searched, "the first epoch has a search, too"
    share = run.progress.tuning.num_steps / run.schedule.num_planned_steps
    assert share <= SPEC.max_share
