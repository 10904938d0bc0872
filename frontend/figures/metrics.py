"""Figures of a job's metrics: one per metric, training and validation together."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from frontend.figures.parts import (
    MAX_POINTS,
    MAX_TABLE_ROWS,
    Figure,
    line,
    line_legend,
    plotly_text,
    table,
    vertical_line,
)
from frontend.figures.rows import EpochPoint, ResizeMark

#: Most markers on a line; more would merge into one.
MAX_MARKERS = 40
#: Most lines at resizes, about: a job may have a thousand, and each of its charts draws them.
MAX_LINES = 200
VALIDATION = "val_"


def metric_key(name: str) -> str:
    """Return the id of a metric's chart on the page; metrics may have any name."""
    return f"metric-{hashlib.sha256(name.encode()).hexdigest()[:12]}"


def metric_figure(name: str, epochs: Sequence[EpochPoint], resizes: Sequence[ResizeMark]) -> Figure:
    """Draw a metric at the end of epochs over steps, with the job's resizes."""
    validation = f"{VALIDATION}{name}"
    epochs = [epoch for epoch in epochs if name in epoch.logs or validation in epoch.logs]
    data = []
    for log, label, colour in (
        (name, "training", "--accent"),
        (validation, "validation", "--second"),
    ):
        points = [epoch for epoch in epochs if log in epoch.logs]
        if points:
            data.append(epoch_trace(points, log, label, colour))
    return {
        "data": data,
        "layout": {
            "xaxis": {"title": {"text": "step"}, "rangemode": "tozero"},
            "yaxis": {"title": {"text": plotly_text(name)}},
            "shapes": resize_lines(resizes),
        },
        "legend": line_legend(data),
        "table": table(
            ["Epoch", "Step", "Training", "Validation"],
            [
                [
                    epoch.epoch + 1,
                    epoch.step,
                    _text(epoch.logs.get(name)),
                    _text(epoch.logs.get(validation)),
                ]
                for epoch in epochs[-MAX_TABLE_ROWS:]
            ],
            num_rows=len(epochs),
        ),
        "note": "Not every epoch is drawn." if len(epochs) > MAX_POINTS else "",
    }


def epoch_trace(points: Sequence[EpochPoint], log: str, label: str, colour: str) -> dict[str, Any]:
    """Draw one value of the epoch logs, for epochs that have it: the last and every n-th one."""
    every = -(-len(points) // MAX_POINTS)
    points = [*points[:-1:every], points[-1]]
    trace = line(
        [epoch.step for epoch in points],
        [epoch.logs[log] for epoch in points],
        label,
        colour,
        f"step %{{x}}: %{{y:.4f}}<extra>{label}</extra>",
        "dash" if log.startswith(VALIDATION) else "solid",
    )
    return trace | {
        "mode": "lines+markers" if len(points) <= MAX_MARKERS else "lines",
        "marker": {"size": 6, "color": colour},
    }


def resize_lines(resizes: Sequence[ResizeMark]) -> list[dict[str, Any]]:
    """Return lines at the steps at which a training job was resized; of many, those apart."""
    steps = [
        mark.step for mark in resizes if mark.step is not None and mark.old_count and mark.new_count
    ]
    if len(steps) > MAX_LINES:
        width = max(1, max(steps) // MAX_LINES)
        steps = list({step // width: step for step in steps}.values())
    return [vertical_line(step) for step in steps]


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
