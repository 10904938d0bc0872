"""A job tuned by parallel trials, as if accelerators were idle whenever its rounds want them.

Proposals, verdicts and the steps of the next round are those of `core.tuning.rounds`. Trials start
from a checkpoint by `fork_read`, and the job goes on with one by `state_adopt`, as trainers do. The
engine runs the trials one after another, and steps are counted as if side by side.

Whatever depends on a clock is left out, so counts are the same on any machine: trials start at
once, run as fast as the job, and a state is adopted when its round is judged. A round begins a
tenth of a trial after the one before; the losses of that tenth give the loss of the common state.
Losses are known of each step, where trainers report means of half a second.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean

from agents.trainer.model.fork import fork_read
from agents.trainer.model.outputs import state_save
from agents.trainer.model.progress import Activity, Progress
from agents.trainer.model.state import checkpoint_read, state_adopt
from benchmarks.lone_engine import LoneEngine, lone_engine
from controlplane.core.protocol.fork import ForkSpec
from controlplane.core.protocol.tuning import NUM_POINTS, TuningSpec
from controlplane.core.protocol.wire import StopKind, TrainingSpec
from controlplane.core.tuning.rounds import (
    LossSpan,
    TrialRun,
    loss_points,
    next_num_steps,
    proposal,
    round_judge,
)
from controlplane.core.tuning.search import TrialEnd

#: Values and outcome of each trial of a round; the job's own one comes first, without values.
Round = list[tuple[dict[str, float], TrialEnd]]


@dataclass(frozen=True)
class ParallelRun:
    """Steps up to the end of the epoch that reached the target, or of the job.

    Attributes:
        steps: of the job itself, whose own trials they are too.
        trial_steps: of the trials beside it.
        rounds: those that were judged.
    """

    steps: int
    trial_steps: int
    is_reached: bool
    rounds: list[Round]


def parallel_run(spec: TrainingSpec, code: Path, metric: str, target: float) -> ParallelRun:
    """Train a job in a process of its own until a metric of an epoch is at least the target."""
    with ProcessPoolExecutor(1, get_context("spawn"), _silence) as pool:
        return pool.submit(_run, spec, code, metric, target).result()


def _silence() -> None:
    """Drop the lines that sessions print at the end of each epoch."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _run(spec: TrainingSpec, code: Path, metric: str, target: float) -> ParallelRun:
    with lone_engine(spec, code) as engine:

        def is_reached(progress: Progress) -> bool:
            return any(row.logs[metric] >= target for row in progress.history[-1:])

        job = TunedJob(engine, is_reached)
        job.run()
        return ParallelRun(job.progress.step, job.trial_steps, job.is_reached, job.rounds)


