"""Figures of one job: loss, throughput, accelerators."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from frontend.figures.metrics import epoch_trace, resize_lines
from frontend.figures.parts import (
    MAX_POINTS,
    Figure,
    count_axis,
    line,
    line_legend,
    milliseconds,
    shaded,
    table,
    time_axis,
    vertical_line,
)
from frontend.figures.rows import EpochPoint, ResizeMark, SearchMark, StepPoint

#: Most speeds, each a mean over a part of the time; shorter parts would show only noise.
MAX_SPEEDS = 120
#: Milliseconds without a step from which the line of speeds has a gap.
_STOP_MS = 5000


def loss_figure(
    points: Sequence[StepPoint],
    epochs: Sequence[EpochPoint],
    resizes: Sequence[ResizeMark],
    searches: Sequence[SearchMark] = (),
) -> Figure:
    """Draw the training loss over steps, the validation loss by epoch, resizes and searches.

    The losses of trials, which may diverge, do not stretch the axis upwards.
    """
    trained = [point for point in points if point.loss is not None]
    bins = _parts(trained, _bin_size(trained, MAX_POINTS))
    data = []
    if trained:
        data.append(
            line(
                [group[-1].step for group in bins],
                [_mean(point.loss for point in group if point.loss is not None) for group in bins],
                "training loss",
                "--accent",
                "step %{x}: %{y:.4f}<extra>training loss</extra>",
            )
        )
    checked = [epoch for epoch in epochs if "val_loss" in epoch.logs]
    if checked:
        data.append(epoch_trace(checked, "val_loss", "validation loss", "--second"))
    figure: Figure = {
        "data": data,
        "layout": {
            "xaxis": {"title": {"text": "step"}, "rangemode": "tozero"},
            "yaxis": {"title": {"text": "loss"}},
            "shapes": [*resize_lines(resizes), *(shaded(one.first, one.last) for one in searches)],
        },
        "legend": line_legend(data),
        "table": _loss_table(bins, checked),
    }
    if searches:
        figure["note"] = "Shaded: trials of a search."
        if limits := _limits(trained, checked, searches):
            figure["layout"]["yaxis"]["range"] = limits
    return figure


def _limits(
    points: Sequence[StepPoint], epochs: Sequence[EpochPoint], searches: Sequence[SearchMark]
) -> list[float] | None:
    """Return the ends of an axis for losses: those of trials count only where they are lower."""
    losses = [(epoch.step, epoch.step, epoch.logs["val_loss"]) for epoch in epochs]
    first = 1
    for point in points:
        if point.loss is not None:
            losses.append((first, point.step, point.loss))
        first = point.step + 1
    shown = [
        loss
        for first, last, loss in losses
        if not any(search.meets(first, last) for search in searches)
    ]
    if not shown:
        return None
    shown += [search.start_loss for search in searches if search.start_loss is not None]
    lowest, highest = min(loss for *_, loss in losses), max(shown)
    margin = 0.05 * (highest - lowest)
    return [lowest - margin, highest + margin]


def job_throughput_figure(points: Sequence[StepPoint], resizes: Sequence[ResizeMark]) -> Figure:
    """Draw one job's examples per second over time, with its resizes as vertical lines."""
    size = _bin_size(points, MAX_SPEEDS)
    bins = [part for run in _runs(points) for part in _parts(run, size)]
    x = [milliseconds(group[-1].at) for group in bins]
    y = [round(_speed(group), 2) for group in bins]
    data = []
    if points:
        drawn: list[tuple[int, float | None]] = []
        for group, at, speed in zip(bins, x, y, strict=True):
            started_at = milliseconds(group[0].at - group[0].seconds)
            if drawn and started_at - drawn[-1][0] > _STOP_MS:
                drawn.append((started_at, None))  # a gap, not a line across the stop
            drawn.append((at, speed))
        xs, ys = [at for at, _ in drawn], [speed for _, speed in drawn]
        data.append(line(xs, ys, "examples/s", "--accent", "%{y:.4s} examples/s<extra></extra>"))
    axis: dict[str, Any] = {"type": "date"}
    if points:
        axis = time_axis(points[0].at, points[-1].at)
    return {
        "data": data,
        "layout": {
            "xaxis": axis,
            "yaxis": {"rangemode": "tozero", "title": {"text": "examples/s"}},
            "shapes": [
                vertical_line(milliseconds(mark.at))
                for mark in resizes
                if points and points[0].at <= mark.at <= points[-1].at
            ],
        },
        "legend": [],
        "table": table(
            ["Time", "Step", "Examples per second"],
            [[at, group[-1].step, speed] for at, group, speed in zip(x, bins, y, strict=True)],
        ),
    }


