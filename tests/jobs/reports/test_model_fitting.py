"""What reports teach about jobs: models fitted as they train, and how policies see them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from rest_framework.test import APIClient

from controlplane.core import cycle, policies
from controlplane.core.estimates.loss_prediction import LossFit
from controlplane.core.estimates.throughput import ThroughputModel, slices_of
from controlplane.core.policies.tiresias import SecondQueue
from controlplane.core.values import types
from controlplane.core.values.lifecycle import JobStatus
from jobs.models import (
    ClusterSetting,
    Generation,
    Job,
    JobEstimates,
    PolicyState,
    StepReport,
    StepTimeProfile,
    Trial,
)
from jobs.selectors import next_cycle
from jobs.selectors.cluster import cluster_snapshot
from jobs.selectors.estimates.job import StepConfiguration, fits_seen, samples_read
from jobs.selectors.estimates.resize_history import DEFAULT_RESIZE_S
from jobs.selectors.estimates.step_times import profile_key
from jobs.services.reports import model_fitting
from jobs.services.reports.model_fitting import CONFIGURATIONS_LIMIT, models_fit
from jobs.services.scheduling.policy import cluster_setting
from tests.jobs.timed_world import TRUTH, TimedWorld, begun, started, timed_job
from tests.jobs.world import PlayedNode
from tests.support.builders import accelerators, at, node_make
from tests.support.present import present

pytestmark = pytest.mark.django_db


def test_a_job_that_never_trained_is_unknown() -> None:
    world, job = TimedWorld(1, 1), timed_job()
    seen = world.seen(job)
    assert (seen.performance, seen.loss, seen.done_examples) == (None, None, 0.0)
    assert (seen.resize_s, seen.num_resizes, seen.most_accelerators) == (DEFAULT_RESIZE_S, 0, 0)
    assert (seen.changed_at, seen.running_since) == (None, None)


def test_a_job_on_one_accelerator_is_taken_to_scale() -> None:
    world, job = begun()
    world.train_on(job, 12)
    seen = world.seen(job)
    assert seen.performance is not None
    # eight slices of eight examples, 18 ms each; two of them on each of four accelerators
    assert seen.performance.goodput("cpu", 1, 1) == pytest.approx(64 / 0.144, rel=0.02)
    assert seen.performance.goodput("cpu", 4, 1) == pytest.approx(64 / 0.036, rel=0.02)
    assert seen.performance.batch_size("cpu", 4, 1) == 64
    # 120 of 1000 steps
    assert seen.done_examples == 120 * 64
    assert seen.remaining_examples == 880 * 64


def test_what_was_seen_on_more_accelerators_counts() -> None:
    world, job = TimedWorld(2, 1), timed_job()
    started(world, job)
    world.train_on(job, 12)
    other = timed_job()
    started(world, other)
    world.settle()
    world.train_on(job, 12)
    seen = world.seen(job)
    assert seen.performance is not None
    rates = [seen.performance.goodput("cpu", number, number) for number in (1, 2)]
    expected = [float(TRUTH.step_s(n, n, 8.0, slices_of(8, n))) for n in (1, 2)]
    assert rates == pytest.approx([64 / step_s for step_s in expected], rel=0.05)
    row = JobEstimates.objects.get(job=job)
    assert list(samples_read(row)) == [
        StepConfiguration("cpu", 2, 2, 64, 4),
        StepConfiguration("cpu", 1, 1, 64, 8),
    ]
    # it began with both and gave one away, which cost the played trainers 50 ms
    assert (seen.most_accelerators, seen.num_resizes) == (2, 1)
    assert seen.resize_s == pytest.approx((DEFAULT_RESIZE_S + 0.05) / 2)
    resize = Generation.objects.filter(job=job).order_by("-number")[0]
    first = Generation.objects.filter(job=job).order_by("number")[0]
    assert seen.changed_at == resize.requested_at.timestamp()
    assert seen.running_since == first.requested_at.timestamp()


def test_how_fast_kinds_are_is_remembered_when_the_jobs_that_showed_it_have_gone() -> None:
    """A job that has ended was three times as fast on kind a; one that trains knows b only."""
    world = TimedWorld(0)
    for kind in ("a", "b"):
        world.nodes.append(PlayedNode(node_make(kind, 1, accelerators=accelerators(1, kind))[0]))
    gone = timed_job(status=JobStatus.FINISHED)
    training, fresh = timed_job(), timed_job()
    models = {"a": TRUTH, "b": TRUTH.slower(3.0)}
    for job, kinds in ((gone, "ab"), (training, "b")):
        JobEstimates.objects.create(
            job=job,
            samples=[[kind, 1, 1, 64, 8, 1, 0.1, 0.01] for kind in kinds],
            throughput={kind: models[kind].parameters for kind in kinds},
            updated_at=world.now,
        )
    assert world.seen(fresh).performance is None
    speeds = world.seen(fresh).kind_speeds
    assert speeds["a"] / speeds["b"] == pytest.approx(3.0, rel=0.02)
    known = present(world.seen(training).performance)
    assert known.goodput("a", 1, 1) == pytest.approx(3.0 * known.goodput("b", 1, 1), rel=0.02)


def test_losses_are_foretold() -> None:
    world, job = begun()
    world.train_on(job, 16)
    assert world.seen(job).loss is None  # four points
    world.train_on(job, 60)
    loss = world.seen(job).loss
    assert isinstance(loss, LossFit)
    assert loss.num_points == 16
    # a point is the mean of five reports of ten steps, told at their end: 25 steps late
    ahead = 200
    expected = 0.3 + 2.0 / (1.0 + 0.01 * (760 + ahead - 30))
    assert loss.loss(ahead * 64.0) == pytest.approx(expected, rel=0.03)
    assert 0.0 < loss.normaliser < 2.0


def test_losses_of_trials_teach_nothing() -> None:
    """Steps 61 to 110 were a search's; that from step 161 on runs."""
    space = {"weight_decay": {"low": 0.0, "high": 0.1, "log": False}}
    world, job = TimedWorld(1, 1), timed_job(tuning={"space": space})
    started(world, job)
    fixed: dict[str, Any] = {
        "job": job,
        "values": {"weight_decay": 0.0},
        "speed": 0.0,
        "generation": 1,
    }
    for number, (search, step, num_steps, end) in enumerate(
        [(1, 100, 40, ""), (1, 110, 10, "trials"), (2, 160, 0, "")], start=1
    ):
        fixed |= {"step": step, "steps": num_steps, "search_end": end, "at": world.now}
        Trial.objects.create(number=number, search=search, **fixed)
    for number in range(21):
        is_in_trial = 60 <= 10 * number < 110 or 10 * number >= 160
        world.report(job, **({"loss": 40.0} if is_in_trial else {}))
    row = JobEstimates.objects.get(job=job)
    assert [point[0] for point in row.losses] == [10 * 64, 60 * 64, 160 * 64]
    assert max(point[1] for point in row.losses) < 2.4


