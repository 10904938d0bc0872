"""Charts of each page: reads rows from selectors and converts them to figures."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

import numpy as np

from frontend.figures.batch import batch_figure
from frontend.figures.cluster import cluster_allocation_figure, cluster_throughput_figure
from frontend.figures.job import job_allocation_figure, job_throughput_figure, loss_figure
from frontend.figures.metrics import metric_figure, metric_key
from frontend.figures.parts import Figure
from frontend.figures.replay import completion_figure
from frontend.figures.rows import (
    HIDDEN_JOB_ID,
    AllocationChanges,
    BatchChange,
    EpochPoint,
    ResizeMark,
    SearchMark,
    StepPoint,
    WorkSpan,
)
from frontend.palette import job_colour_token
from jobs.models import Job, Replay
from jobs.selectors import series
from jobs.selectors.access import Person, is_admin, jobs_seen_among
from jobs.selectors.tuning import search_spans

#: Time windows of the overview: seconds -> label.
WINDOWS: Mapping[int, str] = {
    15 * 60: "15 minutes",
    3600: "hour",
    6 * 3600: "6 hours",
    24 * 3600: "day",
    7 * 24 * 3600: "week",
}
DEFAULT_WINDOW_S = 15 * 60
#: Weights of the moving average of curves -> label.
SMOOTHINGS: Mapping[float, str] = {0.0: "none", 0.6: "some", 0.9: "strong"}
#: Least seconds shown for a young cluster.
SHORTEST_WINDOW_S = 120


def window_of(given: Mapping[str, str], default_s: int = DEFAULT_WINDOW_S) -> int:
    """Read one of `WINDOWS` from an address; the default for anything else."""
    known = {str(window_s): window_s for window_s in WINDOWS}
    return known.get(given.get("window", ""), default_s)


def overview_charts(person: Person, window_s: int, now: datetime) -> dict[str, Figure]:
    """Draw the overview's charts of the last `window_s` seconds."""
    start_at = now - timedelta(seconds=window_s)
    if born_at := series.cluster_born_at():
        # Before the first node there is no data.
        start_at = max(start_at, min(born_at, now - timedelta(seconds=SHORTEST_WINDOW_S)))
    allocations = series.allocation_columns_between(start_at, now)
    bin_s = _bin_s((now - start_at).total_seconds())
    spans = [
        WorkSpan(rate.until.timestamp() - rate.seconds, rate.until.timestamp(), rate.examples)
        for rate in series.rates_between(start_at, now, bin_s)
    ]
    start, end = start_at.timestamp(), now.timestamp()
    num_accelerators = series.num_accelerators_present()
    allocation = cluster_allocation_figure(
        allocation_changes(allocations, person), labels, num_accelerators, start, end
    )
    if allocations.is_cut:
        allocation["note"] = "Older allocations are left out: choose a shorter time."
    return {
        "allocation": allocation,
        "throughput": cluster_throughput_figure(spans, start, end, bin_s),
    }


@dataclass(frozen=True, slots=True)
class ChartOptions:
    """Look of the charts of loss and metrics.

    Attributes:
        smoothing: weight of the moving average, one of `SMOOTHINGS`, which the page's script draws.
    """

    is_log: bool = False
    smoothing: float = 0.0

    @classmethod
    def read(cls, given: Mapping[str, str]) -> ChartOptions:
        """Read options from an address; unknown values count as absent."""
        smoothings = {str(weight): weight for weight in SMOOTHINGS}
        return cls(given.get("scale") == "log", smoothings.get(given.get("smoothing", ""), 0.0))

    @property
    def query(self) -> str:
        """These options as the query of an address."""
        scale = "log" if self.is_log else "linear"
        return urlencode({"scale": scale, "smoothing": self.smoothing})


def job_charts(job: Job, now: datetime, options: ChartOptions | None = None) -> dict[str, Figure]:
    """Draw the charts of one job, from its submission to its end or now."""
    bins = series.step_bins_of(job)
    points = [
        StepPoint(b.at.timestamp(), b.step, b.examples, b.seconds, b.loss, b.learning_rate)
        for b in bins
    ]
    epochs = [
        EpochPoint(report.epoch, report.step, _numbers(report.logs))
        for report in series.epoch_reports_of(job)
    ]
    batches = [BatchChange(s.first_step, s.batch_size) for s in series.batch_spans_of(job)]
    marks = [
        ResizeMark(one.switched_at.timestamp(), one.step, num_before, one.num_members)
        for one, num_before in series.resizes_of(job)
        if one.switched_at is not None
    ]
    start_at = job.submitted_at.timestamp()
    end_at = (job.ended_at or now).timestamp()
    searches = [
        SearchMark(span.first, span.last or job.step, span.start_loss) for span in search_spans(job)
    ]
    curves = {
        "loss": loss_figure(points, epochs, marks, searches),
        **{
            metric_key(name): metric_figure(name, epochs, marks)
            for name in series.metric_names_of(job)
        },
    }
    if options is not None:
        for figure in curves.values():
            figure["smoothing"] = options.smoothing
            axis = figure["layout"]["yaxis"]
            axis["type"] = "log" if options.is_log else "linear"
            if options.is_log:
                axis.pop("range", None)  # in powers of ten, and large values do no harm
    return {
        **curves,
        "throughput": job_throughput_figure(points, marks),
        "batch": batch_figure(points, batches),
        "allocation": job_allocation_figure(marks, job_colour_token(job.colour), start_at, end_at),
    }


