"""Rows that several tests share, each of which works in a transaction inside theirs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import transaction
from pytest_django import DjangoDbBlocker


@contextmanager
def rows_shared(blocker: DjangoDbBlocker) -> Iterator[None]:
    """Keep what is made inside for as long as the block lasts; for fixtures wider than a test.

    The fixture needs `django_db_setup`, and its tests `db`. They get copies of its objects.
    """
    with blocker.unblock(), transaction.atomic():
        yield
        transaction.set_rollback(True)
