"""A job that lies about its speed gains no accelerators by it, and is not ended for it."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.core.estimates.plausibility import CODES
from controlplane.core.protocol.wire import ReportKind
from jobs.models import ClusterSetting, Job, JobEstimates, StepReport, StepTimeProfile
from jobs.services.lifecycle.missed_reports import OVERLAPS_LIMIT
from jobs.services.reports.batches import batch_take
from jobs.services.reports.model_fitting import models_fit
from tests.jobs.losses import fresh
from tests.jobs.timed_world import TimedWorld, begun, started, timed_job
from tests.jobs.world import World

pytestmark = pytest.mark.django_db


def reported(world: TimedWorld, job: Job, factor: float) -> None:
    """Let ten steps pass in a second, and report that they took `factor` seconds."""
    world.hear()
    for played in world.nodes:
        played.node.refresh_from_db()
    members = job.generations.get(phase="active").membership.members
    own_s = {str(row.slot): 0.09 * factor for row in members}
    world.report(job, seconds=factor, compute_s=own_s)


def held(policy: str, factor: float) -> tuple[int, int]:
    """Return what a policy gives the hostile job, which has more to do, and the honest one."""
    world = TimedWorld(1, 4, policy="fifo")
    hostile = timed_job(max_accelerators=2, stop_limit=10_000)
    honest = timed_job(max_accelerators=2, stop_limit=8_000, settings={"other": 1})
    world.settle(4)
    for _ in range(8):
        reported(world, hostile, factor)
        reported(world, honest, 1.0)
    ClusterSetting.objects.update(policy=policy)
    Job.objects.update(max_accelerators=4)
    world.settle(4)
    world.now_s += 70.0  # a policy may try an unknown job for a minute
    world.settle(4)
    first, second = (job.allocations.filter(released_at=None).count() for job in (hostile, honest))
    return first, second


@pytest.mark.parametrize(
    ("policy", "factor", "at_most"),
    [("srtf", 0.001, 0), ("optimus", 1000.0, 2)],
)
def test_a_false_speed_gains_no_accelerators(policy: str, factor: float, at_most: int) -> None:
    assert held(policy, factor)[0] <= at_most


@pytest.mark.parametrize(("factor", "code"), [(0.001, "too_fast"), (1000.0, "too_slow")])
def test_nothing_is_learned_from_a_false_speed(factor: float, code: str) -> None:
    world, job = begun(2)
    for _ in range(8):
        reported(world, job, factor)
    job = fresh(job)
    assert (job.status, job.step, job.loss is None) == ("running", 80, False)
    assert (job.examples_per_s, job.throughput_by_count) == (None, {})
    assert world.seen(job).performance is None
    assert JobEstimates.objects.get(job=job).samples == []
    assert not StepTimeProfile.objects.exists()
    event = job.events.get(kind="report_implausible")
    assert event.data == {"code": code}


def test_an_honest_job_is_learned_from_again() -> None:
    world, job = begun(2)
    reported(world, job, 1000.0)
    assert fresh(job).examples_per_s is None
    reported(world, job, 1.0)
    assert fresh(job).examples_per_s == pytest.approx(640.0)


def test_reports_that_waited_for_the_site_are_plausible() -> None:
    world, job = begun(2)
    for _ in range(8):
        reported(world, job, 1.0)
    played, trainer = world.leader_of(job)
    for played in world.nodes:
        played.node.refresh_from_db()
    world.now_s += 900.0
    for first in range(81, 1001, 10):
        steps = {"first_step": first, "last_step": first + 9, "epoch": 0, "examples": 640}
        played.say(trainer, ReportKind.STEPS, **steps, seconds=9.0, num_accelerators=2)
    batch_take(played.node, played.batch(), world.now)
    assert fresh(job).step == 1000
    assert not job.events.filter(kind="report_implausible").exists()


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"num_accelerators": 4}, "accelerators"),
        ({"compute_s": {"0": 1000.0}}, "computing"),
    ],
)
def test_measurements_agree_with_each_other(changes: dict[str, Any], code: str) -> None:
    assert code in CODES
    world, job = begun(2)
    world.report(job, **changes)
    assert fresh(job).throughput_by_count == {}
    assert job.events.get(kind="report_implausible").data == {"code": code}


def test_a_profile_fits_into_the_time_since_the_start() -> None:
    world, job = World(1, 2), timed_job()
    world.settle()
    played, trainer = world.leader_of(job)
    played.say(trainer, ReportKind.READY, profile={"8": 1000.0})
    world.tell(played)
    assert not StepTimeProfile.objects.exists()
    assert job.events.get(kind="report_implausible").data == {"code": "profile"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"first_step": 20, "last_step": 19}, "steps 20 to 19"),
        ({"first_step": 991, "last_step": 1001}, "step 1001: the job ends with step 1000"),
        ({"examples": 641}, "641 examples in 10 steps of 64 examples at most"),
        ({"examples": 9}, "9 examples in 10 steps"),
        ({"first_step": 0, "last_step": 9}, "step 0: the job was started from step 0"),
        ({"batch_size": 65}, "a batch of 65 examples, where 64 are the most"),
    ],
)
def test_steps_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    world, job = begun(2)
    world.report(job)
    world.report(job, **changes)
    assert fresh(job).step == 10
    assert message in job.events.get(kind="report_refused").message


def test_a_job_that_ends_with_epochs_reports_no_steps_without_examples() -> None:
    world, job = TimedWorld(1, 2), timed_job(stop_kind="epochs", stop_limit=5)
    started(world, job)
    world.report(job)
    world.report(job, last_step=2**40)
    assert fresh(job).step == 10
    message = job.events.get(kind="report_refused").message
    assert f"640 examples in {2**40 - 10} steps" in message


@pytest.mark.parametrize(
    "num_reports", [3, pytest.param(OVERLAPS_LIMIT, marks=pytest.mark.nightly), OVERLAPS_LIMIT + 1]
)
def test_one_report_fills_few_gaps_between_others(num_reports: int) -> None:
    """A job may leave out every second step for hours, and then report all of them at once."""
    world, job = TimedWorld(1, 2), timed_job(stop_kind="epochs", stop_limit=500)
    started(world, job)
    world.report(job, last_step=1, examples=64)
    first = StepReport.objects.get(job=job)
    last = 2 * num_reports
    for step in range(3, last, 2):
        first.pk, first.first_step, first.last_step = None, step, step
        first.save()
    world.report(job, first_step=1, last_step=last, examples=64 * last)
    is_taken = num_reports <= OVERLAPS_LIMIT
    assert StepReport.objects.count() == (last if is_taken else num_reports)
    assert fresh(job).step == (last if is_taken else 1)
    texts = "".join(job.events.filter(kind="report_refused").values_list("message", flat=True))
    assert ("reports are of steps 1 to" in texts) != is_taken


def test_a_tuned_job_reports_no_batch_above_its_search() -> None:
    world, job = (
        TimedWorld(1, 2),
        timed_job(tuning={"space": {"batch_size": {"low": 16, "high": 128, "log": True}}}),
    )
    started(world, job)
    world.report(job, batch_size=128, examples=1280)
    assert fresh(job).batch_size == 128
    world.report(job, first_step=11, last_step=20, batch_size=129, examples=1280)
    world.report(job, first_step=11, last_step=20, batch_size=128, examples=1281)
    assert (fresh(job).batch_size, fresh(job).step) == (128, 10)
    messages = "".join(job.events.filter(kind="report_refused").values_list("message", flat=True))
    assert "a batch of 129 examples" in messages


def test_a_restarted_job_reports_no_steps_before_its_checkpoint() -> None:
    world, job = begun(2)
    start = job.generations.get(phase="active")
    start.step = 500
    start.save()
    world.report(job)
    models_fit(world.now)
    assert fresh(job).step == 0
    assert "was started from step 500" in job.events.get(kind="report_refused").message
