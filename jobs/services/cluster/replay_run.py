"""Execution of what-if replays: the recorded past, simulated unchanged and under each scenario."""

from __future__ import annotations

import dataclasses
import datetime
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from django.utils import timezone

from controlplane.core.policies import POLICIES, BatchMode
from controlplane.core.values.explanations import counted
from controlplane.core.values.tiers import TIERS
from controlplane.simulator.engine.report import Report
from controlplane.simulator.engine.run import StuckError
from controlplane.simulator.engine.simulate import simulate
from controlplane.simulator.settings import Knowledge, ResizeCosts
from controlplane.simulator.workloads.history import (
    History,
    HistoryJob,
    history_cluster,
    history_notes,
    history_workload,
)
from jobs.models import Replay
from jobs.selectors.estimates.resize_history import resize_histories
from jobs.selectors.history import history_read
from jobs.selectors.series import allocation_spans_between

Progress = Callable[[float], None]

#: Most seconds that the simulations of a comparison may take together.
TIME_LIMIT_S = 1500.0

#: Most rows of a result: jobs, and changes of allocation.
MOST_JOBS, MOST_CHANGES = 500, 20_000

#: Figures of a result: of completion times, of waits, and of the whole workload.
_COMPLETION = ("mean_jct_s", "median_jct_s", "p90_jct_s")
_QUEUEING = ("mean_queueing_s", "median_queueing_s")
_WHOLE = ("makespan_s", "utilisation", "resizes_per_job", "worst_fairness")


class ReplayStoppedError(Exception):
    """A replay could not be completed; the text is shown to users."""

    def __init__(self, text: str, at: datetime.datetime) -> None:
        super().__init__(text)
        self.at = at


def replay_answers(
    replays: Sequence[Replay], progress: Progress
) -> Iterator[tuple[Replay, dict[str, Any] | ReplayStoppedError]]:
    """Simulate the past that replays share once without a change, and under each of them.

    Yields:
        Each replay with its result, or why it has none. A result has `recorded`, `as_is` and
        `changed`: figures, with completion times of finished jobs only, if there are any;
        `as_is_policy`, `as_is_accelerators`; `jobs`: completion times by job; `allocation`:
        [time, job, accelerators from then on] with the change; `num_jobs`; `notes`; `tiers`:
        highest first, if jobs have several: `tier`, `num_jobs`, and the completion times and waits
        of its jobs, `recorded`, `as_is` and `changed`.

    Raises:
        ReplayStoppedError: no job to replay, the simulation without a change failed, the time
            limit was exceeded, or all replays were cancelled.
    """
    history = history_read(replays[0].start_at, replays[0].end_at)
    if not history.jobs:
        raise ReplayStoppedError(_nothing(history), timezone.now())
    policy = history.policy if history.policy in POLICIES else replays[0].policy
    parts = _parts(progress, 1 + len(replays))
    as_is = _simulate(history, policy, None, history.costs, next(parts))
    unchanged = {
        "recorded": _recorded(replays[0], history),
        "as_is": _figures(as_is, history),
        "as_is_policy": policy,
        "as_is_accelerators": history.accelerators,
        "num_jobs": len(history.jobs),
    }
    for replay, part in zip(replays, parts, strict=True):
        given_s = replay.resize_cost_s
        costs = history.costs if given_s is None else ResizeCosts.flat(given_s)
        try:
            changed = _simulate(history, replay.policy, replay.accelerators, costs, part)
        except ReplayStoppedError as stop:
            yield replay, stop
        else:
            yield replay, unchanged | _changed(history, as_is, changed)


def _changed(history: History, as_is: Report, changed: Report) -> dict[str, Any]:
    numbers = {job.label: job.id for job in history.jobs}
    return {
        "changed": _figures(changed, history),
        "tiers": _tiers(history, as_is, changed),
        "notes": _notes(history, changed),
        "jobs": _job_rows(history.jobs, as_is, changed),
        "allocation": _allocation(changed, numbers, history.start_at),
    }


def _simulate(
    history: History,
    policy: str,
    accelerators: Mapping[str, int] | None,
    costs: ResizeCosts,
    progress: Callable[[int, int, float], None],
) -> Report:
    try:
        return simulate(
            history_workload(history),
            history_cluster(history, accelerators),
            policy,
            costs=costs,
            knowledge=Knowledge.TRUE,
            batch=BatchMode.CHOSEN,
            progress=progress,
        )
    except (StuckError, ValueError) as error:
        raise ReplayStoppedError(f"{policy}: {error}", timezone.now()) from error


def _parts(progress: Progress, number: int) -> Iterator[Callable[[int, int, float], None]]:
    """Yield a callback for each of the simulations: it reports their progress and stops them late.

    They share the time limit.
    """
    deadline = time.monotonic() + TIME_LIMIT_S

    def report(place: int, ended: int, total: int, _at: float) -> None:
        if time.monotonic() > deadline:
            text = f"It took longer than {TIME_LIMIT_S / 60:.0f} minutes; ask about fewer hours."
            raise ReplayStoppedError(text, timezone.now())
        progress((place + ended / max(total, 1)) / number)

    for place in range(number):
        yield partial(report, place)


