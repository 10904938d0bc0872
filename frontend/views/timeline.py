"""The timeline of the accelerators: jobs on them, and marks of what changed that."""

from __future__ import annotations

import datetime
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from urllib.parse import urlencode

from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from frontend.charts import WINDOWS, window_of
from frontend.figures.parts import Figure
from frontend.figures.timeline import Bar, TimelineMark, timeline_figure
from frontend.views.pages import figures_response
from jobs.models import Accelerator
from jobs.query_values import whole_read
from jobs.selectors.access import Person
from jobs.selectors.cluster_timeline import Stay, Timeline, TimelineEvent, timeline_between
from jobs.selectors.filter_fields import UtcDateTimeField
from jobs.selectors.nodes import nodes_present

_DEFAULT_WINDOW_S = 3600
_NAME_LENGTH = 18
_SHORTEST = datetime.timedelta(seconds=30)
_LONGEST = datetime.timedelta(days=366)
#: Part of its length by which a time that moves on does so: half a pixel of a wide chart.
_STEP_PART = 1 / 4000
_granted_at = attrgetter("granted_at")


@dataclass(frozen=True, slots=True)
class Period:
    """Time that a timeline shows.

    Attributes:
        window_s: the last so many seconds, or 0 for a fixed time.
    """

    start_at: datetime.datetime
    end_at: datetime.datetime
    window_s: int
    node_id: int | None

    @classmethod
    def read(cls, given: Mapping[str, str], now: datetime.datetime) -> Period:
        """Read a time from an address, `window`, or else `from` and `to`; nonsense is ignored."""
        start, end = _time(given.get("from", "")), _time(given.get("to", ""))
        node_id = whole_read(given.get("node"))
        if not given.get("window") and start is not None and end is not None and start < end:
            end = min(max(end, start + _SHORTEST), start + _LONGEST)
            return cls(start, end, 0, node_id)
        window_s = window_of(given, _DEFAULT_WINDOW_S)
        return cls(now - datetime.timedelta(seconds=window_s), now, window_s, node_id)

    @property
    def query(self) -> str:
        """Query of the same view: of the last time if it moves on, else of this time."""
        if not self.window_s:
            return self.fixed
        node = {} if self.node_id is None else {"node": self.node_id}
        return urlencode({"window": self.window_s, **node})

    @property
    def fixed(self) -> str:
        """Query of this time for good."""
        return self._moved(0.0, 1.0)

    @property
    def steps(self) -> dict[str, str]:
        """Queries of other times: name -> query."""
        return {
            "Earlier": self._moved(-0.5, 0.5),
            "Later": self._moved(0.5, 1.5),
            "Zoom in": self._moved(0.25, 0.75),
            "Zoom out": self._moved(-0.5, 1.5),
        }

    def _moved(self, start: float, end: float) -> str:
        length = self.end_at - self.start_at
        times = {"from": self.start_at + start * length, "to": self.start_at + end * length}
        texts = {name: at.isoformat(timespec="seconds") for name, at in times.items()}
        node = {} if self.node_id is None else {"node": self.node_id}
        return urlencode({**texts, **node})


@require_safe
def timeline(request: HttpRequest) -> HttpResponse:
    """Show the timeline."""
    period = Period.read(request.GET, timezone.now())
    figures = _figures(request.user, period) if "tables" in request.GET else None
    return render(
        request,
        "frontend/timeline.html",
        {
            "period": period,
            "windows": WINDOWS.items(),
            "nodes": nodes_present(request.user),
            "figures": figures,
            "tables_query": f"tables=1&{period.query}",
        },
    )


@require_safe
def timeline_figures(request: HttpRequest) -> HttpResponse:
    """Return the timeline's figure as JSON."""
    return figures_response(
        request, _figures(request.user, Period.read(request.GET, timezone.now()))
    )


