"""What the pages show, over a seeded database."""

from __future__ import annotations

import dataclasses
import datetime
import json
import re

import pytest
from django.test import Client
from django.utils import timezone
from django.utils.html import escape
from pytest_django import DjangoAssertNumQueries

from controlplane.core.protocol.codec import encode
from controlplane.core.protocol.nonfinite import Nonfinite
from controlplane.core.values.explanations import reason
from controlplane.core.values.lifecycle import GenerationPhase, JobStatus
from jobs.models import (
    ClusterSetting,
    EpochReport,
    Job,
    JobForecast,
    LogChunk,
    Project,
    ProjectMembership,
    StepReport,
    Trial,
    UserLimits,
)
from jobs.models.jobs import LIVE_JOB_STATUSES
from jobs.services.lifecycle.search_rows import metric_values_write
from tests.frontend.world import SCRIPT_NAME, World, make_job
from tests.support.builders import membership_make, steps_add

PAGES = ["/", "/jobs/", "/jobs/new/", "/nodes/", "/account/"]


def page_text(response: object) -> str:
    """Give a page's visible words, blanks as one."""
    html = response.content.decode()  # type: ignore[attr-defined]
    body = re.sub(r"<script.*?</script>", "", html[html.index("<body") :], flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", " ", body).split())


def test_the_overview_counts_and_explains(admin: Client) -> None:
    text = page_text(admin.get("/"))
    assert "Accelerators in use 7 of 10" in text
    assert "Training 3 jobs" in text
    assert "Waiting 2 jobs" in text
    assert "2 virtual nodes: 0\N{EN DASH}1" in text
    waiting = text.index("Needs at least 4 accelerators of kind cpu; 2 are free")
    assert waiting < text.index("digits, patient running Weight 300 of 400 gives 3 of 8")


def test_others_jobs_take_places_on_the_map_but_have_no_names(world: World, ben: Client) -> None:
    response = ben.get("/")
    text = page_text(response)
    assert "Accelerators in use by all jobs 7 of 10" in text
    assert text.count("another person") == 4  # three of "running", one of "script"
    assert "patient" not in text
    assert f"/jobs/{world.jobs['running'].pk}/" not in response.content.decode()
    assert "Waiting jobs that you see 1 job" in text


def test_others_jobs_have_no_names_in_figures_either(world: World, ben: Client) -> None:
    figures = ben.get("/figures/").content.decode()
    assert "patient" not in figures
    labels = [entry["label"] for entry in json.loads(figures)["allocation"]["legend"]]
    assert labels[0] == "other people's jobs"
    assert labels[1].startswith(f"#{world.jobs['urgent'].pk} character transformer")


def test_the_overview_draws_what_was_held(admin: Client) -> None:
    figures = admin.get("/figures/").json()
    bands = {trace["name"].split()[0]: trace["y"] for trace in figures["allocation"]["data"][:-1]}
    assert [y[-1] for y in bands.values()] == [3, 3, 1]
    assert figures["throughput"]["data"][0]["y"]


def test_figures_that_were_drawn_already_are_not_sent_again(world: World, ada: Client) -> None:
    address = f"/jobs/{world.jobs['finished'].pk}/figures/"
    first = ada.get(address)
    assert first.status_code == 200
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


def test_best_metric_and_expected_end_stand_in_the_first_view(world: World, ada: Client) -> None:
    job = world.jobs["running"]
    for epoch, accuracy in enumerate((0.5, 0.9, 0.7), start=job.epoch):
        metric_values_write(job, epoch, {"loss": 0.1, "val_accuracy": accuracy})
    job.update_columns(stop_kind="steps", stop_limit=job.step + 10, throughput_by_count={"2": 16.0})
    told_at = steps_add(job)
    left_s = 10 * job.global_batch_size / 16.0
    page = ada.get(f"/jobs/{job.pk}/")
    text = page_text(page)
    assert f"Best val_accuracy 0.9000 epoch {job.epoch + 2}" in text
    assert "now 0.7000, worse" in text
    ends = (told_at + datetime.timedelta(seconds=left_s * factor) for factor in (1 / 1.2, 1.2))
    first, last = (f"{end:%Y-%m-%d %H:%M:%S} UTC" for end in ends)
    assert f"Expected end {first} to {last}" in text
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
    html = ada.get(f"/jobs/{job.pk}/").content.decode()
    link = f'href="/jobs/{job.pk}/files/model.keras/" download>Download model'
    assert html.index(link) < html.index('id="tiles"')
    assert "Expected end" not in html


def test_script_in_names_stays_text(world: World, ada: Client) -> None:
    for address in ("/", "/jobs/", f"/jobs/{world.jobs['script'].pk}/", "/nodes/"):
        html = ada.get(address).content.decode()
        assert "<script>window" not in html
        assert escape(SCRIPT_NAME) in html


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


def test_charts_come_with_the_first_accelerator(world: World, ada: Client) -> None:
    page = ada.get(f"/jobs/{world.jobs['pending'].pk}/").content.decode()
    assert "data-figure=" not in page
    assert "data-figures-url=" in page
    assert 'data-figure="loss"' in ada.get(f"/jobs/{world.jobs['running'].pk}/").content.decode()


def test_the_list_says_why_a_job_failed(world: World, ada: Client) -> None:
    text = page_text(ada.get(f"/jobs/?q=%23{world.jobs['failed'].pk}"))
    assert "The code failed in step 17" in text
    assert "epoch 0" not in text


def test_a_refusal_and_a_wrong_address_lead_on(world: World, ben: Client, client: Client) -> None:
    job = world.jobs["running"]
    ProjectMembership.objects.create(
        project=Project.objects.get(jobs=job), user=world.ben, role="viewer", since=timezone.now()
    )
    refused, missing = ben.post(f"/jobs/{job.pk}/pause/"), ben.get("/nowhere/")
    assert (refused.status_code, missing.status_code) == (403, 404)
    assert "You may see this job, not change it." in page_text(refused)
    for response in (refused, missing):
        html = response.content.decode()
        assert html.count("<h1>") == 1
        assert 'href="/">Overview</a>' in html
        assert 'href="/jobs/">All jobs</a>' in html
    assert 'href="/login/">Log in</a>' in client.get("/nowhere/").content.decode()


def test_members_are_told_which_figures_are_their_own(admin: Client, ada: Client) -> None:
    assert page_text(ada.get("/")).count("jobs that you see") == 3
    assert "jobs that you see" not in page_text(admin.get("/"))


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


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("q=DIGITS", ["digits, patient", "digits, first try"]),
        ("status=failed", ["wide network"]),
        ("status=waiting", ["weekend run", "tabular"]),
        ("status=ended&q=t", ["typo", "wide network", "digits, first try"]),
        ("q=%25", [SCRIPT_NAME]),
        ("owner=ben", []),
    ],
)
def test_filters_of_the_list(query: str, names: list[str], ada: Client) -> None:
    response = ada.get(f"/jobs/?{query}")
    assert [job.name for job in response.context["page"].jobs] == names


