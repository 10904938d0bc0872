"""Figures of the readings of a node's accelerators over time, a line for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import Any

from frontend.figures.parts import (
    MAX_POINTS,
    Figure,
    legend_entry,
    line,
    milliseconds,
    plotly_text,
    table,
    time_axis,
)
from frontend.palette import DASHES, job_colour_token
from jobs.models.jobs import NUM_COLOURS


@dataclass(frozen=True, slots=True)
class ReadingLine:
    """Values of one accelerator: (seconds since the epoch, value or None), oldest first."""

    label: str
    place: int
    points: Sequence[tuple[float, float | None]]


@dataclass(frozen=True, slots=True)
class ReadingMeasure:
    """A value of readings: title of its axis, its unit in tables, factor, and largest value."""

    title: str
    column: str
    factor: float = 1.0
    decimals: int = 1
    largest: float | None = None


MEASURES: Mapping[str, ReadingMeasure] = {
    "utilisation_percent": ReadingMeasure("%", "Used, %", largest=100.0),
    "memory_bytes": ReadingMeasure("GB", "Memory, GB", 1e-9, 2),
    "temperature_c": ReadingMeasure("°C", "Temperature, °C"),
    "power_w": ReadingMeasure("W", "Power, W"),
}


def readings_figure(
    name: str, lines: Sequence[ReadingLine], start_at: float, end_at: float, step_s: float
) -> Figure:
    """Draw one value of `MEASURES` of some accelerators; bins are `step_s` wide.

    A time without readings is a gap.
    """
    measure = MEASURES[name]
    data, legend, rows = [], [], []
    for one in lines:
        points = _with_gaps(_thinned(one.points), step_s)
        told = [value for _, value in points if value is not None]
        if not told:
            continue
        colour = job_colour_token(one.place % NUM_COLOURS)
        x = [milliseconds(at) for at, _ in points]
        y = [_rounded(value, measure) for _, value in points]
        hover = f"%{{y}} {measure.title}<extra>{plotly_text(one.label)}</extra>"
        dash = DASHES[one.place % len(DASHES)]
        data.append(line(x, y, plotly_text(one.label), colour, hover, dash))
        legend.append(legend_entry(one.label, colour, mark=dash))
        rows += [
            [milliseconds(at), one.label, _rounded(value, measure)]
            for at, value in one.points
            if value is not None
        ]
    axis: dict[str, Any] = {"rangemode": "tozero", "title": {"text": measure.title}}
    if measure.largest is not None:
        axis = {"range": [0, measure.largest * 1.04], "title": {"text": measure.title}}
    return {
        "data": data,
        "layout": {"xaxis": time_axis(start_at, end_at), "yaxis": axis},
        "legend": legend,
        "table": table(["Time", "Accelerator", measure.column], sorted(rows, key=itemgetter(0))),
    }


def _rounded(value: float | None, measure: ReadingMeasure) -> float | None:
    return None if value is None else round(value * measure.factor, measure.decimals)


def _thinned(points: Sequence[tuple[float, float | None]]) -> list[tuple[float, float | None]]:
    """Average so many neighbours that at most `MAX_POINTS` points remain."""
    size = -(-len(points) // MAX_POINTS) or 1
    if size == 1:
        return list(points)
    thinned: list[tuple[float, float | None]] = []
    for place in range(0, len(points), size):
        part = points[place : place + size]
        told = [value for _, value in part if value is not None]
        thinned.append((part[0][0], sum(told) / len(told) if told else None))
    return thinned


def _with_gaps(
    points: Sequence[tuple[float, float | None]], step_s: float
) -> list[tuple[float, float | None]]:
    """Put a point without a value where bins are missing."""
    widest_s = 1.5 * max(step_s, min((b[0] - a[0] for a, b in pairwise(points)), default=0.0))
    found: list[tuple[float, float | None]] = []
    for point in points:
        if found and point[0] - found[-1][0] > widest_s:
            found.append((found[-1][0] + step_s, None))
        found.append(point)
    return found
