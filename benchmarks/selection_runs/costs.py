"""Costs of selecting, in processor time, of one process that runs the engine's own loop.

A plain job and one that selects run an epoch in turn, so that both meet the same load. The one that
selects has the stale method with losses in every other epoch: its epochs tell what a pass costs
that computes losses, and what one costs that only chooses.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agents.trainer.engine.session import MembershipSession
from agents.trainer.model.progress import Activity, Progress
from agents.trainer.step.stepper import Stepper
from benchmarks.lone_engine import lone_engine
from benchmarks.selection_runs import job as job_module
from benchmarks.selection_runs.runs import Reached, job_spec
from benchmarks.specs import epochs_stop
from controlplane.core.protocol.selection import SelectionMethod, SelectionSpec
from controlplane.core.protocol.wire import TrainingSpec

SELECTION = SelectionSpec(
    method=SelectionMethod.STALE_SELECTIVE_BACKPROP, stale_every=2, guard=False
)
#: Epochs of each job before those that count: the first one selects nothing, the next ones trace.
WARM_EPOCHS = 3


@dataclass
class EpochTimes:
    """Processor time of an epoch without its validation.

    Attributes:
        losses_s: of the passes' candidates and their losses, without the choice.
        pass_s, step_s: of whole selection passes and training steps.
    """

    losses_s: float = 0.0
    pass_s: float = 0.0
    step_s: float = 0.0
    candidates: int = 0
    trained: int = 0


@dataclass(frozen=True)
class Costs:
    """Costs per example, over that of a plain training step.

    Attributes:
        loss: pass that computes its candidates' losses, choice included.
        choice: pass that only chooses.
        step: training step on chosen examples.
        overhead: share of an epoch with losses that is neither computing losses nor what as many
            plain training steps take.
    """

    loss: float
    choice: float
    step: float
    overhead: float

    def of(self, done: Reached) -> float:
        """Return what a run has cost, in examples of plain training."""
        chosen_only = done.candidates - done.analysed
        passes = done.analysed * self.loss + chosen_only * self.choice
        return done.plain + done.chosen * self.step + passes


@dataclass
class Arm:
    """One job in this process, epoch by epoch."""

    session: MembershipSession
    stepper: Stepper
    progress: Progress = field(default_factory=Progress)

    def epoch(self) -> EpochTimes:
        """Run an epoch as a trainer does."""
        times = EpochTimes()
        epoch, now = self.progress.epoch, time.process_time()
        while self.progress.epoch == epoch:
            now = self._batch(times, now)
        return times

    def _batch(self, times: EpochTimes, started_at: float) -> float:
        """Run a step or a pass; returns the time of its end. Reading the clock is not free."""
        activity = self.progress.activity
        batch = self.session.batch(self.progress)
        outcome = self.stepper.step(batch, holds_next=lambda: False)
        if activity is Activity.SELECT:
            chosen_at = time.process_time()
            self.progress = self.session.select(self.progress, batch, outcome, seconds=0.0)
            now = time.process_time()
            times.candidates += len(batch.indices)
            times.losses_s += chosen_at - started_at
            times.pass_s += now - started_at
            return now
        num_examples = batch.plan.num_examples
        self.progress = self.session.advance(self.progress, num_examples, outcome, seconds=0.0)
        now = time.process_time()
        if activity is Activity.TRAIN:
            times.trained += num_examples
            times.step_s += now - started_at
        return now


def costs_measure(settings: dict[str, Any], num_epochs: int) -> Costs:
    """Measure the costs of a job over pairs of epochs, one with losses and one without."""
    with (
        _arm(job_spec(settings, epochs_stop(10**6))) as plain,
        _arm(job_spec(settings, epochs_stop(10**6), SELECTION)) as selecting,
    ):
        for _ in range(WARM_EPOCHS):
            plain.epoch()
            selecting.epoch()
        pairs = [(plain.epoch(), selecting.epoch(), selecting.epoch()) for _ in range(num_epochs)]
    columns = zip(*(costs_of(*pair) for pair in pairs), strict=True)
    return Costs(*(statistics.median(column) for column in columns))


def costs_of(
    plain: EpochTimes, with_losses: EpochTimes, without: EpochTimes
) -> tuple[float, float, float, float]:
    """Compute the values of `Costs` from an epoch of a plain job and two of one that selects."""
    example_s = plain.step_s / plain.trained
    total_s = with_losses.pass_s + with_losses.step_s
    needed_s = with_losses.losses_s + with_losses.trained * example_s
    trained = with_losses.trained + without.trained
    return (
        with_losses.pass_s / with_losses.candidates / example_s,
        without.pass_s / without.candidates / example_s,
        (with_losses.step_s + without.step_s) / trained / example_s,
        1.0 - needed_s / total_s,
    )


@contextmanager
def _arm(spec: TrainingSpec) -> Iterator[Arm]:
    with (
        lone_engine(spec, Path(job_module.__file__)) as engine,
        engine.session(Progress()) as session,
    ):
        yield Arm(session, engine.stepper)
