"""GET /api/v1/jobs/ and GET /api/v1/jobs/N/."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from controlplane.core.values.lifecycle import JobStatus
from jobs.models import Job, Project, ProjectMembership, ProjectRole
from jobs.selectors.access import job_version, jobs_visible_to
from tests.jobs.world import World
from tests.support.builders import Clients, at, job_make

URL = "/api/v1/jobs/"


def ids(response: Any) -> list[int]:
    return [row["id"] for row in response.json()["results"]]


@pytest.mark.database
def test_one_sees_ones_own_newest_first(ada: User, bob: User, client_of: Clients) -> None:
    first, _, third = job_make(ada), job_make(bob), job_make(ada)
    assert ids(client_of(ada).get(URL)) == [third.pk, first.pk]


def test_admins_see_all(ada: User, admin: User, client_of: Clients) -> None:
    job = job_make(ada)
    response = client_of(admin).get(URL)
    assert ids(response) == [job.pk]
    assert response.json()["results"][0]["owner"] == "ada"


@pytest.mark.database
def test_filters(ada: User, bob: User, admin: User, client_of: Clients) -> None:
    client = client_of(admin)
    run = job_make(ada, status=JobStatus.RUNNING, name="Digits small")
    done = job_make(bob, status=JobStatus.FINISHED, submitted_at=at(100), template="tabular")
    assert ids(client.get(URL, {"status": "running"})) == [run.pk]
    assert ids(client.get(URL, {"status": ["running", "finished"]})) == [done.pk, run.pk]
    assert ids(client.get(URL, {"status": "live"})) == [run.pk]
    assert ids(client.get(URL, {"status": ["ended", "running"]})) == [done.pk, run.pk]
    assert ids(client.get(URL, {"owner": "bob"})) == [done.pk]
    assert ids(client.get(URL, {"q": "DIGITS"})) == [run.pk]
    assert ids(client.get(URL, {"q": f"#{done.pk}"})) == [done.pk]
    assert client.get(URL, {"q": "\0"}).status_code == 400
    assert ids(client.get(URL, {"name": "digits"})) == [run.pk]
    assert ids(client.get(URL, {"template": "tabular"})) == [done.pk]
    assert ids(client.get(URL, {"submitted_after": at(50).isoformat()})) == [done.pk]
    assert ids(client.get(URL, {"submitted_before": at(50).isoformat()})) == [run.pk]
    response = client.get(URL, {"status": "lazy"})
    assert (response.status_code, set(response.json()["errors"])) == (400, {"status"})


@pytest.mark.database
def test_pages_go_on_where_the_last_one_ended(ada: User, client_of: Clients) -> None:
    jobs = [job_make(ada) for _ in range(5)]
    client = client_of(ada)
    page = client.get(URL, {"page_size": 2})
    found = ids(page)
    job_make(ada)  # what comes meanwhile moves nothing
    while page.json()["next"]:
        page = client.get(page.json()["next"])
        found += ids(page)
    assert found == [job.pk for job in reversed(jobs)]


def test_a_page_is_bounded(ada: User, client_of: Clients) -> None:
    Job.objects.bulk_create(
        Job(
            owner=ada,
            name="n",
            code_name="job.py",
            code_sha256="0" * 64,
            entry_file="job.py",
            global_batch_size=1,
            num_virtual_nodes=1,
            max_accelerators=1,
            stop_kind="steps",
            stop_limit=1,
            submitted_at=at(0),
        )
        for _ in range(205)
    )
    assert len(ids(client_of(ada).get(URL, {"page_size": 1000}))) == 200


def test_only_the_fields_that_are_asked_for(ada: User, client_of: Clients) -> None:
    job = job_make(ada, settings={"a": 1})
    client = client_of(ada)
    (row,) = client.get(URL, {"fields": "id, settings,"}).json()["results"]
    assert row == {"id": job.pk, "settings": {"a": 1}}
    assert client.get(f"{URL}{job.pk}/", {"fields": "status"}).json() == {"status": "pending"}
    response = client.get(URL, {"fields": "id,password"})
    assert (response.status_code, set(response.json()["errors"])) == (400, {"fields"})


def test_a_field_alone_is_what_it_is_among_all(
    ada: User, client_of: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    job = job_make(ada)
    world.settle(4)
    granted_at = job.allocations.order_by("granted_at").values_list("granted_at", flat=True)[0]
    client = client_of(ada)
    address = f"{URL}{job.pk}/"
    monkeypatch.setattr(timezone, "now", lambda: granted_at + timedelta(seconds=60))
    whole = client.get(address).json()
    assert whole["num_accelerators"] > 0
    assert 0.0 < whole["attained_accelerator_s"] <= 60.0 * whole["num_accelerators"]
    for name, value in whole.items():
        assert client.get(address, {"fields": name}).json() == {name: value}


def test_a_poll_of_chosen_columns_costs_two_queries(
    ada: User, client_of: Clients, django_assert_num_queries: Callable[..., Any]
) -> None:
    job = job_make(ada)
    client = client_of(ada)
    chosen = {"fields": "status,status_reason,step,loss,num_accelerators"}
    client.get(f"{URL}{job.pk}/")  # which notes the token's use
    with django_assert_num_queries(2):
        client.get(f"{URL}{job.pk}/", chosen)


@pytest.mark.parametrize("query", [{}, {"fields": "id,files,metrics"}])
def test_a_list_costs_the_same_however_long(
    ada: User,
    client_of: Clients,
    query: dict[str, str],
    django_assert_max_num_queries: Callable[[int], Any],
) -> None:
    client = client_of(ada)
    client.get(URL)  # marks the token as used
    for _ in range(20):
        job_make(ada)
    with django_assert_max_num_queries(6):
        assert len(ids(client.get(URL, query))) == 20


def test_one_job(ada: User, client_of: Clients) -> None:
    world = World()
    job = job_make(ada, max_accelerators=3)
    world.settle(4)
    response = client_of(ada).get(f"{URL}{job.pk}/")
    assert response.status_code == 200
    data = response.json()
    assert (data["status"], data["num_accelerators"], data["generation"]) == ("starting", 3, 1)
    assert data["policy_reason"].startswith("Gets 3 of 4 cpu")
    assert data["stop"] == {
        "kind": "steps",
        "limit": 100,
        "metric": "",
        "target": None,
        "higher_is_better": True,
    }
    assert data["files"] == []


def test_nothing_new_is_304(ada: User, client_of: Clients) -> None:
    job, client = job_make(ada), client_of(ada)
    tag = client.get(f"{URL}{job.pk}/").headers["ETag"]
    for known in (tag, f'"other", W/{tag}', "*"):
        same = client.get(f"{URL}{job.pk}/", HTTP_IF_NONE_MATCH=known)
        assert (same.status_code, same.content, same.headers["ETag"]) == (304, b"", tag)
    Job.objects.filter(id=job.pk).update(version=2)
    other = client.get(f"{URL}{job.pk}/", HTTP_IF_NONE_MATCH=tag)
    assert (other.status_code, other.headers["ETag"]) == (200, '"1.2"')


def test_a_wait_ends_at_once_when_there_is_news(ada: User, client_of: Clients) -> None:
    job = job_make(ada, version=5)
    response = client_of(ada).get(f"{URL}{job.pk}/", {"wait": 30, "since_version": 4})
    assert response.json()["version"] == 5


def test_a_wait_ends_when_its_time_is_over(ada: User, client_of: Clients) -> None:
    job = job_make(ada, version=5)
    response = client_of(ada).get(f"{URL}{job.pk}/", {"wait": 0.05, "since_version": 5})
    assert response.json()["version"] == 5


@pytest.mark.parametrize(
    ("wait", "field"),
    [("-1", "wait"), ("31", "wait"), ("nan", "wait"), ("soon", "wait"), ("30", "since_version")],
)
def test_a_wait_that_is_none(ada: User, client_of: Clients, wait: str, field: str) -> None:
    """A wait for no version would be none: its program would ask without a pause."""
    job = job_make(ada)
    response = client_of(ada).get(f"{URL}{job.pk}/", {"wait": wait})
    assert (response.status_code, set(response.json()["errors"])) == (400, {field})


@pytest.mark.database
def test_versions_are_seen_by_those_who_see_the_job(ada: User, bob: User, admin: User) -> None:
    """The SQL that is made once holds for every kind of person, and for each job."""
    project = Project.objects.create(name="vision", created_at=at(0))
    ProjectMembership.objects.create(
        project=project, user=bob, role=ProjectRole.VIEWER, since=at(0)
    )
    jobs = [
        job_make(ada, version=11),
        job_make(ada, version=12, project=project),
        job_make(bob, version=13, revision=5),
    ]
    for person in (ada, bob, admin):
        for job in jobs:
            is_seen = jobs_visible_to(person).filter(pk=job.pk).exists()
            expected = (job.revision, job.version) if is_seen else None
            assert job_version(person, job.pk) == expected
    seen_by_bob = [job_version(bob, job.pk) is not None for job in jobs]
    assert seen_by_bob == [False, True, True]
    assert job_version(admin, jobs[-1].pk + 1) is None


def test_other_peoples_jobs_are_not_there(ada: User, bob: User, client_of: Clients) -> None:
    job, client = job_make(bob), client_of(ada)
    tag = f'"{job.revision}.{job.version}"'
    hidden = client.get(f"{URL}{job.pk}/")
    missing = client.get(f"{URL}{job.pk + 1}/")
    assert (hidden.status_code, missing.status_code) == (404, 404)
    assert hidden.content == missing.content
    assert client.get(f"{URL}{job.pk}/", HTTP_IF_NONE_MATCH=tag).status_code == 404
    assert client.get(f"{URL}{job.pk}/", {"wait": 1, "since_version": 9}).status_code == 404


def test_wrong_methods(ada: User, client_of: Clients) -> None:
    job, client = job_make(ada), client_of(ada)
    assert client.delete(URL).status_code == 405
    assert client.delete(f"{URL}{job.pk}/").status_code == 405
    assert client.put(f"{URL}{job.pk}/", {}).json()["code"] == "method_not_allowed"


@pytest.mark.database
def test_a_bound_of_a_number_is_told_in_full(admin: User, client_of: Clients) -> None:
    client, job = client_of(admin), job_make(admin)
    logs = client.get(f"{URL}{job.pk}/logs/", {"slot": -1}).json()
    assert logs["errors"]["slot"] == ["Give a whole number from 0 to 2147483647."]
    prices = client.put("/api/v1/prices/", {"per_hour": {"cpu": -1}}, format="json").json()
    assert prices["errors"]["per_hour"] == ["cpu: Give a number from 0 to 1000000."]