class TunedJob:
    """The job, and its trials one after another in the same variables."""

    def __init__(self, engine: LoneEngine, is_reached: Callable[[Progress], bool]) -> None:
        tuning = engine.spec.tuning
        assert tuning is not None, "the job is tuned"
        assert engine.spec.stop.kind is StopKind.EPOCHS, "trials do not stop at a metric"
        self.progress = Progress()
        self.trial_steps = 0
        self.rounds: list[Round] = []
        self._engine = engine
        self._tuning: TuningSpec = tuning
        self._has_reached = is_reached
        self._num_trials = 0

    @property
    def is_reached(self) -> bool:
        """True once an epoch of the job itself has reached the target."""
        return self._has_reached(self.progress)

    def run(self) -> None:
        """Train to the end, in rounds as long as trials and their steps are left."""
        num_steps = self._tuning.trial_steps
        limit = self._engine.work.data.schedule.num_planned_steps
        while not self._is_over() and self._num_trials < self._tuning.max_trials:
            left = limit - self.progress.step
            if left < 2 * num_steps:
                break
            num_steps = self._round(num_steps, left / 2)
        self._train(limit)

    def _is_over(self) -> bool:
        return self.progress.is_over or self.is_reached

    def _round(self, num_steps: int, limit: float) -> int:
        """Do the steps of a round and go on with its winner; returns the next round's steps."""
        start_losses = self._train(num_steps // NUM_POINTS)
        if self._is_over():
            return num_steps
        begun, root = self.progress, self._save("root")
        num_trials = min(self._tuning.max_parallel, self._tuning.max_trials - self._num_trials)
        losses = self._train(num_steps)
        if self._is_over():  # the trials beside it have done as many steps
            self.trial_steps += num_trials * (self.progress.step - begun.step)
            return num_steps
        ended, own = self.progress, self._save("own")
        runs = [TrialRun(0, _points(losses))]
        values = self._proposals(num_trials)
        runs += [self._trial(root, begun.step, *row, num_steps) for row in enumerate(values, 1)]
        own_points = runs[0].points
        assert own_points is not None, "the job has done the steps of its trials"
        outcomes = round_judge(fmean(start_losses), own_points[-1], runs[0], runs[1:], num_steps)
        self.rounds.append(list(zip(({}, *values), (one.end for one in outcomes), strict=True)))
        self.progress = ended
        checkpoint_read(own, self._engine.work.state)
        kept = next((one.number for one in outcomes if one.end is TrialEnd.KEPT), None)
        if kept:
            state_adopt(self._path(kept), self._engine.work.state)
            self.progress = replace(ended, adopted=ended.adopted + 1)
        rows = [(one.verdict or "", one.end) for one in outcomes]
        return next_num_steps(num_steps, limit, rows)

    def _proposals(self, num_trials: int) -> list[dict[str, float]]:
        first = self._num_trials + 1
        self._num_trials += num_trials
        numbers = range(first, first + num_trials)
        return [proposal(self._tuning, self._engine.spec.seed, number) for number in numbers]

    def _trial(
        self, root: Path, step: int, number: int, values: dict[str, float], num_steps: int
    ) -> TrialRun:
        """Do a trial's steps from the common state, and save its last one."""
        kept = {"keeps_order": True, "keeps_rate": True, "keeps_seed": True}
        fork = ForkSpec(sha256="", step=step, values=values, **kept)
        self.progress = fork_read(
            root, self._engine.work.state, replace(self._engine.spec, fork=fork)
        )
        losses = self._steps(num_steps, lambda: self.progress.is_over)
        self.trial_steps += len(losses)
        if self.progress.is_failed:
            return TrialRun(number, None, is_diverged=True)
        self._save(number)
        return TrialRun(number, _points(losses))

    def _train(self, num_steps: int) -> list[float]:
        """Do steps of the job itself, up to its end or the target; returns their losses."""
        return self._steps(num_steps, self._is_over)

    def _steps(self, num_steps: int, is_over: Callable[[], bool]) -> list[float]:
        losses: list[float] = []
        with self._engine.session(self.progress) as session:
            # A validation that is due belongs to the steps before it.
            while not is_over() and (
                len(losses) < num_steps or self.progress.activity is Activity.VALIDATE
            ):
                is_train = self.progress.activity is Activity.TRAIN
                batch = session.batch(self.progress)
                outcome = self._engine.stepper.step(batch, holds_next=lambda: False)
                self.progress = session.advance(
                    self.progress, batch.plan.num_examples, outcome, seconds=0.0
                )
                if is_train:
                    losses.append(outcome.loss)
        return losses

    def _save(self, name: str | int) -> Path:
        path, state = self._path(name), self._engine.work.state
        state_save(path.parent, state, state.capture_whole(), self.progress, path.name)
        return path

    def _path(self, name: str | int) -> Path:
        return self._engine.folder / f"{name}.npz"


def _points(losses: list[float]) -> tuple[float, ...] | None:
    spans = [LossSpan(step, step, loss) for step, loss in enumerate(losses)]
    return loss_points(spans, 0, len(losses))
