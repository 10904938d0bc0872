"""Figure of a job's batch size and learning rate, one above the other over the same steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from frontend.figures.parts import Figure, line, table
from frontend.figures.rows import BatchChange, StepPoint

#: Most learning rates in the table, evenly chosen: a schedule changes the rate at every step, which
#: would hide the changes of batch size.
MAX_TABLE_RATES = 24


def batch_figure(points: Sequence[StepPoint], batches: Sequence[BatchChange]) -> Figure:
    """Draw the examples per step and the learning rate, over steps.

    Args:
        batches: every change of batch size, from the first step on, in order. Batch sizes are exact
            to the step; learning rates are those of the points.
    """
    rated = [(p.step, p.learning_rate) for p in points if p.learning_rate is not None]
    done = [batch for batch in batches if points and batch.first_step <= points[-1].step]
    data = []
    if done:
        stairs = [(batch.first_step, batch.batch_size) for batch in done]
        if stairs[-1][0] < points[-1].step:
            stairs.append((points[-1].step, stairs[-1][1]))
        trace = line(
            [step for step, _ in stairs],
            [size for _, size in stairs],
            "batch size",
            "--accent",
            "step %{x}: %{y} examples<extra>batch size</extra>",
        )
        trace["line"] |= {"shape": "hv"}
        data.append(trace)
    if rated:
        trace = line(
            [step for step, _ in rated],
            [rate for _, rate in rated],
            "learning rate",
            "--second",
            "step %{x}: %{y:.3g}<extra>learning rate</extra>",
        )
        data.append(trace | {"yaxis": "y2"})
    return {
        "data": data,
        "layout": {
            "xaxis": {"title": {"text": "step"}, "rangemode": "tozero", "anchor": "y2"},
            "yaxis": {
                "title": {"text": "examples a step"},
                "rangemode": "tozero",
                "domain": [0.56, 1],
            },
            "yaxis2": {
                "title": {"text": "learning rate"},
                "rangemode": "tozero",
                "domain": [0, 0.44],
            },
        },
        "legend": [],
        "table": table(["Step", "Batch size", "Learning rate"], _rows(done, rated)),
    }


def _rows(batches: Sequence[BatchChange], rated: Sequence[tuple[int, float]]) -> list[list[Any]]:
    """List the changes of batch size and, between them, changed learning rates."""
    texts = [(step, f"{rate:.4g}") for step, rate in rated]
    rates = [
        (step, text)
        for place, (step, text) in enumerate(texts)
        if place == 0 or texts[place - 1][1] != text
    ]
    rate_at = dict(rates[:: max(1, -(-len(rates) // MAX_TABLE_RATES))])
    size_at = {batch.first_step: batch.batch_size for batch in batches}
    rows: list[list[Any]] = []
    size: int | str = ""
    for step in sorted({*rate_at, *size_at}):
        size = size_at.get(step, size)
        rows.append([step, size, rate_at.get(step, "")])
    return rows