def test_models_are_fitted_now_and_then() -> None:
    world, job = begun()
    world.train_on(job, 11)  # one a second: the first, the sixth and the eleventh
    row = JobEstimates.objects.get(job=job)
    assert len(row.losses) == 3
    assert row.losses[1][0] == 60 * 64
    # the second point is the mean of five reports
    means = [0.3 + 2.0 / (1.0 + 0.01 * first) for first in range(10, 60, 10)]
    assert row.losses[1][1] == pytest.approx(sum(means) / 5)


def test_a_job_that_goes_back_forgets_what_came_after() -> None:
    world, job = begun()
    world.train_on(job, 51)
    _, trainer = world.leader_of(job)
    trainer.generation += 1  # as if it had been started again from a checkpoint
    active = job.generations.filter(phase="active")
    active.update(number=trainer.generation, previous=None, step=200)
    Job.objects.filter(id=job.pk).update(generation=trainer.generation)
    world.steps[job.pk] = 200
    world.now_s += 10.0
    world.report(job)
    row = JobEstimates.objects.get(job=job)
    assert row.step == 210
    assert [point[0] for point in row.losses] == [
        *(steps * 64 for steps in (10, 60, 110, 160)),
        210 * 64,
    ]
    loss = world.seen(job).loss
    assert isinstance(loss, LossFit)
    assert loss.last_x == 210 * 64


