"""Pieces that the figures are made of: traces, axes, table and texts, as Plotly wants them."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

Figure = dict[str, Any]

#: More points than this in a line cannot be told apart on a screen.
MAX_POINTS = 600
#: Rows of a data table; the newest are kept.
MAX_TABLE_ROWS = 200
#: Characters of a job's name in a legend.
MAX_LABEL_LENGTH = 28


def band(x: list[int], y: list[int], name: str, colour: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "stackgroup": "jobs",
        "x": x,
        "y": y,
        "name": plotly_text(name),
        "line": {"shape": "hv", "width": 0.5, "color": "--surface"},
        "fillcolor": colour,
        "hovertemplate": "%{y} · " + plotly_text(name) + "<extra></extra>",
    }


def capacity_line(x: list[int], capacity: int) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [x[0], x[-1]],
        "y": [capacity, capacity],
        "name": "capacity",
        "line": {"color": "--capacity", "width": 1.5, "dash": "dash"},
        "hoverinfo": "skip",
    }


def line(
    x: Sequence[float], y: Sequence[float], name: str, colour: str, hovertemplate: str
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines" if len(x) > 1 else "lines+markers",
        "x": list(x),
        "y": list(y),
        "name": name,
        "line": {"color": colour, "width": 2},
        "hovertemplate": hovertemplate,
    }


def vertical_line(x: float) -> dict[str, Any]:
    return {
        "type": "line",
        "xref": "x",
        "yref": "paper",
        "x0": x,
        "x1": x,
        "y0": 0,
        "y1": 1,
        "line": {"color": "--muted", "width": 1, "dash": "dot"},
    }


def time_axis(start_at: float, end_at: float) -> dict[str, Any]:
    """Span two times, at least half a minute: ticks show seconds and no less."""
    end_at = max(end_at, start_at + 30)
    return {"type": "date", "range": [milliseconds(start_at), milliseconds(end_at)]}


def count_axis(largest: float) -> dict[str, Any]:
    """Whole accelerators only, with room above the highest."""
    return {
        "range": [0, max(1, largest) * 1.08],
        "dtick": max(1, -(-int(largest) // 5)),
        "title": {"text": "accelerators"},
    }


def table(columns: list[str], rows: list[list[Any]]) -> dict[str, Any]:
    """Hold the newest rows as text; a first column "Time" holds milliseconds since the epoch."""
    return {
        "columns": columns,
        "rows": rows[-MAX_TABLE_ROWS:],
        "num_left_out": max(0, len(rows) - MAX_TABLE_ROWS),
    }


def label(job_id: int, name: str) -> str:
    """Name a job in a chart: number first, so that cut names stay apart."""
    short = name if len(name) <= MAX_LABEL_LENGTH else name[: MAX_LABEL_LENGTH - 1] + "…"
    return f"#{job_id} {short}"


def plotly_text(text: str) -> str:
    """Make any text show as itself inside a trace: no HTML, no template of Plotly."""
    return escape(text).replace("%", "&#37;")


def legend_entry(label: str, colour: str, job_id: int | None = None) -> dict[str, Any]:
    return {"label": label, "colour": colour, "job_id": job_id}


def milliseconds(at: float) -> int:
    return round(at * 1000)
