"""Forecast of the first turn of Gavel's waiting jobs: its rounds simulated without arrivals."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from controlplane.core.policies.gavel.program import Floats

#: Number of simulated rounds; after them, accelerators change hands only as jobs end.
MOST_ROUNDS = 24

#: In place of the index of a kind: the job waits, or it has ended.
WAITS, ENDED = -1, -2


@dataclass(frozen=True, slots=True)
class Course:
    """State of N jobs, in order of arrival, on K kinds.

    Attributes:
        fractions: part of the time that each job is to have on each kind. Shape (N, K).
        received_s: seconds that it has had there. Shape (N, K).
        ages_s: seconds since its submission. Shape (N,).
        demands: accelerators that it takes there; 0: it cannot run there. Shape (N, K).
        left_s: seconds that it needs there to its end; inf: unknown. Shape (N, K).
        capacity: accelerators of each kind. Shape (K,).
    """

    fractions: Floats
    received_s: Floats
    ages_s: Floats
    demands: NDArray[np.int64]
    left_s: Floats
    capacity: NDArray[np.int64]

    def order(self, received_s: Floats, moment: float) -> list[tuple[int, int]]:
        """List (job, kind), furthest behind first at a moment, where jobs can run."""
        priority = self.fractions * (self.ages_s + moment)[:, None] / received_s
        rows, kinds = np.nonzero(self.demands)
        keys = (kinds, rows, -self.fractions[rows, kinds], -priority[rows, kinds])
        chosen = np.lexsort(keys)
        return list(zip(rows[chosen].tolist(), kinds[chosen].tolist(), strict=True))


def first_turns(
    course: Course, running: Sequence[int], until_s: float, round_s: float
) -> dict[int, float]:
    """Predict in how many seconds waiting jobs have their first turn.

    Free accelerators go to waiting jobs, furthest behind first; at the end of a round all are free.
    The fractions stay as they are.

    Args:
        running: the kind that each job runs on, or `WAITS`.
        until_s: seconds until the present round is over.

    Returns:
        Row of a job -> seconds, where a prediction exists.
    """
    played = _Played(course, list(running))
    num_waiting = played.running.count(WAITS)
    for number in range(MOST_ROUNDS):
        if len(played.starts) == num_waiting:
            return played.starts
        until = until_s + number * round_s
        played.play(until)
        played.turn(until)
    played.play(math.inf)
    return played.starts


class _Played:
    """The simulated rounds, up to `moment`."""

    def __init__(self, course: Course, running: list[int]) -> None:
        self.course = course
        self.running = running
        self.starts: dict[int, float] = {}
        self._waits_first = {row for row, kind in enumerate(running) if kind == WAITS}
        self._demands: list[list[int]] = course.demands.tolist()
        self._received_s = course.received_s.copy()
        self._since = [0.0] * len(running)
        self._left = [1.0] * len(running)  # part of its work
        self._moment = 0.0
        self._free: list[int] = course.capacity.tolist()
        for row, kind in enumerate(running):
            if kind != WAITS:
                self._free[kind] -= self._demands[row][kind]

    def play(self, until: float) -> None:
        """Simulate one round: waiting jobs start as others end."""
        order = self.course.order(self._received_s, self._moment)
        order = [one for one in order if self.running[one[0]] == WAITS]
        ends = [
            (self._ends_at(row, kind), row) for row, kind in enumerate(self.running) if kind >= 0
        ]
        heapq.heapify(ends)
        while ends and ends[0][0] < until:
            at, row = heapq.heappop(ends)
            kind = self.running[row]
            self._free[kind] += self._demands[row][kind]
            self.running[row] = ENDED
            for started in self._start(order, at):
                heapq.heappush(ends, (self._ends_at(started, self.running[started]), started))

    def turn(self, at: float) -> None:
        """End the round and reassign all accelerators."""
        for row, kind in enumerate(self.running):
            if kind >= 0:
                had_s = at - self._since[row]
                self._received_s[row, kind] += had_s
                self._left[row] -= had_s / max(float(self.course.left_s[row, kind]), 1e-9)
                self._free[kind] += self._demands[row][kind]
                self.running[row] = WAITS
        self._moment = at
        self._start(self.course.order(self._received_s, at), at)

    def _ends_at(self, row: int, kind: int) -> float:
        return self._since[row] + self._left[row] * float(self.course.left_s[row, kind])

    def _start(self, order: Sequence[tuple[int, int]], at: float) -> list[int]:
        """Start jobs that fit, in order; return their rows."""
        started = []
        for row, kind in order:
            if self.running[row] == WAITS and self._demands[row][kind] <= self._free[kind]:
                self._free[kind] -= self._demands[row][kind]
                self.running[row], self._since[row] = kind, at
                started.append(row)
                if row in self._waits_first:
                    self.starts.setdefault(row, at)
        return started
