"""Losses and returns of nodes, and their effect on jobs, as in the product.

A lost node falls silent; its jobs stand still until its lease expires. Then jobs with accelerators
elsewhere continue on these from memory (decision 9), or hold if they are too few for the minimum;
the others restart from their last checkpoint, when they get accelerators again.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from controlplane.core.values.types import AcceleratorId
from controlplane.simulator.engine.changes import JobAccelerators, Releases
from controlplane.simulator.settings import Failures


class NodeEventKind(IntEnum):
    """Kind of event of a node."""

    SILENT = 0
    LOST = 1
    BACK = 2


@dataclass(frozen=True, slots=True, order=True)
class NodeEvent:
    """An event of one node."""

    at: float
    node: int
    turn: NodeEventKind


class Outages:
    """Times at which nodes fall silent, are lost and return: exponential times, seeded."""

    def __init__(self, nodes: Iterable[int], failures: Failures | None, seed: int) -> None:
        self._failures = failures
        self._random: Mapping[int, np.random.Generator] = {}
        self._events: list[NodeEvent] = []
        if failures is not None:
            self._random = {node: np.random.default_rng([seed, node]) for node in nodes}
            for node in self._random:
                self._next_loss(node, 0.0)

    @property
    def next_at(self) -> float:
        """Time of the next event; infinite: never."""
        return self._events[0].at if self._events else math.inf

    def due(self, now: float) -> list[NodeEvent]:
        """Remove and return the events up to `now`, in order."""
        found = []
        while self._events and self._events[0].at <= now:
            event = heapq.heappop(self._events)
            found.append(event)
            if event.turn is NodeEventKind.BACK:
                self._next_loss(event.node, event.at)
        return found

    def _next_loss(self, node: int, since: float) -> None:
        assert self._failures is not None, "nothing is lost where nothing fails"
        random, failures = self._random[node], self._failures
        silent_at = since + random.exponential(failures.mtbf_s)
        lost_at = silent_at + failures.lease_s
        back_at = lost_at + random.exponential(failures.mttr_s)
        for at, turn in (
            (silent_at, NodeEventKind.SILENT),
            (lost_at, NodeEventKind.LOST),
            (back_at, NodeEventKind.BACK),
        ):
            heapq.heappush(self._events, NodeEvent(at, node, turn))


def silence(
    holding: JobAccelerators, gone: Collection[AcceleratorId], now: float, until: float
) -> None:
    """Let a job wait on a node that has fallen silent.

    Its accelerators do not change before the lease expires, and trainers starting there never
    finish. The job stands still only if it trains there.
    """
    job = holding.job
    if (set(job.held) | set(job.active)).isdisjoint(gone):
        return
    job.advance(now)
    holding.paused_until = max(holding.paused_until, until)
    holding.switch_at = math.inf
    if not set(job.active).isdisjoint(gone):
        job.still_until = math.inf


def survive(holding: JobAccelerators, gone: Collection[AcceleratorId], now: float) -> Releases:
    """Continue without lost accelerators; return the releases and their times.

    A change under way is abandoned: present trainers continue, also those that were to leave.
    """
    job, lost = holding.job, set(gone)
    rows = set(job.held) | set(job.active)
    if not rows & lost:
        return {}
    job.advance(now)
    is_starting = now < holding.starting_until
    left = () if is_starting else tuple(one for one in job.active if one not in lost)
    lost_by_now = holding.lost
    if not is_starting:
        lost_by_now = lost_by_now | dict.fromkeys(lost.intersection(job.active), now)
    if not left:
        if not is_starting:
            job.restore()
        holding.resize((), now)
        job.still_until = now
    else:
        holding.change_drop()
        if left != job.active:
            job.num_resizes += 1
            holding.paused_until = job.still_until = now + job.terms.costs.pause_s
        job.held = job.active = left
        job.changed_at = now
        job.pace_set()
        if len(left) < job.bounds[0]:
            job.pace = None  # the job holds its state, and does no steps
    holding.lost = lost_by_now
    return dict.fromkeys(sorted(rows - lost - set(left)), now + job.terms.costs.release_s)
