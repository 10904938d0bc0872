"""The page of a job: first view, states, figures, files, resizes."""

from __future__ import annotations

import dataclasses
import datetime
import json

import pytest
from django.test import Client
from django.utils import timezone
from django.utils.html import escape

from controlplane.core.protocol.codec import encode
from controlplane.core.protocol.nonfinite import Nonfinite
from controlplane.core.values.explanations import reason
from controlplane.core.values.lifecycle import GenerationPhase, JobStatus
from jobs.models import EpochReport, Job, JobForecast
from jobs.services.lifecycle.search_rows import metric_values_write
from tests.frontend.page_text import page_text
from tests.frontend.world import World, make_job
from tests.support.builders import membership_make, steps_add


def test_figures_that_were_drawn_already_are_not_sent_again(world: World, ada: Client) -> None:
    address = f"/jobs/{world.jobs['finished'].pk}/figures/"
    first = ada.get(address, headers={"Accept-Encoding": "gzip"})
    assert (first.status_code, first.headers["Content-Encoding"]) == (200, "gzip")
    again = ada.get(address, headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status_code, again.content) == (304, b"")
    stale = ada.get(address, headers={"If-None-Match": '"other"'})
    assert stale.status_code == 200


def test_the_figures_of_a_job(world: World, ada: Client) -> None:
    figures = ada.get(f"/jobs/{world.jobs['running'].pk}/figures/").json()
    assert figures["allocation"]["data"][1]["text"] == ["0 → 1", "1 → 3", "3 → 2", "2 → 3"]
    assert figures["loss"]["data"][0]["x"][-1] == 900
    shapes = figures["loss"]["layout"]["shapes"]
    assert [shape["x0"] for shape in shapes if shape["type"] == "line"] == [300, 600, 900]
    speeds = figures["throughput"]["data"][0]["y"]
    # 1,920 examples in 9.5 s on one accelerator, three times that on three, within the 6 % wobble.
    assert speeds[2] == pytest.approx(202, rel=0.08)
    assert speeds[20] == pytest.approx(606, rel=0.08)


def test_the_page_of_a_running_job(world: World, ada: Client) -> None:
    text = page_text(ada.get(f"/jobs/{world.jobs['running'].pk}/"))
    for expected in (
        "Allocation reason Weight 300 of 400 gives 3 of 8 accelerators; it can use 4.",
        "62 % epoch 75 of 120",
        "3 wants 1 to 4",
        "8 virtual nodes of 16 examples",
        "2 → 3",
        "+7.6 s +8.0 s 73 ms 5.0 MB",
        "= equal",
        "1 → 3 accelerators in 0.055 s of pause by policy:weighted_fair",
        "model.keras",
        "1.2 MB",
    ):
        assert expected in text


POLICYS_END = reason("goodput_end", end_s=70.0, late=reason("goodput_late", fairness=2.4))


def test_best_metric_and_expected_end_stand_in_the_first_view(world: World, ada: Client) -> None:
    job = world.jobs["running"]
    for epoch, accuracy in enumerate((0.5, 0.9, 0.7), start=job.epoch):
        metric_values_write(job, {epoch: {"loss": 0.1, "val_accuracy": accuracy}})
    job.update_columns(
        stop_kind="steps", stop_limit=job.step + 10, throughput_by_count={"2": 16.0},
        policy_reason=f"Keeps 2 of 8 cpu; all it can use; {POLICYS_END}.",
    )  # fmt: skip
    told_at = steps_add(job)
    left_s = 10 * job.global_batch_size / 16.0
    page = ada.get(f"/jobs/{job.pk}/")
    text = page_text(page)
    assert f"Best val_accuracy 0.9000 epoch {job.epoch + 2}" in text
    assert "now 0.7000, worse" in text
    ends = (told_at + datetime.timedelta(seconds=left_s * factor) for factor in (1 / 1.2, 1.2))
    first, last = (f"{end:%Y-%m-%d %H:%M:%S} UTC" for end in ends)
    assert f"Expected end {first} to {last}" in text
    assert "all it can use; takes 2.4 times as long as alone on its share." in text
    assert f"all it can use; {POLICYS_END}." in page_text(ada.get("/"))
    assert "Download model" not in text
    html = page.content.decode()
    assert html.index("Expected end") < html.index("Best val_accuracy") < html.index('id="charts"')


