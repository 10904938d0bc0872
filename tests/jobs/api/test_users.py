"""Users by REST: admins read and change limits, everybody reads the own ones."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User

from controlplane.core.values.lifecycle import JobStatus
from jobs.exceptions import ForbiddenError
from jobs.models import AuditEntry, UserLimits
from jobs.services.cluster.user_limits import user_change
from tests.support.builders import Clients, job_make, submission_values, user_make

pytestmark = [pytest.mark.django_db, pytest.mark.database]

URL = "/api/v1/users/"
ADA = f"{URL}ada/"


def test_admins_list_users_with_limits_and_use(
    ada: User, admin: User, client_of: Clients, settings: Any
) -> None:
    settings.STORAGE_LIMIT_BYTES = 7000
    live, ended = job_make(ada), job_make(ada, status=JobStatus.FINISHED)
    UserLimits.objects.create(user=ada, share_factor=2.0, live_jobs_limit=5)
    client = client_of(admin)
    rows = client.get(URL).json()["results"]
    assert [row["name"] for row in rows] == ["admin", "ada"]
    found = rows[1]
    assert found == client.get(ADA).json()
    assert (found["priority_ceiling"], found["share_factor"]) == (100, 2.0)
    assert (found["live_jobs"], found["live_jobs_limit"]) == (1, 5)
    assert found["stored_bytes"] == live.code_bytes + ended.code_bytes
    assert found["storage_limit_bytes"] == 7000
    assert found["chosen"] == ["share_factor", "live_jobs_limit"]
    assert (rows[0]["priority_ceiling"], rows[0]["is_admin"]) == (1000, True)


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("q=AD", ["admin", "ada"]),
        ("q=ada", ["ada"]),
        ("is_active=false", ["gone"]),
        ("is_admin=true", ["admin"]),
        ("page_size=1", ["gone"]),
    ],
)
def test_filters_and_pages(
    ada: User, admin: User, client_of: Clients, query: str, names: list[str]
) -> None:
    gone = user_make("gone")
    User.objects.filter(pk=gone.pk).update(is_active=False)
    found = client_of(admin).get(f"{URL}?{query}").json()
    assert [row["name"] for row in found["results"]] == names
    assert (found["next"] is None) == ("page_size" not in query)


def test_a_change_counts_at_once_and_null_takes_it_back(
    ada: User, admin: User, client_of: Clients
) -> None:
    client, theirs = client_of(admin), client_of(ada)
    limits = {"priority_ceiling": 300, "live_jobs_limit": 1, "share_factor": 0.5}
    answer = client.patch(ADA, limits)
    assert answer.status_code == 200
    assert {name: answer.json()[name] for name in limits} == limits
    assert theirs.post("/api/v1/jobs/", submission_values(priority=300)).status_code == 201
    refused = theirs.post("/api/v1/jobs/", submission_values())
    assert (refused.status_code, refused.json()["code"]) == (409, "too_many_jobs")
    assert client.patch(ADA, {"live_jobs_limit": None, "storage_limit_bytes": 10}).json()[
        "chosen"
    ] == ["priority_ceiling", "share_factor", "storage_limit_bytes"]
    refused = theirs.post("/api/v1/jobs/", submission_values())
    assert (refused.status_code, refused.json()["code"]) == (413, "storage_full")
    client.patch(ADA, {"storage_limit_bytes": 0})
    assert theirs.post("/api/v1/jobs/", submission_values()).status_code == 201


def test_a_deactivated_user_is_refused(ada: User, admin: User, client_of: Clients) -> None:
    theirs, client = client_of(ada), client_of(admin)
    assert client.patch(ADA, {"is_active": False}).json()["is_active"] is False
    assert theirs.get("/api/v1/").status_code == 401
    client.patch(ADA, {"is_active": True})
    assert theirs.get("/api/v1/").status_code == 200


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("priority_ceiling", [0, 1001, "x", True, 1.5, [], {}]),
        ("share_factor", [0, 0.09, 10.1, -1, None, "nan", "inf", True, "x", []]),
        ("live_jobs_limit", [0, 100_001, -1, "x", True]),
        ("storage_limit_bytes", [-1, 2**60 + 1, "x", True]),
        ("is_active", [None, 7, "perhaps", []]),
        ("is_superuser", [True]),
        ("password", ["x"]),
    ],
)
def test_a_wrong_value_names_its_field_and_changes_nothing(
    ada: User, admin: User, client_of: Clients, field: str, values: list[object]
) -> None:
    client = client_of(admin)
    for value in values:
        answer = client.patch(ADA, {"priority_ceiling": 7, field: value})
        assert (answer.status_code, {*answer.json()["errors"]}) == (400, {field}), value
        assert answer.headers["Content-Type"] == "application/problem+json"
    assert client.patch(ADA, [1]).status_code == 400
    assert not UserLimits.objects.exists()


def test_a_change_on_condition(ada: User, admin: User, client_of: Clients) -> None:
    client = client_of(admin)
    read = client.get(ADA).headers["ETag"]
    first = client.patch(ADA, {"share_factor": 2}, headers={"If-Match": read})
    assert first.status_code == 200
    assert first.headers["ETag"] != read
    stale = client.patch(ADA, {"share_factor": 3}, headers={"If-Match": read})
    assert (stale.status_code, stale.json()["code"]) == (412, "stale_version")
    assert client.patch(ADA, {}, headers={"If-Match": '"1.1"'}).status_code == 400
    assert client.patch(ADA, {}, headers={"If-Match": "*"}).status_code == 200
    assert UserLimits.objects.get().share_factor == 2.0


def test_a_change_is_audited_once_with_its_values(
    ada: User, admin: User, client_of: Clients
) -> None:
    for _ in range(2):
        client_of(admin).patch(ADA, {"share_factor": 2, "is_active": False})
    entry = AuditEntry.objects.get(action="user_changed")
    assert (entry.actor, entry.object) == ("user:admin", "user:ada")
    assert (entry.details["share_factor"], entry.details["is_active"]) == (2.0, False)
    assert "priority_ceiling" not in entry.details


def test_who_may_not(ada: User, admin: User, client_of: Clients) -> None:
    root = User.objects.create_superuser("root")
    client = client_of(admin)
    assert client.patch(f"{URL}admin/", {"is_active": False}).status_code == 400
    assert client.patch(f"{URL}root/", {"is_active": False}).status_code == 403
    assert client.patch(f"{URL}nobody/", {}).status_code == 404
    assert client.get(f"{URL}nobody/").status_code == 404
    assert client_of(ada).patch(ADA, {"share_factor": 10}).status_code == 403
    assert client_of(root).patch(f"{URL}admin/", {"share_factor": 2}).status_code == 200
    User.objects.filter(pk=root.pk).update(is_active=False)
    with pytest.raises(ForbiddenError, match="deactivated just now"):  # root was read before
        user_change("admin", {"is_active": False}, by=root)
    assert not UserLimits.objects.filter(user__in=(ada, root)).exists()


def test_everybody_sees_the_own_account(ada: User, admin: User, client_of: Clients) -> None:
    job_make(ada)
    job_make(admin)
    UserLimits.objects.create(user=ada, priority_ceiling=30)
    found = client_of(ada).get("/api/v1/account/").json()
    assert (found["name"], found["live_jobs"], found["priority_ceiling"]) == ("ada", 1, 30)
    assert client_of(ada).patch("/api/v1/account/", {"share_factor": 9}).status_code == 405
    member = client_of(admin, ("jobs:read",)).get("/api/v1/account/").json()
    assert (member["is_admin"], member["priority_ceiling"]) == (False, 100)


def test_a_page_of_users_has_a_fixed_number_of_queries(
    admin: User, client_of: Clients, django_assert_max_num_queries: Any
) -> None:
    for _ in range(5):
        job_make(user_make())
    client = client_of(admin)
    client.get(URL)
    with django_assert_max_num_queries(8):
        assert len(client.get(URL).json()["results"]) == 6
