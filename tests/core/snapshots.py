"""Small snapshots for the tests of policies, placement and plans."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from controlplane.core.cycle import decide
from controlplane.core.estimates.step_time import Sample, StepTime, step_time_fit
from controlplane.core.policies import POLICIES
from controlplane.core.values.projects import ProjectQuota
from controlplane.core.values.tiers import Tier
from controlplane.core.values.types import Accelerator, Job, Plan, Snapshot
from tests.support.cases import some

#: A property of every policy is drawn for each of a dozen: a third of the examples of others.
per_policy = settings(max_examples=settings.default.max_examples // 3)
every_policy = pytest.mark.parametrize("name", sorted(POLICIES))
#: For stories of many decisions: the search takes as long as all other policies together.
every_policy_but_search = pytest.mark.parametrize("name", some(sorted(POLICIES), ("pollux",)))


def accelerators_make(*kinds_per_node: str) -> tuple[Accelerator, ...]:
    """Make one node for each argument; its words are the kinds of its accelerators."""
    made: list[Accelerator] = []
    for node_id, kinds in enumerate(kinds_per_node, start=1):
        for index, kind in enumerate(kinds.split()):
            made.append(Accelerator(len(made) + 1, node_id, index, kind))
    return tuple(made)


def linear(per_virtual_node_s: float, base_s: float = 0.0) -> StepTime:
    """Make an exactly straight step time."""
    seconds = {number: base_s + per_virtual_node_s * number for number in (1, 2)}
    fitted = step_time_fit({number: Sample(10, s, s) for number, s in seconds.items()})
    assert fitted is not None
    return fitted


@dataclass(frozen=True)
class Speed:
    """A job's goodput: `per_s` on one accelerator, and losses for company and for distance.

    n accelerators do n / (1 + company * (n - 1)) times as much as one, on m nodes
    1 / (1 + distance * (m - 1)) of that. `by_kind` multiplies it; a kind that is 0 does not work.
    """

    per_s: float = 10.0
    company: float = 0.0
    distance: float = 0.0
    by_kind: Mapping[str, float] = field(default_factory=dict, hash=False)

    def goodput(self, kind: str, num_accelerators: int, num_nodes: int) -> float:
        if num_accelerators < 1:
            return 0.0
        alone = self.per_s * self.by_kind.get(kind, 1.0) * num_accelerators
        together = 1.0 + self.company * (num_accelerators - 1)
        return alone / together / (1.0 + self.distance * (num_nodes - 1))

    def goodputs(self, kind: str, most: int, per_node: int) -> NDArray[np.float64]:
        nodes = [-(-count // per_node) for count in range(most + 1)]
        return np.array([self.goodput(kind, n, nodes[n]) for n in range(most + 1)])

    def batch_size(self, kind: str, num_accelerators: int, num_nodes: int) -> int:
        return 64


@dataclass(frozen=True)
class Falling:
    """A loss that falls by `height` in the end, `rate` of the rest with every example."""

    height: float = 1.0
    rate: float = 0.001
    num_points: int = 20
    normaliser: float = 0.1

    def loss(self, examples: float) -> float:
        return self.height * math.exp(-self.rate * examples)


def job_make(
    job_id: int,
    *,
    weight: float = 1.0,
    least: int = 1,
    most: int = 8,
    at: float = 0.0,
    kinds: str = "",
    mixes: Mapping[str, StepTime] | None = None,
    sync_time: StepTime | None = None,
    tier: Tier = Tier.NORMAL,
) -> Job:
    """Make a job; `mixes` lets it mix kinds and gives the step times that are known."""
    return Job(
        id=job_id,
        submitted_at=at,
        weight=weight,
        num_virtual_nodes=16,
        min_accelerators=least,
        max_accelerators=most,
        accepted_kinds=frozenset(kinds.split()),
        allow_mixed_kinds=mixes is not None,
        step_times=mixes or {},
        sync_time=sync_time,
        tier=tier,
    )


def snapshot_make(
    accelerators: tuple[Accelerator, ...],
    *jobs: Job,
    held: dict[int, tuple[int, ...]] | None = None,
    releasing: tuple[int, ...] = (),
    resizing: tuple[int, ...] = (),
    now: float = 0.0,
    projects: dict[int, ProjectQuota] | None = None,
) -> Snapshot:
    return Snapshot(
        now=now,
        seed=0,
        accelerators=accelerators,
        jobs=jobs,
        held=held or {},
        releasing=frozenset(releasing),
        resizing=frozenset(resizing),
        projects=projects or {},
    )


def rested(snapshot: Snapshot, name: str) -> Snapshot:
    """Apply a policy's plans until one changes nothing; fail if none does after 8 cycles.

    Pollux has 24: it searches at random and improves in steps, 9 in 1 of 400 drawn clusters.
    """
    for _ in range(25 if name == "pollux" else 9):
        plan = decide(snapshot, name)
        if not plan.resizes:
            return snapshot
        snapshot = after(snapshot, plan)
    raise AssertionError(f"{name} does not come to rest: {plan.resizes}")


def after(snapshot: Snapshot, plan: Plan) -> Snapshot:
    """Apply a plan as if every trainer had obeyed at once."""
    held = dict(snapshot.held)
    for resize in plan.resizes:
        held[resize.job_id] = resize.wanted
    held = {job_id: row for job_id, row in held.items() if row}
    return replace(
        snapshot,
        jobs=tuple(
            _after(job, snapshot.held.get(job.id, ()), held.get(job.id, ()), snapshot.now)
            for job in snapshot.jobs
        ),
        held=held,
        releasing=frozenset(),
        resizing=frozenset(),
        carried=plan.carried,
    )


def _after(job: Job, held: tuple[int, ...], wanted: tuple[int, ...], now: float) -> Job:
    """Note in a job what a change of its accelerators changes about it."""
    if set(held) == set(wanted):
        return job
    return replace(
        job,
        num_resizes=job.num_resizes + 1,
        changed_at=now,
        running_since=(job.running_since if held else now) if wanted else None,
        pending_since=None if wanted else now,
        most_accelerators=max(job.most_accelerators, len(wanted)),
    )


#: What may be known of two kinds: nothing, one of them, alike, 3:1, so slow that it never helps.
_MIXES = [
    None,
    None,
    {},
    {"fast": linear(0.01)},
    {"fast": linear(0.01), "slow": linear(0.01)},
    {"fast": linear(0.01, 0.002), "slow": linear(0.03, 0.01)},
    {"fast": linear(0.01), "slow": linear(5.0)},
]
_SYNC_TIMES = [None, linear(0.001), linear(0.02)]


#: What may be known of a job's speed: nothing, plain proportion, losses, kinds that differ or fail.
_SPEEDS = [
    None,
    None,
    Speed(),
    Speed(company=0.2),
    Speed(company=0.05, distance=0.5),
    Speed(company=2.0),
    Speed(distance=1.0, by_kind={"fast": 3.0}),
    Speed(per_s=1000.0, company=0.1, by_kind={"fast": 0.0}),
]

#: What may be known of its loss: nothing, too little, a fast and a slow fall, no fall.
_LOSSES = [
    None,
    Falling(num_points=3),
    Falling(rate=0.05),
    Falling(height=20.0, rate=0.0005, normaliser=5.0),
    Falling(height=0.0),
]


@st.composite
def _jobs(draw: st.DrawFn, job_id: int) -> Job:
    least = draw(st.integers(1, 3))
    job = job_make(
        job_id,
        weight=draw(st.sampled_from([1, 2, 5, 10])),
        least=least,
        most=draw(st.integers(least, 8)),
        at=draw(st.sampled_from([0.0, 10.0, 500.0])),
        kinds=draw(st.sampled_from(["", "slow", "fast", "slow fast", "absent"])),
        mixes=draw(st.sampled_from(_MIXES)),
        sync_time=draw(st.sampled_from(_SYNC_TIMES)),
    )
    return replace(
        job,
        performance=draw(st.sampled_from(_SPEEDS)),
        loss=draw(st.sampled_from(_LOSSES)),
        remaining_examples=draw(st.sampled_from([None, 0.0, 50.0, 1e4, 1e8])),
        resize_s=draw(st.sampled_from([0.0, 0.8, 30.0])),
        done_examples=draw(st.sampled_from([0.0, 5e3])),
        attained_accelerator_s=draw(st.sampled_from([0.0, 1e3, 1e6])),
        pending_since=draw(st.sampled_from([None, 500.0])),
    )


def _started(job: Job, num_held: int, since: float) -> Job:
    """Note in a job that it holds accelerators since then."""
    return replace(
        job,
        running_since=since,
        changed_at=since,
        pending_since=None,
        most_accelerators=num_held,
        num_resizes=int(since) % 3,
    )


@st.composite
def snapshots(draw: st.DrawFn, tiers: Sequence[Tier] = (Tier.NORMAL,)) -> Snapshot:
    """Draw clusters of up to 12 accelerators of two kinds and up to 6 jobs, some running."""
    nodes = draw(
        st.lists(
            st.sampled_from(["slow slow", "slow", "fast fast", "fast fast fast", "slow fast"]),
            min_size=1,
            max_size=4,
        )
    )
    accelerators = accelerators_make(*nodes)
    jobs = [draw(_jobs(job_id)) for job_id in range(1, 1 + draw(st.integers(0, 6)))]
    if len(tiers) > 1:
        jobs = [replace(job, tier=draw(st.sampled_from(tiers))) for job in jobs]
    free = list(accelerators)
    held: dict[int, tuple[int, ...]] = {}
    for place, job in enumerate(jobs):
        kind = draw(st.sampled_from(["slow", "fast"]))
        count = draw(st.integers(0, job.max_accelerators))
        usable = [a for a in free if a.kind == kind and job.accepts(kind)][:count]
        if len(usable) >= job.min_accelerators:
            if job.allow_mixed_kinds:
                others = [a for a in free if a.kind != kind and job.accepts(a.kind)]
                usable += others[: draw(st.integers(0, job.max_accelerators - len(usable)))]
            held[job.id] = tuple(accelerator.id for accelerator in usable)
            free = [accelerator for accelerator in free if accelerator not in usable]
            jobs[place] = _started(job, len(usable), draw(st.sampled_from([500.0, 499.0])))
    now = draw(st.sampled_from([500.0, 5000.0]))
    return snapshot_make(accelerators, *jobs, held=held, now=now)
