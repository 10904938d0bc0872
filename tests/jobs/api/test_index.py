"""The index: who is asking, and which routes there are."""

from __future__ import annotations

from django.contrib.auth.models import User
from rest_framework.test import APIClient

from jobs.services.cluster.api_tokens import JOB_SCOPES
from tests.support.builders import Clients, job_make

URL = "/api/v1/"


def test_it_names_the_user_and_the_scopes_of_the_token(ada: User, client_of: Clients) -> None:
    found = client_of(ada).get(URL).json()
    assert (found["api_version"], found["user"], found["is_admin"]) == (1, "ada", False)
    assert found["priority_ceiling"] == 100
    assert found["scopes"] == list(JOB_SCOPES)


def test_an_admins_token_without_the_scope_is_no_admins(admin: User, client_of: Clients) -> None:
    assert client_of(admin).get(URL).json()["is_admin"] is True
    assert client_of(admin, JOB_SCOPES).get(URL).json()["is_admin"] is False


def test_a_session_has_no_scopes(ada: User) -> None:
    client = APIClient()
    client.force_login(ada)
    found = client.get(URL).json()
    assert (found["user"], found["scopes"], found["token_expires_at"]) == ("ada", None, None)


def test_every_route_of_the_index_answers(ada: User, client_of: Clients) -> None:
    client = client_of(ada)
    routes = client.get(URL).json()["routes"]
    assert {"job-list", "node-list", "template-list", "schema"} <= {*routes}
    parameters = {"job-compare": {"job": job_make(ada).pk}}
    for name, address in routes.items():
        answer = client.get(address, parameters.get(name, {}))
        assert answer.status_code in (200, 403, 405), name
