"""Pages of long lists: by cursor, so that each costs the same, however many rows there are."""

from __future__ import annotations

from rest_framework.pagination import CursorPagination


class NewestFirst(CursorPagination):
    """Newest first, `page_size` rows a page within a bound."""

    ordering = "-id"
    page_size = 50
    page_size_query_param = "page_size"
    max_page_size = 200
