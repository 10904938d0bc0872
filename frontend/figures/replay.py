"""Figures of replays: how long the jobs took under each scenario."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from frontend.figures.parts import Figure, label, line, line_legend, plotly_text, table
from frontend.palette import DASHES, job_colour_token

_MINUTE_S = 60.0
#: Dashes of the columns: as recorded, replayed unchanged, and four scenarios.
_LINES = (*DASHES, "longdashdot")


def completion_figure(
    names: Mapping[int, str], columns: Mapping[str, Mapping[int, float | None]]
) -> Figure:
    """Draw the share of jobs that are complete a time after submission, a line per column.

    Args:
        names: of the jobs, by number.
        columns: seconds to completion by name of the column and number of the job; of the first
            column only jobs that have finished, which are those that are drawn, if there are any.
    """
    recorded = next(iter(columns.values()), {})
    drawn = [job_id for job_id in names if recorded.get(job_id) is not None] or list(names)
    data = []
    for place, (name, times) in enumerate(columns.items()):
        seconds = sorted(s for job_id in drawn if (s := times.get(job_id)) is not None)
        if seconds:
            data.append(_distribution(seconds, name, place))
    return {
        "data": data,
        "layout": {
            "xaxis": {"rangemode": "tozero", "title": {"text": "minutes since submission"}},
            "yaxis": {"range": [0, 104], "title": {"text": "% of jobs complete"}},
            "hovermode": "x unified",
        },
        "legend": line_legend(data),
        "table": table(
            ["Job", *(f"{name}, s" for name in columns)],
            [
                [label(job_id, name), *(_seconds(times.get(job_id)) for times in columns.values())]
                for job_id, name in names.items()
            ],
        ),
    }


def _distribution(seconds: Sequence[float], name: str, place: int) -> dict[str, Any]:
    """Return the line of a column; the first two, of no scenario, are grey."""
    x = [0.0, *(round(value / _MINUTE_S, 2) for value in seconds)]
    y = [round(100 * number / len(seconds), 2) for number in range(len(seconds) + 1)]
    colour = "--muted" if place < 2 else job_colour_token(place - 2)
    text = f"%{{y:.0f}} % {plotly_text(name)}<extra></extra>"
    one = line(x, y, name, colour, text, _LINES[place])
    one["line"]["shape"] = "hv"
    return one


def _seconds(value: float | None) -> str:
    return "\N{EN DASH}" if value is None else f"{value:.0f}"