def test_a_fit_overtaken_by_another_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    world, job = begun()
    world.train_on(job, 2)

    def overtaken(*arguments: Any) -> ThroughputModel:
        JobEstimates.objects.update(step=999, updated_at=world.now)
        return TRUTH

    monkeypatch.setattr(model_fitting, "throughput_fit", overtaken)
    world.now_s += 10.0
    world.report(job)
    assert JobEstimates.objects.get(job=job).step == 999


def test_the_last_reports_of_a_job_that_ended_are_learnt_from() -> None:
    world, job = begun()
    world.train_on(job, 3)
    Job.objects.filter(id=job.pk).update(status="finished", ended_at=world.now)
    assert JobEstimates.objects.get(job=job).step == 10
    assert models_fit(world.now + timedelta(minutes=2)) == 0
    JobEstimates.objects.update(updated_at=world.now + timedelta(days=1))  # the clock was ahead
    assert models_fit(world.now + timedelta(seconds=10)) == 1
    assert JobEstimates.objects.get(job=job).step == 30
    assert models_fit(world.now + timedelta(seconds=20)) == 0


def test_a_late_report_takes_nothing_back() -> None:
    world, job = begun()
    world.train_on(job, 12)
    assert JobEstimates.objects.get(job=job).step == 110  # the twelfth is not learnt from yet
    late = StepReport.objects.filter(job=job).order_by("id")[2]
    late.pk = None
    late.generation = 0
    late.save(force_insert=True)
    assert models_fit(world.now + timedelta(seconds=10)) == 1
    row = JobEstimates.objects.get(job=job)
    assert (row.step, len(row.losses)) == (120, 4)


def test_nothing_is_learnt_twice_of_a_job_that_ended_beyond_its_last_report() -> None:
    world, job = begun()
    world.train_on(job, 3)
    Job.objects.filter(id=job.pk).update(status="finished", ended_at=world.now, step=35)
    assert models_fit(world.now + timedelta(seconds=10)) == 1
    before = JobEstimates.objects.values().get()
    assert before["step"] == 30
    assert models_fit(world.now + timedelta(seconds=20)) == 0
    assert JobEstimates.objects.values().get() == before


def test_odd_reports_teach_nothing_wrong() -> None:
    world, job = begun()
    world.report(job, compute_s=None, loss=None)
    row = JobEstimates.objects.get(job=job)
    assert (row.samples, row.throughput, row.losses) == ([], {}, [])


def test_the_least_lately_seen_configurations_make_room() -> None:
    world, job = begun()
    many = [["cpu", 1, 1, 8 * i, 8, 1, 0.1, 0.01] for i in range(1, CONFIGURATIONS_LIMIT + 10)]
    JobEstimates.objects.create(job=job, samples=many, updated_at=at(0))
    world.train_on(job, 7)
    samples = list(samples_read(JobEstimates.objects.get(job=job)))
    assert len(samples) == CONFIGURATIONS_LIMIT
    assert samples[-1].batch_size == 64
    assert samples[0].batch_size == 88  # nine of 73 made room, 64 was heard of again


