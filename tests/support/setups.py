"""Set-ups with which many tests begin: run twice in a process, then their rows are inserted."""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar

from django.apps import apps
from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.db.models import Model

from jobs.models import Job, Node
from jobs.selectors.estimates.job import fits_seen

P = ParamSpec("P")
T = TypeVar("T")

_INSERT = re.compile(r'INSERT (?:OR IGNORE )?INTO "(\w+)"')


class _Snapshot(Generic[T]):
    """Result of a set-up, with the rows and files that it made."""

    def __init__(self, make: Callable[[], T]) -> None:
        tables: dict[str, None] = {}

        def note(execute: Any, sql: str, *rest: Any) -> Any:
            tables.update(dict.fromkeys(_INSERT.findall(sql)))
            return execute(sql, *rest)

        with connection.execute_wrapper(note):
            self.first = make()
        self._made = copy.deepcopy(self.first)
        models = {
            model._meta.db_table: model for model in apps.get_models(include_auto_created=True)
        }
        self._rows: list[tuple[type[Model], list[Model]]] = [
            (models[table], [*models[table]._default_manager.all()]) for table in tables
        ]
        #: SQL of the rows, translated once, and its values.
        self._inserts: list[tuple[str, Any]] = []
        root = Path(settings.MEDIA_ROOT)
        paths = [path for path in root.rglob("*") if path.is_file()]
        self._files = {path.relative_to(root): path.read_bytes() for path in paths}

    def fits(self) -> bool:
        """Return whether the tables of its rows are empty."""
        return not _any_rows(model._meta.db_table for model, _ in self._rows)

    def restore(self) -> T:
        """Insert the rows, write the files, and return a copy of what the set-up returned."""
        with transaction.atomic():
            self._insert()
        for name, content in self._files.items():
            path = Path(settings.MEDIA_ROOT) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        fits_seen.clear()
        return copy.deepcopy(self._made)

    def _insert(self) -> None:
        if self._inserts:
            with connection.cursor() as cursor:
                for sql, values in self._inserts:
                    cursor.execute(sql, values)
            return

        def note(execute: Any, sql: str, values: Any, *rest: Any) -> Any:
            self._inserts.append((sql, values))
            return execute(sql, values, *rest)

        for model, rows in self._rows:
            with connection.execute_wrapper(note):
                model._default_manager.bulk_create(rows)


def setup_once(make: Callable[P, T]) -> Callable[P, T]:
    """Decorate a set-up whose rows depend on its arguments alone, not on settings of a test.

    Where there are users, jobs or nodes already, it runs as it is.
    """
    snapshots: dict[str, _Snapshot[T]] = {}
    calls: set[str] = set()

    @functools.wraps(make)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        key = repr((args, sorted(kwargs.items())))
        snapshot = snapshots.get(key)
        if snapshot is not None and snapshot.fits():
            return snapshot.restore()
        tables = (model._meta.db_table for model in (User, Node, Job))
        if key not in calls or snapshot is not None or _any_rows(tables):
            calls.add(key)
            return make(*args, **kwargs)
        snapshots[key] = snapshot = _Snapshot(functools.partial(make, *args, **kwargs))
        return snapshot.first

    return run


def _any_rows(tables: Iterable[str]) -> bool:
    found = " OR ".join(f'EXISTS(SELECT 1 FROM "{table}")' for table in tables)
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {found}" if found else "SELECT 0")
        return bool(cursor.fetchone()[0])
