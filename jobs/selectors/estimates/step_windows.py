"""Stored form of a membership's window of recent steps, and of a job's rebalancing state."""

from __future__ import annotations

from typing import Any

from controlplane.core.virtual_nodes.rebalance_trial import RebalancePlan, RebalanceTrial
from controlplane.core.virtual_nodes.step_window import Interval, Window
from jobs.models import Generation, Job


def window_read(generation: Generation) -> Window:
    """Read the last half minute of a membership, oldest interval first."""
    rows = (generation.speeds or {}).get("window", [])
    return tuple(
        Interval(seconds, num_steps, {int(slot): busy_s for slot, busy_s in busy.items()})
        for seconds, num_steps, busy in rows
    )


def window_written(window: Window) -> list[list[Any]]:
    """Return a window in the form stored in `Generation.speeds`."""
    return [
        [
            stretch.seconds,
            stretch.num_steps,
            {str(slot): float(f"{busy_s:.6g}") for slot, busy_s in stretch.busy_s.items()},
        ]
        for stretch in window
    ]


def moves_read(job: Job) -> RebalancePlan:
    """Read a job's rebalancing state."""
    kept = job.moves
    if not kept:
        return RebalancePlan()
    stored = kept["trial"]
    trial = None
    if stored is not None:
        counts = {int(slot): count for slot, count in stored["counts"].items()}
        trial = RebalanceTrial(
            stored["generation"], counts, stored["before_s"], stored["promised_s"]
        )
    return RebalancePlan(kept["failures"], kept["until_s"], trial)


def moves_written(moves: RebalancePlan) -> dict[str, Any]:
    """Return the rebalancing state as stored in `Job.moves`; times are seconds since 1970."""
    trial = moves.trial
    return {
        "failures": moves.failures,
        "until_s": moves.until_s,
        "trial": None
        if trial is None
        else {
            "generation": trial.generation,
            "counts": {str(slot): count for slot, count in trial.counts.items()},
            "before_s": trial.before_s,
            "promised_s": trial.promised_s,
        },
    }
