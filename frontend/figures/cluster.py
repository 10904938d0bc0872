"""Figures of the whole cluster: allocation of accelerators, and total throughput."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from frontend.figures.parts import (
    MAX_POINTS,
    Figure,
    band,
    capacity_line,
    count_axis,
    label,
    legend_entry,
    milliseconds,
    table,
    time_axis,
)
from frontend.figures.rows import HIDDEN_JOB_ID, AllocationChange, WorkSpan
from frontend.palette import OTHER_JOBS_TOKEN, job_colour_token

#: Times and the counts from then on, in time order.
Staircase = list[tuple[float, int]]
#: Jobs with a band of their own in the stacked area; all others share one band.
MAX_BANDS = 12


def cluster_allocation_figure(
    changes: Sequence[AllocationChange], num_accelerators: int, start_at: float, end_at: float
) -> Figure:
    """Stack the accelerators each job held between two times, with the capacity as a line.

    Jobs beyond the `MAX_BANDS` with the most accelerator time share the band "other jobs".
    """
    names = {change.job_id: change.job_name for change in changes}
    held = _steps_by_job(changes, start_at, end_at)
    times = _sample_times((change.at for change in changes), start_at, end_at)
    by_size = sorted(held, key=lambda job_id: (-_area(held[job_id], end_at), job_id))
    largest = {job_id: _samples([held[job_id]], times) for job_id in by_size[:MAX_BANDS]}
    shown = sorted(job_id for job_id, values in largest.items() if any(values))
    rest = [held[job_id] for job_id in by_size[MAX_BANDS:] if _is_sampled(held[job_id], times)]
    x = [milliseconds(at) for at in times]
    colours = {change.job_id: job_colour_token(change.colour) for change in changes}
    colours[HIDDEN_JOB_ID] = OTHER_JOBS_TOKEN
    data = [band(x, largest[job_id], _name(job_id, names), colours[job_id]) for job_id in shown]
    legend = [
        legend_entry(_name(job_id, names), colours[job_id], job_id or None) for job_id in shown
    ]
    if rest:
        data.append(band(x, _samples(rest, times), f"{len(rest)} other jobs", OTHER_JOBS_TOKEN))
        legend.append(legend_entry(f"{len(rest)} other jobs", OTHER_JOBS_TOKEN))
    if num_accelerators:
        data.append(capacity_line(x, num_accelerators, _holders(data, len(x))))
        legend.append(legend_entry(f"capacity {num_accelerators}", "--capacity"))
    return {
        "data": data,
        "layout": {
            "xaxis": time_axis(start_at, end_at),
            "yaxis": count_axis(max(num_accelerators, *_samples(held.values(), times))),
            "hovermode": "x unified",
        },
        "legend": legend,
        "table": table(
            ["Time", "Job", "Accelerators"],
            [
                [milliseconds(c.at), _name(c.job_id, names), c.num_accelerators]
                for c in sorted(changes, key=lambda c: c.at)
                if start_at <= c.at <= end_at
            ],
        ),
    }


def cluster_throughput_figure(
    spans: Iterable[WorkSpan], start_at: float, end_at: float, bin_s: float
) -> Figure:
    """Draw the examples per second of all jobs together, as means over bins of `bin_s` seconds.

    The work of a span counts evenly over its time. A bin that has not ended is left out: its work
    is not completely known.
    """
    num_bins = max(1, min(MAX_POINTS, int((end_at - start_at) // bin_s)))
    totals = [0.0] * num_bins
    for span in spans:
        for place in _bins_touched(span, start_at, bin_s, num_bins):
            low = max(span.start_at, start_at + place * bin_s)
            high = min(span.end_at, start_at + (place + 1) * bin_s)
            share = (high - low) / (span.end_at - span.start_at)
            totals[place] += max(0.0, share) * span.examples / bin_s
    times = [start_at + (place + 0.5) * bin_s for place in range(num_bins)]
    x = [milliseconds(at) for at in times]
    data = []
    if any(totals):
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "x": x,
                "y": [round(total, 2) for total in totals],
                "name": "examples/s",
                "line": {"color": "--accent", "width": 2},
                "fill": "tozeroy",
                "fillcolor": "--accent-soft",
                "hovertemplate": "%{y:.3s} examples/s<extra></extra>",
            }
        )
    return {
        "data": data,
        "layout": {
            "xaxis": time_axis(start_at, end_at),
            "yaxis": {"rangemode": "tozero", "title": {"text": "examples/s"}},
        },
        "legend": [],
        "table": table(
            ["Time", "Examples per second"],
            [[at, round(total, 1)] for at, total in zip(x, totals, strict=True) if total],
        ),
    }


def _holders(bands: Sequence[Mapping[str, Any]], num_times: int) -> list[str]:
    """List at each time the bands that are not empty, the topmost first."""
    return [
        "<br>".join(
            f"{one['y'][place]} · {one['name']}" for one in reversed(bands) if one["y"][place]
        )
        or "none in use"
        for place in range(num_times)
    ]


def _bins_touched(span: WorkSpan, start_at: float, bin_s: float, num_bins: int) -> range:
    first = max(0, int((span.start_at - start_at) // bin_s))
    last = min(num_bins - 1, int((span.end_at - start_at) // bin_s))
    return range(first, last + 1)


def _name(job_id: int, names: Mapping[int, str]) -> str:
    return "other people's jobs" if job_id == HIDDEN_JOB_ID else label(job_id, names[job_id])


def _steps_by_job(
    changes: Iterable[AllocationChange], start_at: float, end_at: float
) -> dict[int, Staircase]:
    """Group changes by job, in time order; earlier changes count from `start_at`."""
    held: dict[int, Staircase] = {}
    for change in sorted(changes, key=lambda change: change.at):
        if change.at > end_at:
            break
        steps = held.setdefault(change.job_id, [])
        steps.append((max(change.at, start_at), change.num_accelerators))
    return held


def _sample_times(ats: Iterable[float], start_at: float, end_at: float) -> list[float]:
    """Return the times to sample a staircase at: every change, or a grid if too many."""
    inside = sorted({start_at, end_at, *(at for at in ats if start_at < at < end_at)})
    if len(inside) <= MAX_POINTS:
        return inside
    step = (end_at - start_at) / (MAX_POINTS - 1)
    return [start_at + place * step for place in range(MAX_POINTS)]


def _samples(staircases: Iterable[Staircase], times: Sequence[float]) -> list[int]:
    """Return the sum of staircases at each time, in one pass over their steps."""
    differences = [0] * (len(times) + 1)
    for steps in staircases:
        before = 0
        for since, count in steps:
            differences[bisect_left(times, since)] += count - before
            before = count
    return list(accumulate(differences[:-1]))


def _is_sampled(steps: Staircase, times: Sequence[float]) -> bool:
    """Return whether a staircase is above 0 at any of the times."""
    places = [*(bisect_left(times, since) for since, _ in steps), len(times)]
    return any(
        count and place < following
        for (_, count), place, following in zip(steps, places, places[1:], strict=False)
    )


def _area(steps: Staircase, end_at: float) -> float:
    """Integrate a staircase up to `end_at`: accelerator-seconds."""
    ends = [since for since, _ in steps[1:]] + [end_at]
    return sum(count * (end - since) for (since, count), end in zip(steps, ends, strict=True))
