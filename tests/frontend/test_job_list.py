"""The list of jobs: filters, pages, its address, and actions on many jobs, without scripts."""

from __future__ import annotations

import json
import re
from urllib.parse import quote

import pytest
from django.test import Client
from django.utils import timezone
from django.utils.html import escape
from pytest_django import DjangoAssertNumQueries

from jobs.models import Job
from jobs.selectors.job_order import ORDERS
from jobs.services.lifecycle.search_rows import metric_values_write, search_terms_write
from tests.frontend.page_text import page_text
from tests.frontend.world import SCRIPT_NAME, World, make_job


def names(client: Client, query: str) -> list[str]:
    return [job.name for job in client.get(f"/jobs/?{query}").context["page"].jobs]


@pytest.fixture
def tagged(world: World) -> Job:
    job = world.jobs["finished"]
    job.tags, job.settings = ["base/line"], {"units": 64}
    job.save()
    search_terms_write(job)
    metric_values_write(job, {0: {"val_accuracy": 0.75}})
    return job


def test_tags_settings_and_metrics_are_shown_and_filter(tagged: Job, ada: Client) -> None:
    query = f"tag={quote('base/line', safe='')}&setting=units%3D64&metric=val_accuracy%3E0.7"
    response = ada.get(f"/jobs/?{query}")
    assert [job.pk for job in response.context["page"].jobs] == [tagged.pk]
    html = response.content.decode()
    assert '<a href="?tag=base%2Fline">base/line</a>' in html
    assert 'data-label="val_accuracy">0.7500</td>' in html
    assert 'value="val_accuracy&gt;0.7"' in html


def test_of_many_tags_a_list_shows_some(tagged: Job, ada: Client) -> None:
    Job.objects.filter(pk=tagged.pk).update(tags=[f"tag{number}" for number in range(20)])
    html = ada.get("/jobs/").content.decode()
    assert '<a href="?tag=tag5">tag5</a>' in html
    assert '<a href="?tag=tag6">' not in html
    assert f'<a href="/jobs/{tagged.pk}/" title="tag6, tag7,' in html
    assert ">14 more</a>" in html


def test_a_name_turns_no_text_around_it(world: World, ada: Client) -> None:
    """Names and notes are isolated: some characters reverse the text that follows."""
    job = world.jobs["running"]
    Job.objects.filter(pk=job.pk).update(name="\u202esgnihtyna", note="\u202eeton")
    isolated = "<bdi>\u202esgnihtyna</bdi>"
    assert isolated in ada.get("/jobs/").content.decode()
    page = ada.get(f"/jobs/{job.pk}/").content.decode()
    assert isolated in page
    assert "<bdi>\u202eeton</bdi>" in page


@pytest.mark.parametrize("order", ORDERS)
def test_a_heading_sorts_and_turns_the_order(order: str, tagged: Job, ada: Client) -> None:
    for sign, said in (("", "ascending"), ("-", "descending")):
        query = (
            f"metric=val_accuracy&order={sign}{order}"
            if order == "metric"
            else f"order={sign}{order}"
        )
        html = ada.get(f"/jobs/?{query}").content.decode()
        (link,) = re.findall(rf'aria-sort="{said}"><a class="sort" href="\?([^"]+)"', html)
        assert f"order={'' if sign else '-'}{order}" in link
        assert html.count("aria-sort") == 1


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("colour=red", "There is no filter “colour”; use "),
        ("status=nonsense", "status: Choose one of live, waiting, active, ended, "),
        ("tier=nonsense", "tier: Choose one of urgent, normal, idle."),
        ("order=nonsense", "order: Choose one of submitted, -submitted, "),
        ("metric=%3E1", "metric: Give the name of a metric"),
        ("order=-metric", "metric: Name the metric to sort by"),
        ("submitted_after=yesterday", "submitted_after: Give a time like 2026-03-01T12:00:00Z."),
    ],
)
def test_what_is_no_filter_is_refused_by_name(query: str, words: str, ada: Client) -> None:
    response = ada.get(f"/jobs/?{query}")
    assert response.status_code == 400
    assert escape(words) in response.content.decode()


def test_an_unknown_cursor_leads_to_the_first_page(world: World, ada: Client) -> None:
    assert names(ada, "cursor=nonsense") == names(ada, "")


def test_many_jobs_change_and_are_taken_back(world: World, ada: Client) -> None:
    jobs = [world.jobs["pending"], world.jobs["paused"], world.jobs["finished"]]
    before = {job.pk: job.priority for job in jobs}
    form = {
        "job": [job.pk for job in jobs], "do": "reprioritise", "priority": "33",
        "reason": "a demo", "back": "status=live&order=name",
    }  # fmt: skip
    response = ada.post("/jobs/actions/", form)
    assert response.headers["Location"] == "/jobs/?status=live&order=name"
    page = ada.get(response.headers["Location"])
    text = page.content.decode()
    assert "2 jobs reprioritised. 1 refused." in text
    assert f"#{jobs[2].pk}: A job that is finished cannot be reprioritised." in text
    assert {job.priority for job in Job.objects.filter(pk__in=[*before][:2])} == {33}
    assert "Undo the last action (2 jobs reprioritised)" in text
    undo = page.context["undo"]
    assert not ada.get("/jobs/").context["undo"]  # offered once
    response = ada.post("/jobs/actions/", {"undo": undo, "back": ""})
    assert response.headers["Location"] == "/jobs/"
    assert dict(Job.objects.filter(pk__in=before).values_list("pk", "priority")) == before
    assert not ada.get("/jobs/").context["undo"]


