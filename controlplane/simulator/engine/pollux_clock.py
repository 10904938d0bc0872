"""The clock of Pollux' simulator (petuum/adaptdl, osdi21-artifact), for comparison with it.

Everything happens in rounds of 60 s: all jobs train, then the policy decides, and its decision
holds from then on. Accelerators change hands at once; a job whose accelerators changed stands still
for 30 s. When a job crosses the end of an epoch, the time of it is rounded to whole seconds.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping

from controlplane.core.cycle import decision_check
from controlplane.core.policies import POLICIES
from controlplane.core.scheduling.sweeps import sweeps_split
from controlplane.core.values.types import AcceleratorId, Decision, JobId, Snapshot
from controlplane.simulator.engine.jobs import SimulatedJob
from controlplane.simulator.engine.run import LONGEST_S, STUCK_ROUNDS, Run, StuckError, stuck_text
from controlplane.simulator.workloads.workloads import Cluster

#: Pause of a job whose accelerators changed, and interval of decisions, in seconds.
RESTART_S, ROUND_S = 30.0, 60.0

#: Node -> accelerators there.
ByNode = Counter[int]


class RoundRun(Run):
    """One simulation by the rules of Pollux."""

    def run(self) -> None:
        """Run until every job has ended.

        Raises:
            StuckError: jobs would never end.
        """
        self._still_s: dict[JobId, float] = {}
        idle, counted_at = 0, 0.0
        waiting, live = list(reversed(self.jobs)), list[SimulatedJob]()
        while waiting or live:
            before = len(live)
            for job in live:
                self._train(job)
            live = [job for job in live if job.ended_at is None]
            self.now += ROUND_S
            if len(live) < before and self._progress is not None:
                ended = len(self.jobs) - len(waiting) - len(live)
                self._progress(ended, len(self.jobs), self.now)
            while waiting and waiting[-1].spec.submitted_at <= self.now:
                live.append(waiting.pop())
            if live:
                self._decide(live)
            if len(live) != before:
                counted_at = self.now
            is_working = any(job.epoch_ends_at() < math.inf for job in live)
            idle = idle + 1 if live and not is_working else 0
            if idle > STUCK_ROUNDS or (live and self.now - counted_at > LONGEST_S):
                raise StuckError(stuck_text(self.policy, live))

    def _train(self, job: SimulatedJob) -> None:
        if not job.active:
            return
        now, left_s = self.now, ROUND_S
        still_s = min(self._still_s.get(job.id, 0.0), left_s)
        self._still_s[job.id] = self._still_s.get(job.id, 0.0) - still_s
        now, left_s = now + still_s, left_s - still_s
        job.attained_s += still_s * len(job.active)
        while left_s > 0.0 and job.pace is not None:
            job.see()
            made = job.pace.progress_per_s * left_s
            if job.progress + made < job.epoch_end:
                job.progress += made
                seconds = left_s
            else:
                seconds = float(round((job.epoch_end - job.progress) / made * left_s))
                job.progress = job.epoch_end
                job.epoch += 1
            now, left_s = now + seconds, left_s - seconds
            job.attained_s += seconds * len(job.active)
            if job.is_done:
                self._end(job, now)
                return
            job.pace_set()

    def _end(self, job: SimulatedJob, now: float) -> None:
        job.ended_at = now
        self._comparisons.remember(job.code, job.memory)
        job.held = job.active = ()
        job.pace = None
        self.records.held.append((now, job.id, 0))

    def _decide(self, live: list[SimulatedJob]) -> None:
        self._compare_kinds(live)
        snapshot = Snapshot(
            now=self.now,
            seed=self.seed,
            accelerators=self.cluster.accelerators,
            jobs=tuple(job.seen() for job in live),
            held={job.id: job.held for job in live if job.held},
            carried=self._carried,
            projects=self._projects,
            sweeps=self._sweeps,
        )
        snapshot, _ = sweeps_split(snapshot)
        began = time.perf_counter()
        decision = POLICIES[self.policy](snapshot)
        self.records.decision_s.append(time.perf_counter() - began)
        decision_check(snapshot, decision)
        self._carried = decision.carried
        wanted = places(self.cluster, live, decision)
        for job in live:
            self._move(job, wanted.get(job.id, Counter()))
        self._hand_out(live, wanted)
        total = sum(job.application.quality(job.epoch, job.progress) for job in live)
        self.records.qualities.append((self.now, total / len(live)))

    def _move(self, job: SimulatedJob, wanted: ByNode) -> None:
        """Record the new places of a job, before its accelerators are chosen."""
        had = by_node(self.cluster, job)
        if had == wanted:
            return
        job.changed_at = self.now
        self.records.held.append((self.now, job.id, wanted.total()))
        if not wanted:
            job.pending_since, job.running_since = self.now, None
            return
        if job.started_at is None:
            job.started_at = self.now
        else:
            job.num_resizes += 1
            job.num_restarts += 1  # in Pollux' simulator every change is a restart
        if not had:
            job.pending_since, job.running_since = None, self.now
        job.most_accelerators = max(job.most_accelerators, wanted.total())
        self._still_s[job.id] = RESTART_S

    def _hand_out(self, live: list[SimulatedJob], wanted: Mapping[JobId, ByNode]) -> None:
        """Choose the accelerators of the places, and the batch of every job that moved."""
        moved = [job for job in live if by_node(self.cluster, job) != wanted.get(job.id, Counter())]
        for job in moved:
            job.held = ()
        taken = {one for job in live for one in job.held}
        for job in moved:
            chosen: list[AcceleratorId] = []
            for node, number in wanted.get(job.id, Counter()).items():
                spare = [one for one in self._nodes[node] if one not in taken]
                chosen += spare[:number]
            taken.update(chosen)
            job.held = job.active = tuple(chosen)
            job.pace_set()


def by_node(cluster: Cluster, job: SimulatedJob) -> ByNode:
    """Count a job's accelerators on each node."""
    return Counter(cluster.accelerators[one].node_id for one in job.held)


def places(cluster: Cluster, live: list[SimulatedJob], decision: Decision) -> dict[JobId, ByNode]:
    """Choose places as Pollux' simulator does.

    Places chosen by the policy are used. Otherwise a job whose number did not change stays; the
    others, in the order of the policy's shares, take all they can from the node with most free, and
    so on.
    """
    free = Counter(one.node_id for one in cluster.accelerators)
    kinds = {one.node_id: one.kind for one in cluster.accelerators}
    chosen: dict[JobId, ByNode] = {}
    for job in live:
        share = decision.shares.get(job.id)
        if share is None:
            continue
        had = by_node(cluster, job)
        is_same = had.total() == share.count and all(kinds[node] == share.kind for node in had)
        if share.by_node:
            chosen[job.id] = Counter(dict(share.by_node))
        elif is_same:
            chosen[job.id] = had
    for kept in chosen.values():
        free.subtract(kept)
    for job_id, share in decision.shares.items():
        if job_id in chosen:
            continue
        nodes = [node for node in sorted(free) if kinds[node] == share.kind]
        row: ByNode = Counter()
        while row.total() < share.count:
            node = max(nodes, key=lambda node: (free[node], -node))
            number = min(free[node], share.count - row.total())
            assert number > 0, f"job {job_id} needs {share.count} of kind {share.kind}"
            row[node] += number
            free[node] -= number
        chosen[job_id] = row
    return chosen
