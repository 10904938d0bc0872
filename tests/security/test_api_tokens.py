"""API tokens do what their scopes say, make no tokens, and end with the password (M1)."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connection
from django.forms import model_to_dict
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rest_framework.test import APIClient

from jobs.models import ApiToken
from jobs.selectors.api_tokens import token_found
from jobs.services.cluster.api_tokens import SCOPES
from jobs.services.cluster.bootstrap import ensure_api_token, ensure_token_file
from jobs.services.cluster.tokens import token_digest
from tests.support.builders import api_token_make, at, job_make, logged_in

pytestmark = pytest.mark.django_db

URL = "/api/v1/tokens/"
PASSWORD = "rowing-boat-on-a-lake"


def session_of(user: User) -> APIClient:
    user.set_password(PASSWORD)
    user.save()
    client = APIClient()
    client.force_login(user)
    return client


def sends(token: str) -> APIClient:
    return APIClient(headers={"Authorization": f"Bearer {token}"})


def test_tokens_are_shown_once_and_revoked(ada: User, bob: User) -> None:
    session = session_of(ada)
    wanted = {"name": "script", "scopes": ["jobs:read"], "lifetime_days": 7, "password": PASSWORD}
    made = session.post(URL, wanted)
    assert made.status_code == 201
    user = sends(made.data["token"])
    assert user.get("/api/v1/jobs/").status_code == 200
    assert user.post("/api/v1/jobs/", {}).status_code == 403
    rows = session.get(URL).json()["results"]
    assert [row["name"] for row in rows] == ["script"]
    assert all("token" not in row and "digest" not in row for row in rows)
    detail = f"{URL}{made.data['id']}/"
    assert session_of(bob).delete(detail).status_code == 404
    for _ in range(2):
        assert session.delete(detail).status_code == 204
    response = user.get("/api/v1/jobs/")
    assert (response.status_code, response.json()["code"]) == (401, "authentication_failed")
    assert session.get(detail).status_code == 405


def test_a_token_ends_with_its_time_and_stops_with_the_account(ada: User) -> None:
    client = sends(api_token_make(ada))

    def status() -> int:
        return client.get("/api/v1/jobs/").status_code

    assert status() == 200
    User.objects.update(is_active=False)
    assert status() == 401
    User.objects.update(is_active=True)
    assert status() == 200
    ApiToken.objects.update(expires_at=timezone.now())
    assert status() == 401


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    expires=st.sampled_from([None, 0, 1, 2]),
    revoked=st.sampled_from([None, 0, 2]),
    active=st.booleans(),
    staff=st.booleans(),
    scopes=st.lists(st.sampled_from(SCOPES), unique=True),
)
def test_a_token_is_found_as_its_model_says(
    ada: User, expires: int | None, revoked: int | None, active: bool, staff: bool, scopes: Any
) -> None:
    User.objects.filter(pk=ada.pk).update(is_active=active, is_staff=staff, email="ada@example")
    digest, now = token_digest(f"{expires}{revoked}{active}{staff}{scopes}"), at(1)
    row = ApiToken.objects.create(
        user=ada,
        digest=digest,
        scopes=scopes,
        expires_at=None if expires is None else at(expires),
        revoked_at=None if revoked is None else at(revoked),
    )
    row.refresh_from_db()
    try:
        is_good = active and revoked is None and (row.expires_at is None or row.expires_at > now)
        with CaptureQueriesContext(connection) as queries:
            found = token_found(digest, now)
        assert len(queries) == 1
        assert (found is not None) == is_good
        if found is not None:
            assert model_to_dict(found) == model_to_dict(row)
            assert model_to_dict(found.user) == model_to_dict(row.user)
    finally:
        row.delete()


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "x" * 61}, "name"),
        ({"scopes": []}, "scopes"),
        ({"scopes": ["root"]}, "scopes"),
        ({"scopes": ["read", "write"]}, "scopes"),
        ({"scopes": "jobs:read"}, "scopes"),
        ({"scopes": ["jobs:read", "admin"]}, "scopes"),
        ({"lifetime_days": 0}, "lifetime_days"),
        ({"lifetime_days": True}, "lifetime_days"),
        ({"password": "guess"}, "password"),
        ({"password": ""}, "password"),
        ({"password": 5}, "password"),
    ],
)
def test_a_wrong_token_is_refused(ada: User, body: dict[str, Any], field: str) -> None:
    response = session_of(ada).post(URL, {"name": "a", "password": PASSWORD, **body})
    assert (response.status_code, set(response.json()["errors"])) == (400, {field})
    assert not ApiToken.objects.exists()


@pytest.mark.parametrize("scopes", [("jobs:write",), ("jobs:read", "jobs:write", "admin")])
def test_a_token_makes_no_token(admin: User, scopes: tuple[str, ...]) -> None:
    session_of(admin)
    client = sends(api_token_make(admin, scopes))
    own = ApiToken.objects.get()
    body = {"name": "more", "password": PASSWORD}
    for answer in (client.post(URL, body), client.get(URL), client.delete(f"{URL}{own.pk}/")):
        assert answer.status_code == 403
    assert ApiToken.objects.filter(revoked_at=None).count() == 1


def test_a_token_of_an_admin_sees_as_much_as_its_scopes_say(admin: User, ada: User) -> None:
    job = job_make(ada)
    path = f"/api/v1/jobs/{job.pk}/"
    member = sends(api_token_make(admin, ("jobs:read", "jobs:write")))
    assert member.get(path).status_code == 404
    assert member.get("/api/v1/jobs/").json()["results"] == []
    assert member.post(f"{path}cancel/", {}).status_code == 404
    assert member.put("/api/v1/policy/", {"policy": "fifo"}).status_code == 403
    assert sends(api_token_make(admin)).get(path).status_code == 200
    admin.refresh_from_db()
    assert admin.is_staff


def by_command(user: User) -> None:
    typed = iter(["another-boat-on-a-lake"] * 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("getpass.getpass", lambda **_: next(typed))
        call_command("changepassword", user.username, stdout=io.StringIO())


def by_disabling_it(user: User) -> None:
    root = User.objects.create_superuser("root")
    client = logged_in(root)
    address = reverse("admin:auth_user_password_change", args=[user.pk])
    words = {"usable_password": "false", "unset-password": ""}
    assert client.post(address, words).status_code == 302


@pytest.mark.parametrize("change", [by_command, by_disabling_it])
def test_a_new_password_ends_tokens_and_sessions(ada: User, change: Callable[[User], None]) -> None:
    session, token = session_of(ada), api_token_make(ada)
    assert session.get("/api/v1/jobs/").status_code == 200
    assert sends(token).get("/api/v1/jobs/").status_code == 200
    change(User.objects.get(pk=ada.pk))
    assert session.get("/api/v1/jobs/").status_code == 401
    assert sends(token).get("/api/v1/jobs/").status_code == 401
    assert session.get("/").status_code == 302


def test_a_password_that_is_refused_ends_nothing(ada: User) -> None:
    token = api_token_make(ada)
    ada.email = "ada@example.org"
    ada.save()
    assert sends(token).get("/api/v1/jobs/").status_code == 200


def test_a_revoked_token_of_a_script_is_replaced(admin: User, tmp_path: Path) -> None:
    path = tmp_path / "token"
    first = ensure_token_file(admin, "prepare", path)
    assert ensure_token_file(admin, "prepare", path) == first
    session_of(admin)  # a new password
    second = ensure_token_file(admin, "prepare", path)
    assert path.read_text().strip() == second != first
    assert sends(first).get("/api/v1/nodes/").status_code == 401
    assert sends(second).get("/api/v1/nodes/").status_code == 200


def test_tokens_of_scripts_expire_but_are_prolonged(admin: User) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jobs.services.cluster.bootstrap.timezone.now", lambda: at(0))
        row = ensure_api_token(admin, "prepare", "text")
        assert row.expires_at is not None
        assert (row.expires_at - at(0)).days == 90
        row.revoked_at = at(1)
        row.save()
        patch.setattr("jobs.services.cluster.bootstrap.timezone.now", lambda: at(86400))
        again = ensure_api_token(admin, "prepare", "text")
    assert (again.pk, again.revoked_at) == (row.pk, at(1))
    assert again.expires_at is not None
    assert (again.expires_at - row.expires_at).days == 1
