"""Figures of the whole cluster: allocation of accelerators, and total throughput."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from controlplane.core.values.explanations import counted
from frontend.figures.parts import (
    MAX_POINTS,
    MAX_TABLE_ROWS,
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
from frontend.figures.rows import HIDDEN_JOB_ID, AllocationChanges, JobLabels, WorkSpan
from frontend.palette import OTHER_JOBS_TOKEN, job_colour_token, pattern, text_on

#: Jobs with a band of their own in the stacked area; all others share one band.
MAX_BANDS = 12
#: Least parts of the chart's time and of its highest stack that a label in a band takes.
_LABEL_LENGTH, _LABEL_HEIGHT = 0.07, 0.08


def cluster_allocation_figure(
    changes: AllocationChanges,
    labels: JobLabels,
    num_accelerators: int,
    start_at: float,
    end_at: float,
) -> Figure:
    """Stack the accelerators each job held between two times, with the capacity as a line.

    Jobs beyond the `MAX_BANDS` with the most accelerator time share the band "other jobs", but
    never with jobs that the viewer may not see. Labels are asked for of the jobs that are named.
    """
    changes = changes.chosen(changes.ats <= end_at)
    by_time = np.lexsort((changes.job_ids, changes.ats))
    last = by_time[changes.ats[by_time] >= start_at][-MAX_TABLE_ROWS:]
    newest = AllocationChanges(changes.job_ids[last], changes.ats[last], changes.counts[last])
    steps = Staircases.of(changes, start_at, end_at)
    largest = {
        job_id: steps.samples(steps.job_ids == job_id)
        for job_id in {*steps.by_size(MAX_BANDS), HIDDEN_JOB_ID}
    }
    shown = sorted(job_id for job_id, values in largest.items() if any(values))
    is_rest = ~np.isin(steps.job_ids, [*largest])
    num_rest = steps.num_seen(is_rest)
    found = labels({*shown, *newest.job_ids.tolist()} - {HIDDEN_JOB_ID})
    names = {job_id: label(job_id, name) for job_id, (name, _) in found.items()}
    names[HIDDEN_JOB_ID] = "other people's jobs"
    colours = {job_id: job_colour_token(colour) for job_id, (_, colour) in found.items()}
    colours[HIDDEN_JOB_ID] = OTHER_JOBS_TOKEN
    x = [milliseconds(at) for at in steps.times.tolist()]
    patterns = {job_id: pattern(colours[job_id], colour) for job_id, (_, colour) in found.items()}
    patterns[HIDDEN_JOB_ID] = pattern(OTHER_JOBS_TOKEN, 0)
    data = [
        band(x, largest[job_id], names[job_id], colours[job_id], patterns[job_id])
        for job_id in shown
    ]
    legend = [
        legend_entry(
            names[job_id],
            colours[job_id],
            job_id or None,
            mark="{shape}{size}".format_map(patterns[job_id]),
        )
        for job_id in shown
    ]
    labels_shown = _band_labels(data, [f"#{job_id}" if job_id else "" for job_id in shown])
    if num_rest:
        text = counted(num_rest, "other job")
        rest = steps.samples(is_rest)
        striped = pattern(OTHER_JOBS_TOKEN, 1)  # other people's jobs have none
        data.append(band(x, rest, text, OTHER_JOBS_TOKEN, striped))
        legend.append(
            legend_entry(text, OTHER_JOBS_TOKEN, mark="{shape}{size}".format_map(striped))
        )
    if num_accelerators:
        data.append(capacity_line(x, num_accelerators, _holders(data, len(x))))
        legend.append(legend_entry(f"capacity {num_accelerators}", "--capacity", mark="dash"))
    return {
        "data": data,
        "layout": {
            "xaxis": time_axis(start_at, end_at),
            "yaxis": count_axis(max(num_accelerators, *steps.samples(slice(None)))),
            "hovermode": "x unified",
            "annotations": labels_shown,
        },
        "legend": legend,
        "table": table(
            ["Time", "Job", "Accelerators"],
            [
                [milliseconds(at), names[job_id], count]
                for at, job_id, count in zip(
                    newest.ats.tolist(),
                    newest.job_ids.tolist(),
                    newest.counts.tolist(),
                    strict=True,
                )
            ],
            num_rows=int(np.count_nonzero(changes.ats >= start_at)),
        ),
    }


@dataclass(frozen=True, slots=True)
class Staircases:
    """Accelerators held by each job between two times, as steps by job and then by time.

    Attributes:
        differences: accelerators more than before the step.
        areas: accelerator-seconds of the steps.
        times: the times at which they are sampled.
        places: of the first sample of each step, and of the first one of the job's next step.
    """

    job_ids: NDArray[np.int64]
    counts: NDArray[np.int64]
    differences: NDArray[np.int64]
    areas: NDArray[np.float64]
    times: NDArray[np.float64]
    places: tuple[NDArray[np.int64], NDArray[np.int64]]

    @classmethod
    def of(cls, changes: AllocationChanges, start_at: float, end_at: float) -> Self:
        """Build the steps of changes up to `end_at`; earlier ones count from `start_at`."""
        job_ids, counts = changes.job_ids, changes.counts
        since = np.maximum(changes.ats, start_at)
        is_same = job_ids[1:] == job_ids[:-1]
        before = np.append(0, np.where(is_same, counts[:-1], 0))[: len(counts)]
        until = np.append(np.where(is_same, since[1:], end_at), end_at)[: len(counts)]
        times = _sample_times(changes.ats, start_at, end_at)
        places = (np.searchsorted(times, since), np.searchsorted(times, until))
        is_last = np.append(~is_same, True)[: len(counts)]
        places[1][is_last] = len(times)
        return cls(job_ids, counts, counts - before, counts * (until - since), times, places)

    def by_size(self, number: int) -> list[int]:
        """Return the jobs with the most accelerator time, the largest first."""
        jobs, numbers = np.unique(self.job_ids, return_inverse=True)
        areas = np.bincount(numbers, weights=self.areas, minlength=len(jobs))
        return jobs[np.lexsort((jobs, -areas))[:number]].tolist()

    def samples(self, chosen: NDArray[np.bool_] | slice) -> list[int]:
        """Return the sum of some steps at each time."""
        size = len(self.times) + 1
        first, differences = self.places[0][chosen], self.differences[chosen]
        changes = np.bincount(first, weights=differences, minlength=size)
        return np.cumsum(changes[:-1]).astype(np.int64).tolist()

    def num_seen(self, chosen: NDArray[np.bool_]) -> int:
        """Count the jobs of some steps that hold accelerators at any of the times."""
        first, following = self.places
        return len(np.unique(self.job_ids[chosen & (self.counts > 0) & (first < following)]))


def _band_labels(bands: Sequence[Mapping[str, Any]], texts: Sequence[str]) -> list[dict[str, Any]]:
    """Write a text into each band, where it keeps place and height for longest and has room."""
    if not bands:
        return []
    x = np.array(bands[0]["x"], dtype=np.float64)
    tops = np.cumsum([one["y"] for one in bands], axis=0)
    found = []
    for one, text, top in zip(bands, texts, tops, strict=True):
        height = np.array(one["y"])
        is_new = np.diff(top, prepend=np.nan).astype(bool) | np.diff(height, prepend=0).astype(bool)
        starts = np.flatnonzero(is_new)
        ends = np.append(x[starts[1:]], x[-1])
        lengths = np.where(height[starts] >= _LABEL_HEIGHT * tops[-1].max(), ends - x[starts], 0)
        place = int(lengths.argmax())
        if text and lengths[place] >= _LABEL_LENGTH * (x[-1] - x[0]):
            first = starts[place]
            found.append(
                {
                    "x": round((x[first] + ends[place]) / 2),
                    "y": float(top[first] - height[first] / 2),
                    "text": text,
                    "showarrow": False,
                    "font": {"size": 11, "color": text_on(one["fillcolor"])},
                    "bgcolor": one["fillcolor"],
                    "borderpad": 1,
                }
            )
    return found


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


def _sample_times(ats: NDArray[np.float64], start_at: float, end_at: float) -> NDArray[np.float64]:
    """Return the times to sample a staircase at: every change, or a grid if too many."""
    inside = np.unique(np.append(ats[(start_at < ats) & (ats < end_at)], [start_at, end_at]))
    if len(inside) <= MAX_POINTS:
        return inside
    step = (end_at - start_at) / (MAX_POINTS - 1)
    return start_at + np.arange(MAX_POINTS, dtype=np.float64) * step
