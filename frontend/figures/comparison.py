"""Figures of jobs side by side: one per metric, a line per job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from frontend.figures.metrics import MAX_MARKERS
from frontend.figures.parts import (
    MAX_TABLE_ROWS,
    Figure,
    label,
    legend_entry,
    line,
    plotly_text,
    table,
)
from frontend.palette import DASHES
from jobs.selectors.comparison import Series

#: Horizontal axes: name in the address -> title.
AXES: Mapping[str, str] = {
    "steps": "steps",
    "examples": "examples",
    "time": "time since the start",
    "accelerator_hours": "accelerator-hours of training",
}
_SYMBOLS = ("circle", "square", "diamond", "cross", "x", "triangle-up")
#: Units of time: seconds from which one is used -> seconds of one, its name.
_UNITS = ((3 * 3600, 3600.0, "hours"), (300, 60.0, "minutes"), (0, 1.0, "seconds"))


@dataclass(frozen=True, slots=True)
class JobStyle:
    """Look of a job's lines: number and pattern tell jobs apart without colours, too."""

    job_id: int
    name: str
    colour: str
    place: int

    @property
    def dash(self) -> str:
        return DASHES[self.place % len(DASHES)]


def comparison_figure(
    name: str,
    series: Sequence[Series],
    styles: Mapping[int, JobStyle],
    *,
    axis: str = "steps",
    is_log: bool = False,
    smoothing: float = 0.0,
) -> Figure:
    """Draw a metric of jobs against steps, examples, time or accelerator-hours.

    Args:
        axis: a name of `AXES`.
        smoothing: weight of the moving average, 0 to below 1, which the page's script draws.
    """
    unit_s, title = 1.0, AXES[axis]
    if axis == "time":
        longest_s = max((one.seconds[-1] for one in series if one.seconds), default=0.0)
        unit_s, unit = next((s, unit) for from_s, s, unit in _UNITS if longest_s >= from_s)
        title = f"{title} in {unit}"
    axis_y = {"title": {"text": plotly_text(name)}, "type": "log" if is_log else "linear"}
    if len({value for one in series for value in one.values}) == 1:
        axis_y["rangemode"] = "tozero"  # else from 1 below to 1 above, where a small rate looks 0
    traces, rows, largest, is_cut = [], [], 0.0, False
    for place, one in enumerate(series):
        style = styles[one.job_id]
        xs = [round(x / unit_s, 6) for x in _positions(one, axis)]
        largest = max([largest, *xs])
        # The numbers stand along the lines, one beside the other, so that they stay legible.
        at = round((len(xs) - 1) * (0.3 + 0.65 * (place + 1) / len(series)))
        traces.append(_trace(one, xs, style, title, at))
        every = max(1, -(-len(xs) * len(series) // MAX_TABLE_ROWS))
        is_cut |= every > 1
        shown = [*range(0, len(xs) - 1, every), len(xs) - 1]
        text = f"#{one.job_id}"
        rows += [[text, f"{xs[i]:g}", f"{one.values[i]:.6g}"] for i in shown]
    return {
        "data": traces,
        "smoothing": smoothing,
        "layout": {
            "xaxis": {"title": {"text": title}, "range": [0, (largest or 1) * 1.03]},
            "yaxis": axis_y,
        },
        "legend": [
            legend_entry(
                label(style.job_id, style.name), style.colour, style.job_id, mark=style.dash
            )
            for style in (styles[one.job_id] for one in series)
        ],
        "table": table(["Job", title.capitalize(), name], rows[:MAX_TABLE_ROWS])
        | {"note": "Some of the points; the REST API returns all of them." if is_cut else ""},
    }


def _positions(series: Series, axis: str) -> Sequence[float]:
    if axis == "time":
        return series.seconds
    if axis == "accelerator_hours":
        return series.accelerator_hours
    return series.examples if axis == "examples" else series.steps


def _trace(series: Series, xs: list[float], style: JobStyle, title: str, at: int) -> dict[str, Any]:
    text = plotly_text(label(style.job_id, style.name))
    hover = f"{text}<br>%{{x:.6~g}} {title}: %{{y:.4f}}<extra></extra>"
    trace = line(xs, series.values, f"#{style.job_id}", style.colour, hover, style.dash)
    mode = "lines+markers" if len(xs) <= MAX_MARKERS else "lines"
    return trace | {
        "mode": f"{mode}+text",
        "text": [f"#{style.job_id}" if place == at else "" for place in range(len(xs))],
        "textposition": "top center",
        "textfont": {"color": "--text", "size": 11},
        "cliponaxis": False,
        "marker": {
            "size": 7,
            "color": style.colour,
            "symbol": _SYMBOLS[style.place % len(_SYMBOLS)],
        },
    }