def replay_charts(replays: Sequence[Replay], person: Person) -> dict[str, Figure]:
    """Draw the results of replays over one history: allocation as recorded and under each of them.

    All allocations have the same axes, up to the end of the longest one; they are empty before the
    result. `completion` has the completion times of all.
    """
    first, columns = replays[0], _completion_columns(replays)
    result: dict[str, Any] = next((row.result for row in replays if row.result), {})
    names = {job["id"]: job["name"] for job in result.get("jobs", ())}
    spans = series.allocation_columns_between(first.start_at, first.end_at)
    # Allocations that were open at the end of the history are drawn up to it.
    until = np.fmin(spans.until, first.end_at.timestamp())
    recorded = allocation_changes(replace(spans, until=until), person)
    changes = {"recorded": recorded.chosen(np.isin(recorded.job_ids, [*names]))}
    sizes = {"recorded": sum(result.get("as_is_accelerators", {}).values())}
    for row in replays:
        changes[f"replay-{row.pk}"] = AllocationChanges.of(row.result.get("allocation", ()))
        sizes[f"replay-{row.pk}"] = sum(row.accelerators.values())

    def named(job_ids: Collection[int]) -> dict[int, tuple[str, int]]:
        """Return names of the time of the replay, and the colours of jobs that still exist."""
        found = labels(job_ids)
        return {
            job_id: (names.get(job_id, name), colour)
            for job_id in job_ids
            for name, colour in [found.get(job_id, ("", 0))]
        }

    start, end = first.start_at.timestamp(), first.end_at.timestamp()
    ats = [at for one in changes.values() for at in one.ats.tolist()]
    last = max(ats, default=end)
    span = (max(min(ats, default=start), start), max(last, start + SHORTEST_WINDOW_S))
    figures = {
        name: cluster_allocation_figure(one, named, sizes[name], *span)
        for name, one in changes.items()
    }
    tallest = max((one["layout"]["yaxis"] for one in figures.values()), key=lambda y: y["range"][1])
    for one in figures.values():
        one["layout"]["yaxis"] = tallest
    return figures | {"completion": completion_figure(names, columns)}


def _completion_columns(replays: Sequence[Replay]) -> dict[str, dict[int, float | None]]:
    """Return the seconds to completion by job: as recorded, replayed unchanged, by replay."""
    columns: dict[str, dict[int, float | None]] = {"as recorded": {}, "replayed unchanged": {}}
    for row in replays:
        jobs = row.result.get("jobs", ())
        columns["as recorded"] |= {job["id"]: job["recorded_s"] for job in jobs}
        columns["replayed unchanged"] |= {job["id"]: job["as_is_s"] for job in jobs}
        columns[row.title] = {job["id"]: job["changed_s"] for job in jobs}
    return columns


def labels(job_ids: Collection[int]) -> dict[int, tuple[str, int]]:
    """Read names and colours of jobs."""
    return {job_id: (row.name, row.colour) for job_id, row in series.jobs_named(job_ids).items()}


def allocation_changes(allocations: series.AllocationColumns, person: Person) -> AllocationChanges:
    """Count each job's accelerators after every grant and release.

    Jobs hidden from the person are merged into one without a name.
    """
    job_ids = allocations.job_ids
    if not is_admin(person):
        seen = jobs_seen_among(person, np.unique(job_ids).tolist())
        job_ids = np.where(np.isin(job_ids, [*seen]), job_ids, HIDDEN_JOB_ID)
    is_released = np.isfinite(allocations.until)
    job_ids = np.append(job_ids, job_ids[is_released])
    ats = np.append(allocations.since, allocations.until[is_released])
    changes = np.where(np.arange(len(ats)) < len(allocations.since), 1, -1)
    order = np.lexsort((ats, job_ids))
    job_ids, ats, held = job_ids[order], ats[order], np.cumsum(changes[order])
    # The running sum goes on from job to job.
    _, first, numbers = np.unique(job_ids, return_index=True, return_inverse=True)
    counts = held - np.append(0, held)[first][numbers]
    # Changes of a job at the same moment merge into the last one.
    is_last = np.append((job_ids[1:] != job_ids[:-1]) | (ats[1:] != ats[:-1]), True)[: len(ats)]
    return AllocationChanges(job_ids, ats, counts).chosen(is_last)


def _numbers(logs: Mapping[str, object]) -> dict[str, float]:
    return {name: float(value) for name, value in logs.items() if isinstance(value, int | float)}


def _bin_s(window_s: float) -> float:
    """Choose bins of whole seconds, minutes or hours: 90 to 180 of them."""
    for bin_s in (2, 5, 10, 60, 300, 600, 3600):
        if window_s / bin_s <= 180:
            return float(bin_s)
    return 3600.0 * 6
