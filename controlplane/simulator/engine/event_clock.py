"""The clock of the product's rules: arrivals, ends, switches, releases and rounds in sequence."""

from __future__ import annotations

import dataclasses
import heapq
import math
import time
from collections.abc import Callable

from controlplane.core.cycle import decide
from controlplane.core.scheduling.plan import plan_between
from controlplane.core.scheduling.replacements import replacements_kept
from controlplane.core.values.types import AcceleratorId, Allocation, Job, Plan, Snapshot
from controlplane.simulator.engine.changes import JobAccelerators, Releases
from controlplane.simulator.engine.failures import NodeEventKind, Outages, silence, survive
from controlplane.simulator.engine.jobs import SimulatedJob, Terms
from controlplane.simulator.engine.run import (
    LEAST_DONE,
    LONGEST_S,
    MOST_LOSSES,
    STUCK_ROUNDS,
    Progress,
    Run,
    StuckError,
    lost_text,
    stuck_text,
)
from controlplane.simulator.engine.trials import Trials
from controlplane.simulator.workloads.workloads import Cluster, Workload

#: Called with the input and the plan of every decision; may raise to stop the simulation.
Watch = Callable[[Snapshot, Plan], None]

#: Wall-clock seconds after which progress is reported, if no job ends before.
REPORT_EVERY_S = 2.0

#: Largest number of consecutive plans at one moment; more mean that they never converge.
MOST_PLANS = 20


