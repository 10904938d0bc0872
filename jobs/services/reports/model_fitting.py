"""Models fitted to a job's reports: its speed per configuration, and the course of its loss.

A task fits them, once for many reports and outside of transactions: fits take long beside taking a
report, which locks the job.
"""

from __future__ import annotations

import dataclasses
import datetime
import time
from collections.abc import Set

from django.db.models import F, Q, Sum

from controlplane.core.estimates.loss_prediction import POINTS_LIMIT, loss_fit
from controlplane.core.estimates.throughput import ThroughputModel, throughput_fit
from controlplane.core.protocol.codec import encode
from controlplane.core.protocol.wire import Task
from jobs.exceptions import errors_contained
from jobs.models import Generation, Job, JobEstimates, StepReport
from jobs.selectors.estimates.job import (
    Measured,
    StepConfiguration,
    example_worth,
    loss_fit_read,
    samples_read,
    samples_written,
    throughput_samples,
)
from jobs.selectors.estimates.step_times import kinds_by_place, measured_batch_size, members_read
from jobs.selectors.expressions import mean_of
from jobs.selectors.tuning import in_trials

#: Seconds between two fits of a job's models; reports in between are summed up.
FIT_EVERY_S = 5.0

#: Most seconds of one call of `models_fit`; the jobs fitted longest ago come first.
FIT_LIMIT_S = 5.0

#: Jobs that ended so recently are fitted once more.
_ENDED_RECENTLY = datetime.timedelta(minutes=1)

#: Remembered configurations of a job; those without a sample for longest are dropped first.
CONFIGURATIONS_LIMIT = 64

#: Newest other jobs of a code whose samples count, and of these with other settings looked through.
CODE_JOBS_LIMIT, _LOOKED_THROUGH = 16, 64

#: Columns that a fit writes.
_FITTED = (
    "step",
    "useful_examples",
    "samples",
    "code_samples",
    "throughput",
    "losses",
    "loss_fit",
    "updated_at",
)

#: Least weight of the newest sample of a configuration.
_NEWEST_WEIGHT = 0.3


def models_fit(now: datetime.datetime) -> int:
    """Fit the models of all jobs with reports since their last fit; return the number of jobs."""
    before = now - datetime.timedelta(seconds=FIT_EVERY_S)
    jobs = (
        Job.objects.filter(Q(ended_at=None) | Q(ended_at__gt=now - _ENDED_RECENTLY), step__gt=0)
        .exclude(estimates__step=F("step"))
        # One of later than now is of a clock that was set back since.
        .exclude(estimates__updated_at__gt=before, estimates__updated_at__lte=now)
        .order_by(F("estimates__updated_at").asc(nulls_first=True))
    )
    deadline = time.monotonic() + FIT_LIMIT_S
    num_fitted = 0
    for job in jobs:
        if time.monotonic() > deadline:
            break
        with errors_contained(job.pk, "has models that cannot be fitted"):
            num_fitted += _job_fit(job, now)
    return num_fitted


def _job_fit(job: Job, now: datetime.datetime) -> bool:
    """Fit a job's models to its reports up to its present step; late ones are left out.

    Returns:
        False if there is nothing new, or another process was faster.
    """
    reports = StepReport.objects.filter(job=job, last_step__lte=job.step)
    report = reports.order_by("-last_step", "-id").first()
    known = JobEstimates.objects.filter(job=job).first()
    row = known or JobEstimates(job=job)
    if report is None or report.last_step == row.step:
        return False
    seen_at = row.updated_at
    generation = job.generations.filter(number=report.generation).first()
    if generation is not None:
        _speed_learn(job, row, generation)
    _progress_learn(job, row, report)
    row.updated_at = now
    if known is None:
        JobEstimates.objects.bulk_create([row], ignore_conflicts=True)
        return True
    values = {name: getattr(row, name) for name in _FITTED}
    unchanged = JobEstimates.objects.filter(job=job, updated_at=seen_at)
    return bool(unchanged.update(**values))


def _speed_learn(job: Job, row: JobEstimates, generation: Generation) -> None:
    """Add a generation's step time to the speed model if all members are of one kind."""
    seen = _look(job, generation)
    if seen is None:
        return
    key, measured = seen
    samples = samples_read(row)
    samples[key] = _smoothed(samples.pop(key, None), measured)  # moved to the end
    newest = dict(list(samples.items())[-CONFIGURATIONS_LIMIT:])
    row.samples = samples_written(newest)
    others = _samples_of_code(job, newest.keys())
    row.code_samples = samples_written(others)
    warm = row.throughput.get(key.kind)
    model = throughput_fit(
        throughput_samples({**others, **newest}, key.kind, job.num_virtual_nodes),
        None if warm is None else ThroughputModel(*warm),
    )
    row.throughput = {**row.throughput, key.kind: list(model.parameters)}


