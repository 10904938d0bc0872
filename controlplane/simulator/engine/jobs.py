"""One simulated job: its accelerators, its progress, and its view for policies."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from controlplane.core.policies import BatchMode, Demand
from controlplane.core.values.performance import Performance
from controlplane.core.values.types import Accelerator, AcceleratorId, Job
from controlplane.simulator.applications.applications import Application, Learnt
from controlplane.simulator.applications.batches import Batch, Pace
from controlplane.simulator.applications.step_times import Placement
from controlplane.simulator.engine.estimates import CodeSteps, Memory, Speeds, TruePerformance
from controlplane.simulator.settings import (
    Failures,
    Knowledge,
    ResizeCosts,
    Rules,
)
from controlplane.simulator.workloads.workloads import WorkloadJob

#: Work that takes no longer than this many seconds is done: clocks are floating-point numbers.
TOLERANCE_S = 1e-6


@dataclass(frozen=True, slots=True)
class Terms:
    """Settings common to all jobs of a simulation.

    Attributes:
        per_node: accelerators of the largest node of each kind.
        steps: what all jobs of a code have measured, by code; filled in the simulation.
    """

    accelerators: Mapping[AcceleratorId, Accelerator]
    per_node: Mapping[str, int]
    demand: Demand
    knowledge: Knowledge
    costs: ResizeCosts
    rules: Rules = Rules.OWN
    failures: Failures | None = None
    steps: dict[str, CodeSteps] = field(default_factory=dict)


@dataclass
class SimulatedJob:
    """A job in the system. Times are seconds since the start of the simulation.

    Attributes:
        held: accelerators that it is meant to hold, in slot order, as in a snapshot.
        active: accelerators it trains on; differs from `held` while it starts or new ones come up.
        epoch, progress: present epoch and progress.
        still_until: time before which it makes no progress.
        saved: time, progress and epoch of its last checkpoint.
        num_resizes: changes of its held accelerators since its first start, restarts included.
        num_restarts: starts from nothing after its first one.
        last_progress: progress at which it ends; infinite: with all its work.
        tried: kinds that jobs of its code have been on.
        speeds: relative speeds of kinds for jobs of its code, or others, where it has no data.
    """

    id: int
    spec: WorkloadJob
    application: Application
    terms: Terms
    held: tuple[AcceleratorId, ...] = ()
    active: tuple[AcceleratorId, ...] = ()
    epoch: int = 0
    progress: float = 0.0
    pace: Pace | None = None
    updated_at: float = 0.0
    still_until: float = 0.0
    attained_s: float = 0.0
    started_at: float | None = None
    ended_at: float | None = None
    pending_since: float | None = None
    running_since: float | None = None
    changed_at: float | None = None
    num_resizes: int = 0
    num_restarts: int = 0
    most_accelerators: int = 0
    memory: Memory = field(default_factory=Memory)
    saved: tuple[float, float, int] = (0.0, 0.0, 0)
    last_progress: float = math.inf
    speeds: Speeds = ()
    tried: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        is_fitted = self.terms.knowledge is Knowledge.FITTED
        app = self.application
        self._learnt = app if is_fitted and isinstance(app, Learnt) else None
        self.memory.code = self.terms.steps.setdefault(self.code, CodeSteps())
        self.pending_since = self.updated_at = self.spec.submitted_at

    @property
    def code(self) -> str:
        """Identifier of the computation; equal for jobs that compute the same."""
        return self.application.name if self._learnt is None else self._learnt.code

    @property
    def batch_size_asked(self) -> int | None:
        """The batch that it has to run with; None: the platform chooses."""
        is_chosen = self.terms.demand.batch is BatchMode.CHOSEN and not self.spec.is_fixed
        return None if is_chosen else self.spec.batch_size

    @property
    def bounds(self) -> tuple[int, int]:
        """The fewest and most accelerators that it takes."""
        capacity = len(self.terms.accelerators)
        if self.terms.demand.is_rigid and self.spec.requested is not None:
            return self.spec.requested, self.spec.requested
        most = self.application.most_accelerators(self.batch_size_asked)
        most = min(most, self.spec.max_accelerators or most, max(capacity, 1))
        least = self.spec.min_accelerators
        return least, max(most, least)

    def accepts(self, kind: str) -> bool:
        """Return whether it may run on accelerators of `kind`."""
        return not self.spec.accepted_kinds or kind in self.spec.accepted_kinds

    @property
    def place(self) -> tuple[str, Placement]:
        """The kind of its active accelerators, and their number on each node, in slot order."""
        rows = [self.terms.accelerators[one] for one in self.active]
        return rows[0].kind, tuple(Counter(row.node_id for row in rows).values())

    def batch_choose(self) -> Batch | None:
        """Choose the batch for its active accelerators."""
        kind, placement = self.place
        size = self.batch_size_asked
        if size is None and self._learnt is not None:
            known, count = self.performance(), sum(placement)
            if known is None:
                size = self._learnt.first_batch(count)
            else:
                size = known.batch_size(kind, count, len(placement))
            if size < 1:
                return None
        return self.application.batch(kind, placement, size, self.epoch)

    def pace_set(self) -> None:
        """Set its pace with the right batch on its active accelerators."""
        batch = self.batch_choose() if self.active else None
        self.pace = None
        if batch is not None:
            self.pace = self.application.pace(*self.place, batch, self.epoch)

    def see(self) -> None:
        """Record its present steps as observations."""
        if self.pace is not None and self.pace.step_s > 0.0:
            self.memory.see(*self.place, self.pace)

    @property
    def epoch_end(self) -> float:
        """Progress at which its epoch, or its work, is over."""
        return min(self.application.progress_ends[self.epoch + 1], self.last_progress)

    @property
    def is_done(self) -> bool:
        ends = self.application.progress_ends
        return self.epoch + 1 >= len(ends) or self.progress >= self.last_progress

    @property
    def total_progress(self) -> float:
        return min(self.application.progress_ends[-1], self.last_progress)

    @property
    def share_saved(self) -> float:
        """Share of its work in its last checkpoint."""
        return self.saved[1] / self.total_progress if self.total_progress > 0.0 else 1.0

    @property
    def _share_left(self) -> float:
        """Share of the application's remaining work that it does."""
        left = self.application.progress_ends[-1] - self.progress
        return (self.total_progress - self.progress) / left if left > 0.0 else 1.0

    def advance(self, now: float) -> None:
        """Train until `now`, which is not beyond the end of the epoch."""
        occupied = len(set(self.held) | set(self.active))
        self.attained_s += occupied * (now - self.updated_at)
        training_s = now - max(self.updated_at, self.still_until)
        self.updated_at = now
        if self.pace is None or training_s <= 0.0:
            return
        self.see()
        if self.terms.failures is not None:
            self._checkpoint(now, training_s, self.terms.failures.checkpoint_s)
        self.progress += self.pace.progress_per_s * training_s
        if self.epoch_end - self.progress <= self.pace.progress_per_s * TOLERANCE_S:
            self.progress = self.epoch_end
            self.epoch += 1
            if not self.is_done:
                self.pace_set()

    def _checkpoint(self, now: float, training_s: float, every_s: float) -> None:
        """Record the last checkpoint in a stretch of training that ends `now`."""
        at = self.saved[0] + math.floor((now - self.saved[0]) / every_s) * every_s
        since_s = at - (now - training_s)
        if self.pace is not None and since_s > 0.0:
            done = self.progress + self.pace.progress_per_s * since_s
            if done < self.epoch_end:
                self.saved = (at, done, self.epoch)

    def save(self) -> None:
        """Save the present progress."""
        self.saved = (self.updated_at, self.progress, self.epoch)

    def restore(self) -> None:
        """Go back to the last checkpoint."""
        _, self.progress, self.epoch = self.saved

    def epoch_ends_at(self) -> float:
        """Return the time at which its epoch ends if nothing changes."""
        if self.pace is None or self.pace.progress_per_s <= 0.0:
            return math.inf
        left_s = (self.epoch_end - self.progress) / self.pace.progress_per_s
        # Time has to advance, however little work is left.
        return max(self.updated_at, self.still_until) + max(left_s, TOLERANCE_S)

    def seen(self) -> Job:
        """Return the job as policies see it."""
        least, most = self.bounds
        asked = self.batch_size_asked
        app = self.application
        unit = app.examples_per_progress
        if asked is None:
            done, left = self.progress * unit, (self.total_progress - self.progress) * unit
        else:
            left = app.examples_left(asked, self.epoch, self.progress)
            if self.terms.rules is Rules.POLLUX:  # epochs after this one, one step at least
                left = app.examples_left(asked, self.epoch, self.epoch_end) or float(asked)
            done = app.examples_left(asked, 0, 0.0) - left
            left *= self._share_left
        return Job(
            id=self.id,
            submitted_at=self.spec.submitted_at,
            weight=self.spec.weight,
            tier=self.spec.tier,
            num_virtual_nodes=max(most, 1),
            min_accelerators=least,
            max_accelerators=most,
            accepted_kinds=self.spec.accepted_kinds,
            global_batch_size=asked or int(unit),
            remaining_examples=left,
            attained_accelerator_s=self.attained_s,
            pending_since=self.pending_since,
            performance=self.performance(),
            kind_speeds=dict(self.speeds),
            tried_kinds=self.tried,
            loss=app.forecast(self.epoch, self.progress),
            done_examples=done,
            resize_s=self.terms.costs.pause_s,
            num_resizes=self.num_resizes,
            changed_at=self.changed_at,
            running_since=self.running_since,
            most_accelerators=self.most_accelerators,
            user=self.spec.user,
            user_factor=self.spec.user_factor,
            project=self.spec.project,
            sweep=self.spec.sweep,
        )

    def performance(self) -> Performance | None:
        """Return the performance that policies see."""
        app, asked = self.application, self.batch_size_asked
        if self._learnt is not None:
            return self.memory.performance(self._learnt, asked, self.speeds)
        return TruePerformance(
            app, self.epoch, asked, self.terms.per_node, self.terms.rules is Rules.POLLUX
        )
