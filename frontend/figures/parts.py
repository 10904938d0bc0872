"""Building blocks of the figures in Plotly's format: traces, axes, tables and texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from jobs.submission import name_start

Figure = dict[str, Any]

#: Most points of a line; more cannot be distinguished on a screen.
MAX_POINTS = 600
#: Most rows of a data table; the newest are kept.
MAX_TABLE_ROWS = 200
#: Most characters of a job's name in a legend.
MAX_LABEL_LENGTH = 28


def band(
    x: list[int], y: list[int], name: str, colour: str, fillpattern: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "stackgroup": "jobs",
        "x": x,
        "y": y,
        "name": plotly_text(name),
        "line": {"shape": "hv", "width": 0.5, "color": "--surface"},
        "fillcolor": colour,
        "fillpattern": fillpattern,
        "hoverinfo": "skip",
    }


def capacity_line(x: list[int], capacity: int, holders: list[str]) -> dict[str, Any]:
    """Return the line above the bands, with the text that is shown at each time for all of them."""
    return {
        "type": "scatter",
        "mode": "lines",
        "x": x,
        "y": [capacity] * len(x),
        "text": holders,
        "name": "capacity",
        "line": {"color": "--capacity", "width": 1.5, "dash": "dash"},
        "hovertemplate": "%{text}<extra></extra>",
    }


def line(
    x: Sequence[float],
    y: Sequence[float | None],
    name: str,
    colour: str,
    hovertemplate: str,
    dash: str = "solid",
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines" if len(x) > 1 else "lines+markers",
        "x": list(x),
        "y": list(y),
        "name": name,
        "line": {"color": colour, "width": 2, "dash": dash},
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


def shaded(start: float, end: float) -> dict[str, Any]:
    """Return a shape that shades the chart from `start` to `end`."""
    return {
        "type": "rect",
        "xref": "x",
        "yref": "paper",
        "x0": start,
        "x1": end,
        "y0": 0,
        "y1": 1,
        "layer": "below",
        "fillcolor": "--muted",
        "opacity": 0.15,
        "line": {"width": 0},
    }


def time_axis(start_at: float, end_at: float) -> dict[str, Any]:
    """Return an axis between two times, at least 30 s long: its ticks show whole seconds."""
    end_at = max(end_at, start_at + 30)
    return {"type": "date", "range": [milliseconds(start_at), milliseconds(end_at)]}


def count_axis(largest: float) -> dict[str, Any]:
    """Return an axis of whole accelerators, with room above the highest."""
    return {
        "range": [0, max(1, largest) * 1.08],
        "dtick": max(1, -(-int(largest) // 5)),
        "title": {"text": "accelerators"},
    }


def table(columns: list[str], rows: list[list[Any]], num_rows: int | None = None) -> dict[str, Any]:
    """Return the newest rows as a table; a first column "Time" has ms since the epoch.

    Args:
        num_rows: number of all rows, if `rows` has no more than the newest of them.
    """
    num_rows = len(rows) if num_rows is None else num_rows
    return {
        "columns": columns,
        "rows": rows[-MAX_TABLE_ROWS:],
        "num_left_out": max(0, num_rows - MAX_TABLE_ROWS),
    }


def label(job_id: int, name: str) -> str:
    """Return a job's label in a chart: the number first, so that cut names stay distinct."""
    is_short = len(name) <= MAX_LABEL_LENGTH
    short = name if is_short else name_start(name, MAX_LABEL_LENGTH - 1) + "…"
    return f"#{job_id} {short}"


def plotly_text(text: str) -> str:
    """Escape text inside a trace: Plotly must not read HTML or templates in it."""
    return escape(text).replace("%", "&#37;")


def legend_entry(
    label: str, colour: str, job_id: int | None = None, *, mark: str = ""
) -> dict[str, Any]:
    """Return an entry of the legend.

    Args:
        colour: of its swatch; empty for an entry of several colours, which has none.
        mark: dash of its line, or shape and size of its area's pattern: "dash", "/6".
    """
    return {"label": label, "colour": colour, "job_id": job_id, "mark": mark}


def line_legend(traces: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the legend of some lines."""
    return [
        legend_entry(one["name"], one["line"]["color"], mark=one["line"]["dash"]) for one in traces
    ]


def milliseconds(at: float) -> int:
    return round(at * 1000)
