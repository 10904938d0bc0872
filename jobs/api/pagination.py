"""Pagination by cursor: the cost of a page does not depend on the number of rows."""

from __future__ import annotations

from rest_framework.pagination import CursorPagination


class NewestFirst(CursorPagination):
    """Newest first, `page_size` rows per page, up to a maximum."""

    ordering = "-id"
    page_size = 50
    page_size_query_param = "page_size"
    max_page_size = 200
