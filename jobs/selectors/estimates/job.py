"""Speed and loss estimates of jobs, as input of policies.

Sources of a job's speed on a kind, best first: the model fitted to the job's own steps; the profile
of its code on that kind, measured by other jobs or by a preparing joiner, as a factor of the job's
own model where it has one; its best-known kind, scaled by the relative speed of the two kinds on
other jobs.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from django.db.models import F

from controlplane.core.estimates.batch_size import NOISE_REPORTS, batch_bounds
from controlplane.core.estimates.goodput import (
    AdaptiveBatchPerformance,
    FixedBatchPerformance,
    VirtualNodes,
    efficiency,
    relative_speeds,
)
from controlplane.core.estimates.loss_prediction import LossFit, NoForecast
from controlplane.core.estimates.measured_steps import measured_model
from controlplane.core.estimates.step_time import sync_seconds
from controlplane.core.estimates.throughput import ThroughputModel, ThroughputSample
from controlplane.core.protocol.codec import decode
from controlplane.core.values.performance import LossForecast, Performance
from jobs.models import Job, JobEstimates
from jobs.selectors.estimates.batch_sizes import AcceleratorSize, largest_batch
from jobs.selectors.estimates.noise import noise_scale_of
from jobs.selectors.estimates.nonfinite import loss_nonfinite
from jobs.selectors.estimates.step_times import StepTimes

#: Cached performance objects, kept between decisions with their memoised tables.
_PERFORMANCES_LIMIT = 8192

#: Newest jobs, ended ones included, used to compare the speed of kinds.
_COMPARED_LIMIT = 256

#: Cached fits; beyond that, fits of jobs not in the present decision are dropped.
_FITS_LIMIT = 16_384

Models = tuple[tuple[str, ThroughputModel], ...]
Speeds = tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class StepConfiguration:
    """Configuration of a measured step: key of `JobEstimates.samples`."""

    kind: str
    num_nodes: int
    num_accelerators: int
    batch_size: int
    num_slices: int


@dataclass(frozen=True, slots=True)
class Measured:
    """Average of `count` samples of one configuration; the newest weigh most."""

    count: int
    step_s: float
    grad_s: float


def samples_read(row: JobEstimates) -> dict[StepConfiguration, Measured]:
    """Read the measured steps of a job, the most recently sampled configuration last."""
    return _samples(row.samples)


def _samples(stored: Iterable[Sequence[Any]]) -> dict[StepConfiguration, Measured]:
    return {StepConfiguration(*key[:5]): Measured(*key[5:]) for key in stored}


def samples_written(samples: Mapping[StepConfiguration, Measured]) -> list[list[Any]]:
    """Return measured steps in their stored form."""
    return [
        [
            key.kind,
            key.num_nodes,
            key.num_accelerators,
            key.batch_size,
            key.num_slices,
            measured.count,
            float(f"{measured.step_s:.6g}"),
            float(f"{measured.grad_s:.6g}"),
        ]
        for key, measured in samples.items()
    ]


def throughput_samples(
    samples: Mapping[StepConfiguration, Measured], kind: str, num_virtual_nodes: int
) -> list[ThroughputSample]:
    return [
        ThroughputSample(
            num_nodes=key.num_nodes,
            num_accelerators=key.num_accelerators,
            slice_size=key.batch_size / num_virtual_nodes,
            step_s=measured.step_s,
            grad_s=measured.grad_s,
            num_slices=key.num_slices,
        )
        for key, measured in samples.items()
        if key.kind == kind
    ]


def models_read(row: JobEstimates, num_virtual_nodes: int) -> Models:
    """Read the fitted models of a job, the kind with the most samples first."""
    own = samples_read(row)
    samples = {**_samples(row.code_samples), **own}
    seen: dict[str, int] = {}
    for key, measured in own.items():
        seen[key.kind] = seen.get(key.kind, 0) + measured.count
    kinds = sorted(row.throughput, key=lambda kind: (-seen.get(kind, 0), kind))
    return tuple(
        (
            kind,
            measured_model(
                ThroughputModel(*row.throughput[kind]),
                throughput_samples(samples, kind, num_virtual_nodes),
            ),
        )
        for kind in kinds
    )


def loss_fit_read(row: JobEstimates) -> LossFit | None:
    """Read the newest fit of a job's loss; None while there are too few points."""
    return decode(LossFit, row.loss_fit) if row.loss_fit else None