class EventRun(Run):
    """One simulation by the product's rules."""

    def __init__(
        self,
        workload: Workload,
        cluster: Cluster,
        policy: str,
        terms: Terms,
        *,
        seed: int,
        round_s: float,
        progress: Progress | None,
        watch: Watch | None,
    ) -> None:
        super().__init__(workload, cluster, policy, terms, seed=seed, progress=progress)
        self.round_s = round_s
        self.trials = Trials(self.jobs, terms)
        self._watch = watch
        self._arrived = 0
        self._live: dict[int, JobAccelerators] = {}
        self._events: list[tuple[float, int, int]] = []  # (time, job, version)
        self._versions: dict[int, int] = {}
        self._releases: list[tuple[float, AcceleratorId]] = []
        self._tick_at = -math.inf
        self._snapshot: Snapshot | None = None
        self._wanted: Allocation | None = None
        self._waiting_seen: dict[int, Job] = {}
        self._failures = terms.failures
        self._outages = Outages(self._nodes, terms.failures, seed)
        self._silent: dict[int, float] = {}  # node -> end of its lease
        self._lost: set[AcceleratorId] = set()
        self._idle_rounds = 0
        self._num_losses, self._done = 0, 0.0  # work done for good by then, in jobs
        self._reported_at = time.monotonic()
        self._counted_at = 0.0  # time of the last arrival or end of a job

    def run(self) -> None:
        """Run until every job has ended.

        Raises:
            StuckError: jobs would never end.
        """
        while self._live or self._arrived < len(self.jobs):
            self.now = self._next_at()
            if self._live and self.now - self._counted_at > LONGEST_S:
                raise self._stuck()
            changed = self._jobs_step()
            freed = self._release()
            changed |= self._nodes_step()
            changed |= self._arrive()
            is_tick = self.now >= self._tick_at
            if changed or is_tick:
                self._decide(is_tick)
            elif freed:
                self._follow_up()

    def _next_at(self) -> float:
        while self._events and self._versions.get(self._events[0][1]) != self._events[0][2]:
            heapq.heappop(self._events)
        moments = [self._tick_at if self._live else math.inf, self._outages.next_at]
        if self._events:
            moments.append(self._events[0][0])
        if self._releases:
            moments.append(self._releases[0][0])
        if self._arrived < len(self.jobs):
            moments.append(self.jobs[self._arrived].spec.submitted_at)
        return max(min(moments), self.now)

    def _arrive(self) -> bool:
        before = self._arrived
        while self._arrived < len(self.jobs):
            job = self.jobs[self._arrived]
            if job.spec.submitted_at > self.now:
                break
            self._live[job.id] = JobAccelerators(job)
            self._arrived += 1
            self._counted_at = self.now
        return self._arrived > before

    def _jobs_step(self) -> bool:
        """Process the jobs' own events; return whether a job ended."""
        is_ended = False
        while self._events and self._events[0][0] <= self.now:
            _, job_id, version = heapq.heappop(self._events)
            if self._versions.get(job_id) == version:
                is_ended |= self._job_step(self._live[job_id])
        return is_ended

    def _job_step(self, holding: JobAccelerators) -> bool:
        job = holding.job
        job.advance(self.now)
        if job.is_done:
            job.ended_at = self._counted_at = self.now
            self._comparisons.remember(job.code, job.memory)
            self._remove(holding)
            self._report()
            return True
        if holding.switch_at <= self.now:
            self._give_back(holding.switch(self.now))
        self._plan_event(holding)
        return False

    def _remove(self, holding: JobAccelerators) -> None:
        """Take a job that has ended out of the system."""
        job = holding.job
        self._give_back(holding.end(self.now))
        self._note_held(job)
        del self._live[job.id]
        self._versions.pop(job.id, None)
        self._waiting_seen.pop(job.id, None)

    def _tune(self) -> None:
        """Cancel trials that are not awaited any more, and let new ones arrive."""
        for job_id in self.trials.cancelled(self.now):
            self._live[job_id].job.advance(self.now)
            self._live[job_id].job.ended_at = self.now
            self._remove(self._live[job_id])
        present = self._placed(Snapshot(self.now, 0, self.cluster.accelerators, ()))
        occupied = {one for held in present.held.values() for one in held}
        occupied |= present.releasing | self._lost
        num_free = len(self.cluster.accelerators) - len(occupied)
        waiting = (one.job.bounds[0] for one in self._live.values() if not one.job.held)
        num_idle = num_free - sum(least for least in waiting if least <= num_free)
        live = [one.job for one in self._live.values()]
        for trial in self.trials.begun(live, num_idle, self.now):
            self._live[trial.id] = JobAccelerators(trial)

    def _nodes_step(self) -> bool:
        """Process events of nodes; return whether the number of available nodes changed."""
        is_changed = False
        lease_s = self._failures.lease_s if self._failures is not None else 0.0
        for event in self._outages.due(self.now):
            rows = self._nodes[event.node]
            if event.turn is NodeEventKind.BACK:
                self._lost.difference_update(rows)
            elif event.turn is NodeEventKind.SILENT:
                self._silent[event.node] = event.at + lease_s
            else:
                del self._silent[event.node]
                self._lost.update(rows)
                self._note_loss()
            is_changed |= event.turn is not NodeEventKind.SILENT
            for holding in self._live.values():
                if event.turn is NodeEventKind.LOST:
                    held = holding.job.held
                    self._give_back(survive(holding, rows, self.now))
                    if holding.job.held != held:
                        self._note_held(holding.job)
                for node, until in self._silent.items():
                    silence(holding, self._nodes[node], self.now, until)
                self._plan_event(holding)
        return is_changed

    def _note_loss(self) -> None:
        """Count a loss; after so many of them, check that work is done faster than it is lost."""
        self._num_losses += 1
        if self._num_losses % MOST_LOSSES:
            return
        before, live = self._done, [one.job for one in self._live.values()]
        self._done = self._arrived - len(live) + sum(job.share_saved for job in live)
        if live and self._done - before < LEAST_DONE * len(live):
            raise StuckError(lost_text(live))

    def _plan_event(self, holding: JobAccelerators) -> None:
        job_id = holding.job.id
        self._versions[job_id] = self._versions.get(job_id, 0) + 1
        at = holding.next_at(self.now)
        if at < math.inf:
            heapq.heappush(self._events, (max(at, self.now), job_id, self._versions[job_id]))

    def _give_back(self, releases: Releases) -> None:
        for accelerator, at in releases.items():
            heapq.heappush(self._releases, (at, accelerator))

    def _release(self) -> bool:
        is_freed = False
        while self._releases and self._releases[0][0] <= self.now:
            heapq.heappop(self._releases)
            is_freed = True
        return is_freed

    def _decide(self, is_tick: bool) -> None:
        for holding in list(self._live.values()):
            if holding.job.active:
                self._job_step(holding)
        self._release()
        if is_tick:
            self._tick_at = (math.floor(self.now / self.round_s) + 1) * self.round_s
        if self.trials.are_possible:
            self._tune()
        is_gone = len(self._lost) == len(self.cluster.accelerators)
        if not self._live or is_gone:
            self._wanted = None
            self._tick_at = self._outages.next_at if is_gone else self._tick_at
            return
        snapshot = self._snapshot_make()
        began = time.perf_counter()
        plan = decide(snapshot, self.policy)
        self.records.decision_s.append(time.perf_counter() - began)
        self._snapshot, self._wanted, self._carried = snapshot, plan.allocation, plan.carried
        if self._watch is not None:
            self._watch(snapshot, plan)
        self._apply(plan)
        self._follow_up()
        self._check_alive(is_tick, bool(plan.resizes))
        if is_tick:
            self._note_quality()
            if time.monotonic() - self._reported_at > REPORT_EVERY_S:
                self._report()

    def _follow_up(self) -> None:
        """Continue with the last decision, as far as releases by now allow."""
        for _ in range(MOST_PLANS):
            if self._snapshot is None or self._wanted is None:
                return
            self._jobs_step()
            self._release()
            jobs = tuple(job for job in self._snapshot.jobs if job.id in self._live)
            snapshot = dataclasses.replace(self._snapshot, now=self.now, jobs=jobs)
            plan = plan_between(self._placed(snapshot), self._wanted)
            if not plan.resizes:
                return
            self._apply(plan)

    def _apply(self, plan: Plan) -> None:
        for resize in plan.resizes:
            holding = self._live[resize.job_id]
            self._give_back(holding.resize(resize.wanted, self.now))
            self._note_held(holding.job)
            self._plan_event(holding)

    def _placed(self, snapshot: Snapshot) -> Snapshot:
        """Return a snapshot with the present held and releasing accelerators."""
        held = {number: row.job.held for number, row in self._live.items() if row.job.held}
        releasing = {accelerator for _, accelerator in self._releases}
        for holding in self._live.values():
            releasing |= holding.leaving
        for node in self._silent:
            releasing.update(self._nodes[node])
        return dataclasses.replace(
            snapshot,
            held=held,
            kept={},
            releasing=frozenset(releasing),
            resizing=frozenset(
                number for number, row in self._live.items() if row.paused_until > self.now
            ),
        )

    def _snapshot_make(self) -> Snapshot:
        if self._compare_kinds([holding.job for holding in self._live.values()]):
            self._waiting_seen.clear()
        snapshot = self._placed(
            Snapshot(
                now=self.now,
                seed=self.seed,
                accelerators=tuple(
                    one for one in self.cluster.accelerators if one.id not in self._lost
                ),
                jobs=tuple(self._seen(holding.job) for holding in self._live.values()),
                carried=self._carried,
                projects=self._projects,
                sweeps=self._sweeps,
            )
        )
        return replacements_kept(snapshot, self._lost_lately())

    def _lost_lately(self) -> dict[int, set[AcceleratorId]]:
        """Return the accelerators that jobs have lost lately, for those that were not resized."""
        since = self.now - (self._failures.replace_s if self._failures is not None else 0.0)
        lost = {
            number: {accelerator for accelerator, at in row.lost.items() if at > since}
            for number, row in self._live.items()
        }
        return {number: row for number, row in lost.items() if row}

    def _seen(self, job: SimulatedJob) -> Job:
        """Return the policies' view of a job; that of a waiting job is cached."""
        if job.held or job.active:
            self._waiting_seen.pop(job.id, None)
            return job.seen()
        if job.id not in self._waiting_seen:
            self._waiting_seen[job.id] = job.seen()
        return self._waiting_seen[job.id]

    def _report(self) -> None:
        self._reported_at = time.monotonic()
        if self._progress is not None:
            num_live = len(self._live) - self.trials.num_live
            self._progress(self._arrived - num_live, len(self.jobs), self.now)

    def _note_held(self, job: SimulatedJob) -> None:
        self.records.held.append((self.now, job.id, len(job.held)))

    def _note_quality(self) -> None:
        rows = [row.job for row in self._live.values() if row.job.id <= len(self.jobs)]
        total = sum(job.application.quality(job.epoch, job.progress) for job in rows)
        self.records.qualities.append((self.now, total / len(rows)))

    def _check_alive(self, is_tick: bool, is_changed: bool) -> None:
        is_working = any(row.job.epoch_ends_at() < math.inf for row in self._live.values())
        is_idle = is_tick and not is_changed and not is_working
        self._idle_rounds = self._idle_rounds + 1 if is_idle else 0
        if self._idle_rounds <= STUCK_ROUNDS:
            return
        if not self._lost:
            raise self._stuck()
        self._idle_rounds, self._tick_at = 0, self._outages.next_at  # some may wait for a node

    def _stuck(self) -> StuckError:
        jobs = [row.job for row in self._live.values()]
        return StuckError(stuck_text(self.policy, jobs, are_lost=bool(self._lost)))
