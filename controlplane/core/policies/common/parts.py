"""Parts of a snapshot: some of its jobs on some of its accelerators, decided on their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from controlplane.core.scheduling.placement import place
from controlplane.core.scheduling.pools import capacity_by_kind, jobs_able
from controlplane.core.values.types import AcceleratorId, Decision, Job, JobId, Snapshot

Policy = Callable[[Snapshot], Decision]
#: Joins two states of a policy: the first, with what the second knows of other jobs.
Join = Callable[[Any, Any, Collection[JobId]], Any]


@dataclass(frozen=True)
class DecidedPart:
    """A decided part.

    Attributes:
        whole: the snapshot of which it is a part.
        snapshot: its jobs and accelerators, without what its jobs hold elsewhere.
    """

    whole: Snapshot
    snapshot: Snapshot
    decision: Decision

    @cached_property
    def placed(self) -> Mapping[JobId, tuple[AcceleratorId, ...]]:
        """Accelerators of the part that each job would get.

        No job is moved onto fewer nodes yet: only what all parts leave idle is free for that.
        """
        held = {job.id: self.whole.held.get(job.id, ()) for job in self.whole.jobs}
        shown = replace(self.snapshot, held=held, kept=self.whole.kept)
        return place(shown, self.decision, is_repacked=False).accelerators

    @cached_property
    def taken(self) -> frozenset[AcceleratorId]:
        """Accelerators that the decision gives out."""
        return frozenset().union(*self.placed.values())

    @cached_property
    def num_late(self) -> int:
        """Jobs that get nothing, or accelerators that other jobs hold."""
        in_use, held, placed = self.whole.in_use, self.whole.held, self.placed
        return sum(
            job.id not in placed
            or not in_use.difference(held.get(job.id, ())).isdisjoint(placed[job.id])
            for job in self.snapshot.jobs
        )

    @cached_property
    def given(self) -> Counter[str]:
        """Accelerators of each kind that are given out."""
        shares = self.decision.shares.values()
        return sum((Counter(share.by_kind) for share in shares), Counter[str]())

    @property
    def total(self) -> int:
        """Accelerators that are given out."""
        return self.given.total()


def part_of(
    snapshot: Snapshot, jobs: tuple[Job, ...], taken: Collection[AcceleratorId]
) -> Snapshot:
    """Return the snapshot of some jobs, and of the accelerators that are not taken."""
    ids = {job.id for job in jobs}
    rows = {
        name: {
            job_id: tuple(one for one in row if one not in taken)
            for job_id, row in held.items()
            if job_id in ids
        }
        for name, held in (("held", snapshot.held), ("kept", snapshot.kept))
    }
    return replace(
        snapshot,
        accelerators=tuple(one for one in snapshot.accelerators if one.id not in taken),
        jobs=jobs,
        held=rows["held"],
        kept=rows["kept"],
    )


def part_decide(
    policy: Policy, whole: Snapshot, left: Snapshot, state: Any, join: Join
) -> DecidedPart:
    """Let a policy decide on a part of a snapshot.

    Jobs whose minimum is not in the part are not shown to it; their state is remembered, and they
    get no reason.
    """
    able = jobs_able(left.jobs, capacity_by_kind(left))
    if not able:
        return DecidedPart(whole, left, Decision({}, {}, carried=state if left.jobs else None))
    decision = policy(replace(left, jobs=able, carried=state))
    if len(able) < len(left.jobs):
        unable = frozenset(job.id for job in left.jobs).difference(job.id for job in able)
        decision = replace(decision, carried=join(decision.carried, state, unable))
    return DecidedPart(whole, left, decision)