@dataclass(frozen=True, slots=True)
class Fits:
    """Models fitted to one job's reports until `updated_at`."""

    updated_at: datetime.datetime | None = None
    useful_examples: float = 0.0
    models: Models = ()
    loss: LossFit | None = None


#: Fits cached in this process, by job; read again after an update.
fits_seen: dict[int, Fits] = {}


def _fits_read(job_ids: Sequence[int]) -> Mapping[int, Fits]:
    """Return the fits of jobs, in two queries; the second reads only updated ones."""
    rows = JobEstimates.objects.filter(job_id__in=job_ids)
    times = dict(rows.values_list("job_id", "updated_at"))
    news = [
        job_id
        for job_id, updated_at in times.items()
        if fits_seen.get(job_id, Fits()).updated_at != updated_at
    ]
    if len(fits_seen) + len(news) > _FITS_LIMIT:
        for job_id in fits_seen.keys() - times.keys():
            del fits_seen[job_id]
    read = JobEstimates.objects.filter(job_id__in=news).defer("losses")
    for row in read.annotate(num_virtual_nodes=F("job__num_virtual_nodes")):
        models = models_read(row, row.num_virtual_nodes)
        fits_seen[row.job_id] = Fits(
            row.updated_at, row.useful_examples, models, loss_fit_read(row)
        )
    return {job_id: fits_seen[job_id] for job_id in times if job_id in fits_seen}


@dataclass(frozen=True, slots=True)
class Known:
    """Estimates of one job for policies.

    Attributes:
        worth: of an example at the present batch size, relative to the submitted one.
        done_examples: useful examples so far.
        kind_speeds: relative speeds of kinds on other jobs.
        tried_kinds: kinds on which the job's code was measured.
    """

    performance: Performance | None
    loss: LossForecast | None
    worth: float
    done_examples: float
    kind_speeds: Mapping[str, float] = field(default_factory=dict)
    tried_kinds: frozenset[str] = frozenset()


def known_read(
    jobs: Sequence[Job], profiles: Mapping[int, StepTimes], sizes: Iterable[AcceleratorSize]
) -> dict[int, Known]:
    """Return the estimates of each job, in two queries; a third if there are several kinds.

    Args:
        profiles: step times of each job's code.
        sizes: of all present accelerators.
    """
    fits = _fits_read([job.pk for job in jobs])
    models = {
        job.pk: _models(job, fits.get(job.pk, Fits()).models, profiles.get(job.pk, StepTimes()))
        for job in jobs
    }
    sized = tuple(sizes)
    speeds = _kind_speeds(jobs, models, sized)
    return {
        job.pk: Known(
            performance=_performance_of(job, models[job.pk], speeds, sized),
            loss=NoForecast() if loss_nonfinite(job) else fits.get(job.pk, Fits()).loss,
            worth=example_worth(job),
            done_examples=_useful_done(job, fits.get(job.pk, Fits())),
            kind_speeds=speeds,
            tried_kinds=frozenset(kind for kind, _ in models[job.pk]),
        )
        for job in jobs
    }


def _kind_speeds(
    jobs: Sequence[Job], models: Mapping[int, Models], sizes: Iterable[AcceleratorSize]
) -> dict[str, float]:
    """Return the relative speeds of kinds, from these jobs and the newest jobs with models.

    Rounded to two digits, so that cached tables stay valid for the next decision.
    """
    if len({size.kind for size in sizes}) < 2:
        return {}
    known = [(dict(models[job.pk]), job.batch_size_now / job.num_virtual_nodes) for job in jobs]
    rows = JobEstimates.objects.order_by("-job_id").values_list(
        "job_id", "throughput", "job__global_batch_size", "job__num_virtual_nodes"
    )
    for job_id, throughput, batch_size, num_virtual_nodes in rows[:_COMPARED_LIMIT]:
        if job_id not in models:
            fitted = {kind: ThroughputModel(*values) for kind, values in throughput.items()}
            known.append((fitted, batch_size / num_virtual_nodes))
    found = relative_speeds(known)
    return {kind: float(f"{speed:.2g}") for kind, speed in found.items()}


