"""Sweeps: groups of jobs of which only some hold accelerators at once, whatever the policy.

A policy sees the jobs of a sweep that hold accelerators, and as many of the waiting ones as the
sweep may run beside them. The other ones wait for an end, and are no part of the decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from controlplane.core.scheduling.cordons import capacity_uncordoned
from controlplane.core.scheduling.pools import can_start_ever
from controlplane.core.values.explanations import Reason, reason
from controlplane.core.values.types import Job, JobId, Snapshot


def sweeps_split(snapshot: Snapshot) -> tuple[Snapshot, Mapping[JobId, Reason]]:
    """Return the snapshot without the jobs that their sweeps hold back, and why these wait.

    A job that holds accelerators is never held back. Of the others of a sweep those that can start
    come first, then those of higher tiers, of higher priority, those that have begun, and the
    oldest.
    """
    if not snapshot.sweeps:
        return snapshot, {}
    waiting: dict[int, list[Job]] = {}
    num_holding = {sweep_id: sweep.num_leaving for sweep_id, sweep in snapshot.sweeps.items()}
    for job in snapshot.jobs:
        if job.sweep not in snapshot.sweeps:
            continue
        assert job.sweep is not None, "None is no number of a sweep"
        if snapshot.held.get(job.id):
            num_holding[job.sweep] += 1
        else:
            waiting.setdefault(job.sweep, []).append(job)
    capacity = capacity_uncordoned(snapshot)
    reasons: dict[JobId, Reason] = {}
    for sweep_id, jobs in waiting.items():
        sweep = snapshot.sweeps[sweep_id]
        jobs.sort(key=lambda job: (not can_start_ever(snapshot, job, capacity), _order(job)))
        most = 0 if sweep.is_paused else max(sweep.max_running - num_holding[sweep_id], 0)
        for place, job in enumerate(jobs[most:], start=most):
            ahead = num_holding[sweep_id] + place
            reasons[job.id] = (
                reason("sweep_paused", sweep=sweep_id, jobs=len(jobs))
                if sweep.is_paused
                else reason("sweep_waits", sweep=sweep_id, limit=sweep.max_running, jobs=ahead)
            )
    jobs_open = tuple(job for job in snapshot.jobs if job.id not in reasons)
    return replace(snapshot, jobs=jobs_open), reasons


def _order(job: Job) -> tuple[int, float, bool, float, JobId]:
    has_begun = job.attained_accelerator_s > 0.0
    return job.tier.rank, -job.weight, not has_begun, job.submitted_at, job.id