@pytest.mark.parametrize(("num_steps", "unit"), [(10, "clock"), (1000, "minute")])
def test_an_expected_end_within_minutes_has_seconds(
    num_steps: int, unit: str, world: World, ada: Client
) -> None:
    """In minutes the two times of a short range would be the same."""
    job = world.jobs["running"]
    job.update_columns(
        stop_kind="steps", stop_limit=job.step + num_steps, throughput_by_count={"2": 16.0}
    )
    steps_add(job)
    html = ada.get(f"/jobs/{job.pk}/").content.decode()
    tile = html[html.index("Expected end") :].partition("</div>")[0]
    assert tile.count(f'data-as="{unit}"') == tile.count("<time") == 2


def test_an_ended_job_offers_its_model_first(world: World, ada: Client) -> None:
    job = world.jobs["running"]
    job.update_columns(status=JobStatus.FINISHED.value, ended_at=timezone.now())
    job.artifacts.update(step=1564)
    html = ada.get(f"/jobs/{job.pk}/").content.decode()
    assert "state of step 1,564" in html
    link = f'href="/jobs/{job.pk}/files/model.keras/" download>Download model'
    assert html.index(link) < html.index('id="tiles"')
    assert "Expected end" not in html


@pytest.mark.parametrize(
    ("name", "expected", "buttons"),
    [
        ("pending", "Why this job is waiting Needs at least 4", "Pause Clone Cancel job"),
        ("running", "running", "Pause Clone Fork Cancel job"),
        ("paused", "Paused by user:ada", "Resume Clone Cancel job"),
        ("failed", "Failed The code failed in step 17: ValueError", "Clone"),
        ("invalid", "Invalid: its code build(settings)", "Clone"),
        ("finished", "finished", "Clone"),
    ],
)
def test_each_status_has_its_words_and_buttons(
    name: str, expected: str, buttons: str, world: World, ada: Client
) -> None:
    text = page_text(ada.get(f"/jobs/{world.jobs[name].pk}/"))
    assert expected in text
    assert buttons in text
    assert escape(" ".join(world.jobs[name].error_traceback.split())) in text
    if name in ("failed", "invalid", "finished"):
        assert "Cancel job" not in text
        assert "Change its priority" not in text
        assert "after the first epoch" not in text


@pytest.mark.parametrize(
    ("code", "field", "expected"),
    [
        ("user_code", "code.build", "Invalid: its code"),
        ("timeout", "code", "Invalid: its validation took too long"),
        ("indivisible", "num_virtual_nodes", "Invalid: number of virtual nodes"),
        ("internal", "", "Invalid"),
    ],
)
def test_an_invalid_job_says_what_is_at_fault(
    code: str, field: str, expected: str, world: World, ada: Client
) -> None:
    job = make_job(world.ada, "odd", JobStatus.INVALID, status_code=code, error_field=field)
    assert f"<h2>{expected}</h2>" in ada.get(f"/jobs/{job.pk}/").content.decode()


def test_counts_of_one_are_singular(world: World, ada: Client) -> None:
    job = make_job(world.ada, "one", num_virtual_nodes=1, max_accelerators=1, stop_limit=1)
    text = page_text(ada.get(f"/jobs/{job.pk}/"))
    for expected in ("1 virtual node of 128", "over 1 virtual node ", "after 1 epoch "):
        assert expected in text


def test_charts_come_with_the_first_accelerator(world: World, ada: Client) -> None:
    page = ada.get(f"/jobs/{world.jobs['pending'].pk}/").content.decode()
    assert "data-figure=" not in page
    assert "data-figures-url=" in page
    assert 'data-figure="loss"' in ada.get(f"/jobs/{world.jobs['running'].pk}/").content.decode()


def test_a_pending_job_knows_its_place(world: World, ada: Client) -> None:
    # The other pending job is younger and of the same priority.
    make_job(world.ben, "behind", JobStatus.PENDING, priority=50)
    make_job(world.ben, "ahead", JobStatus.PENDING, priority=51)
    other = make_job(world.ada, "too large", JobStatus.PENDING, priority=52)
    other.policy_reason = str(reason("cannot_start", accelerators=99, most=8))
    other.save()
    text = page_text(ada.get(f"/jobs/{world.jobs['pending'].pk}/"))
    assert "Position in the queue: 2." in text
    assert "Position in the queue" not in page_text(ada.get(f"/jobs/{other.pk}/"))


