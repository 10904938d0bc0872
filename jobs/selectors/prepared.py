"""Queries that are translated to SQL once.

For a query that every request makes, the translation takes longer than the database does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from django.db import connection
from django.db.models import Model, QuerySet

M = TypeVar("M", bound=Model)


class PreparedQuery:
    """The SQL of rows as tuples, in which stand-ins of its parameters are replaced at each use."""

    def __init__(self, rows: QuerySet[Any, Any]) -> None:
        compiler = rows.query.get_compiler(connection=connection)
        self._sql, self._stand_ins = compiler.as_sql()
        # They may be bound to this connection, of which they know the settings alone.
        columns = [expression for expression, *_ in compiler.select]
        self._converters = compiler.get_converters(columns)

    def rows(self, values: Mapping[Any, Any]) -> list[list[Any]]:
        """Return all rows.

        Args:
            values: by stand-in, as the database takes them.
        """
        with connection.cursor() as cursor:
            cursor.execute(self._sql, [values[one] for one in self._stand_ins])
            rows = [list(row) for row in cursor.fetchall()]
        for place, (converters, column) in self._converters.items():
            for converter in converters:
                for row in rows:
                    row[place] = converter(row[place], column, connection)
        return rows

    def first(self, values: Mapping[Any, Any]) -> list[Any] | None:
        return next(iter(self.rows(values)), None)


class PreparedObjects(Generic[M]):
    """A `PreparedQuery` for objects, with all columns of their table."""

    def __init__(self, objects: QuerySet[M, M]) -> None:
        self._model = objects.model
        columns = self._model._meta.concrete_fields  # noqa: SLF001  public by its documentation
        self._names = [field.attname for field in columns]
        self._query = PreparedQuery(objects.order_by().values_list(*self._names))

    def all(self, values: Mapping[Any, Any]) -> list[M]:
        """Return all objects, in any order.

        Args:
            values: by stand-in, as the database takes them.
        """
        make, alias = self._model.from_db, connection.alias
        return [make(alias, self._names, row) for row in self._query.rows(values)]

    def first(self, values: Mapping[Any, Any]) -> M | None:
        return next(iter(self.all(values)), None)
