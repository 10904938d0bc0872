"""Limit on the changes of one job, beside the cost of each of them.

Whether a change pays depends on how long it lasts, and the time since the last one tells little of
that where others come and go around a job of hours: on one draw of the published workloads such a
job was resized 109 times, while the mean was 4. So a job of age a with a cost of c seconds a change
that has had `FREE_CHANGES` + `CHANGES_BY_AGE` * root(a / c) changes stays on its kind and where it
is, and grows only to numbers on which it is `LARGE_GAIN` times as fast. Others may still shrink it
or stop it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from controlplane.core.policies.goodput_fair.rate_tables import Floats
from controlplane.core.values.types import Job

#: Seconds of training that a change costs a job at least: accelerators idle while it comes about.
LEAST_CHANGE_S = 3.0

#: Changes after which only large gains count: of a new job, and more by the root of its age in
#: changes.
FREE_CHANGES, CHANGES_BY_AGE = 16.0, 1.5

#: Times the present rate that make a change worth while for a job that has had its changes.
LARGE_GAIN = 2.0


def changes_s(jobs: Sequence[Job]) -> Floats:
    """Return the seconds of training that a change costs each job. Shape (M,)."""
    return np.array([max(job.resize_s, LEAST_CHANGE_S) for job in jobs])


def is_exhausted(jobs: Sequence[Job], now: float) -> NDArray[np.bool_]:
    """Mask (M,) of jobs that have had so many changes that only large gains count."""
    num = np.array([job.num_resizes for job in jobs], dtype=float)
    ages_s = np.array([max(now - job.submitted_at, 0.0) for job in jobs])
    allowed = FREE_CHANGES + CHANGES_BY_AGE * np.sqrt(ages_s / changes_s(jobs))
    found: NDArray[np.bool_] = num >= allowed
    return found
