"""Rounds of parallel tuning: trials beside a job on idle accelerators, judged together.

A round begins while accelerators are idle: the job saves its state, and trials start from it as
jobs of their own (`trial_jobs`), while the job, which is a trial itself, trains on. When all have
done their steps, or the job has done `PATIENCE` times as many, the round is judged by
`core.tuning.rounds`; if another trial is kept the job adopts its state (`scheduling.adoptions`).
A job that ends or pauses takes its trials with it. Everything here may run twice: each step is
made under the job's lock, if the open round is still as it was.
"""

from __future__ import annotations

import datetime
import math
import random
from collections.abc import Collection

from django.db import transaction
from django.db.models import Count, F, Q, Sum

from controlplane.core.protocol.tuning import NUM_POINTS, TuningSpec
from controlplane.core.protocol.wire import StopKind
from controlplane.core.tuning.rounds import next_num_steps, proposal
from controlplane.core.tuning.search import TrialEnd
from controlplane.core.values.lifecycle import (
    ENDED_JOB_STATUSES,
    HOLDING_JOB_STATUSES,
    JobStatus,
)
from jobs.exceptions import ConflictError, DiskFullError, TooLargeError, errors_contained
from jobs.models import Artifact, Job, StepReport, Sweep, Trial, TuningRound
from jobs.models.resizes import TUNING_ACTOR
from jobs.selectors.cluster import accelerators_open
from jobs.selectors.forks import checkpoints_of
from jobs.services.lifecycle.artifacts import new_files_undone
from jobs.services.lifecycle.events import event_add
from jobs.services.lifecycle.transitions import job_lock
from jobs.services.scheduling.adoptions import ASK_AGAIN_S, adoption_advance
from jobs.services.submission.forks import state_ask
from jobs.services.submission.trial_jobs import trial_files_delete, trial_job_make
from jobs.services.submission.tuning_verdicts import recent_loss, round_end, round_give_up

#: Time without rounds after one whose trials did not fit into the owner's storage.
STORAGE_PAUSE = datetime.timedelta(minutes=10)
#: Jobs that are advanced in one run of the task.
_AT_ONCE = 200


def tuning_advance(now: datetime.datetime) -> set[int]:
    """Bring the parallel tuning of all jobs a step further; return changed jobs."""
    changed = trial_files_delete(now)
    # Only of running jobs: others, of which one user may have many, have nothing to do here.
    can_begin = Q(status=JobStatus.RUNNING, tuning__parallel=True, trial_of=None)
    has_open = Q(pk__in=TuningRound.objects.filter(ended_at=None).values("job"))
    jobs = Job.objects.filter(can_begin | has_open | ~Q(adoption={}))
    ids = list(jobs.values_list("pk", flat=True))
    # Any of very many: those that can do nothing now would keep the same others waiting for ever.
    ids = random.sample(ids, min(len(ids), _AT_ONCE))
    for job in Job.objects.filter(id__in=ids).select_related("owner").order_by("id"):
        with errors_contained(job.pk, "does not go on with its tuning"):
            changed |= _advance(job, now)
    return changed


def _advance(job: Job, now: datetime.datetime) -> set[int]:
    found = TuningRound.objects.filter(job=job, ended_at=None).first()
    if found is None and job.adoption:
        return {job.pk} if adoption_advance(job.pk, now) else set()
    if found is None:
        return _begin(job, now)
    if job.status in (*ENDED_JOB_STATUSES, JobStatus.PAUSED) or job.pause_requested:
        verb = "ended" if job.status in ENDED_JOB_STATUSES else "was paused"
        return round_give_up(job, found, "job_over", f"Its job {verb}", now)
    if found.start_step is None:
        return _start(job, found, now)
    return round_end(job, found, now)


# ---- begin ---------------------------------------------------------------------------------------