def test_a_job_is_found_by_its_number(world: World, ada: Client) -> None:
    job = world.jobs["finished"]
    for text in (str(job.pk), f"%23{job.pk}"):
        assert job in ada.get(f"/jobs/?q={text}").context["page"].jobs


def test_admins_filter_by_owner(admin: Client) -> None:
    listed = {job.owner.username for job in admin.get("/jobs/?owner=ben").context["page"].jobs}
    assert listed == {"ben"}


def test_paging_back_and_forth(world: World, ada: Client) -> None:
    now = timezone.now()
    template = world.jobs["finished"]
    Job.objects.bulk_create(
        Job(
            owner=world.ada, name=f"elder {i}", code_name="a.py", code_sha256="0" * 64,
            entry_file="a.py", global_batch_size=8, num_virtual_nodes=8, max_accelerators=1,
            stop_kind="steps", stop_limit=1, status="finished", submitted_at=now, ended_at=now,
            code=template.code.name,
        )
        for i in range(120)
    )  # fmt: skip
    first = ada.get("/jobs/?q=elder")
    assert [job.name for job in first.context["page"].jobs] == [
        f"elder {i}" for i in range(119, 69, -1)
    ]
    assert not first.context["previous_query"]
    second = ada.get("/jobs/?" + first.context["next_query"])
    third = ada.get("/jobs/?" + second.context["next_query"])
    assert [job.name for job in third.context["page"].jobs] == [
        f"elder {i}" for i in range(19, -1, -1)
    ]
    assert not third.context["next_query"]
    back = ada.get("/jobs/?" + third.context["previous_query"])
    assert back.context["page"] == second.context["page"]