def test_a_batch_that_the_platform_chooses_is_worth_less() -> None:
    world = TimedWorld(1, 1)
    job = timed_job(stop_kind="epochs", stop_limit=10, batch_size_min=64, batch_size_max=512)
    Job.objects.filter(id=job.pk).update(facts={"num_examples": 100_000})
    started(world, job)
    world.train_on(job, 25)
    seen = world.seen(job)
    assert seen.performance is not None
    # step time a + b*M with a = 8 * 10 ms, b = 1 ms: sqrt(a*phi/b) = 189; in multiples of 8
    assert seen.performance.batch_size("cpu", 1, 1) == pytest.approx(189, rel=0.15)
    assert seen.remaining_examples == 1_000_000 - 250 * 64
    Job.objects.filter(id=job.pk).update(batch_size=128)
    # (448 + 64) / (448 + 128)
    assert world.seen(job).remaining_examples == pytest.approx((1_000_000 - 250 * 64) / 1.125)


def test_a_new_job_knows_what_its_code_takes() -> None:
    world, job = begun()
    world.train_on(job, 12)
    seen = world.seen(timed_job())
    assert seen.performance is not None
    assert seen.performance.goodput("cpu", 1, 1) == pytest.approx(64 / 0.144, rel=0.02)
    other = world.seen(timed_job(code_sha256="0" * 64))
    assert other.performance is None


@pytest.mark.parametrize("is_alike", [True, False], ids=["alike", "different"])
def test_what_other_jobs_of_the_code_measured_on_more_accelerators_counts(is_alike: bool) -> None:
    """An earlier job was on one and on four; by itself a job on one is taken to scale."""
    world, other = TimedWorld(1, 1), timed_job(status=JobStatus.FINISHED)
    measured = [(1, 1, 8, 0.144), (1, 4, 2, 0.5)]  # nodes, accelerators, slices, seconds
    JobEstimates.objects.create(
        job=other,
        samples=[["cpu", n, k, 64, slices, 5, step_s, 0.018] for n, k, slices, step_s in measured],
        updated_at=world.now,
    )
    job = timed_job(settings={} if is_alike else {"units": 5})
    started(world, job)
    world.train_on(job, 1)
    seen = present(world.seen(job).performance)
    rate = seen.goodput("cpu", 4, 1)
    assert rate == pytest.approx(64 / 0.5, rel=0.05) if is_alike else rate > 64 / 0.037
    row = JobEstimates.objects.get(job=job)
    assert [key[:5] for key in row.samples] == [["cpu", 1, 1, 64, 8]]
    assert [key[:5] for key in row.code_samples] == [["cpu", 1, 4, 64, 2]] * is_alike


def test_the_same_models_give_the_same_object() -> None:
    world, job = begun()
    world.train_on(job, 3)
    first = present(world.seen(job).performance)
    assert world.seen(job).performance is first
    world.train_on(job, 6)
    assert world.seen(job).performance is not None


def test_a_snapshot_takes_as_many_queries_for_many_jobs() -> None:
    def queries() -> int:
        fits_seen.clear()
        with CaptureQueriesContext(
            connection,
        ) as context:
            cluster_snapshot(world.now)
        return len(context)

    world = TimedWorld(1, 2)
    adaptive = {"stop_kind": "epochs", "batch_size_min": 64, "batch_size_max": 512}
    jobs = [timed_job(max_accelerators=1), timed_job(max_accelerators=1, **adaptive)]
    for job in jobs:
        Job.objects.filter(id=job.pk).update(facts={"num_examples": 1000})
        started(world, job)
        world.train_on(job, 2)
    few = queries()
    for _ in range(4):
        timed_job()
        timed_job(**adaptive)
    assert queries() == few <= 14


def test_a_kind_that_was_never_tried_is_judged_by_other_jobs() -> None:
    world = TimedWorld(1, 1)
    world.nodes.append(PlayedNode(node_make("fast", 1, accelerators=accelerators(1, "fast"))[0]))
    job, other = timed_job(), timed_job(code_sha256="0" * 64)
    models = {"cpu": list(TRUTH.parameters), "fast": list(TRUTH.slower(0.25).parameters)}
    JobEstimates.objects.create(job=other, throughput=models, updated_at=at(0))
    models = {"cpu": list(TRUTH.slower(2.0).parameters)}
    JobEstimates.objects.create(job=job, throughput=models, updated_at=at(0))
    seen = present(world.seen(job).performance)
    # slices of 36 ms; four times as fast where the other job is so, too
    assert seen.goodput("cpu", 1, 1) == pytest.approx(64 / (8 * 0.036))
    assert seen.goodput("fast", 1, 1) == pytest.approx(64 / (8 * 0.009))