def _samples_of_code(job: Job, own: Set[StepConfiguration]) -> dict[StepConfiguration, Measured]:
    """Return what other jobs that compute the same have measured, as far as this job has not."""
    same = JobEstimates.objects.filter(
        job__code_sha256=job.code_sha256,
        job__task=job.task,
        job__source_sha256=job.source_sha256,
        job__reduction=job.reduction,
        job__num_virtual_nodes=job.num_virtual_nodes,
    ).exclude(job=job)
    rows = same.select_related("job").only("samples", "job__settings").order_by("-updated_at")
    alike = [row for row in rows[:_LOOKED_THROUGH] if row.job.settings == job.settings]
    found: dict[StepConfiguration, Measured] = {}
    for row in reversed(alike[:CODE_JOBS_LIMIT]):
        for key, measured in samples_read(row).items():
            if key not in own:
                found.pop(key, None)  # the newest last
                found[key] = measured
    return dict(list(found.items())[-CONFIGURATIONS_LIMIT:])


def _look(job: Job, generation: Generation) -> tuple[StepConfiguration, Measured] | None:
    """Read a generation's speed from its members' reports; None if there are too few.

    A membership of mixed kinds yields no sample of any one kind.
    """
    members = members_read(generation, kinds_by_place([generation]))
    step_s = (generation.speeds or {}).get("step_s")
    kinds = {member.kind for member in members}
    if not step_s or len(kinds) != 1 or any(member.seconds is None for member in members):
        return None
    slowest = max(members, key=lambda member: (member.seconds or 0.0, member.num_virtual_nodes))
    num_slices = max(member.num_virtual_nodes for member in members)
    places = {member.node_id for member in generation.membership.members}
    key = StepConfiguration(
        kind=kinds.pop(),
        num_nodes=len(places),
        num_accelerators=len(members),
        batch_size=measured_batch_size(job, generation),
        num_slices=num_slices,
    )
    # Both numbers are smoothed; a step still takes no less time than its own computing.
    own_s = slowest.seconds or 0.0
    return key, Measured(1, max(step_s, own_s), own_s / slowest.num_virtual_nodes)


def _smoothed(old: Measured | None, new: Measured) -> Measured:
    if old is None:
        return new
    weight = max(1.0 / (old.count + 1), _NEWEST_WEIGHT)
    return Measured(
        old.count + 1,
        old.step_s + weight * (new.step_s - old.step_s),
        old.grad_s + weight * (new.grad_s - old.grad_s),
    )


def _progress_learn(job: Job, row: JobEstimates, report: StepReport) -> None:
    """Add the useful examples and the mean loss of all steps since the last fit.

    Losses of trials, which begin again and again from one state, are no part of the loss's course.
    """
    if report.last_step <= row.step:
        # The job has resumed from an earlier step: samples after it are dropped.
        step = report.first_step - 1
        row.useful_examples *= step / row.step if row.step else 0.0
        row.step = step
        row.losses = [point for point in row.losses if point[0] <= row.useful_examples]
    totals = StepReport.objects.filter(
        job=job, last_step__gt=row.step, last_step__lte=report.last_step
    ).aggregate(loss=mean_of("loss", ~in_trials(job)), examples=Sum("examples"))
    if not job.is_batch_size_fixed:
        row.useful_examples += example_worth(job) * (totals["examples"] or 0)
    else:
        row.useful_examples = float(report.last_step * job.global_batch_size)
    row.step = report.last_step
    if job.task == Task.TRAIN and totals["loss"] is not None:
        _loss_learn(row, totals["loss"])


def _loss_learn(row: JobEstimates, loss: float) -> None:
    points = [(x, y) for x, y in row.losses if x < row.useful_examples]
    points = [*points, (row.useful_examples, loss)][-POINTS_LIMIT:]
    row.losses = points
    before = loss_fit_read(row)
    is_older = before is not None and before.last_x >= row.useful_examples
    fit = loss_fit(points, None if is_older else before)
    if fit is None:
        return
    if is_older and before is not None:  # the job resumed earlier: keep the larger normaliser
        fit = dataclasses.replace(fit, normaliser=max(fit.normaliser, before.normaliser))
    row.loss_fit = encode(fit)
