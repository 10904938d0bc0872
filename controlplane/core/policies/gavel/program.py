"""Gavel's program: the share of the time of each job on each kind (OSDI 2020, section 4)."""

from __future__ import annotations

import numpy as np
import scipy
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Part of its share that the worst-off job may lose, so that the second program has room.
_SLACK = 1e-6

#: Decimals of a fraction, so that equal jobs get equal ones despite solver noise.
_DECIMALS = 4


def time_fractions(
    throughputs: Floats, demands: Floats, weights: Floats, capacity: Floats
) -> Floats:
    """Maximise the least share of any job, then the sum of all shares.

    A job's share is its throughput relative to that with an equal share of the time on every kind,
    times its demand, divided by its weight. Gavel's program ends with the least share; the second
    one distributes the rest.

    Args:
        throughputs: throughput of each job on each kind with its demand there; 0: it cannot run.
            Shape (jobs, kinds).
        demands: accelerators of that demand. Shape (jobs, kinds).
        capacity: accelerators of each kind. Shape (kinds,).

    Returns:
        Fractions of the time. Shape (jobs, kinds), every row's sum at most 1.

    Raises:
        ValueError: a job can run on no kind.
    """
    num_jobs, num_kinds = throughputs.shape
    if not (throughputs > 0.0).any(axis=1).all():
        raise ValueError("every job must be able to run on some kind")
    equal = throughputs @ (capacity / capacity.sum())
    usable = throughputs > 0.0
    typical = np.where(usable, demands, 0.0).sum(axis=1) / usable.sum(axis=1)
    value = throughputs * (typical / (weights * equal))[:, None]
    rows, kinds = np.nonzero(usable)
    columns = np.arange(len(rows))
    least_column = len(rows)
    shape = (num_jobs, len(rows) + 1)
    times = scipy.sparse.csr_array((np.ones(len(rows)), (rows, columns)), shape=shape)
    used = scipy.sparse.csr_array(
        (demands[rows, kinds], (kinds, columns)), shape=(num_kinds, len(rows) + 1)
    )
    shares = scipy.sparse.csr_array(
        (
            np.concatenate([-value[rows, kinds], np.ones(num_jobs)]),
            (
                np.concatenate([rows, np.arange(num_jobs)]),
                np.concatenate([columns, np.full(num_jobs, least_column)]),
            ),
        ),
        shape=shape,
    )
    matrix = scipy.sparse.vstack([times, used, shares], format="csr")
    limits = np.concatenate([np.ones(num_jobs), capacity, np.zeros(num_jobs)])
    aim = np.zeros(len(rows) + 1)
    aim[least_column] = -1.0
    bounds: list[tuple[float, float | None]] = [(0.0, 1.0)] * len(rows) + [(0.0, None)]
    first = _solve(aim, matrix, limits, bounds)
    bounds[least_column] = (first[least_column] * (1.0 - _SLACK), None)
    second = _solve(np.append(-value[rows, kinds], 0.0), matrix, limits, bounds)
    fractions = np.zeros((num_jobs, num_kinds))
    fractions[rows, kinds] = np.round(np.clip(second[:-1], 0.0, 1.0), _DECIMALS)
    return fractions


def _solve(
    aim: Floats,
    matrix: scipy.sparse.csr_array,
    limits: Floats,
    bounds: list[tuple[float, float | None]],
) -> Floats:
    found = scipy.optimize.linprog(aim, A_ub=matrix, b_ub=limits, bounds=bounds, method="highs")
    assert found.status == 0, f"the program has a solution, but: {found.message}"
    solution: Floats = np.asarray(found.x, dtype=float)
    return solution
