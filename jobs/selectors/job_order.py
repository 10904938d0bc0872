"""Order of jobs in lists, and pages of them: a page begins behind the last row of the one before.

Jobs with the same value are ordered by their number, in the same direction. A cursor holds the
value and number of a row, so that a page neither repeats nor skips jobs when others come or go, and
costs the same wherever it begins.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import F, Q, QuerySet
from django.db.models.fields.tuple_lookups import Tuple, TupleGreaterThan, TupleLessThan

from jobs.models import Job

#: Name of an order -> its column and the type of a cursor's value.
ORDERS: Mapping[str, tuple[str, type]] = {
    "submitted": ("pk", int),
    "name": ("name", str),
    "status": ("status", str),
    "tier": ("tier", str),
    "priority": ("priority", int),
    "duration": ("duration_s", float),
    "metric": ("metric_0__best", float),
}
DEFAULT_ORDER = "-submitted"
_ID_LIMIT = 2**63
_CURSOR_LIMIT = 1000


@dataclass(frozen=True, slots=True)
class Slice:
    """Numbers of the jobs of a page, and the cursors of its neighbours; empty without one."""

    job_ids: Sequence[int]
    previous_cursor: str
    next_cursor: str


def jobs_slice(
    jobs: QuerySet[Job], order: str, cursor: str, size: int, parts: Sequence[Q] = (Q(),)
) -> Slice:
    """Read the numbers of one page of `jobs` in an order such as `-priority`.

    Args:
        jobs: for the order `metric`, as filtered by `JobFilter.filter_metrics`.
        parts: conditions, at least one of which holds for each of `jobs`. Each is asked for alone,
            so that an index of its jobs ends the search with the page.

    Raises:
        ValueError: the cursor is none of this order.
    """
    name, is_descending = order.removeprefix("-"), order.startswith("-")
    column, kind = ORDERS[name]
    start = _cursor_read(cursor, name, kind) if cursor else None
    is_backwards = start is not None and start[0]
    is_falling = is_descending != is_backwards
    rows = jobs.select_related(None).defer(None)
    if start is not None:
        rows = rows.filter(_beyond(column, start[1:], is_falling))
    columns = [column] if column == "pk" else [column, "pk"]
    rows = rows.order_by(*[f"{'-' if is_falling else ''}{each}" for each in columns])
    if len(parts) > 1:
        near = [rows.filter(part).values_list("pk", flat=True)[: size + 1] for part in parts]
        rows = rows.filter(pk__in={job_id for job_ids in near for job_id in job_ids})
    # Numbers first: sorting whole rows of all matching jobs would take most of the time.
    found = list(rows.values_list(column, "pk")[: size + 1])
    has_more, shown = len(found) > size, found[:size]
    if is_backwards:
        shown.reverse()
    has_previous = has_more if is_backwards else start is not None
    has_next = is_backwards or has_more
    return Slice(
        [job_id for _, job_id in shown],
        _cursor_write(name, True, *shown[0]) if shown and has_previous else "",
        _cursor_write(name, False, *shown[-1]) if shown and has_next else "",
    )


def _beyond(column: str, start: tuple[Any, int], is_falling: bool) -> Any:
    if column == "pk":
        return Q(pk__lt=start[1]) if is_falling else Q(pk__gt=start[1])
    compare = TupleLessThan if is_falling else TupleGreaterThan
    return compare(Tuple(F(column), F("pk")), start)


def _cursor_write(order: str, is_backwards: bool, value: Any, job_id: int) -> str:
    row = [order, is_backwards, value, job_id]
    text = json.dumps(row, separators=(",", ":"), ensure_ascii=False)
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _cursor_read(cursor: str, order: str, kind: type) -> tuple[bool, Any, int]:
    """Return whether the page lies before the row, and the row's value and number."""
    try:
        text = base64.urlsafe_b64decode(cursor[:_CURSOR_LIMIT] + "=" * (-len(cursor) % 4))
        of_order, is_backwards, value, job_id = json.loads(text)
        is_sound = (of_order, type(is_backwards), type(value)) == (order, bool, kind)
        if is_sound and type(job_id) is int and 0 <= job_id < _ID_LIMIT and _is_storable(value):
            return is_backwards, value, job_id
    except (ValueError, TypeError, RecursionError):
        pass
    raise ValueError("The cursor is none of this list.")


def _is_storable(value: Any) -> bool:
    if isinstance(value, str):
        return "\0" not in value and value.encode(errors="replace").decode() == value
    return math.isfinite(value) if isinstance(value, float) else 0 <= value < _ID_LIMIT
