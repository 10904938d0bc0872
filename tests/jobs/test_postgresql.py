"""Connections to PostgreSQL: how often they are checked, and what follows when they have ended."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import OperationalError, connection

from controlplane.postgresql import base

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="it is about PostgreSQL"),
]


@pytest.fixture
def own() -> Iterator[Any]:
    """Give a connection of its own, as a thread of the site has it."""
    settings = copy.deepcopy(connection.settings_dict)
    settings |= {"CONN_HEALTH_CHECKS": True, "CONN_MAX_AGE": 60}
    made = base.DatabaseWrapper(settings, "own")
    yield made
    made.close()


def request_begins(on: Any) -> None:
    on.close_if_unusable_or_obsolete()


def backend(on: Any) -> int:
    with on.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


def end(pid: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])


def test_a_busy_connection_is_checked_now_and_then(
    own: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks: list[bool] = []
    monkeypatch.setattr(own, "is_usable", lambda: checks.append(True) or True)
    for every_s, expected in ((1000.0, 0), (0.0, 5)):
        monkeypatch.setattr(base, "CHECK_EVERY_S", every_s)
        for _ in range(5):
            request_begins(own)
            backend(own)
        assert len(checks) == expected


def test_a_connection_that_ended_while_idle_is_replaced(
    own: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    request_begins(own)
    first = backend(own)
    end(first)
    monkeypatch.setattr(base, "CHECK_EVERY_S", 0.0)
    request_begins(own)
    assert backend(own) != first


def test_a_transaction_that_goes_on_until_the_next_check_is_not_disturbed(
    own: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query between its end and the return to autocommit would begin another one."""
    monkeypatch.setattr(base, "CHECK_EVERY_S", 1000.0)
    for _ in range(2):
        request_begins(own)
        own.set_autocommit(False)
        first = backend(own)
        monkeypatch.setattr(base, "CHECK_EVERY_S", 0.0)
        own.commit()
        own.set_autocommit(True)
        assert backend(own) == first
        monkeypatch.setattr(base, "CHECK_EVERY_S", 1000.0)


def test_one_that_ended_between_two_checks_fails_once(
    own: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "CHECK_EVERY_S", 1000.0)
    for _ in range(2):
        request_begins(own)
        first = backend(own)
    end(first)
    request_begins(own)
    with pytest.raises(OperationalError):
        backend(own)
    request_begins(own)
    assert backend(own) != first
