"""Usage by project, user and tag: hours inside a time, waste, cost, CSV, and who sees what."""

from __future__ import annotations

import csv
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.utils import timezone
from rest_framework.test import APIClient

from jobs.models import (
    Accelerator,
    AcceleratorPrice,
    Job,
    Project,
    ProjectMembership,
    ReadingBin,
)
from jobs.services.lifecycle.search_rows import search_terms_write
from tests.support.builders import at, audit_acts, job_make, membership_make, node_make, user_make
from tests.support.rows import allocation_make, generation_make

Clients = Callable[..., APIClient]
URL = "/api/v1/usage/"
HOUR = timedelta(hours=1)
#: The full hour, eight hours ago.
T0 = timezone.now().replace(minute=0, second=0, microsecond=0) - 8 * HOUR


class World:
    """Two accelerators, three jobs, and who held what: 4 h, 2 h and an open hour."""

    def __init__(self, ada: User) -> None:
        node, _ = node_make(num_accelerators=2)
        self.cpu, self.gpu = Accelerator.objects.filter(node=node)
        Accelerator.objects.filter(pk=self.gpu.pk).update(kind="gpu")
        self.vision = Project.objects.create(name="vision", created_at=at(0))
        ProjectMembership.objects.create(project=self.vision, user=ada, since=at(0))
        self.bob = user_make("bob")
        self.first = self.job(ada, ["a", "b"], project=self.vision)
        self.second = self.job(self.bob, ["a"], project=self.vision)
        self.third = self.job(self.bob, [])
        self.hold(self.first, self.cpu, 0, 4)
        self.hold(self.second, self.gpu, 1, 3)
        self.hold(self.third, self.cpu, 5, None)

    def job(self, owner: User, tags: list[str], **values: object) -> Job:
        job = job_make(owner, tags=tags, **values)
        search_terms_write(job)
        return job

    def hold(self, job: Job, accelerator: Accelerator, since: float, until: float | None) -> None:
        released_at = None if until is None else T0 + until * HOUR
        allocation_make(job, accelerator, granted_at=T0 + since * HOUR, released_at=released_at)


@pytest.fixture
def world(ada: User) -> World:
    return World(ada)


def period(since: float, until: float) -> dict[str, str]:
    return {
        name: (T0 + hours * HOUR).strftime("%Y-%m-%dT%H:%M:%SZ")
        for name, hours in (("since", since), ("until", until))
    }


@pytest.mark.database
@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("project", {"vision": 6.0, "": 2.0}),
        ("user", {"ada": 4.0, "bob": 4.0}),
        ("tag", {"a": 6.0, "b": 4.0}),
    ],
)
def test_hours_by_group(
    by: str, expected: dict[str, float], world: World, admin: User, client_of: Clients
) -> None:
    answer = client_of(admin).get(URL, {"by": by, **period(-1, 7)}).json()
    assert {row["name"]: row["accelerator_hours"] for row in answer["rows"]} == expected
    assert answer["total"]["accelerator_hours"] == 8.0
    assert answer["total"]["hours"] == {"cpu": 6.0, "gpu": 2.0}
    assert [row["accelerator_hours"] for row in answer["rows"]] == sorted(
        expected.values(), reverse=True
    )


@pytest.mark.database
def test_only_what_is_inside_the_time_counts(world: World, admin: User, client_of: Clients) -> None:
    answer = client_of(admin).get(URL, {"by": "user", **period(2.5, 5.5)}).json()
    found = {row["name"]: row["hours"] for row in answer["rows"]}
    assert found == {"ada": {"cpu": 1.5}, "bob": {"cpu": 0.5, "gpu": 0.5}}


def test_waste_and_cost(world: World, admin: User, client_of: Clients) -> None:
    """Two idle hours of the first job, and one that nobody held; a pause of three trainers."""
    for hours, percent in ((0, 1.0), (1, 50.0), (3, 2.0), (4, 0.0), (6, 90.0)):
        ReadingBin.objects.create(
            accelerator=world.cpu,
            width_s=3600,
            at=T0 + hours * HOUR,
            read_at=T0 + hours * HOUR,
            num_readings=9,
            utilisation_percent=percent,
        )
    membership = membership_make(2, {0: [0], 1: [1], 2: [2]})
    pause = {"switched_at": T0 + HOUR, "pause_s": 120.0, "phase": "closed"}
    generation_make(world.first, 2, membership=membership, num_members=3, **pause)
    AcceleratorPrice.objects.create(kind="gpu", per_hour=2.5)
    rows = client_of(admin).get(URL, period(0, 7)).json()["rows"]
    vision, none = rows
    assert (vision["idle_hours"], vision["paused_hours"], vision["cost"]) == (2.0, 0.1, 5.0)
    assert (none["idle_hours"], none["paused_hours"], none["cost"]) == (0.0, 0.0, None)


def test_people_see_the_use_of_their_own_and_their_projects_jobs(
    world: World, ada: User, client_of: Clients
) -> None:
    def hours(user: User, by: str) -> dict[str, float]:
        rows = client_of(user).get(URL, {"by": by, **period(-1, 7)}).json()["rows"]
        return {row["name"]: row["accelerator_hours"] for row in rows}

    assert hours(ada, "project") == {"vision": 6.0}
    assert hours(ada, "user") == {"ada": 4.0, "bob": 2.0}
    assert hours(world.bob, "user") == {"bob": 4.0}
    assert hours(user_make("mallory"), "project") == {}


def test_csv_has_a_total_and_no_formula(world: World, admin: User, client_of: Clients) -> None:
    User.objects.filter(pk=world.bob.pk).update(username="=cmd()")
    answer = client_of(admin).get(URL, {"by": "user", "csv": "1", **period(-1, 7)})
    assert answer.headers["Content-Type"].startswith("text/csv")
    assert "attachment" in answer.headers["Content-Disposition"]
    rows = list(csv.reader(answer.content.decode().splitlines()))
    assert rows == [
        ["user", "accelerator hours", "cpu hours", "gpu hours", "idle hours", "paused hours",
         "cost"],
        ["'=cmd()", "4.0", "2.0", "2.0", "0.0", "0.0", ""],
        ["ada", "4.0", "4.0", "0.0", "0.0", "0.0", ""],
        ["total", "8.0", "6.0", "2.0", "0.0", "0.0", ""],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"by": "node"}, "by"),
        ({"since": "yesterday"}, "since"),
        (period(3, 2), "since"),
        ({"since": "1980-01-01T00:00:00Z"}, "since"),
        ({"csv": "perhaps"}, "csv"),
        ({"owner": "ada"}, "owner"),
    ],
)
def test_a_wrong_question_names_the_parameter(
    query: dict[str, str], field: str, ada: User, client_of: Clients
) -> None:
    answer = client_of(ada).get(URL, query)
    assert (answer.status_code, [*answer.json()["errors"]]) == (400, [field])


def test_prices_are_set_by_admins(admin: User, ada: User, client_of: Clients) -> None:
    address = "/api/v1/prices/"
    given = {"per_hour": {"gpu": 2.5}}
    assert client_of(ada).put(address, given, format="json").status_code == 403
    assert client_of(admin).put(address, given, format="json").json()["per_hour"] == {"gpu": 2.5}
    assert client_of(ada).get(address).json()["per_hour"] == {"gpu": 2.5}
    assert audit_acts().get().action == "price_changed"
    wrong = client_of(admin).put(address, {"per_hour": {"gpu": -1}}, format="json")
    assert [*wrong.json()["errors"]] == ["per_hour"]