def test_a_profiled_kind_is_the_own_one_times_the_ratio_of_their_profiles() -> None:
    world, job = TimedWorld(1, 1), timed_job()
    world.nodes.append(PlayedNode(node_make("fast", 1, accelerators=accelerators(1, "fast"))[0]))
    code_sha256, settings_sha256 = profile_key(job, job.batch_size_now)
    for kind, seconds in (("cpu", 0.8), ("fast", 0.2)):
        StepTimeProfile.objects.create(
            code_sha256=code_sha256,
            settings_sha256=settings_sha256,
            kind=kind,
            measures=StepTimeProfile.COMPUTE,
            samples={"8": [50, seconds, seconds]},
            updated_at=at(0),
        )
    own = list(TRUTH.parameters)
    JobEstimates.objects.create(job=job, throughput={"cpu": own}, updated_at=at(0))
    seen = present(world.seen(job).performance)
    assert seen.goodput("cpu", 1, 1) == pytest.approx(64 / (8 * 0.018))
    # A quarter of the computing; the exchange of 30 ms is the own model's.
    assert seen.goodput("fast", 1, 1) == pytest.approx(64 / (8 * 0.018 / 4))
    assert seen.goodput("fast", 2, 1) == pytest.approx(64 / (4 * 0.018 / 4 + 0.03))


def test_a_policy_finds_what_it_left(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[object] = []

    def counting(snapshot: types.Snapshot) -> types.Decision:
        found.append(snapshot.carried)
        reasons = {job.id: "it waits" for job in snapshot.jobs}
        return types.Decision(shares={}, reasons=reasons, carried=SecondQueue((len(found),)))

    monkeypatch.setattr(cycle, "POLICIES", {"weighted_fair": counting, "fifo": counting})
    states = {"weighted_fair": SecondQueue, "fifo": SecondQueue}
    for module in (policies, next_cycle):
        monkeypatch.setattr(module, "POLICY_STATES", states)
    world, _ = TimedWorld(1, 1), timed_job()
    cluster_setting()
    ClusterSetting.objects.update(policy="weighted_fair")
    world.cycle()
    world.cycle()
    ClusterSetting.objects.update(policy="fifo")
    world.cycle()
    ClusterSetting.objects.update(policy="weighted_fair")
    world.cycle()
    PolicyState.objects.update(state={"jobs": "of an older release"})
    world.cycle()
    assert found == [None, SecondQueue((1,)), None, SecondQueue((2,)), None]


def test_the_api_tells_what_is_expected(ada: User, client_of: Callable[..., APIClient]) -> None:
    world, job = TimedWorld(1, 1), timed_job(owner=ada, max_accelerators=3)
    path, client = f"/api/v1/jobs/{job.pk}/", client_of(ada)
    assert client.get(path).json()["forecast"] is None
    started(world, job)
    world.train_on(job, 26)
    told = client.get(path).json()["forecast"]
    rates = told["useful_examples_per_s"]["cpu"]
    assert {count: round(rate) for count, rate in rates.items()} == {
        "1": round(64 / 0.144),
        "2": round(64 / 0.072),
        "3": round(64 / 0.054),
    }
    loss = world.seen(job).loss
    assert isinstance(loss, LossFit)
    assert told["loss"]["num_points"] == 6
    assert told["loss"]["now"] == pytest.approx(loss.loss(0.0))
    assert told["loss"]["at_end"] == pytest.approx(loss.loss(740 * 64.0))
    assert told["loss"]["at_end"] < told["loss"]["now"]