def job_allocation_figure(
    resizes: Sequence[ResizeMark], colour_token: str, start_at: float, end_at: float
) -> Figure:
    """Draw the accelerators of one job over time as a staircase, each resize as a marker."""
    marks = sorted(resizes, key=lambda mark: mark.at)
    x = [milliseconds(start_at), *(milliseconds(mark.at) for mark in marks)]
    y = [0, *(mark.new_count for mark in marks)]
    if marks:
        x.append(milliseconds(max(end_at, marks[-1].at)))
        y.append(marks[-1].new_count)
    data = []
    if marks:
        stairs = line(x, y, "accelerators", colour_token, "%{y} accelerators<extra></extra>")
        stairs["line"] |= {"shape": "hv", "width": 2}
        stairs |= {"fill": "tozeroy", "fillcolor": colour_token + "-soft", "hoverinfo": "skip"}
        del stairs["hovertemplate"]
        data = [stairs, _resize_markers(marks, colour_token)]
    return {
        "data": data,
        "layout": {
            "xaxis": time_axis(start_at, max(end_at, start_at + 1)),
            "yaxis": count_axis(max(y)),
        },
        "legend": [],
        "table": table(
            ["Time", "From", "To", "Step"],
            [
                [milliseconds(m.at), m.old_count, m.new_count, "" if m.step is None else m.step]
                for m in marks
            ],
        ),
    }


def _speed(points: Sequence[StepPoint]) -> float:
    return sum(point.examples for point in points) / sum(point.seconds for point in points)


def _bin_size(points: Sequence[StepPoint], most: int) -> int:
    return max(1, -(-len(points) // most))


def _parts(points: Sequence[StepPoint], size: int) -> list[Sequence[StepPoint]]:
    return [points[place : place + size] for place in range(0, len(points), size)]


def _runs(points: Sequence[StepPoint]) -> list[Sequence[StepPoint]]:
    """Split points where a job stood still, in order."""
    stops = [place for place in range(1, len(points)) if _is_stop(*points[place - 1 : place + 1])]
    return [points[start:end] for start, end in pairwise([0, *stops, len(points)])]


def _is_stop(before: StepPoint, after: StepPoint) -> bool:
    return milliseconds(after.at - after.seconds) - milliseconds(before.at) > _STOP_MS


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return sum(known) / len(known)


def _loss_table(bins: list[Sequence[StepPoint]], epochs: Sequence[EpochPoint]) -> dict[str, Any]:
    rows: list[list[Any]] = [
        [group[-1].step, f"{_mean(p.loss for p in group if p.loss is not None):.4f}", ""]
        for group in bins
    ]
    rows += [[epoch.step, "", f"{epoch.logs['val_loss']:.4f}"] for epoch in epochs]
    return table(["Step", "Training loss", "Validation loss"], sorted(rows, key=lambda r: r[0]))


def _resize_markers(marks: Sequence[ResizeMark], colour: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [milliseconds(mark.at) for mark in marks],
        "y": [mark.new_count for mark in marks],
        "text": [f"{mark.old_count} → {mark.new_count}" for mark in marks],
        "name": "resize",
        "marker": {
            "color": "--surface",
            "size": 9,
            "symbol": [_marker_symbol(mark) for mark in marks],
            "line": {"color": colour, "width": 2},
        },
        "hovertemplate": "%{text}<extra>resize</extra>",
    }


def _marker_symbol(mark: ResizeMark) -> str:
    if mark.new_count > mark.old_count:
        return "triangle-up"
    return "triangle-down" if mark.new_count < mark.old_count else "diamond"