@pytest.mark.parametrize("page", ["/jobs/{}/", "/", "/queue/"])
def test_a_pending_job_shows_the_range_of_its_expected_start(
    world: World, admin: Client, page: str
) -> None:
    job = world.jobs["pending"]
    forecast = JobForecast.objects.create(
        job=job,
        expected_start_earliest_at=datetime.datetime(2026, 3, 2, 9, 5, tzinfo=datetime.UTC),
        expected_start_latest_at=datetime.datetime(2026, 3, 2, 9, 12, tzinfo=datetime.UTC),
    )
    text = page_text(admin.get(page.format(job.pk)))
    assert "Expected start: 2026-03-02 09:05:00 UTC to 2026-03-02 09:12:00 UTC" in text
    assert "estimate changed" not in text
    forecast.expected_start_latest_at = forecast.expected_start_earliest_at
    forecast.expected_start_changes = 2
    forecast.expected_start_changed_at = forecast.expected_start_earliest_at
    forecast.save()
    text = page_text(admin.get(page.format(job.pk)))
    assert "Expected start: 2026-03-02 09:05:00 UTC" in text
    assert "UTC to 2026" not in text
    assert "(estimate changed 2 times, last 2026-03-02 09:05:00 UTC" in text


def test_files_are_saved_and_never_shown(world: World, ada: Client) -> None:
    job = world.jobs["running"]
    for address, content in (
        (f"/jobs/{job.pk}/files/model.keras/", b"weights"),
        (f"/jobs/{job.pk}/code/", b"def build"),
    ):
        response = ada.get(address)
        assert b"".join(response.streaming_content).startswith(content)
        assert response.headers["Content-Type"] == "application/octet-stream"
        assert response.headers["Content-Disposition"].startswith("attachment")
        assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert ada.get(f"/jobs/{job.pk}/files/passwd/").status_code == 404


def test_times_are_marked_up_for_the_readers_zone(world: World, ada: Client) -> None:
    submitted = world.jobs["running"].submitted_at.astimezone(datetime.UTC)
    html = ada.get(f"/jobs/{world.jobs['running'].pk}/").content.decode()
    assert f'<time datetime="{submitted.isoformat()}"' in html


def test_a_loss_that_is_not_finite_is_warned_about(world: World, ada: Client) -> None:
    state = Nonfinite(
        metric=None, value="nan", step=137, epoch=2, last_finite=2.31, last_finite_step=136
    )
    warning = "The loss is not finite since step 137."
    job = make_job(world.ada, "diverges", on_nonfinite="continue", loss=None, metrics={"mae": None})
    EpochReport.objects.create(
        job=job, epoch=0, generation=1, step=150, logs={"val_loss": None}, at=timezone.now()
    )
    assert warning not in page_text(ada.get(f"/jobs/{job.pk}/")) + page_text(ada.get("/jobs/"))
    Job.objects.filter(pk=job.pk).update(nonfinite={state.name: encode(state)})
    text = page_text(ada.get(f"/jobs/{job.pk}/"))
    assert f"Not finite {warning}" in text
    assert "Loss of the last step nan" in text
    assert "If the loss is not finite continue" in text
    assert warning in page_text(ada.get("/jobs/"))
    json.loads(ada.get(f"/jobs/{job.pk}/figures/").content, parse_constant=pytest.fail)
    over = {state.name: encode(dataclasses.replace(state, until_step=140))}
    Job.objects.filter(pk=job.pk).update(nonfinite=over, loss=0.5)
    assert warning not in page_text(ada.get(f"/jobs/{job.pk}/")) + page_text(ada.get("/jobs/"))


def test_time_without_accelerators_is_a_pause(world: World, ada: Client) -> None:
    job = make_job(world.ada, "stopped for a while", status=JobStatus.RUNNING)
    counts, times = [2, 0, 1], [0, 20, 100]
    start = timezone.now() - datetime.timedelta(seconds=200)
    for number, (count, second) in enumerate(zip(counts, times, strict=True), 1):
        at = start + datetime.timedelta(seconds=second)
        job.generations.create(
            number=number, previous=number - 1 or None, phase=GenerationPhase.CLOSED.value,
            membership=membership_make(number, {}), num_members=count, requested_at=at,
            switched_at=at, pause_s=0.0,
        )  # fmt: skip
    text = page_text(ada.get(f"/jobs/{job.pk}/"))
    row = text[text.index("0 → 1") :]
    assert "1 min 20 s" in row[: row.index("2 → 0")]