def _recorded(replay: Replay, history: History) -> dict[str, float | None]:
    """Compute the figures of a simulation report from the recorded history."""
    found = dict.fromkeys(_WHOLE) | _recorded_times(history.jobs)
    ends = [job.ended_at for job in history.jobs if job.ended_at is not None]
    if ends:
        found["makespan_s"] = max(ends) - min(job.submitted_at for job in history.jobs)
        found["utilisation"] = _utilisation(replay, history, max(ends))
    resizes = resize_histories(job.id for job in history.jobs)
    if resizes:
        total = sum(row.num_resizes for row in resizes.values())
        found["resizes_per_job"] = total / len(history.jobs)
    return found


def _recorded_times(jobs: Sequence[HistoryJob]) -> dict[str, float | None]:
    done = [job.ended_at - job.submitted_at for job in jobs if job.ended_at is not None]
    waits = [job.started_at - job.submitted_at for job in jobs if job.started_at is not None]
    found: dict[str, float | None] = dict.fromkeys((*_COMPLETION, *_QUEUEING))
    return found | (_completion(done) if done else {}) | (_queueing(waits) if waits else {})


def _utilisation(replay: Replay, history: History, end_at: float) -> float | None:
    """Return the share of accelerator time held by jobs of the history, up to `end_at`."""
    start_at = min(job.submitted_at for job in history.jobs)
    there_s = sum(history.accelerators.values()) * (end_at - start_at)
    numbers = {job.id for job in history.jobs}
    held_s = sum(
        min(row.released_at.timestamp() if row.released_at else end_at, end_at)
        - min(row.granted_at.timestamp(), end_at)
        for row in allocation_spans_between(replay.start_at, replay.end_at)
        if row.job_id in numbers
    )
    return held_s / there_s if there_s > 0.0 else None


def _figures(report: Report, history: History) -> dict[str, float]:
    whole = {name: float(getattr(report, name)) for name in _WHOLE}
    return _simulated_times(report, history.jobs) | whole


def _simulated_times(report: Report, jobs: Sequence[HistoryJob]) -> dict[str, float]:
    """Return the completion times of those of the jobs that had finished, and waits of all."""
    rows = {row.name: row for row in report.jobs}
    finished = [job for job in jobs if job.ended_at is not None] or jobs
    figures = _completion([rows[job.label].completion_s for job in finished])
    return figures | _queueing([rows[job.label].queued_s for job in jobs])


def _tiers(history: History, as_is: Report, changed: Report) -> list[dict[str, Any]]:
    by_tier = {tier: [job for job in history.jobs if job.tier is tier] for tier in TIERS}
    by_tier = {tier: jobs for tier, jobs in by_tier.items() if jobs}
    if len(by_tier) < 2:
        return []
    return [
        {
            "tier": tier.value,
            "num_jobs": len(jobs),
            "recorded": _recorded_times(jobs),
            "as_is": _simulated_times(as_is, jobs),
            "changed": _simulated_times(changed, jobs),
        }
        for tier, jobs in by_tier.items()
    ]


def _completion(seconds: list[float]) -> dict[str, float]:
    taken = (np.mean(seconds), np.median(seconds), np.percentile(seconds, 90))
    return dict(zip(_COMPLETION, map(float, taken), strict=True))


def _queueing(seconds: list[float]) -> dict[str, float]:
    return dict(zip(_QUEUEING, (float(np.mean(seconds)), float(np.median(seconds))), strict=True))


def _job_rows(jobs: tuple[HistoryJob, ...], as_is: Report, changed: Report) -> list[dict[str, Any]]:
    """Return the completion times of the newest jobs, oldest first."""
    before = {row.name: row for row in as_is.jobs}
    after = {row.name: row for row in changed.jobs}
    return [
        {
            "id": job.id,
            "name": job.name,
            "recorded_s": None if job.ended_at is None else job.ended_at - job.submitted_at,
            "as_is_s": before[job.label].completion_s,
            "changed_s": after[job.label].completion_s,
            "as_is_resizes": before[job.label].num_resizes,
            "changed_resizes": after[job.label].num_resizes,
        }
        for job in jobs[-MOST_JOBS:]
    ]


def _allocation(
    report: Report, numbers: Mapping[str, int], start_at: float
) -> list[tuple[float, int, int]]:
    names = {row.id: row.name for row in report.jobs}
    return [
        (round(start_at + at, 3), numbers[names[number]], count)
        for at, number, count in report.held[:MOST_CHANGES]
    ]


def _notes(history: History, changed: Report) -> list[str]:
    notes = list(history_notes(history))
    open_ends = sum(job.ended_at is None for job in history.jobs)
    if open_ends:
        notes.append(
            f"{counted(open_ends, 'job')} had not finished: replayed with the "
            "work that was done or is still to be done, not counted in completion times."
        )
    if len(history.jobs) > MOST_JOBS:
        notes.append(f"Completion times are shown of the newest {MOST_JOBS} jobs.")
    if len(changed.held) > MOST_CHANGES:
        notes.append(f"The chart shows the first {MOST_CHANGES} changes of allocation.")
    costs = {name: f"{value:.2f} s" for name, value in dataclasses.asdict(history.costs).items()}
    notes.append(
        f"Measured costs, without a resize cost of the scenario: {costs['start_s']} to start, "
        f"{costs['growth_s']} to grow beside training, {costs['pause_s']} of pause. Times count "
        "from when a job's code was found valid."
    )
    return notes


def _nothing(history: History) -> str:
    why = "; ".join(f"{number}: {text}" for text, number in history.left_out.items())
    if why:
        return f"No job of that time can be replayed ({why})."
    return "No job was submitted in that time; ask about more hours."
