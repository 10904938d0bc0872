"""Sia's integer program: at most one configuration for each job, within each kind's capacity.

The linear relaxation, in which all but a few jobs have one whole configuration, is solved and
rounded first. Its prices then exclude the configurations that cannot improve on the rounded
answer, and the integer program is left with the few others (reduced-cost fixing).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from controlplane.core.policies.sia.configurations import Configuration
from controlplane.core.values.types import Job

Floats = NDArray[np.float64]
Chosen = NDArray[np.intp]

#: The exponent of goodputs: the more negative, the fairer.
FAIRNESS_POWER = -0.5

#: Cost of leaving a job out, where its worst configuration costs 1: a part at its own weight and a
#: part at the heaviest weight. The latter is the most that doubling a job from 1 can save.
LEFT_OUT, LEFT_OUT_HEAVIEST = 1.2, 0.3

#: Relative bonus of a job's present configuration, as a share of the cost of leaving the job out:
#: of equally good answers, that with fewer changes is taken.
HELD = 1e-3

#: Allowed error of the answer, relative to the program's value.
GAP = 1e-4

#: Time limit in seconds, after which the rounded answer is used: feasible and nearly as good.
TIME_LIMIT_S = 5.0

#: HiGHS prints a line of its own, whatever its options, when the solution of a presolved program
#: does not quite fit the whole one. So presolve is off, and so are heuristics that make smaller
#: programs, which always presolve. The program is small by then, and solved no slower.
_QUIETLY = {
    "presolve": False,
    "mip_heuristic_run_rens": False,
    "mip_heuristic_run_rins": False,
    "mip_heuristic_run_root_reduced_cost": False,
}

_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class JobAssignment:
    """One job on one configuration.

    Attributes:
        row: row of the job in the program.
        utility: G, including the cost of a resize.
        cost: weight * G**p, to be minimised.
        is_held: whether the job has this configuration now.
    """

    row: int
    configuration: Configuration
    goodput: float
    utility: float
    cost: float
    is_held: bool = False


@dataclass(frozen=True, slots=True)
class Program:
    """Choices as arrays.

    Attributes:
        gains: cost of each choice less that of leaving its job out, to be minimised; slightly less
            for present configurations.
        rows: index of each choice's job, from 0 without gaps.
        kinds: index of each choice's kind.
        counts: accelerators of each choice.
        capacity: accelerators of each kind.
    """

    gains: Floats
    rows: Chosen
    kinds: Chosen
    counts: Floats
    capacity: Floats

    @property
    def num_rows(self) -> int:
        """Number of jobs."""
        return int(self.rows.max(initial=-1)) + 1

    def constraints(self, kept: Chosen) -> tuple[scipy.sparse.csr_array, Floats]:
        """Build one constraint for each job, then one for each kind, over the kept choices."""
        columns = np.arange(len(kept))
        matrix = scipy.sparse.csr_array(
            (
                np.concatenate([np.ones(len(kept)), self.counts[kept]]),
                (
                    np.concatenate([self.rows[kept], self.num_rows + self.kinds[kept]]),
                    np.concatenate([columns, columns]),
                ),
            ),
            shape=(self.num_rows + len(self.capacity), len(kept)),
        )
        return matrix, np.concatenate([np.ones(self.num_rows), self.capacity])


def choose(
    choices: Sequence[JobAssignment], weights: Sequence[float], capacity: Mapping[str, int]
) -> list[JobAssignment]:
    """Solve the program: the choices of least total cost."""
    if not choices:
        return []
    program = program_make(choices, weights, capacity)
    return [choices[i] for i in np.sort(solve(program)).tolist()]


def claim_weight(job: Job) -> float:
    """Return the weight of a job with which goodputs that grow in proportion follow claims.

    A sum of w * G**p is least where G is in proportion to w ** (1 / (1 - p)).
    """
    return job.weight * float(job.share_part ** (1.0 - FAIRNESS_POWER))


def left_out_cost(weight: float, heaviest: float) -> float:
    """Return the cost of leaving out a job of this weight, given the heaviest weight."""
    return LEFT_OUT * weight + LEFT_OUT_HEAVIEST * heaviest


def program_make(
    choices: Sequence[JobAssignment], weights: Sequence[float], capacity: Mapping[str, int]
) -> Program:
    """Turn choices into arrays."""
    numbers = {kind: number for number, kind in enumerate(capacity)}
    heaviest = max(weights)
    left_out = np.array([left_out_cost(weights[choice.row], heaviest) for choice in choices])
    is_held = np.array([choice.is_held for choice in choices], dtype=bool)
    _, rows = np.unique([choice.row for choice in choices], return_inverse=True)
    return Program(
        gains=np.array([choice.cost for choice in choices]) - left_out * (1.0 + HELD * is_held),
        rows=rows.astype(np.intp),
        kinds=np.array([numbers[choice.configuration.kind] for choice in choices], dtype=np.intp),
        counts=np.array([choice.configuration.count for choice in choices], dtype=float),
        capacity=np.array(list(capacity.values()), dtype=float),
    )


def solve(program: Program) -> Chosen:
    """Return the indices of the choices of least total cost."""
    every = np.arange(len(program.gains))
    matrix, limits = program.constraints(every)
    relaxed = scipy.optimize.linprog(
        program.gains, A_ub=matrix, b_ub=limits, bounds=(0, None), method="highs"
    )
    if relaxed.x is None:  # time limit or numerical trouble: round without a relaxed solution
        return rounded(program, np.zeros(len(program.gains)))
    answer = rounded(program, relaxed.x)
    slack = program.gains[answer].sum() - relaxed.fun
    if slack <= GAP * abs(relaxed.fun):
        return answer
    reduced = program.gains - matrix.T @ relaxed.ineqlin.marginals
    kept = np.nonzero(reduced <= slack + _TOLERANCE)[0]
    matrix, limits = program.constraints(kept)
    with warnings.catch_warnings():  # about options that are passed on to HiGHS
        warnings.filterwarnings("ignore", "Unrecognized options", RuntimeWarning)
        found = scipy.optimize.milp(
            program.gains[kept],
            integrality=np.ones(len(kept)),
            bounds=scipy.optimize.Bounds(0, 1),
            constraints=scipy.optimize.LinearConstraint(matrix, -np.inf, limits),
            options={"time_limit": TIME_LIMIT_S, "mip_rel_gap": GAP, **_QUIETLY},
        )
    return kept[found.x > 0.5] if found.status == 0 else answer


def rounded(program: Program, fractions: Floats) -> Chosen:
    """Round a solution of the relaxation.

    The largest fractions that fit come first; then, as long as any fits, the change of one job's
    choice that gains most.
    """
    free = program.capacity.copy()
    current = np.full(program.num_rows, -1, dtype=np.intp)
    order = np.lexsort((np.arange(len(fractions)), program.gains, -np.round(fractions, 6)))
    for i in order[: int(np.count_nonzero(fractions > _TOLERANCE))].tolist():
        row, kind = program.rows[i], program.kinds[i]
        if current[row] < 0 and program.counts[i] <= free[kind]:
            current[row] = i
            free[kind] -= program.counts[i]
    gain_now, count_now = np.zeros(program.num_rows), np.zeros(program.num_rows)
    kind_now = np.full(program.num_rows, -1, dtype=np.intp)
    placed = np.nonzero(current >= 0)[0]
    gain_now[placed] = program.gains[current[placed]]
    count_now[placed] = program.counts[current[placed]]
    kind_now[placed] = program.kinds[current[placed]]
    while True:
        rows, kinds = program.rows, program.kinds
        given_back = np.where(kind_now[rows] == kinds, count_now[rows], 0.0)
        fits = program.counts <= free[kinds] + given_back
        better = np.where(fits, program.gains - gain_now[rows], np.inf)
        best = int(np.argmin(better))
        if not better[best] < -_TOLERANCE:
            return current[current >= 0]
        row, kind = rows[best], kinds[best]
        if kind_now[row] >= 0:
            free[kind_now[row]] += count_now[row]
        free[kind] -= program.counts[best]
        current[row], kind_now[row] = best, kind
        gain_now[row], count_now[row] = program.gains[best], program.counts[best]
