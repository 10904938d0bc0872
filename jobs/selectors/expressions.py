"""Expressions for queries of thousands of rows, for which objects in Python take longest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db.models import BooleanField, FloatField, Func


class EpochSeconds(Func):
    """Seconds since the epoch of a time, with its microseconds, as `datetime.timestamp` gives."""

    template = "EXTRACT(EPOCH FROM %(expressions)s)::double precision"
    output_field = FloatField()

    def as_sqlite(self, compiler: Any, _connection: Any, **_context: Any) -> tuple[str, Any]:
        """Add the fraction of the stored text, such as `2026-03-01 12:00:00.25`, to its seconds."""
        time, parameters = compiler.compile(self.source_expressions[0])
        seconds = f"CAST(strftime('%%s', substr({time}, 1, 19)) AS INTEGER)"
        fraction = f"CAST('0' || substr({time}, 20) AS REAL)"
        return f"({seconds} + {fraction})", (*parameters, *parameters)


class IsAnyOf(Func):
    """Condition that a column is one of many numbers, which are one parameter of the query."""

    output_field = BooleanField()

    def __init__(self, column: str, numbers: Iterable[int]) -> None:
        super().__init__(column)
        self.numbers = ",".join(map(str, numbers))

    def as_sql(self, compiler: Any, _connection: Any, **_context: Any) -> tuple[str, Any]:
        """Compare with an array, for which an index is used."""
        column, parameters = compiler.compile(self.source_expressions[0])
        return f"{column} = ANY(%s::bigint[])", (*parameters, f"{{{self.numbers}}}")

    def as_sqlite(self, compiler: Any, _connection: Any, **_context: Any) -> tuple[str, Any]:
        """Compare with the rows of a list in JSON."""
        column, parameters = compiler.compile(self.source_expressions[0])
        rows = "SELECT value FROM json_each(%s)"
        return f"{column} IN ({rows})", (*parameters, f"[{self.numbers}]")
