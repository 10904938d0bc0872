"""The search of a tuned job: which trial runs next, for how long, and which one is kept.

A search starts from one state of the job, its *root*, which is branch 0. A trial is a branch that
trains from the root under values of its own; its number is its branch's. The search ends with the
branch of one trial, from which the job goes on, or with the root.

Trials whose steps differ in work are compared after equal work. Their time is counted in it then,
and a step of a trial's time is the work of a step of the job's own batch size. If batch sizes are
tuned the work is the number of examples. If the exponent of a selection is tuned it is counted in
forward passes of an example, as trials differ in the passes before each step.

The rules are MLtuner's (arXiv 1803.07445): the trial time doubles until a trial converges; after
that, every new trial runs that long. Time is counted in steps, not seconds, so that a search has
the same results on any accelerators. Everything here is a function of the losses, of the proposed
values and of the spec.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import zip_longest

from controlplane.core.protocol.tuning import NUM_POINTS, TuningSpec
from controlplane.core.tuning.convergence import (
    Verdict,
    cannot_win,
    convergence,
    is_diverged,
)

#: Branch of the state from which all trials of a search start.
ROOT = 0
#: A search ends when its best trials, so many, have speeds within this ratio.
ALIKE_TRIALS = 5
ALIKE_RATIO = 0.1


class TrialEnd(StrEnum):
    """Why a trial's branch was freed, or kept as the job's own."""

    KEPT = "kept"
    SLOWER = "slower"
    UNSTABLE = "unstable"
    DIVERGED = "diverged"
    CANNOT_WIN = "cannot_win"
    UNFINISHED = "unfinished"  # a job of its own that has not done all of its steps
    OVERTAKEN = "overtaken"  # a job of its own whose parent has reached a lower loss meanwhile


class SearchEnd(StrEnum):
    """Why a search ended."""

    ALIKE = "alike"  # the best trials are equally fast
    TRIALS = "trials"  # there were as many trials as allowed
    SHARE = "share"  # trials took as many steps as allowed
    NONE_CONVERGED = "none_converged"  # the job goes on from the root
    JOB_ENDED = "job_ended"  # in the middle of a trial, which reached the metric to stop at


@dataclass(frozen=True, slots=True)
class Trial:
    """One trial.

    Attributes:
        number: from 1 on, over all searches of the job.
        search: number of its search, from 1.
        values: tunable -> value.
        steps: steps trained so far.
        work: of these steps and, if a selection is tuned, of its passes.
        sums: sums of the losses over equal parts of the trial time; the last one may be partial.
            In a search that counts work, weighted by it.
        points: means of the parts that were over when it was last judged.
        loss: mean loss of all candidates of its newest selection pass, if a selection is tuned.
    """

    number: int
    search: int
    values: dict[str, float]
    steps: int = 0
    work: int = 0
    sums: tuple[float, ...] = ()
    points: tuple[float, ...] = ()
    verdict: Verdict | None = None
    speed: float = 0.0
    end: TrialEnd | None = None
    loss: float | None = None


@dataclass(frozen=True, slots=True)
class Search:
    """A search that is under way.

    Attributes:
        number: from 1 on.
        limit: most steps of a trial.
        max_trials: most trials.
        max_steps: most steps of all trials together.
        shortest: least trial time, a multiple of `NUM_POINTS`.
        trial_steps: present trial time, `shortest` times a power of 2.
        step_work: work that counts as a step; 0: steps are counted, which are all alike.
        start_loss: loss at the root; None until the first step of the first trial, at whose
            start the parameters are the root's.
        is_growing: no trial has converged yet.
        running: number of the trial that trains at present.
        waiting: what the present round still has to do, in this order: trials to extend to the
            trial time, and `ROOT` for a new one.
        best: the fastest trial that converges, once there is one.
        trials: all trials of this search.
    """

    number: int
    limit: int
    max_trials: int
    max_steps: int
    trials: tuple[Trial, ...]
    running: int
    shortest: int = NUM_POINTS
    trial_steps: int = NUM_POINTS
    step_work: int = 0
    start_loss: float | None = None
    is_growing: bool = True
    waiting: tuple[int, ...] = ()
    best: int | None = None

    @property
    def trial(self) -> Trial:
        """The trial that trains at present."""
        return self.by_number(self.running)

    def by_number(self, number: int) -> Trial:
        return self.trials[number - self.trials[0].number]

    @property
    def open_trials(self) -> list[Trial]:
        """The trials whose branches are alive, in the order of their numbers."""
        return [trial for trial in self.trials if trial.end is None]

    @property
    def num_steps(self) -> int:
        """Steps of all trials so far; their work's worth if work is counted."""
        if self.step_work:
            return -(-sum(trial.work for trial in self.trials) // self.step_work)
        return sum(trial.steps for trial in self.trials)

    @property
    def part_work(self) -> int:
        """Steps, or work if it is counted, of a tenth of the trial time."""
        return self.trial_steps // NUM_POINTS * (self.step_work or 1)

    def work_of(self, trial: Trial) -> int:
        """Return the steps of a trial, or its work if that is counted."""
        return trial.work if self.step_work else trial.steps


@dataclass(frozen=True, slots=True)
class BranchChange:
    """Change of branch between two steps.

    Attributes:
        parks: park the present branch under its trial's number; otherwise it is lost unless it
            goes on.
        branch: the branch to go on with, which is not parked any more unless it is the root.
        frees: parked branches that are not needed any more.
        values: values of the new trial; None: those of the branch.
        end: set if the search is over.
    """

    parks: bool
    branch: int
    frees: tuple[int, ...] = ()
    values: Mapping[str, float] | None = None
    end: SearchEnd | None = None


def search_begin(search: Search) -> Search | None:
    """Begin a search whose trial time is at most the given one; None if too few steps fit."""
    most = min(search.limit, search.max_steps)
    if most < search.shortest:
        return None
    steps = search.trial_steps
    while steps > most:
        steps //= 2
    return replace(search, trial_steps=max(steps, search.shortest))


def shorter_trial_steps(search: Search) -> int:
    """Return the trial time with which the next search begins: half of the present one."""
    return max(search.trial_steps // 2, search.shortest)


def search_step(
    search: Search,
    spec: TuningSpec,
    loss: float,
    proposal: Mapping[str, float],
    work: int = 1,
    *,
    is_pass: bool = False,
) -> tuple[Search, BranchChange | None]:
    """Take the loss of a step of the running trial; returns what changes after it, if anything.

    Args:
        loss: nan or infinite if the trial has diverged.
        proposal: values of the next trial, should one begin after this step.
        work: of the step, at most `shortest / NUM_POINTS` steps' worth.
        is_pass: a selection pass, whose loss the steps up to the next pass have.
    """
    before = search.work_of(search.trial) // search.part_work
    search = _with_loss(search, loss, work, is_pass=is_pass)
    assert search.start_loss is not None, "the first step sets it"
    trial, length = search.trial, search.part_work
    num_points = search.work_of(trial) // length
    points = tuple(total / length for total in trial.sums[:num_points])
    trial = replace(trial, points=points)
    if not math.isfinite(loss) or is_diverged(search.start_loss, points):
        trial = replace(trial, verdict=Verdict.DIVERGED, end=TrialEnd.DIVERGED)
    elif num_points == NUM_POINTS:
        judged = convergence(search.start_loss, points, search.trial_steps)
        trial = replace(trial, verdict=judged.verdict, speed=judged.speed)
    elif num_points > before and _cannot_win(search, trial):
        trial = replace(trial, end=TrialEnd.CANNOT_WIN)
    else:
        return search, None
    after = _with_trial(search, trial)
    advance = _after_growing_trial if search.is_growing else _after_compared_trial
    return advance(search, after, spec, proposal)


def _with_loss(search: Search, loss: float, work: int, *, is_pass: bool) -> Search:
    """Add a step or a pass to the running trial; its loss counts in the parts of its work."""
    trial, length = search.trial, search.part_work
    value = loss if math.isfinite(loss) else 0.0  # the trial ends with this step
    if search.start_loss is None:
        search = replace(search, start_loss=value)
    sums, done = list(trial.sums), search.work_of(trial)
    trial = replace(trial, steps=trial.steps + (not is_pass), work=trial.work + work)
    if is_pass:
        trial = replace(trial, loss=value)
    while (left := search.work_of(trial) - done) > 0:
        part, place = divmod(done, length)
        if part == len(sums):
            sums.append(0.0)
        taken = min(left, length - place)
        sums[part] += value * taken
        done += taken
    return _with_trial(search, replace(trial, sums=tuple(sums)))


def _cannot_win(search: Search, trial: Trial) -> bool:
    if search.best is None or search.start_loss is None:
        return False
    # Equally fast trials, which end a search, are not stopped early.
    speed = (1.0 - ALIKE_RATIO) * search.by_number(search.best).speed
    return cannot_win(search.start_loss, trial.points, search.trial_steps, speed)


def _after_compared_trial(
    before: Search, search: Search, _spec: TuningSpec, proposal: Mapping[str, float]
) -> tuple[Search, BranchChange]:
    """Compare a trial with the best one, then go on with a new one or end the search."""
    trial = search.trial
    assert search.best is not None, "a search that compares has a best trial"
    best = search.by_number(search.best)
    if trial.end is None and trial.verdict is not Verdict.CONVERGING:
        search = _ended(search, trial, TrialEnd.UNSTABLE)
    elif trial.end is None and trial.speed <= best.speed:
        search = _ended(search, trial, TrialEnd.SLOWER)
    elif trial.end is None:
        search = replace(_ended(search, best, TrialEnd.SLOWER), best=trial.number)
    return _new_or_end(before, search, proposal)


def _after_growing_trial(
    before: Search, search: Search, spec: TuningSpec, proposal: Mapping[str, float]
) -> tuple[Search, BranchChange]:
    """Go on while no trial has converged.

    A round extends the trials that are alive to the trial time, then tries new values. If none has
    converged by its end, the time doubles; where it cannot, the trials alive are given up.
    """
    while search.waiting:
        number, search = search.waiting[0], replace(search, waiting=search.waiting[1:])
        if number == ROOT and _end_of(search) is None:
            return _new_trial(before, search, proposal)
        if number != ROOT and search.num_steps + search.trial_steps // 2 <= search.max_steps:
            search = replace(search, running=number)
            return search, _turn(before, search, number)
    alive = search.open_trials
    converging = [trial for trial in alive if trial.verdict is Verdict.CONVERGING]
    if converging:
        best = max(converging, key=lambda trial: (trial.speed, -trial.number))
        for trial in alive:
            is_slower = trial.verdict is Verdict.CONVERGING
            if trial is not best:
                end = TrialEnd.SLOWER if is_slower else TrialEnd.UNSTABLE
                search = _ended(search, trial, end)
        search = replace(search, is_growing=False, best=best.number)
        return _new_or_end(before, search, proposal)
    can_double = (
        2 * search.trial_steps <= search.limit
        and search.num_steps + search.trial_steps <= search.max_steps
    )
    if alive and can_double:
        return _after_growing_trial(before, _doubled(search, spec), spec, proposal)
    for trial in alive:
        search = _ended(search, trial, TrialEnd.UNSTABLE)
    if _end_of(search) is None:
        return _new_trial(before, search, proposal)
    return search, _turn(before, search, ROOT, end=SearchEnd.NONE_CONVERGED)


def _doubled(search: Search, spec: TuningSpec) -> Search:
    """Double the trial time; the slowest trials end if too many are alive."""
    alive = sorted(search.open_trials, key=lambda trial: (-trial.speed, trial.number))
    for trial in alive[spec.max_branches - 1 :]:
        search = _ended(search, trial, TrialEnd.UNSTABLE)
    for trial in search.open_trials:
        pairs = zip_longest(trial.sums[::2], trial.sums[1::2], fillvalue=0.0)
        search = _with_trial(search, replace(trial, sums=tuple(a + b for a, b in pairs)))
    # The running one first: it goes on without a change of branch.
    kept = sorted(
        (trial.number for trial in search.open_trials),
        key=lambda number: (number != search.running, number),
    )
    return replace(search, trial_steps=2 * search.trial_steps, waiting=(*kept, ROOT))


def _new_or_end(
    before: Search, search: Search, proposal: Mapping[str, float]
) -> tuple[Search, BranchChange]:
    end = _end_of(search)
    if end is None:
        return _new_trial(before, search, proposal)
    assert search.best is not None, "a search that compares has a best trial"
    search = _ended(search, search.by_number(search.best), TrialEnd.KEPT)
    return search, _turn(before, search, search.best or ROOT, end=end)


def _new_trial(
    before: Search, search: Search, proposal: Mapping[str, float]
) -> tuple[Search, BranchChange]:
    number = search.trials[-1].number + 1
    trial = Trial(number, search.number, dict(proposal))
    search = replace(search, trials=(*search.trials, trial), running=number)
    return search, _turn(before, search, ROOT, values=trial.values)


def _end_of(search: Search) -> SearchEnd | None:
    """Return why the search has no further trial, if so."""
    speeds = sorted(
        (trial.speed for trial in search.trials if trial.verdict is Verdict.CONVERGING),
        reverse=True,
    )[:ALIKE_TRIALS]
    if len(speeds) == ALIKE_TRIALS and speeds[-1] >= (1.0 - ALIKE_RATIO) * speeds[0]:
        return SearchEnd.ALIKE
    if len(search.trials) >= search.max_trials:
        return SearchEnd.TRIALS
    if search.num_steps + search.trial_steps > search.max_steps:
        return SearchEnd.SHARE
    return None


def _turn(
    before: Search,
    after: Search,
    branch: int,
    values: Mapping[str, float] | None = None,
    end: SearchEnd | None = None,
) -> BranchChange:
    """Describe the change from the running trial of `before` to `branch`."""
    alive = {trial.number for trial in after.open_trials}
    parked = {trial.number for trial in before.open_trials} - {before.running}
    return BranchChange(
        parks=before.running in alive and branch != before.running,
        branch=branch,
        frees=tuple(sorted(parked - alive - {branch})),
        values=values,
        end=end,
    )


def _ended(search: Search, trial: Trial, end: TrialEnd) -> Search:
    return _with_trial(search, replace(trial, end=end, sums=()))


def _with_trial(search: Search, trial: Trial) -> Search:
    position = trial.number - search.trials[0].number
    trials = (*search.trials[:position], trial, *search.trials[position + 1 :])
    return replace(search, trials=trials)
