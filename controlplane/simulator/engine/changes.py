"""Transition of a job to other accelerators, as in the product.

New accelerators start while the job trains on; when all of them are ready the job pauses, and
continues on the new ones. Accelerators that it gives up stay occupied until then. A job that trains
nowhere starts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from controlplane.core.values.types import AcceleratorId
from controlplane.simulator.engine.jobs import SimulatedJob

#: accelerator -> time from which another job can have it.
Releases = dict[AcceleratorId, float]


@dataclass
class JobAccelerators:
    """A job's accelerators, and their change under way.

    Attributes:
        ready_at: accelerator -> time at which it can take part, for starting ones.
        leaving: accelerators given up, but in use until the switch.
        switch_at: time of the change; infinite: none is under way.
        paused_until: the end of the last switch; plans do not change the job before.
        starting_until: end of its last start.
        lost: accelerator -> time at which its trainer there was lost, since its last resize.
    """

    job: SimulatedJob
    ready_at: dict[AcceleratorId, float] = field(default_factory=dict)
    leaving: set[AcceleratorId] = field(default_factory=set)
    switch_at: float = math.inf
    paused_until: float = -math.inf
    starting_until: float = -math.inf
    lost: dict[AcceleratorId, float] = field(default_factory=dict)

    def next_at(self, now: float) -> float:
        """Return the time of the job's next event."""
        pause = self.paused_until if self.paused_until > now else math.inf
        return min(self.job.epoch_ends_at(), self.switch_at, pause)

    def resize(self, wanted: tuple[AcceleratorId, ...], now: float) -> Releases:
        """Order other accelerators; return the releases, as far as their times are known."""
        job = self.job
        job.advance(now)
        self.lost = {}
        had, job.held = job.held, wanted
        if not wanted:
            return self._stop(had, now)
        self._count(had, now)
        if not job.active or now < self.starting_until:
            return self._start(had, now)
        return self._change(had, now)

    def end(self, now: float) -> Releases:
        job = self.job
        rows = set(job.held) | set(job.active)
        job.held = job.active = ()
        job.pace = None
        self.change_drop()
        return dict.fromkeys(sorted(rows), now + job.terms.costs.release_s)

    def switch(self, now: float) -> Releases:
        job = self.job
        job.advance(now)
        released = dict.fromkeys(sorted(self.leaving), now + job.terms.costs.release_s)
        self.change_drop()
        job.active = job.held
        job.still_until = self.paused_until = now + job.terms.costs.pause_s
        job.pace_set()
        return released

    def change_drop(self) -> None:
        """Abandon the change under way."""
        self.ready_at.clear()
        self.leaving.clear()
        self.switch_at = math.inf

    def _count(self, had: tuple[AcceleratorId, ...], now: float) -> None:
        job = self.job
        if job.started_at is None:
            job.started_at = now
        else:
            job.num_resizes += 1
            if not had:
                job.num_restarts += 1
        if not had:
            job.running_since, job.pending_since = now, None
        job.changed_at = now
        job.most_accelerators = max(job.most_accelerators, len(job.held))

    def _stop(self, had: tuple[AcceleratorId, ...], now: float) -> Releases:
        job = self.job
        rows = set(had) | set(job.active)
        job.active = ()
        job.pace = None
        job.save()
        job.pending_since, job.running_since, job.changed_at = now, None, now
        self.change_drop()
        return dict.fromkeys(sorted(rows), now + job.terms.costs.release_s)

    def _start(self, had: tuple[AcceleratorId, ...], now: float) -> Releases:
        """Start from nothing, or change the target of a start under way."""
        job, costs = self.job, self.job.terms.costs
        kept = set(had) & set(job.held)
        if kept:
            job.still_until = max(job.still_until, now + max(costs.growth_s, costs.pause_s))
        else:
            job.still_until = now + costs.start_s
            job.save()
        self.starting_until = job.still_until
        job.active = job.held
        job.pace_set()
        return dict.fromkeys(sorted(set(had) - set(job.held)), now + costs.release_s)

    def _change(self, had: tuple[AcceleratorId, ...], now: float) -> Releases:
        job, costs = self.job, self.job.terms.costs
        active, held = set(job.active), set(job.held)
        for accelerator in held - active:
            self.ready_at.setdefault(accelerator, now + costs.growth_s)
        dropped = set(had) - held - active
        for accelerator in dropped:
            del self.ready_at[accelerator]
        self.leaving = active - held
        released = dict.fromkeys(sorted(dropped), now + costs.release_s)
        if held == active:
            self.change_drop()
            return released
        self.switch_at = max([now, *(self.ready_at[one] for one in held - active)])
        return released
