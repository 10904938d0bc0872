"""From rows of the database to what the figures are drawn from."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from frontend.charts import ChartOptions, allocation_changes, job_charts, labels, overview_charts
from frontend.figures.rows import HIDDEN_JOB_ID
from jobs.models import Allocation, EpochReport, Generation, Job, Node, StepReport
from jobs.selectors import series
from jobs.selectors.series import (
    BatchSpan,
    allocation_columns_between,
    batch_spans_of,
    cluster_born_at,
    epoch_reports_of,
    rates_between,
    step_bins_of,
)
from tests.frontend.world import World, make_job, make_node, make_person
from tests.support.builders import membership_make
from tests.support.rows import allocation_make, trial_make

START = datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.UTC)


def _at(seconds: float) -> datetime.datetime:
    return START + datetime.timedelta(seconds=seconds)


@pytest.mark.django_db
@pytest.mark.database
def test_tenures_become_counts() -> None:
    ada, ben = make_person("ada"), make_person("ben")
    node = make_node("node", 5)
    places = list(node.accelerators.order_by("index"))
    one, two, three, four = (
        make_job(owner, owner.username, colour=colour)
        for colour, owner in enumerate((ada, ada, ben, ben))
    )
    spans = [(one, 0, 30.25), (one, 0, None), (two, 10, 20), (three, 10, 40), (four, 15, 40)]
    for place, (job, since, until) in zip(places, spans, strict=True):
        released_at = None if until is None else _at(until)
        allocation_make(
            job, place, slot=place.index, granted_at=_at(since), released_at=released_at
        )
    allocations = allocation_columns_between(_at(5), _at(50))
    assert not allocations.is_cut
    zero = START.timestamp()
    for person, hidden in ((ada, HIDDEN_JOB_ID), (make_person("boss", is_admin=True), None)):
        changes = allocation_changes(allocations, person)
        found = zip(
            changes.job_ids.tolist(), changes.ats.tolist(), changes.counts.tolist(), strict=True
        )
        own = [
            (one.pk, zero, 2), (one.pk, zero + 30.25, 1), (two.pk, zero + 10, 1),
            (two.pk, zero + 20, 0),
        ]  # fmt: skip
        others = [
            (three.pk, zero + 10, 1), (three.pk, zero + 40, 0), (four.pk, zero + 15, 1),
            (four.pk, zero + 40, 0),
        ]  # fmt: skip
        if hidden is not None:
            others = [(hidden, zero + 10, 1), (hidden, zero + 15, 2), (hidden, zero + 40, 0)]
        assert [*found] == sorted(own + others)
    assert labels([two.pk]) == {two.pk: ("ada", 1)}


@pytest.mark.django_db
@pytest.mark.database
def test_times_as_numbers_are_those_of_the_objects() -> None:
    job = make_job(make_person("ada"), "job")
    place = make_node("node", 1).accelerators.get()
    times = [_at(number + number / 1e6) for number in (0, 1, 999_999)]
    times += [times[-1] + datetime.timedelta(microseconds=999_999), _at(2_000_000)]
    Allocation.objects.bulk_create(
        Allocation(
            job=job, accelerator=place, slot=slot, granted_generation=1, granted_at=time,
            released_at=time,
        )
        for slot, time in enumerate(times)
    )  # fmt: skip
    columns = allocation_columns_between(_at(0), times[-1])
    assert columns.since.tolist() == [time.timestamp() for time in times]
    assert columns.until.tolist() == columns.since.tolist()


def _report(job: Job, step: int, seconds: float, at: datetime.datetime, **more: object) -> None:
    values: dict[str, object] = {"examples": 100, "loss": 1.0, "generation": 1} | more
    StepReport.objects.create(
        job=job, first_step=step, last_step=step, epoch=0, seconds=seconds, num_accelerators=1,
        at=at, **values,
    )  # fmt: skip


@pytest.mark.django_db
def test_long_histories_are_summed_by_the_database() -> None:
    job = make_job(make_person("ada"), "long", step=1800)  # three steps to a bin
    for step in range(1, 7):
        _report(job, step, seconds=float(step), at=_at(step), loss=float(step))
    bins = step_bins_of(job)
    assert [(b.step, b.examples, b.seconds, b.loss) for b in bins] == [
        (2, 200, 3.0, 1.5),  # steps 1 and 2
        (5, 300, 12.0, 4.0),  # steps 3 to 5
        (6, 100, 6.0, 6.0),
    ]
    assert bins[1].at == _at(5)


def _batches(job: Job, *starts: tuple[int, int | None], number: int = 1) -> None:
    """Let memberships begin after so many steps each, with batches of a size (None: the job's)."""
    rows = [
        Generation(
            job=job,
            number=place,
            previous=place - 1 or None,
            phase="closed",
            membership=membership_make(place, global_batch_size=size),
            num_members=2,
            requested_at=_at(step),
            switched_at=_at(step),
            step=step,
        )
        for place, (step, size) in enumerate(starts, start=number)
    ]
    Generation.objects.bulk_create(rows)


@pytest.mark.django_db
def test_a_short_dip_of_the_batch_size_in_a_long_job_is_shown_to_the_step() -> None:
    job = make_job(make_person("ada"), "long", step=600_000, batch_size_min=8, batch_size_max=512)
    _batches(job, (0, None), (1_234, 256), (300_017, 32), (300_020, 256))
    for last, size in ((1_000, 128), (300_017, 256), (300_020, 32), (600_000, 256)):
        _report(job, last, seconds=1.0, at=_at(last), batch_size=size)
    figures = job_charts(job, timezone.now())
    sizes = figures["batch"]["data"][0]
    assert sizes["x"] == [1, 1_235, 300_018, 300_021, 600_000]
    assert sizes["y"] == [128, 256, 32, 256, 256]
    assert figures["batch"]["table"]["rows"] == [
        [1, 128, ""], [1_235, 256, ""], [300_018, 32, ""], [300_021, 256, ""],
    ]  # fmt: skip
    lines = [shape["x0"] for shape in figures["loss"]["layout"]["shapes"]]
    assert lines == [1_234, 300_017, 300_020]


@pytest.mark.django_db
def test_steps_that_were_done_again_have_the_size_of_the_last_time() -> None:
    job = make_job(make_person("ada"), "again", step=90)
    _batches(job, (0, 64), (60, 128), (80, 256), (50, 96), (70, 96))
    assert batch_spans_of(job) == [BatchSpan(1, 64), BatchSpan(51, 96)]


@pytest.mark.django_db
def test_queries_do_not_grow_with_a_jobs_length() -> None:
    job = make_job(make_person("ada"), "longer", step=3)

    def count() -> int:
        with CaptureQueriesContext(connection) as queries:
            job_charts(job, timezone.now())
        return len(queries)

    _batches(job, (0, 64))
    _report(job, 1, seconds=1.0, at=_at(1))
    few = count()
    _batches(job, *((step, 64 + step) for step in range(10, 400, 10)), number=2)
    for step in range(2, 60):
        _report(job, step, seconds=1.0, at=_at(step))
    assert count() == few


@pytest.mark.django_db
@pytest.mark.parametrize(("num_names", "shown"), [(3, [2, 3, 4]), (5, [3, 4]), (200, [4])])
def test_of_epochs_with_many_metrics_the_newest_are_drawn(
    num_names: int, shown: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of values bounds the time of an answer, not that of epochs alone."""
    monkeypatch.setattr(series, "MAX_EPOCH_VALUES", 10)
    job = make_job(make_person("ada"), "talkative", step=5)
    for epoch in range(5):
        logs = {f"metric {number}": 0.5 for number in range(num_names)}
        EpochReport.objects.create(
            job=job, epoch=epoch, generation=1, step=epoch + 1, logs=logs, at=_at(epoch)
        )
    assert [row.epoch for row in epoch_reports_of(job)] == shown


def _trial(job: Job, number: int, search: int, num_steps: int, step: int, **more: Any) -> None:
    trial_make(
        job, number, search=search, values={"learning_rate": 0.1}, steps=num_steps,
        start_loss=2.5, step=step, at=_at(step), **more,
    )  # fmt: skip


@pytest.mark.django_db
def test_the_searches_of_a_tuned_job_are_shaded_and_do_not_stretch_its_loss() -> None:
    space = {"learning_rate": {"low": 0.001, "high": 1.0, "log": True}}
    job = make_job(make_person("ada"), "tuned", step=14, tuning={"space": space})
    for step in range(1, 15):
        _report(job, step, 1.0, _at(step), loss=900.0 if step in (4, 14) else 2.0)
    _trial(job, 1, 1, 3, 5, end="kept")
    _trial(job, 2, 1, 3, 8, end="diverged", search_end="trials")
    _trial(job, 3, 2, 2, 13)
    loss = job_charts(job, timezone.now())["loss"]["layout"]
    assert [(shape["x0"], shape["x1"]) for shape in loss["shapes"]] == [(3, 8), (12, 14)]
    assert loss["yaxis"]["range"] == pytest.approx([1.975, 2.525])
    log = job_charts(job, timezone.now(), ChartOptions(is_log=True))["loss"]["layout"]
    assert log["yaxis"]["type"] == "log"
    assert "range" not in log["yaxis"]


@pytest.mark.django_db
def test_a_diverged_job_still_has_charts() -> None:
    job = make_job(make_person("ada"), "diverged", step=2)
    _report(job, 1, 1.0, _at(1), loss=None)
    _report(job, 2, 1.0, _at(2), loss=None)
    figures = job_charts(job, timezone.now())
    assert figures["loss"]["data"] == []
    assert figures["throughput"]["data"][0]["y"] == [100.0, 100.0]


@pytest.mark.django_db
def test_rates_are_summed_by_job_and_second() -> None:
    job = make_job(make_person("ada"), "fast")
    for step, moment in ((1, 10.1), (2, 10.6), (3, 11.2)):
        _report(job, step, 0.5, _at(moment))
    rates = rates_between(_at(0), _at(60), bin_s=5)
    assert [(r.examples, r.seconds, r.until) for r in rates] == [
        (200, 1.0, _at(10.6)),
        (100, 0.5, _at(11.2)),
    ]
    assert [r.examples for r in rates_between(_at(0), _at(60), bin_s=60)] == [300]
    assert rates_between(_at(12), _at(60), bin_s=5) == []


def test_a_young_cluster_does_not_show_the_time_before_it(world: World) -> None:
    now = timezone.now()
    assert cluster_born_at() is not None
    Node.objects.update(enrolled_at=now - datetime.timedelta(minutes=5))
    left, right = overview_charts(world.admin, 3600, now)["allocation"]["layout"]["xaxis"]["range"]
    assert (right - left) / 1000 == pytest.approx(300, abs=1)
    Node.objects.update(enrolled_at=now)
    left, right = overview_charts(world.admin, 3600, now)["allocation"]["layout"]["xaxis"]["range"]
    assert (right - left) / 1000 == pytest.approx(120, abs=1)


def test_the_window_ends_what_is_read(world: World) -> None:
    now = timezone.now()
    Allocation.objects.update(
        granted_at=now - datetime.timedelta(hours=3), released_at=now - datetime.timedelta(hours=2)
    )
    assert len(overview_charts(world.admin, 3600, now)["allocation"]["data"]) == 1  # the capacity
    assert len(overview_charts(world.admin, 6 * 3600, now)["allocation"]["data"]) == 4


def test_a_chart_without_the_oldest_allocations_says_so(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def allocation() -> dict[str, Any]:
        return overview_charts(world.admin, 3600, timezone.now())["allocation"]

    assert "note" not in allocation()
    monkeypatch.setattr(series, "MAX_SPANS", 1)
    assert allocation()["note"] == "Older allocations are left out: choose a shorter time."
