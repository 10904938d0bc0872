"""Expressions for queries of thousands of rows, for which objects in Python take longest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import BooleanField, FloatField, Func, Value
from django.db.models.sql.compiler import SQLCompiler

Sql = tuple[str, tuple[str | int, ...]]


class EpochSeconds(Func):
    """Seconds since the epoch of a column, with microseconds, as `datetime.timestamp` gives."""

    template = "EXTRACT(EPOCH FROM %(expressions)s)::double precision"
    output_field = FloatField()

    def as_sqlite(
        self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **extra_context: Any
    ) -> Sql:
        """Add the fraction of the stored text, such as `2026-03-01 12:00:00.25`, to its seconds."""
        template = (
            "(CAST(strftime('%%%%s', substr(%(expressions)s, 1, 19)) AS INTEGER)"
            " + CAST('0' || substr(%(expressions)s, 20) AS REAL))"
        )
        return self.as_sql(compiler, connection, template=template, **extra_context)


class IsAnyOf(Func):
    """Condition that a column is one of many numbers, which are one parameter of the query.

    For PostgreSQL they are a constant array, for which it uses an index and which it reads once.
    """

    arg_joiner = " = ANY("
    template = "%(expressions)s::bigint[])"
    output_field = BooleanField()

    def __init__(self, column: str, numbers: Iterable[int]) -> None:
        super().__init__(column, Value(f"{{{','.join(map(str, numbers))}}}"))

    def as_sqlite(
        self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **extra_context: Any
    ) -> Sql:
        """Compare with the rows of a list in JSON."""
        return self.as_sql(
            compiler,
            connection,
            arg_joiner=" IN (SELECT value FROM json_each('[' || trim(",
            template="%(expressions)s, '{}') || ']'))",
            **extra_context,
        )