def _begin(job: Job, now: datetime.datetime) -> set[int]:
    """Begin a round if accelerators are idle, trials are left, and so are steps."""
    spec = job.tuning_spec
    assert spec is not None, "the job is tuned"
    last = TuningRound.objects.filter(job=job).order_by("-number").first()
    if job.status != JobStatus.RUNNING or job.pause_requested or not job.step:
        return set()
    if last is not None and last.outcome == "storage" and now < last.begun_at + STORAGE_PAUSE:
        return set()
    num_steps = spec.trial_steps if last is None else _next_num_steps(job, last)
    if _steps_left(job) < 2 * num_steps:
        return set()
    num_left = spec.max_trials - job.trial_jobs.count()
    num_trials = min(spec.max_parallel, num_left, num_idle(job, now) // job.min_accelerators)
    if num_trials < 1:
        return set()
    with transaction.atomic():
        locked = job_lock(job.pk)
        is_taken = TuningRound.objects.filter(job=job, ended_at=None).exists()
        if locked.status != JobStatus.RUNNING or is_taken:
            return set()
        TuningRound.objects.create(
            job=locked,
            number=1 if last is None else last.number + 1,
            num_steps=num_steps,
            num_trials=num_trials,
            begun_at=now,
        )
        state_ask(locked, now)
    return {job.pk}


def num_idle(job: Job, now: datetime.datetime) -> int:
    """Count the accelerators that a job accepts and that neither are held nor about to be."""
    free = accelerators_open(now).exclude(allocations__released_at=None, allocations__isnull=False)
    if job.accepted_kinds:
        free = free.filter(kind__in=job.accepted_kinds)
    kinds = list(free.order_by().values_list("kind", flat=True))
    promised = TuningRound.objects.filter(ended_at=None, start_step=None).aggregate(
        total=Sum(F("num_trials") * F("job__min_accelerators"), default=0)
    )["total"]
    return max(len(kinds) - _num_needed(kinds) - promised, 0)


def _num_needed(free_kinds: Collection[str]) -> int:
    """Count the accelerators that waiting jobs could take of free ones of these kinds."""
    waiting = Job.objects.filter(
        status=JobStatus.PENDING, pause_requested=False, min_accelerators__lte=len(free_kinds)
    )
    holding = Count("jobs", filter=Q(jobs__status__in=HOLDING_JOB_STATUSES))
    sweeps = Sweep.objects.filter(pk__in=waiting.values("sweep")).annotate(num_holding=holding)
    starts = {row.pk: 0 if row.is_paused else row.max_running - row.num_holding for row in sweeps}
    rows = waiting.order_by("-min_accelerators")
    needed = 0
    for number, kinds, sweep_id in rows.values_list("min_accelerators", "accepted_kinds", "sweep"):
        if kinds and set(kinds).isdisjoint(free_kinds):
            continue
        if sweep_id is not None:
            if starts.get(sweep_id, 0) <= 0:
                continue
            starts[sweep_id] -= 1
        needed += number
    return needed


def _next_num_steps(job: Job, last: TuningRound) -> int:
    if last.outcome != "judged":
        return last.num_steps
    outcomes = Trial.objects.filter(job=job, search=last.number).values_list("verdict", "end")
    return next_num_steps(last.num_steps, _steps_left(job) / 2, outcomes)


def _steps_left(job: Job) -> float:
    """Return the steps until the job ends, at most; infinite while unknown."""
    if job.stop_kind == StopKind.STEPS:
        return job.stop_limit - job.step
    per_epoch = job.facts.get("steps_per_epoch")
    return math.inf if not per_epoch else job.stop_limit * per_epoch - job.step


# ---- start ---------------------------------------------------------------------------------------


def _start(job: Job, found: TuningRound, now: datetime.datetime) -> set[int]:
    """Start the trials of a round once the job has saved its state; ask again if it does not."""
    saved = checkpoints_of(job).filter(at__gte=found.begun_at).order_by("step").first()
    reports = StepReport.objects.filter(job=job)
    if saved is None or not reports.filter(last_step__gte=saved.step or 0).exists():
        if now.timestamp() - job.save_request / 1000 < ASK_AGAIN_S:
            return set()
        state_ask(job, now)
        return {job.pk}
    spec, step = job.tuning_spec, saved.step or 0
    assert spec is not None, "the job is tuned"
    start_loss = recent_loss(job, step, found.num_steps // NUM_POINTS)
    if start_loss is None:
        return round_give_up(job, found, "no_loss", "The loss of its job is not finite", now)
    try:
        with transaction.atomic():
            locked = job_lock(job.pk)
            is_first = TuningRound.objects.filter(id=found.pk, ended_at=None, start_step=None)
            if not is_first.update(start_step=step, start_loss=start_loss):
                return set()
            found.start_step, found.start_loss = step, start_loss
            changed = _trials_make(locked, found, spec, saved, now)
    except (ConflictError, TooLargeError, DiskFullError) as error:
        outcome = "state_gone" if isinstance(error, ConflictError) else "storage"
        return round_give_up(job, found, outcome, error.detail, now)
    return changed


def _trials_make(
    job: Job, found: TuningRound, spec: TuningSpec, saved: Artifact, now: datetime.datetime
) -> set[int]:
    numbers = Trial.objects.filter(job=job).order_by("-number").values_list("number", flat=True)
    first, num_before = (numbers.first() or 0) + 1, job.trial_jobs.count()
    # The winner of the last round, if the job has overtaken it, is tried again, with more steps.
    overtaken = Trial.objects.filter(job=job, search=found.number - 1, end=TrialEnd.OVERTAKEN)
    again = list(overtaken.order_by("-speed").values_list("values", flat=True)[:1])
    _trial_add(job, found, first, {}, None, now)
    children: list[Job] = []
    with new_files_undone(children):
        for place in range(1, found.num_trials + 1):
            values = again.pop() if again else proposal(spec, job.seed, num_before + place)
            child = trial_job_make(job, saved, first + place, found.num_steps, values, now)
            children.append(child)
            _trial_add(job, found, first + place, values, child, now)
    ids = sorted(child.pk for child in children)
    trials = "one trial" if found.num_trials == 1 else f"{found.num_trials} trials"
    text = (
        f"Round {found.number}: {trials} of {found.num_steps:,} steps, from step "
        f"{found.start_step:,} on, on idle accelerators"
    )
    data = {"round": found.number, "trials": ids, "step": found.start_step}
    event_add("round_begun", text, now=now, job=job, actor=TUNING_ACTOR, data=data)
    return {job.pk, *ids}


def _trial_add(
    job: Job,
    found: TuningRound,
    number: int,
    values: dict[str, float],
    child: Job | None,
    now: datetime.datetime,
) -> None:
    Trial.objects.create(
        job=job,
        number=number,
        search=found.number,
        values=values,
        steps=0,
        start_loss=found.start_loss,
        speed=0.0,
        child=child,
        is_running=True,
        generation=job.generation,
        step=found.start_step or 0,
        at=now,
    )