def example_worth(job: Job) -> float:
    """Return the worth of an example at a job's present batch size, 1 at the submitted one."""
    phi = _noise(job)
    if phi is None:
        return 1.0
    return float(efficiency(job.batch_size_now, job.global_batch_size, phi))


def _noise(job: Job) -> float | None:
    """Return phi for an adaptive batch size with enough noise reports."""
    noise = noise_scale_of(job) if job.adapts_batch_size else None
    if noise is None or noise.num_reports < NOISE_REPORTS:
        return None
    # Rounded to three digits, so that cached tables stay valid while phi changes little.
    return float(f"{noise.examples:.3g}")


def _useful_done(job: Job, fits: Fits) -> float:
    if job.is_batch_size_fixed:
        own_steps = job.step - job.fork.get("step", 0)  # another job did those before its fork
        return float(max(own_steps, 0) * job.global_batch_size)
    return fits.useful_examples


def _models(job: Job, own: Models, profile: StepTimes) -> Models:
    """Return a job's own models, then those derived from its code's profile.

    A kind on which the job has not trained is its best-known kind with computing scaled by the
    ratio of both kinds' profiled times.
    """
    trained = {kind for kind, _ in own}
    number = job.num_virtual_nodes
    derived = []
    for kind, step_time in sorted(profile.by_kind.items()):
        if kind in trained:
            continue
        known = next((pair for pair in own if pair[0] in profile.by_kind), None)
        if known is not None and (known_s := profile.by_kind[known[0]](number)) > 0.0:
            derived.append((kind, known[1].slower(step_time(number) / known_s)))
            continue
        grad_s = step_time(number) / number
        sync_s = sync_seconds(profile.sync, 2)
        # Slices of one size do not show how a slice's time splits into base and slope.
        base_s, slope_s = grad_s / 2.0, grad_s / 2.0 / (job.batch_size_now / number)
        derived.append((kind, ThroughputModel(base_s, slope_s, sync_s, 0.0, sync_s, 0.0)))
    return (*own, *derived)


def _performance_of(
    job: Job,
    models: Models,
    all_speeds: Mapping[str, float],
    sizes: tuple[AcceleratorSize, ...],
) -> Performance | None:
    if not models:
        return None
    speeds = _speeds_needed(models, all_speeds, sizes)
    phi = _noise(job)
    if phi is None or job.batch_size_min is None or job.batch_size_max is None:
        return _fixed(models, speeds, job.num_virtual_nodes, job.batch_size_now)
    bounds = batch_bounds(
        job.batch_size_min,
        job.batch_size_max,
        job.num_virtual_nodes,
        at_most=largest_batch(job, sizes),
    )
    if bounds is None:
        return _fixed(models, speeds, job.num_virtual_nodes, job.batch_size_now)
    return _adaptive(
        models,
        speeds,
        job.num_virtual_nodes,
        job.global_batch_size,
        bounds,
        phi,
    )


def _speeds_needed(
    models: Models, speeds: Mapping[str, float], sizes: Iterable[AcceleratorSize]
) -> Speeds:
    """Return the speeds that matter for kinds without a model, rounded to two digits.

    So cached tables stay valid for the next decision while other jobs' models change.
    """
    unknown = {size.kind for size in sizes} - {kind for kind, _ in models}
    if not unknown & speeds.keys():
        return ()
    needed = sorted((unknown | {models[0][0]}) & speeds.keys())
    return tuple((kind, float(f"{speeds[kind]:.2g}")) for kind in needed)


@lru_cache(maxsize=_PERFORMANCES_LIMIT)
def _fixed(
    models: Models, speeds: Speeds, num_virtual_nodes: int, size: int
) -> FixedBatchPerformance:
    split = VirtualNodes(num_virtual_nodes)
    return FixedBatchPerformance(dict(models), split, speeds=dict(speeds), size=size)


@lru_cache(maxsize=_PERFORMANCES_LIMIT)
def _adaptive(
    models: Models,
    speeds: Speeds,
    num_virtual_nodes: int,
    submitted: int,
    bounds: tuple[int, int],
    noise_scale: float,
) -> AdaptiveBatchPerformance:
    return AdaptiveBatchPerformance(
        dict(models),
        VirtualNodes(num_virtual_nodes),
        speeds=dict(speeds),
        submitted=submitted,
        low=bounds[0],
        high=bounds[1],
        multiple=num_virtual_nodes,
        noise_scale=noise_scale,
    )
