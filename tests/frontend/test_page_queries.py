"""Queries of the pages: how many there are, and what they must not read."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from frontend.charts import overview_charts
from jobs.job_templates import JOB_TEMPLATES
from jobs.models import Accelerator, Allocation, Generation, Job, Project, ReadingBin
from jobs.selectors.access import jobs_visible_to, seen_parts
from jobs.selectors.cluster_map import AcceleratorCell, cluster_map
from jobs.selectors.cluster_timeline import timeline_between
from jobs.selectors.job_order import jobs_slice
from jobs.selectors.queue import QUEUE_JOBS_AT_ONCE, live_jobs
from jobs.selectors.readings import measures_told
from jobs.selectors.usage import UsageBy, usage_between
from tests.frontend.world import World, make_job, make_sweep
from tests.support.builders import logged_in, membership_make
from tests.support.rows import allocation_make

pytestmark = pytest.mark.django_db

HOUR = datetime.timedelta(hours=1)


def _sql_of(read: Callable[[], Any]) -> list[str]:
    with CaptureQueriesContext(connection) as queries:
        read()
    return [query["sql"] for query in queries]


def _page(person: Any, address: str) -> list[str]:
    client = logged_in(person)
    client.get(address)
    return _sql_of(lambda: client.get(address))


def test_a_member_of_projects_gets_a_page_from_an_index_for_each_of_them(world: World) -> None:
    vision = Project.objects.get()
    for number in range(6):
        make_job(world.ben, f"ben's {number}", project=vision)
        make_job(world.ada, f"ada's {number}", project=vision if number % 2 else None)
    jobs, parts = jobs_visible_to(world.ada), seen_parts(world.ada)
    expected = list(jobs.order_by("name", "pk").values_list("pk", flat=True))
    shown, cursor = [], ""
    while True:
        part = jobs_slice(jobs, "name", cursor, 3, parts)
        shown += part.job_ids
        if not (cursor := part.next_cursor):
            break
    assert shown == expected
    back = jobs_slice(jobs, "name", part.previous_cursor, 3, parts)
    assert [*back.job_ids] == expected[-3 - len(part.job_ids) : -len(part.job_ids)]
    own, project, page = _sql_of(lambda: jobs_slice(jobs, "-submitted", "", 3, parts))
    assert own.count('"owner_id" = ') == 2
    assert project.count('"project_id" = ') == 2
    assert all("LIMIT 4" in sql for sql in (own, project, page))
    assert '"id" IN (' in page


def test_people_without_projects_need_one_query_for_a_page(world: World) -> None:
    for person in (world.ben, world.admin):
        jobs, parts = jobs_visible_to(person), seen_parts(person)
        with CaptureQueriesContext(connection) as queries:
            jobs_slice(jobs, "name", "", 3, parts)
        assert len(queries) == 1


@pytest.mark.parametrize("person", ["admin", "ada"])
def test_charts_and_timeline_read_no_more_jobs_than_they_show(person: str, world: World) -> None:
    now = timezone.now()
    viewer = getattr(world, person)
    charts = _sql_of(lambda: overview_charts(viewer, 3600, now))
    timeline = _sql_of(lambda: timeline_between(now - HOUR, now, viewer))
    of_spans = [sql for sql in charts + timeline if 'FROM "jobs_allocation"' in sql]
    assert len(of_spans) == 4
    # A join to jobs and a condition on two columns at once would each read a whole table.
    assert not any("JOIN" in sql or " OR " in sql for sql in of_spans)
    assert not any("JOIN" in sql for sql in timeline if 'FROM "jobs_event"' in sql)


def test_usage_sums_the_allocations_once_and_by_numbers(world: World) -> None:
    now = timezone.now()

    def sums(by: UsageBy) -> list[str]:
        queries = _sql_of(lambda: usage_between(world.admin, by, now - HOUR, now))
        return [sql for sql in queries if "SUM" in sql and 'FROM "jobs_allocation"' in sql]

    for by in UsageBy:
        (only,) = sums(by)
        # A join to jobs would read all of them.
        assert '"jobs_job"' not in only


def test_many_jobs_add_no_query_and_no_text_to_charts_and_usage(world: World) -> None:
    """Numbers of jobs are one parameter, and labels are read of the jobs that are named."""
    place = Accelerator.objects.earliest("pk")
    now = timezone.now()
    since = now - datetime.timedelta(minutes=50)
    addresses = ["/figures/?window=3600", "/timeline/figures/", "/usage/?by=tag", "/usage/"]
    few = {address: _page(world.ada, address) for address in addresses}
    made = [make_job(world.ada, f"ended {number}") for number in range(30)]
    Allocation.objects.bulk_create(
        Allocation(
            job=job, accelerator=place, slot=0, granted_generation=1,
            granted_at=since + slot * HOUR / 100, released_at=since + (slot + 1) * HOUR / 100,
        )
        for slot, job in enumerate(made)
    )  # fmt: skip
    for address in addresses:
        many = _page(world.ada, address)
        assert len(many) == len(few[address])
        number = str(made[20].pk)
        assert not any(f"IN ({number}" in sql or f" {number}," in sql for sql in many)


def _is_kept(cell: AcceleratorCell) -> bool:
    return cell.is_held and cell.state != "leaving"


def test_the_queue_is_read_in_pages_with_the_same_queries(world: World) -> None:
    order = list(live_jobs(world.admin))
    few = _page(world.admin, "/queue/")
    for number in range(QUEUE_JOBS_AT_ONCE):
        make_job(world.ada, f"more {number}", priority=1)
    client = logged_in(world.admin)
    many = _sql_of(lambda: client.get("/queue/"))
    assert len(many) == len(few)
    assert not any('"jobs_job"."facts"' in sql for sql in many)
    first, second = (client.get("/queue/", {"page": page}) for page in (1, 2))
    assert len(first.context["rows"]) == QUEUE_JOBS_AT_ONCE
    shown = [row.job for page in (first, second) for row in page.context["rows"]]
    assert shown == live_jobs(world.admin)
    assert shown[: len(order)] == order
    held = {
        job.pk: sum(
            _is_kept(cell) for row in cluster_map(world.admin, job.pk) for cell in row.cells
        )
        for job in order
    }
    assert any(held.values())
    assert {row.job.pk: row.held for row in first.context["rows"] if row.held} == {
        job_id: count for job_id, count in held.items() if count
    }
    assert b'rel="next" href="?page=2"' in first.content
    assert b'rel="prev" href="?page=1"' in second.content
    assert b'rel="next"' not in second.content
    assert b"No jobs on this page" in client.get("/queue/", {"page": 9}).content


def test_the_jobs_of_a_sweep_are_read_at_once_and_in_part(world: World) -> None:
    small = make_sweep(world.ada, [0.5])
    large = make_sweep(world.ada, [0.5, 0.7, 0.9, None, 0.8])
    for address in ("", "figures/"):
        few, many = (_page(world.ada, f"/sweeps/{sweep.pk}/{address}") for sweep in (small, large))
        assert len(few) == len(many)
        assert not any('"error_traceback"' in sql or '"facts"' in sql for sql in many)


def test_the_page_of_a_node_reads_jobs_in_part_and_no_readings_of_charts(world: World) -> None:
    node = world.nodes[0]
    place = Accelerator.objects.filter(node=node).first()
    now = timezone.now()
    few = _page(world.admin, f"/nodes/{node.pk}/")
    for number in range(5):
        job = make_job(world.ben, f"ended {number}")
        allocation_make(job, place, granted_at=now - HOUR, released_at=now - HOUR / 2)
        at = now - datetime.timedelta(minutes=30 + number)
        ReadingBin.objects.create(
            accelerator=place, width_s=60, at=at, read_at=at, num_readings=1, power_w=9.0
        )
    many = _page(world.admin, f"/nodes/{node.pk}/")
    assert len(few) == len(many)
    told = [sql for sql in many if 'COUNT("jobs_readingbin"."power_w")' in sql]
    assert len(told) == 1
    names = ("power_w", "temperature_c")
    assert measures_told(node, now - HOUR, now, names) == {"power_w"}
    stays = [sql for sql in many if 'FROM "jobs_job"' in sql and '"jobs_job"."colour"' in sql]
    assert stays
    assert not any('"jobs_job"."code_sha256"' in sql for sql in stays[-1:])
    assert Job.objects.filter(name__startswith="ended").count() == 5


def test_a_job_of_many_resizes_shows_the_newest(world: World) -> None:
    job = world.jobs["paused"]
    Generation.objects.bulk_create(
        Generation(
            job=job, number=number, previous=number - 1, phase="closed", num_members=number % 7,
            membership=membership_make(number, {0: (0,)}), requested_at=timezone.now(),
        )
        for number in range(1, 121)
    )  # fmt: skip
    client = logged_in(world.ada)
    response = client.get(f"/jobs/{job.pk}/")
    rows = response.context["generations"]
    assert [row.generation.number for row in rows] == list(range(120, 20, -1))
    # The one before the oldest that is shown is known.
    assert rows[-1].num_before == 20 % 7
    assert f"/api/v1/jobs/{job.pk}/generations/" in response.content.decode()


def test_the_form_reads_the_limits_of_a_user_at_most_twice(world: World) -> None:
    queries = _page(world.ada, "/jobs/new/")
    assert sum('FROM "jobs_userlimits"' in sql for sql in queries) <= 2


def test_a_template_is_parsed_once_and_its_settings_are_copies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    template = dataclasses.replace(JOB_TEMPLATES["tabular"])
    first = template.settings
    monkeypatch.delattr("jobs.job_templates.ast.parse")
    assert template.settings == first
    first.clear()
    assert template.settings