def test_the_list_costs_the_same_however_long_it_is(
    world: World, ada: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    for i in range(30):
        make_job(world.ada, f"more {i}")
    # Session, person, projects twice, numbers of own jobs, of a project's and of both, jobs with
    # owners, limits, projects and saved filters for the form.
    with django_assert_max_num_queries(11):
        ada.get("/jobs/")


def test_the_overview_needs_few_queries(
    admin: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    with django_assert_max_num_queries(8):
        admin.get("/")


def test_people_see_their_own_limits_and_use(world: World, ada: Client) -> None:
    UserLimits.objects.create(
        user=world.ada, share_factor=2.5, live_jobs_limit=77, storage_limit_bytes=5 * 10**9
    )
    text = page_text(ada.get("/account/"))
    num_live = Job.objects.filter(owner=world.ada, status__in=LIVE_JOB_STATUSES).count()
    assert f"Live jobs {num_live} of 77" in text
    assert "of 5.0 GB Highest priority 100 normal at most Share factor 2.5" in text


def test_the_queue_page_tells_how_shares_are_made(world: World, admin: Client) -> None:
    for policy, is_told in (("weighted_fair", True), ("fifo", False)):
        ClusterSetting.objects.update_or_create(id=1, defaults={"policy": policy})
        assert ("Shares go to users first" in page_text(admin.get("/queue/"))) == is_told


@pytest.mark.parametrize("address", PAGES)
def test_pages_have_landmarks_and_one_heading(address: str, ada: Client) -> None:
    html = ada.get(address).content.decode()
    assert html.count("<h1") == 1
    assert html.count("<main") == 1
    assert 'href="#main"' in html
    assert '<html lang="en" ' in html
    assert " style=" not in html
    assert "onclick" not in html


def log_add(job: Job, slot: int, offset: int, text: str) -> None:
    LogChunk.objects.create(
        job=job, slot=slot, offset=offset, size_bytes=len(text), text=text, at=timezone.now()
    )


def test_the_log_comes_in_windows(world: World, ada: Client) -> None:
    job = world.jobs["running"]
    address = f"/jobs/{job.pk}/log/"
    newest = ada.get(address + "?slot=0").json()
    assert newest["lines"][0]["text"].startswith("12:00:00 step 0 loss")
    last = newest["lines"][-1]
    assert (last["text"], last["level"]) == (f"a line with {SCRIPT_NAME}", "output")
    assert (newest["has_earlier"], newest["has_later"]) == (False, False)
    nothing = ada.get(f"{address}?slot=0&after={newest['next_cursor']}").json()
    assert (nothing["lines"], nothing["next_cursor"]) == ([], newest["next_cursor"])
    log_add(job, 0, 99999, "new\nhalf")
    more = ada.get(f"{address}?slot=0&after={newest['next_cursor']}").json()
    assert [line["text"] for line in more["lines"]] == ["new", "half"]
    log_add(job, 0, 100007, " a line\n")
    (rest,) = ada.get(f"{address}?slot=0&after={more['next_cursor']}").json()["lines"]
    assert (rest["text"], rest["continues"], rest["replaces"]) == (" a line", True, False)
    assert {line["slot"] for line in ada.get(address).json()["lines"]} == {0, 1}


def test_a_huge_log_is_read_by_windows(world: World, ada: Client) -> None:
    job = world.jobs["script"]
    for i in range(30):
        log_add(job, 0, i * 20_000, f"{i:05d}" + "x" * 19_994 + "\n")
    address = f"/jobs/{job.pk}/log/?slot=0"
    part = ada.get(address).json()
    assert [line["text"][:5] for line in part["lines"]] == ["00027", "00028", "00029"]
    assert part["has_earlier"]
    before = ada.get(f"{address}&before={part['first_cursor']}").json()
    assert [line["text"][:5] for line in before["lines"]] == ["00024", "00025", "00026"]
    assert (before["has_earlier"], before["has_later"]) == (True, True)
    place = ada.get(f"{address}&offset=200000").json()
    assert [line["offset"] for line in place["lines"]] == [*range(180_000, 340_001, 20_000)]
    whole = b"".join(ada.get(f"/jobs/{job.pk}/log/file/?slot=0").streaming_content)
    assert len(whole) == 600_000


def test_searching_a_log_finds_lines_across_chunks(world: World, ada: Client) -> None:
    job = world.jobs["script"]
    for offset, text in ((0, "first\nsecond with NEE"), (21, "dle in it\nthird\n"), (37, "needle")):
        log_add(job, 3, offset, text)
    address = f"/jobs/{job.pk}/log/"
    found = ada.get(f"{address}?q=needle").json()
    assert [(match["offset"], match["text"]) for match in found["matches"]] == [
        (6, "second with NEEdle in it"),
        (37, "needle"),
    ]
    first, second = found["matches"]
    around = [[line["text"] for line in first[name]] for name in ("before", "after")]
    assert around == [["first"], ["third"]]
    assert (second["before"], second["after"]) == ([], [])
    assert (found["stopped"], found["next_cursor"]) == ("end", "")
    assert ada.get(f"{address}?level=error").json()["matches"] == []
    assert ada.get(f"{address}?q=needle&cursor=odd&level=odd").json()["matches"]


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


def test_a_tuning_shows_its_trials_and_why_they_were_kept(world: World, ada: Client) -> None:
    space = {"learning_rate": {"low": 0.001, "high": 1.0, "log": True}}
    job = make_job(world.ada, "tuned", tuning={"space": space}, step=80)
    text = page_text(ada.get(f"/jobs/{job.pk}/"))
    assert "Tuning 0 trials in 0 steps, 0 % of the job's steps so far No trials yet" in text
    assert "learning_rate (at most 20 trials per search and 30 % of the steps; searches" in text
    for number, end in enumerate(("kept", "diverged"), start=1):
        Trial.objects.create(
            job=job,
            number=number,
            search=1,
            values={"learning_rate": 0.1 * number},
            steps=20,
            start_loss=2.0,
            losses=[1.5, 1.25],
            verdict="converging",
            speed=0.0375,
            end=end,
            search_end="trials" if end == "kept" else "",
            generation=1,
            step=40,
            at=timezone.now(),
        )
    text = page_text(ada.get(f"/jobs/{job.pk}/"))
    assert "2 trials in 40 steps, 50 % of the job's steps so far; the latest search has en" in text
    assert (
        "1 the job's start search 1 learning_rate 0.1 20 2.0000 → 1.2500 0.0375 converging yes "
        "kept: the job goes on from it" in text
    )
    assert "no its loss diverged" in text


def test_parallel_trials_are_shown_with_their_jobs(world: World, ada: Client) -> None:
    space = {"learning_rate": {"low": 0.001, "high": 1.0, "log": True}}
    tuning = {"space": space, "parallel": True, "max_trials": 6, "max_parallel": 2}
    job = make_job(world.ada, "tuned", tuning=tuning, step=80)
    fork = {"values": {"learning_rate": 0.25}}
    child = make_job(
        world.ada, "tuned, trial 2", trial_of=job, forked_from=job, fork=fork, tuning=tuning,
        tier="idle", step=72,
    )  # fmt: skip
    for number, one, values in ((1, None, {}), (2, child, fork["values"])):
        Trial.objects.create(
            job=job,
            number=number,
            search=1,
            values=values,
            steps=0,
            start_loss=2.0,
            speed=0.0,
            child=one,
            is_running=True,
            generation=1,
            step=60,
            at=timezone.now(),
        )
    answer = ada.get(f"/jobs/{job.pk}/")
    text = page_text(answer)
    assert "2 trials in 0 steps, beside the job on idle accelerators" in text
    assert "(at most 6 trials, 2 at a time on idle accelerators)" in text
    assert "1 step 60 round 1 unchanged 0 2.0000" in text
    assert "2 step 60 round 1 learning_rate 0.25 12 2.0000" in text
    link = f'<a href="/jobs/{child.pk}/" aria-label="Trial 2, job {child.pk}">'
    assert link in answer.content.decode()
    shown = page_text(ada.get(f"/jobs/{child.pk}/"))
    assert "learning_rate (a trial: learning_rate 0.25)" in shown
    assert f"Trial of job #{job.pk}" in shown
    assert "tuned, trial 2" not in page_text(ada.get("/jobs/"))
    assert "tuned, trial 2" in page_text(ada.get(f"/jobs/?trial_of={job.pk}"))


def test_a_selection_shows_what_was_analysed_and_trained(world: World, ada: Client) -> None:
    job = make_job(
        world.ada, "selects", selection={"method": "selective_backprop", "beta": 2.0, "end": 3}
    )
    text = page_text(ada.get(f"/jobs/{job.pk}/"))
    assert "0 trained of 0, 0 analysed Speed-up over plain epochs" in text
    assert "not predicted" in text
    assert "Nothing chosen yet" in text
    measured = {"selection": {"loss_s": 1.0, "step_s": 3.0}}
    Job.objects.update(facts=measured, most_chosen=[[41, 9], [7, 8]])
    job.example_previews.create(place=41, label="cat", image=b"png")
    for epoch, candidates in enumerate((0, 2000, 2000, 0)):
        StepReport.objects.create(
            job=job,
            generation=1,
            first_step=10 * epoch,
            last_step=10 * epoch + 9,
            epoch=epoch,
            examples=640,
            candidates=candidates,
            analysed=candidates // 2,
            pass_s=0.2 if candidates else 0.0,
            seconds=1.0,
            num_accelerators=1,
            at=timezone.now(),
        )
    text = page_text(ada.get(f"/jobs/{job.pk}/"))
    assert "Examples selected 32 % 1.28 k trained of 4 k, 2 k analysed" in text
    # 4000 candidates at 1.6 s for 1280 trained examples, in 2 s; 1 / (1/3 + 1/3).
    # The newest: 0.4 s for 2000 analysed, 1.6 s for 1280 trained; 1 / (0.16 + 1/3).
    assert (
        "Speed-up over plain epochs 2.50 1.50 predicted with one accelerator, 2.03 by the newest"
        in text
    )
    assert "Place Example Label Times 41 cat 9 7 \u2013 \u2013 8" in text
    image = f'<img class="example" src="/api/v1/jobs/{job.pk}/examples/41/image/"'
    assert image in ada.get(f"/jobs/{job.pk}/").content.decode()
    assert "Selection selective_backprop (beta 2.0, from epoch 1 to 3)" in text
    assert "Examples selected" not in page_text(ada.get(f"/jobs/{world.jobs['running'].pk}/"))
