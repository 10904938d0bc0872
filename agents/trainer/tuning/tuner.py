"""Tuning of a job in one trainer: follows its searches with branches of the training state.

The leader's proposal travels with every training step and selection pass; the losses are theirs.
So all trainers change their branches after the same ones, to the same values.

The cursor of a job only moves forward: trials do not go back to data that others have seen, and
their steps count. A trial may have a batch size of its own: the cursor has it, beside the branch.
Metric variables are not part of a branch: an epoch's metrics are those of all its steps. A branch
has a selection of its own if the exponent of the selection is tuned. Otherwise an epoch with trials
trains on every example, so the variables of a selection are the same in all branches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from agents.trainer.model.progress import Activity, Progress
from agents.trainer.model.schedule import TrainingSchedule
from agents.trainer.model.state import ModelState
from agents.trainer.selection.rule import mean_loss
from agents.trainer.tuning.proposals import Proposals
from controlplane.core.protocol.tuning import STEP_PASSES, TuningSpec
from controlplane.core.protocol.wire import StopKind
from controlplane.core.selection.cost import ExampleTimes, relative_cost
from controlplane.core.tuning.course import (
    JobSteps,
    TuningCourse,
    course_begin,
    course_pass,
    course_step,
)
from controlplane.core.tuning.search import ROOT, BranchChange


class Tuner:
    """The searches of one job in one trainer.

    Attributes:
        num_values: length of a note with a proposal.
    """

    def __init__(
        self,
        spec: TuningSpec,
        proposals: Proposals,
        state: ModelState,
        schedule: TrainingSchedule,
    ) -> None:
        """Tune a state, which has tunables, of a job with this schedule."""
        assert state.tunables is not None, "a tuned job's state has tunables"
        self.spec = spec
        self.num_values = len(spec.names)
        self._proposals = proposals
        self._state = state
        self._tunables = state.tunables
        self._schedule = schedule

    def begin(self, progress: Progress) -> Progress:
        """Begin a search before the batch at the cursor, if one is due.

        It begins with a training step; if the selection is tuned, with an epoch that selects.
        """
        tuning = progress.tuning or TuningCourse()
        if progress.tuning is None:
            progress = replace(progress, tuning=tuning)
        first = Activity.SELECT if self.spec.tunes_selection else Activity.TRAIN
        if not tuning.is_due or progress.activity is not first or progress.is_over:
            return progress
        tuning = course_begin(
            tuning, self.spec, self._tunables.values, job_steps(self._schedule, progress)
        )
        if tuning.active is not None:
            self._state.branches.fork(ROOT)
        return replace(progress, tuning=tuning)

    def note(self, progress: Progress) -> tuple[float, ...]:
        """Return, as the leader, the proposal that is sent with the step at the cursor."""
        search = None if progress.tuning is None else progress.tuning.active
        if search is None:
            return (0.0,) * self.num_values
        return tuple(self._proposals.next(search).values())

    def after_step(
        self, progress: Progress, loss: float, num_examples: int, note: Sequence[float]
    ) -> Progress:
        """Take a training step's loss and the leader's note; change the branch if it is time."""
        before = progress.tuning
        assert before is not None, "`begin` is called before each step"
        proposal = dict(zip(self.spec.names, note, strict=True))
        tuning, turn = course_step(before, self.spec, loss, proposal, num_examples)
        return self._taken(progress, tuning, turn)

    def after_pass(
        self,
        progress: Progress,
        losses: np.ndarray | None,
        num_candidates: int,
        note: Sequence[float],
    ) -> Progress:
        """Take a selection pass, of a job that tunes its selection, like a training step."""
        before = progress.tuning
        assert before is not None, "`begin` is called before each pass"
        loss = None if losses is None else mean_loss(losses)
        proposal = dict(zip(self.spec.names, note, strict=True)) if note else {}
        tuning, turn = course_pass(before, self.spec, loss, proposal, num_candidates)
        return self._taken(progress, tuning, turn)

    def _taken(
        self, progress: Progress, tuning: TuningCourse, turn: BranchChange | None
    ) -> Progress:
        before = progress.tuning
        if turn is not None:
            assert before is not None, "a search has begun"
            assert before.active is not None, "only a search changes branches"
            self._turn(turn, before.active.running)
        return replace(progress, tuning=tuning)

    @property
    def batch_size(self) -> int | None:
        """Examples of the present branch's steps; None if they are the submitted ones."""
        return self._tunables.batch_size

    def end(self) -> None:
        """Free all branches, at the end of the job."""
        self._state.branches.parked.clear()

    def _turn(self, turn: BranchChange, running: int) -> None:
        state, branches = self._state, self._state.branches
        if turn.parks:
            branches.fork(running)
        if turn.branch != running:
            metrics = state.metric_values()
            branches.switch(turn.branch)
            state.put_metrics(metrics)
            if turn.branch != ROOT:
                branches.free(turn.branch)
        for number in turn.frees:
            branches.free(number)
        if turn.values is not None:
            self._tunables.assign(turn.values)
        if turn.end is not None:
            branches.free(ROOT)


def job_steps(schedule: TrainingSchedule, progress: Progress) -> JobSteps:
    """Count the steps of a job by which its searches are bounded."""
    if schedule.tunes_selection:
        return _selecting_steps(schedule, progress)
    per_epoch = schedule.num_batches(Activity.TRAIN)
    limit, total, size = schedule.stop.limit, schedule.num_planned_steps, schedule.batch_size
    if schedule.stop.kind is StopKind.STEPS:
        left = limit - progress.step
    else:
        left = (limit - progress.epoch) * per_epoch - -(-progress.examples // size)
    return JobSteps(total=total, left=left, per_epoch=per_epoch, step_examples=size)


def _selecting_steps(schedule: TrainingSchedule, progress: Progress) -> JobSteps:
    """Count selection passes, too; of the epochs left these alone.

    Trials may choose very little, and the job may not end in the middle of a search.
    """
    selection, limit = schedule.selection, schedule.stop.limit
    assert selection is not None, "its exponent is tuned"
    per_epoch = schedule.num_batches(Activity.TRAIN)
    share = selection.expected_share
    cost = relative_cost(selection, ExampleTimes(1.0, STEP_PASSES), share)
    num_selecting = selection.num_selecting(range(limit))
    return JobSteps(
        total=math.floor(per_epoch * (limit - num_selecting + num_selecting * cost)),
        left=(limit - progress.epoch) * schedule.num_train // (STEP_PASSES * schedule.batch_size),
        per_epoch=max(1, math.floor(per_epoch * (1.0 / STEP_PASSES + share))),
        step_examples=schedule.batch_size,
    )
