"""Probes: long jobs try idle accelerators of a kind on which their speed is unknown.

The speeds of other jobs give an estimate of a kind's speed, but some jobs are fast where all others
are slow. Without a trial such a job would stay on the wrong kind, with no sign of being late.
Jobs that mix kinds are left out: their joiners measure a kind before they take part.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from controlplane.core.policies.goodput_fair.rate_tables import PATIENCE_S, Counts, Floats, Options
from controlplane.core.values.types import Job

#: A trial costs a change, a measurement and usually a change back. A job may try a kind only if its
#: remaining time is at least this many changes, and at least this many seconds.
LEAST_LEFT_CHANGES = 20.0
LEAST_LEFT_S = 120.0

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
