"""Pagination by cursor: the cost of a page does not depend on the number of rows."""

from __future__ import annotations

import re
from typing import Any

from rest_framework.exceptions import NotFound
from rest_framework.pagination import Cursor, CursorPagination
from rest_framework.request import Request
from rest_framework.utils.urls import replace_query_param

from jobs.exceptions import InvalidInputError
from jobs.selectors.access import seen_parts
from jobs.selectors.job_order import DEFAULT_ORDER, jobs_slice

_ID = re.compile(r"[0-9]{1,18}")


class NewestFirst(CursorPagination):
    """Newest first, `page_size` rows per page, up to a maximum."""

    ordering = "-id"
    page_size = 50
    page_size_query_param = "page_size"
    max_page_size = 200
    invalid_cursor_message = "The cursor is none of this list in this order; begin without one."

    def get_page_size(self, request: Request) -> int | None:
        """Read `page_size` of the query; more than the maximum counts as the maximum.

        Raises:
            InvalidInputError: it is no number from 1.
        """
        text = request.query_params.get("page_size", "")
        if text and not (_ID.fullmatch(text) and int(text)):
            raise InvalidInputError.of(page_size=f"Give a number from 1 to {self.max_page_size}.")
        return super().get_page_size(request)

    def get_schema_operation_parameters(self, view: Any) -> list[dict[str, Any]]:
        """Return the parameters for the OpenAPI document, with the bounds of `page_size`."""
        parameters: list[dict[str, Any]] = super().get_schema_operation_parameters(view)
        for parameter in parameters:
            if parameter["name"] == self.page_size_query_param:
                parameter["schema"] |= {"minimum": 1, "maximum": 10**18 - 1}
        return parameters

    def decode_cursor(self, request: Request) -> Cursor | None:
        """Read the cursor of the query.

        Raises:
            NotFound: it is none, or its position is no id.
        """
        cursor = super().decode_cursor(request)
        if cursor is None or cursor.position is None or _ID.fullmatch(str(cursor.position)):
            return cursor
        raise NotFound(self.invalid_cursor_message)


class JobPages(NewestFirst):
    """Jobs in the order of `JobFilter`."""

    def paginate_queryset(
        self,
        queryset: Any,
        request: Request,
        view: Any = None,  # noqa: ARG002 - the name is that of the REST framework
    ) -> list[Any]:
        """Return the rows of one page.

        Raises:
            NotFound: the cursor is none of this list.
        """
        self._address = request.build_absolute_uri()
        order = request.query_params.get("order") or DEFAULT_ORDER
        cursor = request.query_params.get("cursor", "")
        try:
            size = self.get_page_size(request) or 0
            self._slice = jobs_slice(queryset, order, cursor, size, seen_parts(request.user))
        except ValueError:
            raise NotFound(self.invalid_cursor_message) from None
        rows = queryset.filter(pk__in=self._slice.job_ids).order_by().in_bulk()
        return [rows[job_id] for job_id in self._slice.job_ids if job_id in rows]

    def get_next_link(self) -> str | None:
        return self._link(self._slice.next_cursor)

    def get_previous_link(self) -> str | None:
        return self._link(self._slice.previous_cursor)

    def _link(self, cursor: str) -> str | None:
        return replace_query_param(self._address, "cursor", cursor) if cursor else None
