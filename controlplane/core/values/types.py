"""The frozen values that policies and plans work on.

A `Snapshot` is everything a policy may know. Policies are pure: same snapshot, same answer. Time
and seed are part of the snapshot, so nothing here reads a clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from controlplane.core.estimates.step_time import StepTime
from controlplane.core.values.performance import LossForecast, Performance

JobId = int
AcceleratorId = int


@dataclass(frozen=True, slots=True, order=True)
class Accelerator:
    """One device that one trainer can own.

    Attributes:
        id: unique in the cluster.
        node_id: the machine it sits in.
        index: its place on that machine, from 0.
        kind: what policies tell apart ("cpu", "a100"); results are bitwise equal within a kind.
    """

    id: AcceleratorId
    node_id: int
    index: int
    kind: str


@dataclass(frozen=True, slots=True)
class Job:
    """One job as a policy sees it.

    Attributes:
        weight: its priority as a positive share weight; higher gets more.
        min_accelerators: it runs on at least this many or not at all (>= 1).
        max_accelerators: it can use at most this many (never above num_virtual_nodes).
        accepted_kinds: kinds of accelerator it may run on; empty means any.
        examples_per_s: measured throughput by number of accelerators, as far as seen.
        remaining_examples: examples left until its stop condition, if that is known.
        attained_accelerator_s: accelerator-seconds it has had so far.
        pending_since: when it last began to wait for accelerators; None: since it was submitted.
        mixes_kinds: it may hold accelerators of several kinds at once.
        step_times: kind -> measured seconds of a step by virtual nodes; only for jobs that mix.
        sync_time: measured seconds of the exchange by number of trainers, as far as known.
        performance: useful examples per second on any accelerators, as far as that can be told.
        kind_speeds: how fast kinds are beside each other for its code, or where nobody knows that
            for others', as far as jobs that ran on several have shown.
        tried_kinds: kinds on which its code was measured, by itself or others; empty: nobody knows.
        loss: where its loss is going, as far as that can be told.
        done_examples: useful examples so far, in the unit of `remaining_examples`.
        resize_s: seconds of training that one resize costs it, as measured.
        num_resizes: how often its accelerators have changed since its first start.
        changed_at: when its accelerators changed last; None: it never had any.
        running_since: since when it holds accelerators without a break; None: it holds none.
        most_accelerators: the most it ever held at once.
    """

    id: JobId
    submitted_at: float
    weight: float
    num_virtual_nodes: int
    min_accelerators: int
    max_accelerators: int
    accepted_kinds: frozenset[str] = frozenset()
    global_batch_size: int = 0
    examples_per_s: Mapping[int, float] = field(default_factory=dict)
    remaining_examples: float | None = None
    attained_accelerator_s: float = 0.0
    pending_since: float | None = None
    mixes_kinds: bool = False
    step_times: Mapping[str, StepTime] = field(default_factory=dict)
    sync_time: StepTime | None = None
    performance: Performance | None = None
    kind_speeds: Mapping[str, float] = field(default_factory=dict)
    tried_kinds: frozenset[str] = frozenset()
    loss: LossForecast | None = None
    done_examples: float = 0.0
    resize_s: float = 1.0
    num_resizes: int = 0
    changed_at: float | None = None
    running_since: float | None = None
    most_accelerators: int = 0

    def accepts(self, kind: str) -> bool:
        """Say whether the job may run on accelerators of `kind`."""
        return not self.accepted_kinds or kind in self.accepted_kinds

    def waited_s(self, now: float) -> float:
        """Give how long it has been waiting at `now`, in seconds."""
        since = self.submitted_at if self.pending_since is None else self.pending_since
        return max(now - since, 0.0)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The cluster at one moment: the only input of a policy.

    Attributes:
        now: seconds since the epoch (or since the start of a simulation).
        accelerators: those that may be given out, schedulable nodes only.
        jobs: jobs that want accelerators (pending, starting or running).
        held: what each job holds and is meant to keep holding, in slot order; then what is kept
            for it.
        kept: the part of `held` on which the job has no trainer: it lost some, and these bring it
            back to its minimum (see `replacements`). Free unless it is `releasing`.
        releasing: accelerators whose former trainer has not gone yet; nobody may be given them now.
        resizing: jobs with a resize under way that can no longer be taken back; a plan leaves them.
        excluded: accelerators on which a job's trainers did not come up lately, by job.
        carried: what the same policy left in its last decision. It may be missing at any time (a
            new process, another policy), so it can only make a decision better or faster.
    """

    now: float
    seed: int
    accelerators: tuple[Accelerator, ...]
    jobs: tuple[Job, ...]
    held: Mapping[JobId, tuple[AcceleratorId, ...]] = field(default_factory=dict)
    kept: Mapping[JobId, tuple[AcceleratorId, ...]] = field(default_factory=dict)
    releasing: frozenset[AcceleratorId] = frozenset()
    resizing: frozenset[JobId] = frozenset()
    excluded: Mapping[JobId, frozenset[AcceleratorId]] = field(default_factory=dict)
    carried: object | None = None

    def manned(self, job_id: JobId) -> tuple[AcceleratorId, ...]:
        """Give the accelerators on which a job has trainers, in slot order."""
        held, kept = self.held.get(job_id, ()), self.kept.get(job_id)
        return held if kept is None else tuple(one for one in held if one not in kept)

    @property
    def in_use(self) -> frozenset[AcceleratorId]:
        """Accelerators on which there is a trainer."""
        return self.releasing.union(*(self.manned(job_id) for job_id in self.held))


