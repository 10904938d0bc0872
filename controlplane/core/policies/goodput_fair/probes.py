"""Probes: long jobs try idle accelerators of a kind, or in a number, that was not measured yet.

The speeds of other jobs give an estimate of a kind's speed, but some jobs are fast where all others
are slow. Without a trial such a job would stay on the wrong kind, with no sign of being late.
Jobs that mix kinds are left out: their joiners measure a kind before they take part.

A fitted model extrapolates, too: where a job was on one node only, the exchange between nodes is
taken to grow as it did there. So while accelerators are idle, a job that would not grow by its
model tries a multiple of its number, if a speed between the model's and that without any exchange
(their geometric mean) would pay for the change and for the change back. Once measured, the model
knows: nothing is tried twice, and the job goes back where it was faster.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from controlplane.core.estimates.goodput import ModelledPerformance
from controlplane.core.policies.goodput_fair.counts import LEAST_GAIN, lives_s, part_left
from controlplane.core.policies.goodput_fair.rate_tables import PATIENCE_S, Counts, Floats, Options
from controlplane.core.values.types import Job

Mask = NDArray[np.bool_]

#: A trial costs a change, a measurement and usually a change back. A job may try a kind only if its
#: remaining time is at least this many changes, and at least this many seconds.
LEAST_LEFT_CHANGES = 20.0
LEAST_LEFT_S = 120.0

#: A job tries at most so many times the accelerators it holds, and at most this part of idle ones.
MOST_TIMES, IDLE_PART = 4, 0.5

#: Seconds that a trial of a number takes, or as many changes as below if that is more. In this time
#: the job gives the accelerators to any job that gains from them, but does not go back by itself.
TRIAL_S = 60.0

#: A job is on trial for at most one part of its time in so many.
TRIAL_PERIOD = 5.0

#: Time since the job's last change that a trial requires, as a number of changes.
LEAST_SINCE_CHANGES = 4.0


def is_probing(job: Job, kind: str, now: float) -> bool:
    """Return whether a job runs on a kind to measure its speed there."""
    since = job.changed_at
    is_new = since is not None and now - since < PATIENCE_S
    return is_new and bool(job.tried_kinds) and kind not in job.tried_kinds


def trials_begin(
    options: Options,
    ends_s: Floats,
    since_s: Floats,
    change_s: Floats,
    is_pinned: NDArray[np.bool_],
    kinds: Counts,
    given: Counts,
) -> None:
    """Send one job to each kind with idle accelerators: the longest job that can try it.

    Args:
        ends_s, since_s: seconds until each job's forecast end, and since its last change. Shape
            (M,).
        change_s: seconds of training that a change costs each job. Shape (M,).
        is_pinned: jobs that have to stay on their kind. Shape (M,).
        kinds, given: the decision, changed in place. Shape (M,).
    """
    num_kinds = len(options.kinds)
    if num_kinds < 2:
        return
    is_calm = (kinds == options.held_kind) & (given > 0) & ~is_pinned
    is_long = ends_s >= np.maximum(LEAST_LEFT_CHANGES * change_s, LEAST_LEFT_S)
    rows = np.flatnonzero(is_calm & is_long & (since_s >= LEAST_SINCE_CHANGES * change_s))
    rows = rows[np.argsort(-ends_s[rows], kind="stable")]
    for kind, name in enumerate(options.kinds):
        idle = int(options.capacity[kind] - given[kinds == kind].sum())
        for row in rows.tolist():
            job, most = options.jobs[row], int(options.counts[row, kind, -1])
            count = min(int(given[row]), idle, most)
            is_open = kinds[row] == options.held_kind[row] and name not in job.tried_kinds
            is_able = bool(job.tried_kinds) and not job.allow_mixed_kinds
            if is_able and is_open and count >= job.min_accelerators:
                kinds[row], given[row] = kind, count
                break


def starts_try(options: Options, now: float, kinds: Counts, given: Counts) -> Mask:
    """Let jobs that start begin on idle kinds that their code was never on. Mask (M,).

    A start has to be made anyway, so the measurement costs no change, and jobs that are over before
    a trial pays would never know a kind otherwise. One job of each kind at a time, on the kind that
    is fastest by the speeds of other jobs.

    Args:
        kinds, given: the decision, changed in place. Shape (M,).
    """
    found = np.zeros(given.size, dtype=bool)
    held = zip(options.jobs, options.held_kind.tolist(), strict=True)
    busy = {kind for job, kind in held if kind >= 0 and is_probing(job, options.kinds[kind], now)}
    idle = [
        0 if kind in busy else int(capacity - given[kinds == kind].sum())
        for kind, capacity in enumerate(options.capacity)
    ]
    for row in np.flatnonzero((options.held_kind < 0) & (given > 0)).tolist():
        job = options.jobs[row]
        new = [
            (options.rate(row, kind, job.min_accelerators), kind)
            for kind, name in enumerate(options.kinds)
            if name not in job.tried_kinds and idle[kind] >= job.min_accelerators
        ]
        rate, kind = max(new, default=(0.0, -1))
        is_known = options.kinds[kinds[row]] in job.tried_kinds
        if rate > 0.0 and is_known and not job.allow_mixed_kinds:
            given[row] = min(int(given[row]), idle[kind], int(options.counts[row, kind, -1]))
            kinds[row], found[row], idle[kind] = kind, True, 0
    return found


def is_trying(jobs: Sequence[Job], held: Counts, since_s: Floats, change_s: Floats) -> Mask:
    """Mask (N,) of jobs that have just got more accelerators than ever before."""
    most = np.array([job.most_accelerators for job in jobs], dtype=np.int64)
    trial_s = np.maximum(LEAST_SINCE_CHANGES * change_s, TRIAL_S)
    found: Mask = (held > 0) & (held >= most) & (since_s < trial_s)
    return found


def counts_try(
    options: Options,
    ends_s: Floats,
    since_s: Floats,
    change_s: Floats,
    is_pinned: Mask,
    kinds: Counts,
    given: Counts,
) -> Mask:
    """Let one job of each kind try idle accelerators: the longest that may gain. Mask (M,).

    The arguments are those of `trials_begin`; `given` is changed in place.
    """
    found = np.zeros(given.size, dtype=bool)
    is_calm = (kinds == options.held_kind) & (given == options.held) & (given > 0) & ~is_pinned
    is_calm &= ~is_trying(options.jobs, options.held, since_s, change_s)
    is_long = ends_s >= np.maximum(LEAST_LEFT_CHANGES * change_s, LEAST_LEFT_S)
    is_due = since_s >= TRIAL_PERIOD * np.maximum(LEAST_SINCE_CHANGES * change_s, TRIAL_S)
    rows = np.flatnonzero(is_calm & is_long & is_due)
    rows = rows[np.argsort(-ends_s[rows], kind="stable")]
    lasts_s = np.minimum(lives_s(since_s, change_s), ends_s)
    left = (1.0 - LEAST_GAIN) * part_left(2.0 * change_s, lasts_s)
    for kind, capacity in enumerate(options.capacity.tolist()):
        usable = int((capacity - given[kinds == kind].sum()) * IDLE_PART)
        for row in rows[kinds[rows] == kind].tolist():
            job, count = options.jobs[row], int(given[row])
            most = min(count + usable, int(options.counts[row, kind, -1]))
            tried = min(most // count, MOST_TIMES) * count
            if tried <= job.most_accelerators or job.performance is None:
                continue
            rate, modelled = (options.rate(row, kind, n) for n in (count, tried))
            hoped = math.sqrt(modelled * _bound(job, options.kinds[kind], tried, rate / count))
            if hoped * left[row] > rate:
                given[row], found[row] = tried, True
                break
    return found


def _bound(job: Job, kind: str, count: int, each: float) -> float:
    """Return the highest speed that a job can have on so many accelerators of a kind.

    Without a model that is proportional to the count, at a speed of `each`.
    """
    if isinstance(job.performance, ModelledPerformance):
        return job.performance.bound(kind, count, 1)
    return each * count