def _figures(person: Person, period: Period) -> dict[str, Figure]:
    found = timeline_between(period.start_at, period.end_at, person, period.node_id)
    period = _stepped(period, found)
    rows = _rows(found.accelerators)
    bars = [_bar(stay, rows, period) for stay in found.stays]
    by_node: dict[int, list[str]] = {}
    for one in found.accelerators:
        by_node.setdefault(one.node_id, []).append(rows[one.pk])
    by_job: dict[int, dict[int, list[Stay]]] = {}
    for stay in found.stays:
        by_job.setdefault(stay.job_id, {}).setdefault(stay.accelerator_id, []).append(stay)
    marks = [
        TimelineMark(mark.kind.value, mark.at.timestamp(), mark.text, place)
        for mark in found.marks
        if (place := _rows_of(mark, rows, by_node, by_job)) is not None
    ]
    figure = timeline_figure(
        list(rows.values()), bars, marks, period.start_at.timestamp(), period.end_at.timestamp()
    )
    notes = [figure["note"]]
    if found.num_left_out:
        notes.append(f"{found.num_left_out} more accelerators: choose a node.")
    if found.is_cut:
        notes.append("Older stays and marks are left out: choose a shorter time.")
    figure["note"] = " ".join(filter(None, notes))
    return {"timeline": figure}


def _stepped(period: Period, found: Timeline) -> Period:
    """Move a period that ends now to its last step, or to the newest change since then.

    Until something else is seen, the figure stays the same, and pages do not draw it again.
    """
    if not period.window_s:
        return period
    step_s = period.window_s * _STEP_PART
    changes = [mark.at.timestamp() for mark in found.marks]
    changes += [stay.released_at or stay.granted_at for stay in found.stays]
    end_at = max([period.end_at.timestamp() // step_s * step_s, *changes])
    end = datetime.datetime.fromtimestamp(end_at, datetime.UTC)
    return replace(period, start_at=end - (period.end_at - period.start_at), end_at=end)


def _rows(accelerators: Sequence[Accelerator]) -> dict[int, str]:
    """Name the rows by node and index; long names of nodes are cut where they stay different."""
    names = {one.node.name for one in accelerators}
    short = Counter(_short(name) for name in names)
    return {
        one.pk: f"{_short(name) if short[_short(name)] == 1 else name} {one.index}"
        for one in accelerators
        if (name := one.node.name)
    }


def _short(name: str) -> str:
    return name if len(name) <= _NAME_LENGTH else name[: _NAME_LENGTH - 1] + "…"


def _bar(stay: Stay, rows: Mapping[int, str], period: Period) -> Bar:
    return Bar(
        rows[stay.accelerator_id],
        stay.job_id,
        stay.job_name or "",
        stay.colour,
        stay.granted_at,
        period.end_at.timestamp() if stay.released_at is None else stay.released_at,
        stay.released_at is None,
    )


def _rows_of(
    mark: TimelineEvent,
    rows: Mapping[int, str],
    by_node: Mapping[int, list[str]],
    by_job: Mapping[int, Mapping[int, Sequence[Stay]]],
) -> tuple[str, ...] | None:
    """Return the rows of a mark; None if what it is about is not shown.

    A job's mark is on the accelerators that it held then, or else on the last ones before.

    Args:
        by_job: stays of each job by accelerator, in the order of their grants.
    """
    if mark.job_id is None:
        return () if mark.node_id is None else tuple(by_node.get(mark.node_id, ())) or None
    at = mark.at.timestamp()
    before = [
        stays[place - 1]
        for stays in by_job.get(mark.job_id, {}).values()
        if (place := bisect_right(stays, at, key=_granted_at))
    ]
    held = [stay for stay in before if stay.released_at is None or stay.released_at >= at]
    if not held and before:
        last = max(stay.released_at for stay in before if stay.released_at is not None)
        held = [stay for stay in before if stay.released_at == last]
    return tuple(rows[stay.accelerator_id] for stay in held) or None


def _time(text: str) -> datetime.datetime | None:
    """Read a time; one without an offset, as of a form, is UTC."""
    try:
        return UtcDateTimeField(required=False).clean(text[:40])
    except ValidationError:
        return None
