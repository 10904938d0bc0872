"""Expressions for queries of thousands of rows, for which objects in Python take longest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Avg, BooleanField, F, FloatField, Func, Q, Value
from django.db.models.functions import Greatest, Least
from django.db.models.sql.compiler import SQLCompiler

Sql = tuple[str, tuple[str | int, ...]]

#: PostgreSQL sums up squares for a mean, and refuses it if these are infinite.
_LARGEST = 1e140


def mean_of(column: str, only: Q | None = None) -> Avg:
    """Return the mean of a column's numbers of any size; those beyond 1e140 count as that."""
    bounded = Least(Greatest(F(column), Value(-_LARGEST)), Value(_LARGEST))
    # Of a row without a number PostgreSQL would take the bound.
    known = Q(**{f"{column}__isnull": False})
    return Avg(bounded, filter=known if only is None else known & only, output_field=FloatField())


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
