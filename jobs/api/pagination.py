"""Pagination by cursor: the cost of a page does not depend on the number of rows."""

from __future__ import annotations

import re

from rest_framework.exceptions import NotFound
from rest_framework.pagination import Cursor, CursorPagination
from rest_framework.request import Request

from jobs.exceptions import InvalidInputError

_ID = re.compile(r"[0-9]{1,18}")


class NewestFirst(CursorPagination):
    """Newest first, `page_size` rows per page, up to a maximum."""

    ordering = "-id"
    page_size = 50
    page_size_query_param = "page_size"
    max_page_size = 200

    def get_page_size(self, request: Request) -> int | None:
        """Read `page_size` of the query; more than the maximum counts as the maximum.

        Raises:
            InvalidInputError: it is no number from 1.
        """
        text = request.query_params.get("page_size", "")
        if text and not (_ID.fullmatch(text) and int(text)):
            raise InvalidInputError.of(page_size=f"Give a number from 1 to {self.max_page_size}.")
        return super().get_page_size(request)

    def decode_cursor(self, request: Request) -> Cursor | None:
        """Read the cursor of the query.

        Raises:
            NotFound: it is none, or its position is no id.
        """
        cursor = super().decode_cursor(request)
        if cursor is None or cursor.position is None or _ID.fullmatch(str(cursor.position)):
            return cursor
        raise NotFound(self.invalid_cursor_message)