def test_tags_are_set_and_taken_back(world: World, ada: Client) -> None:
    jobs = [world.jobs["pending"].pk, world.jobs["failed"].pk]
    ada.post("/jobs/actions/", {"job": jobs, "do": "tag", "tag": "sweep"})
    page = ada.get("/jobs/?tag=sweep")
    assert {job.pk for job in page.context["page"].jobs} == {*jobs}
    assert "Undo the last action (2 jobs tagged sweep)" in page.content.decode()
    ada.post("/jobs/actions/", {"undo": page.context["undo"]})
    assert names(ada, "tag=sweep") == []


def test_a_cancellation_cannot_be_undone_and_says_so(world: World, ada: Client) -> None:
    job = world.jobs["pending"]
    ada.post("/jobs/actions/", {"job": [job.pk], "do": "cancel", "reason": "typo"})
    page = ada.get("/jobs/")
    assert not page.context["undo"]
    assert "1 job cancelled, for good." in page.content.decode()
    job.refresh_from_db()
    assert job.status == "cancelled"


def test_others_jobs_are_refused(world: World, ben: Client) -> None:
    job = world.jobs["pending"]
    ben.post("/jobs/actions/", {"job": [job.pk], "do": "cancel"})
    assert "There is no such job" in ben.get("/jobs/").content.decode()
    job.refresh_from_db()
    assert job.status == "pending"


@pytest.mark.parametrize(
    "form",
    [
        {}, {"do": "explode", "job": "1"}, {"do": "cancel", "reason": "why"},
        {"do": "cancel", "job": "x"}, {"do": "tag", "job": "1", "tag": "a b"},
        {"do": "reprioritise", "job": "1"},
        {"undo": "{"}, {"undo": "[7]"}, {"undo": '[{"action": "cancel"}]'}, {"undo": "7"},
        {"undo": "[" * 10_000},
    ],
)  # fmt: skip
def test_a_wrong_form_says_what_is_wrong(form: dict[str, str], world: World, ada: Client) -> None:
    assert ada.post("/jobs/actions/", form).status_code == 302
    first, later = (ada.get("/jobs/").content.decode() for _ in range(2))
    assert "notice-bad" in first
    for field in ('name="reason" maxlength="500" value="{}"', 'name="tag" value="{}" maxlength'):
        typed = form.get(field.split('"')[1], "")
        assert (field.format(typed) in first, field.format("") in later) == (True, True)
    assert ("Give a priority, a tier, or both." in first) == (form.get("do") == "reprioritise")


def test_an_undo_changes_no_more_jobs_than_an_action(world: World, ada: Client) -> None:
    job = world.jobs["pending"]
    bodies = [{"action": "tag", "jobs": [job.pk] * 2, "tag": f"t{n}"} for n in range(101)]
    ada.post("/jobs/actions/", {"undo": json.dumps(bodies)})
    assert "notice-bad" in ada.get("/jobs/").content.decode()
    job.refresh_from_db()
    assert job.tags == []


def test_the_way_back_stays_on_the_site(world: World, ada: Client) -> None:
    response = ada.post("/jobs/actions/", {"do": "cancel", "back": "//elsewhere.example/"})
    assert response.headers["Location"].startswith("/jobs/?")


def test_ticked_jobs_are_compared(world: World, ada: Client) -> None:
    jobs = [world.jobs["running"].pk, world.jobs["finished"].pk]
    response = ada.post("/jobs/actions/", {"job": jobs, "do": "compare"})
    assert response.headers["Location"] == f"/jobs/compare/?job={jobs[0]}&job={jobs[1]}"
    assert ada.get(response.headers["Location"]).status_code == 200


def test_tags_and_note_are_edited_on_the_page_of_a_job(world: World, ada: Client) -> None:
    job = world.jobs["finished"]
    address = f"/jobs/{job.pk}/describe/"
    ada.post(address, {"tags": "a, b", "note": "why"})
    html = ada.get(f"/jobs/{job.pk}/").content.decode()
    assert "Tags: a, b · <bdi>why</bdi></summary>" in html
    assert f'href="/jobs/compare/?job={job.pk}"' in html
    ada.post(address, {"tags": "a b!", "note": "typed"})
    first, later = (ada.get(f"/jobs/{job.pk}/").content.decode() for _ in range(2))
    assert "is no tag" in first
    assert [*re.findall('name="(?:tags|note)" value="([^"]*)"', first)] == ["a b!", "typed"]
    assert [*re.findall('name="(?:tags|note)" value="([^"]*)"', later)] == ["a, b", "why"]
    job.refresh_from_db()
    assert (job.tags, job.note) == (["a", "b"], "why")


def test_the_list_says_why_a_job_failed(world: World, ada: Client) -> None:
    text = page_text(ada.get(f"/jobs/?q=%23{world.jobs['failed'].pk}"))
    assert "The code failed in step 17" in text
    assert "epoch 0" not in text


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