@dataclass(frozen=True, slots=True)
class Share:
    """How many accelerators a job shall hold.

    Attributes:
        kind: its own kind, the only one that policies give.
        count: how many of it.
        extra: other kind -> how many idle ones of it work along (see `kind_lending`).
        by_node: node -> how many of `count` there, from policies that choose places themselves;
            empty: placement chooses.
    """

    kind: str
    count: int
    extra: Mapping[str, int] = field(default_factory=dict)
    by_node: Mapping[int, int] = field(default_factory=dict)

    @property
    def by_kind(self) -> dict[str, int]:
        """Accelerators by kind, the job's own kind first."""
        return {self.kind: self.count, **self.extra}

    @property
    def total(self) -> int:
        """Accelerators of all kinds together."""
        return sum(self.by_kind.values())


@dataclass(frozen=True, slots=True)
class MixNote:
    """What was found out about mixing kinds in one job.

    Attributes:
        key: the same as long as the finding is the same, whatever the numbers.
        sentence: with the predicted numbers.
    """

    key: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What a policy wants: a share for every job that shall hold something, and why.

    Attributes:
        shares: job -> share; a job that is missing shall hold nothing.
        reasons: job -> one sentence with numbers, for every job of the snapshot.
        mixes: job -> what was found about mixing, for jobs that allow it and where it is known.
        starts_in_s: waiting job -> in how many seconds it is expected to start, where that can be
            told.
        carried: what the policy wants to find in the next snapshot.
    """

    shares: Mapping[JobId, Share]
    reasons: Mapping[JobId, str]
    mixes: Mapping[JobId, MixNote] = field(default_factory=dict)
    starts_in_s: Mapping[JobId, float] = field(default_factory=dict)
    carried: object | None = None


@dataclass(frozen=True, slots=True)
class Allocation:
    """A decision with places: job -> accelerators, in the order of the job's slots."""

    accelerators: Mapping[JobId, tuple[AcceleratorId, ...]]
    reasons: Mapping[JobId, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Resize:
    """One job's change from what it holds to what it is given now.

    Attributes:
        wanted: the accelerators of the new generation, kept ones first and in their old order.
        batch_size: examples of a step from then on; None: nobody asks for another number.
        counts: virtual nodes of each of `wanted`; None: they are split by what is known by then.
    """

    job_id: JobId
    held: tuple[AcceleratorId, ...]
    wanted: tuple[AcceleratorId, ...]
    reason: str
    batch_size: int | None = None
    counts: tuple[int, ...] | None = None

    @property
    def is_preemption(self) -> bool:
        """True when the job ends up with nothing."""
        return not self.wanted


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now, shrinks before grows, and what has to wait for a release.

    Attributes:
        resizes: in the order in which they are to be applied.
        waiting: job -> accelerators that it will be given once their former trainers have gone.
        reasons: job -> the policy's sentence about it.
        mixes, starts_in_s, carried: as in the decision.
        allocation: what all jobs hold when nothing has to wait any more.
    """

    resizes: tuple[Resize, ...]
    waiting: Mapping[JobId, tuple[AcceleratorId, ...]]
    reasons: Mapping[JobId, str]
    mixes: Mapping[JobId, MixNote] = field(default_factory=dict)
    starts_in_s: Mapping[JobId, float] = field(default_factory=dict)
    carried: object | None = None
    allocation: Allocation | None = None
