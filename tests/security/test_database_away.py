"""Every address while the database is away: try again later, which is no fault of the request."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.db import InterfaceError, OperationalError, connection
from django.test import AsyncClient, Client

from tests.support.builders import user_make

pytestmark = pytest.mark.django_db

ADDRESSES = [
    ("post", "/api/v1/agent/hello/"), ("post", "/api/v1/agent/reports/"),
    ("get", "/api/v1/agent/wanted/"), ("get", "/api/v1/agent/jobs/1/code/"),
    ("get", "/api/v1/jobs/"), ("get", "/"), ("get", "/jobs/"), ("get", "/nodes/"),
    ("get", "/admin/"),
    ("get", "/stream/"),  # of an ASGI server alone
]  # fmt: skip
ERRORS = [OperationalError("the connection is closed"), InterfaceError("closed")]


@pytest.fixture
def ada() -> User:
    return user_make("ada")


@contextmanager
def failing(error: Exception) -> Iterator[None]:
    """Let every query fail."""

    def execute(*_query: Any) -> None:
        raise error

    with connection.execute_wrapper(execute):
        yield


def asked(
    ada: User, settings: Any, method: str, address: str, error: Exception, *, is_asgi: bool
) -> Any:
    settings.REDIS_URL = "redis://localhost"  # without it there are no streams
    client: Any = (AsyncClient if is_asgi else Client)(raise_request_exception=False)
    client.force_login(ada)
    headers = {"Authorization": "Agent some-token"} if "/agent/" in address else {}
    send = getattr(client, method)
    with failing(error):
        return (async_to_sync(send) if is_asgi else send)(address, headers=headers)


@pytest.mark.parametrize("is_asgi", [False, True], ids=["wsgi", "asgi"])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_it_says_to_try_again(ada: User, settings: Any, error: Exception, is_asgi: bool) -> None:
    for method, address in ADDRESSES[: None if is_asgi else -1]:
        answer = asked(ada, settings, method, address, error, is_asgi=is_asgi)
        assert answer.status_code == 503, address
        assert int(answer["Retry-After"]) > 0, address
        if address.startswith("/api/"):
            assert answer.json()["code"] == "unavailable", address
        else:
            assert b"The database is busy or away" in answer.content, address


@pytest.mark.parametrize("address", ["/api/v1/agent/wanted/", "/api/v1/jobs/", "/jobs/"])
def test_values_that_no_row_can_hold_are_a_fault(ada: User, settings: Any, address: str) -> None:
    """An agent has to single out a report over which the database fails each time."""
    error = OperationalError("index row size 4000 exceeds maximum 2704")
    error.__cause__ = psycopg.errors.ProgramLimitExceeded()
    assert asked(ada, settings, "get", address, error, is_asgi=False).status_code == 500
