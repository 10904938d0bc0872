"""Ends of rounds of parallel tuning: the verdict, the winner's state, or giving up."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator, Sequence

from django.db import transaction

from controlplane.core.protocol.nonfinite import NONFINITE_CODES
from controlplane.core.protocol.tuning import NUM_POINTS
from controlplane.core.tuning.rounds import (
    PATIENCE,
    PATIENCE_S,
    LossSpan,
    TrialOutcome,
    TrialRun,
    loss_points,
    round_judge,
)
from controlplane.core.tuning.search import TrialEnd
from controlplane.core.values.lifecycle import ENDED_JOB_STATUSES, JobStatus
from jobs.exceptions import ConflictError, DiskFullError, TooLargeError
from jobs.models import Artifact, Event, Job, StepReport, Trial, TuningRound
from jobs.models.resizes import TUNING_ACTOR
from jobs.selectors.forks import ADOPTED_FILE, CHECKPOINT, checkpoints_of
from jobs.selectors.tuning import values_text
from jobs.services.lifecycle.events import event_add
from jobs.services.lifecycle.transitions import job_lock
from jobs.services.scheduling.adoptions import adoption_begin
from jobs.services.submission.forks import state_copy
from jobs.services.submission.trial_jobs import trial_job_end


def round_end(job: Job, found: TuningRound, now: datetime.datetime) -> set[int]:
    """Judge a round whose trials are done, or have had their time."""
    start = found.start_step or 0
    trials = list(Trial.objects.filter(job=job, search=found.number).select_related("child"))
    own = next(trial for trial in trials if trial.child is None)
    others = [trial for trial in trials if trial.child is not None]
    waited_s = (now - found.begun_at).total_seconds()
    is_late = job.step >= start + PATIENCE * found.num_steps and waited_s >= PATIENCE_S
    is_open = any(_child(one).status not in ENDED_JOB_STATUSES for one in others)
    if job.step < start + found.num_steps or (is_open and not is_late):
        return set()
    own_points = loss_points(_spans(job, found), start + 1, found.num_steps)
    if own_points is None and not is_late:
        return set()  # a report of its steps is still to come
    runs = [_run(trial, found) for trial in others]
    present_loss = recent_loss(job, job.step, found.num_steps // NUM_POINTS)
    outcomes = round_judge(
        found.start_loss or 0.0,
        math.inf if present_loss is None else present_loss,
        TrialRun(own.number, own_points),
        runs,
        found.num_steps,
    )
    with transaction.atomic():
        locked = job_lock(job.pk)
        is_first = TuningRound.objects.filter(id=found.pk, ended_at=None)
        if not is_first.update(ended_at=now, outcome="judged"):
            return set()
        points = {run.number: run.points for run in runs} | {own.number: own_points}
        for outcome in outcomes:
            _outcome_write(job, outcome, points[outcome.number], found, now)
        for trial in others:
            trial_job_end(_child(trial).pk, now, f"Job {job.pk} waits for its trials no longer.")
        kept = next((one for one in outcomes if one.end is TrialEnd.KEPT), None)
        winner = next((one for one in others if kept and one.number == kept.number), None)
        _tell(locked, found, outcomes, winner, now)
        if winner is not None and not _adopt(locked, winner, now):
            TuningRound.objects.filter(id=found.pk).update(outcome="storage")
    return {job.pk, *(_child(trial).pk for trial in others)}


def recent_loss(job: Job, step: int, num_steps: int) -> float | None:
    """Return the mean loss of a job's last steps up to a step; None if it is not finite.

    Steps before the job adopted a trial's state do not count: their losses are those of another.
    """
    adopted = Event.objects.filter(job=job, kind="adopted").order_by("-id")
    adopted_step = adopted.values_list("data__step", flat=True).first() or 0
    num_steps = min(num_steps, step - adopted_step)
    reports = StepReport.objects.filter(job=job, last_step__gt=step - num_steps)
    rows = reports.filter(first_step__lte=step).values_list("first_step", "last_step", "loss")
    total, count = 0.0, 0
    for first, last, loss in rows:
        number = min(last, step) - max(first, step - num_steps + 1) + 1
        total += math.nan if loss is None else number * loss
        count += number
    return total / count if count and math.isfinite(total) else None


def _child(trial: Trial) -> Job:
    assert trial.child is not None, "it is a job of its own"
    return trial.child


def _run(trial: Trial, found: TuningRound) -> TrialRun:
    """Read the losses of a trial; without its last state it cannot be kept."""
    child, start = _child(trial), found.start_step or 0
    if child.status == JobStatus.FAILED and child.status_code in NONFINITE_CODES:
        return TrialRun(trial.number, None, is_diverged=True)
    has_state = checkpoints_of(child).filter(step=start + found.num_steps).exists()
    if child.status != JobStatus.FINISHED or not has_state:
        return TrialRun(trial.number, None)
    points = loss_points(_spans(child, found), start + 1, found.num_steps)
    return TrialRun(trial.number, points)


def _spans(job: Job, found: TuningRound) -> Iterator[LossSpan]:
    """Yield the losses of the steps that are judged; a job may have gone on far beyond them."""
    start = found.start_step or 0
    rows = StepReport.objects.filter(
        job=job, last_step__gt=start, first_step__lte=start + found.num_steps
    ).order_by("first_step")
    for first, last, loss in rows.values_list("first_step", "last_step", "loss"):
        yield LossSpan(first, last, loss)


def _outcome_write(
    job: Job,
    outcome: TrialOutcome,
    points: Sequence[float] | None,
    found: TuningRound,
    now: datetime.datetime,
) -> None:
    losses = [point if math.isfinite(point) else None for point in points or ()]
    Trial.objects.filter(job=job, number=outcome.number).update(
        steps=found.num_steps if points is not None else 0,
        losses=losses,
        verdict=outcome.verdict or "",
        speed=outcome.speed,
        end=outcome.end,
        is_running=False,
        at=now,
    )


def _tell(
    job: Job,
    found: TuningRound,
    outcomes: Sequence[TrialOutcome],
    winner: Trial | None,
    now: datetime.datetime,
) -> None:
    data = {"round": found.number}
    if winner is not None:
        text = f"Round {found.number} keeps trial {winner.number}: {values_text(winner.values)}"
        values = {"values": winner.values, "trial": winner.number, "job": winner.child_id}
        event_add("tuned", text, now=now, job=job, actor=TUNING_ACTOR, data=data | values)
        return
    why = "no loss fell clearly"
    if any(one.end is TrialEnd.OVERTAKEN for one in outcomes):
        why = "it reached a lower loss than the fastest trial in the meantime"
    elif any(one.end is TrialEnd.KEPT for one in outcomes):
        num_done = sum(one.verdict is not None for one in outcomes) - 1
        others = "one other trial" if num_done == 1 else f"{num_done} other trials"
        why = f"its loss fell fastest, with {others} done"
    text = f"Round {found.number}: the job keeps its values, as {why}"
    event_add("round_ended", text, now=now, job=job, actor=TUNING_ACTOR, data=data)


def _adopt(job: Job, winner: Trial, now: datetime.datetime) -> bool:
    """Store the winner's last state for the job to go on with; False if there is no room."""
    state = Artifact.objects.get(job=_child(winner), name=CHECKPOINT)
    try:
        state_copy(job, state, ADOPTED_FILE, now)
    except (ConflictError, TooLargeError, DiskFullError) as error:
        text = f"The state of trial {winner.number} was not adopted: {error.detail}"
        event_add("adoption_failed", text, now=now, job=job, actor=TUNING_ACTOR)
        return False
    adoption_begin(job, winner.search, winner.number, state.sha256, now)
    return True


def round_give_up(
    job: Job, found: TuningRound, outcome: str, text: str, now: datetime.datetime
) -> set[int]:
    """End a round without a verdict, and its trials."""
    with transaction.atomic():
        locked = job_lock(job.pk)
        is_first = TuningRound.objects.filter(id=found.pk, ended_at=None)
        if not is_first.update(ended_at=now, outcome=outcome):
            return set()
        trials = Trial.objects.filter(job=job, search=found.number)
        children = [pk for pk in trials.values_list("child", flat=True) if pk is not None]
        for child_id in children:
            trial_job_end(child_id, now, f"{text}: job {job.pk}.")
        trials.update(is_running=False, end=TrialEnd.UNFINISHED, at=now)
        message = f"Round {found.number} is given up: {text}"
        event_add("round_ended", message, now=now, job=locked, actor=TUNING_ACTOR)
    return {job.pk, *children}
