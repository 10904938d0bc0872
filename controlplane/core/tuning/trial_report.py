"""The report of a trial to the control plane."""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.core.tuning.convergence import Verdict
from controlplane.core.tuning.course import TuningCourse
from controlplane.core.tuning.search import SearchEnd, Trial, TrialEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialReport:
    """Data of a TRIAL report; its repeats are harmless.

    Attributes:
        number: from 1 on, over all searches of the job.
        step: of the job, after which it is written.
        steps: of the trial.
        start_loss: loss of the state that it started from; None before the first step.
        losses: means over tenths of the trial time, as far as they are known.
        speed: fall of the loss per step, less its noise.
        search_end: why its search ended, if it has.
    """

    number: int
    search: int
    values: dict[str, float]
    step: int
    steps: int
    start_loss: float | None = None
    losses: tuple[float, ...] = ()
    verdict: Verdict | None = None
    speed: float = 0.0
    end: TrialEnd | None = None
    is_running: bool = False
    search_end: SearchEnd | None = None


def trial_report(course: TuningCourse, trial: Trial, step: int) -> TrialReport:
    """Describe a trial of the newest search after a step of the job."""
    search = course.search
    assert search is not None, "the trial is of this search"
    return TrialReport(
        number=trial.number,
        search=trial.search,
        values=trial.values,
        step=step,
        steps=trial.steps,
        start_loss=search.start_loss,
        losses=trial.points,
        verdict=trial.verdict,
        speed=trial.speed,
        end=trial.end,
        is_running=course.end is None and search.running == trial.number,
        search_end=course.end,
    )
