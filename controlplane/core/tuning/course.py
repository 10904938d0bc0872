"""Course of a tuned job: when it searches, how much that may cost, what it remembers of it.

It is part of the job's progress: a function of the losses, of the proposals and of the spec.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from controlplane.core.protocol.tuning import NUM_POINTS, STEP_PASSES, TuningSpec
from controlplane.core.tuning.search import (
    ROOT,
    BranchChange,
    Search,
    SearchEnd,
    Trial,
    TrialEnd,
    search_begin,
    search_step,
    shorter_trial_steps,
)

#: Longest trial, in shortest ones, of data with few steps per epoch; otherwise it is an epoch.
SHORTEST_LIMIT = 4

#: Epochs without a better objective after which the job searches again, and gives up tuning.
RETUNE_EPOCHS = 4
DONE_EPOCHS = 5


@dataclass(frozen=True, slots=True)
class Plateau:
    """The objective's best value so far, and the epochs since; `is_done` ends all tuning.

    At a plateau of its objective a job searches again (MLtuner, arXiv 1803.07445).
    """

    best: float | None = None
    epochs: int = 0
    is_done: bool = False

    @property
    def is_due(self) -> bool:
        """Return whether the job should search again before its next epoch."""
        return not self.is_done and self.epochs == RETUNE_EPOCHS

    def after_epoch(self, value: float, *, higher_is_better: bool) -> Plateau:
        """Return the state after an epoch whose objective is `value`; nan is never better."""
        is_better = math.isfinite(value) and (
            self.best is None or (value > self.best if higher_is_better else value < self.best)
        )
        if is_better:
            return replace(self, best=value, epochs=0)
        epochs = self.epochs + 1
        return replace(self, epochs=epochs, is_done=self.is_done or epochs >= DONE_EPOCHS)

    def after_search(self, *, has_winner: bool) -> Plateau:
        """Return the state after a search: without a trial that converges, tuning is over."""
        return replace(self, is_done=self.is_done or not has_winner)


@dataclass(frozen=True, slots=True)
class TuningCourse:
    """Tuning of a job so far.

    Attributes:
        search: the newest search, which runs unless `end` is set; None before the first one.
        end: why it ended.
        is_due: a search begins before the next training step.
        plateau: the objective of the epochs in which nothing was tried.
        tuned_steps: steps of the searches that have ended.
        losses: of the newest steps outside of searches, at most `NUM_POINTS`; if a selection is
            tuned, of the newest passes.
        has_tried: a search ran or was due in the epoch under way.
    """

    search: Search | None = None
    end: SearchEnd | None = None
    is_due: bool = True
    plateau: Plateau = field(default_factory=Plateau)
    tuned_steps: int = 0
    losses: tuple[float, ...] = ()
    has_tried: bool = False

    @property
    def active(self) -> Search | None:
        """The search that is under way."""
        return self.search if self.end is None else None

    @property
    def is_searching(self) -> bool:
        """True in an epoch in which a search runs, or will from its first step on."""
        return self.is_due or self.has_tried

    @property
    def parked(self) -> tuple[int, ...]:
        """Numbers of the branches beside the present one, ascending."""
        search = self.active
        if search is None:
            return ()
        alive = [trial.number for trial in search.open_trials if trial.number != search.running]
        return (ROOT, *alive)

    @property
    def num_steps(self) -> int:
        """Steps of all trials so far."""
        search = self.active
        return self.tuned_steps + (0 if search is None else search.num_steps)


@dataclass(frozen=True, slots=True)
class JobSteps:
    """Size of a job in steps of its own batch size: planned ones, those left, those of an epoch.

    If a selection is tuned its passes are counted, too, in the steps that are as much work.

    Attributes:
        step_examples: its own batch size.
    """

    total: int
    left: int
    per_epoch: int
    step_examples: int = 1


def course_begin(
    course: TuningCourse, spec: TuningSpec, values: Mapping[str, float], plan: JobSteps
) -> TuningCourse:
    """Begin the search that is due, from the present values; without steps for it, end tuning."""
    assert course.is_due, "the caller has asked"
    course = replace(course, is_due=False, has_tried=True)
    old = course.search
    share = math.floor(spec.max_share * plan.total) - course.tuned_steps
    # A tenth of a trial holds the largest batch; the last step of a trial may go as far beyond it.
    largest = -(-spec.largest_batch_size // plan.step_examples) + spec.tunes_selection
    shortest = NUM_POINTS * max(1, largest)
    first = 1 if old is None else old.trials[-1].number + 1
    number = 1 if old is None else old.number + 1
    start = math.fsum(course.losses) / len(course.losses) if course.losses else None
    wanted = Search(
        number=number,
        limit=max(plan.per_epoch, SHORTEST_LIMIT * shortest),
        max_trials=spec.max_trials if old is None else len(old.trials),
        max_steps=min(share, plan.left) - largest,
        trials=(Trial(first, number, dict(values)),),
        running=first,
        shortest=shortest,
        trial_steps=shortest if old is None else shorter_trial_steps(old),
        step_work=_step_work(spec, plan.step_examples),
        start_loss=start,
    )
    search = search_begin(wanted)
    if search is None:
        return replace(course, plateau=replace(course.plateau, is_done=True))
    return replace(course, search=search, end=None, losses=())


def course_step(
    course: TuningCourse,
    spec: TuningSpec,
    loss: float,
    proposal: Mapping[str, float],
    num_examples: int = 1,
) -> tuple[TuningCourse, BranchChange | None]:
    """Take the loss of a training step; returns what changes after it, if anything.

    Trials that differ in their selection are told by the losses of their passes; that of a step is
    one of chosen examples, and only ends a trial if it is not finite.

    Args:
        loss: nan or infinite if the running trial has diverged.
        proposal: values of the next trial, should one begin after this step.
    """
    search = course.active
    if not spec.tunes_selection:
        if search is None:
            return _with_known(course, loss), None
        return _searched(course, *search_step(search, spec, loss, proposal, num_examples))
    if search is None:
        return course, None
    if math.isfinite(loss):
        assert search.trial.loss is not None, "a trial begins with a pass"
        loss = search.trial.loss
    return _searched(course, *search_step(search, spec, loss, proposal, num_examples * STEP_PASSES))


def course_pass(
    course: TuningCourse,
    spec: TuningSpec,
    loss: float | None,
    proposal: Mapping[str, float],
    num_candidates: int,
) -> tuple[TuningCourse, BranchChange | None]:
    """Take a selection pass of a job that tunes its selection; returns what changes after it.

    Args:
        loss: mean of all candidates, which does not depend on those that are chosen; None if it
            was not computed, which it is in a search.
        proposal: values of the next trial, should one begin after this pass.
    """
    search = course.active
    if search is None:
        return replace(course, losses=()) if loss is None else _with_known(course, loss), None
    assert loss is not None, "a pass of a search computes losses"
    return _searched(
        course, *search_step(search, spec, loss, proposal, num_candidates, is_pass=True)
    )


def course_epoch(course: TuningCourse, spec: TuningSpec, logs: Mapping[str, float]) -> TuningCourse:
    """Take the logs of an epoch; those of epochs with trials say nothing about a plateau."""
    if course.has_tried:
        return replace(course, has_tried=course.active is not None)
    if course.is_due:  # it waits for an epoch that selects
        return course
    value = logs.get(spec.objective, math.nan)
    plateau = course.plateau.after_epoch(value, higher_is_better=spec.higher_is_better)
    return replace(course, plateau=plateau, is_due=spec.retune and plateau.is_due)


def course_stop(course: TuningCourse) -> TuningCourse:
    """End the search under way, if there is one, as its job has ended."""
    search = course.active
    return course if search is None else _ended(course, search, SearchEnd.JOB_ENDED)


def trials_turned(before: TuningCourse | None, after: TuningCourse | None) -> tuple[Trial, ...]:
    """List the trials that a step has begun, ended or stopped for another one."""
    if before is None or after is None or before.active is None or after.search is None:
        return ()
    known = {trial.number: trial for trial in before.active.trials}
    is_turn = before.active.running != after.search.running or after.end is not None
    return tuple(
        trial
        for trial in after.search.trials
        if (old := known.get(trial.number)) is None
        or old.end != trial.end
        or (is_turn and old != trial)
    )


def _step_work(spec: TuningSpec, step_examples: int) -> int:
    """Return the work of a step of the job's own batch size; 0 if steps are counted."""
    if spec.tunes_selection:
        return STEP_PASSES * step_examples
    return 0 if spec.batch_size is None else step_examples


def _with_known(course: TuningCourse, loss: float) -> TuningCourse:
    known = (*course.losses, loss) if math.isfinite(loss) else course.losses
    return replace(course, losses=known[-NUM_POINTS:])


def _searched(
    course: TuningCourse, search: Search, turn: BranchChange | None
) -> tuple[TuningCourse, BranchChange | None]:
    course = replace(course, search=search)
    if turn is None or turn.end is None:
        return course, turn
    return _ended(course, search, turn.end), turn


def _ended(course: TuningCourse, search: Search, end: SearchEnd) -> TuningCourse:
    has_winner = any(trial.end is TrialEnd.KEPT for trial in search.trials)
    return replace(
        course,
        end=end,
        tuned_steps=course.tuned_steps + search.num_steps,
        plateau=course.plateau.after_search(has_winner=has_winner),
    )
