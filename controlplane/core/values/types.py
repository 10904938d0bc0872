"""Frozen values of the scheduling core: input and output of policies and plans.

A `Snapshot` is the complete input of a policy. Policies are pure: same snapshot, same decision.
Time and seed are part of the snapshot, so the core never reads a clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from controlplane.core.estimates.step_time import StepTime
from controlplane.core.values.explanations import Reason
from controlplane.core.values.performance import LossForecast, Performance
from controlplane.core.values.projects import ProjectId, ProjectQuota
from controlplane.core.values.tiers import Tier

JobId = int
AcceleratorId = int


@dataclass(frozen=True, slots=True, order=True)
class Accelerator:
    """One device that one trainer can own.

    Attributes:
        id: unique in the cluster.
        node_id: the machine that contains it.
        index: its index on that machine, from 0.
        kind: hardware kind as policies distinguish it ("cpu", "a100"); results are bitwise equal
            within a kind.
    """

    id: AcceleratorId
    node_id: int
    index: int
    kind: str


@dataclass(frozen=True)
class Job:
    """One job as a policy sees it.

    Without slots, so that `with_share_part` can copy all fields at once.

    Attributes:
        weight: its priority, positive: the order of jobs of a tier, and the claim on a share of a
            user's only job.
        min_accelerators: least number of accelerators on which it runs (>= 1).
        max_accelerators: largest number that it can use (never above num_virtual_nodes).
        accepted_kinds: kinds of accelerator it may run on; empty means any.
        examples_per_s: measured throughput by number of accelerators, as far as seen.
        remaining_examples: examples left until its stop condition, if that is known.
        attained_accelerator_s: accelerator-seconds it has had so far.
        pending_since: start of its present wait for accelerators; None: since submission.
        allow_mixed_kinds: whether it may hold accelerators of several kinds at once.
        step_times: kind -> measured seconds of a step by virtual nodes; only for jobs that mix.
        sync_time: measured seconds of the exchange by number of trainers, as far as known.
        performance: useful examples per second on any accelerators, as far as it can be predicted.
        kind_speeds: relative speeds of kinds for its code, or else for other jobs, as far as jobs
            that ran on several kinds have shown.
        tried_kinds: kinds on which its code was measured, by itself or others; empty: unknown.
        loss: forecast of its loss, if there is one.
        done_examples: useful examples so far, in the unit of `remaining_examples`.
        resize_s: seconds of training that one resize costs it, as measured.
        num_resizes: number of changes of its accelerators since its first start.
        changed_at: time of the last change of its accelerators; None: it never had any.
        running_since: time since which it holds accelerators without a break; None: it holds none.
        most_accelerators: largest number it ever held at once.
        user: number of its owner; None: not known, the job shares as a user of its own.
        user_factor: factor of its owner's claim on a share, set by an admin.
        share_part: part of its weight that counts as a claim on a share (see `user_shares`).
        tier: jobs of a lower tier get only what higher ones leave (see `policies.common.tiers`).
        sweep: the sweep to which it belongs, if it does.
        project: number of its project; None: it belongs to none.
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
    allow_mixed_kinds: bool = False
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
    user: int | None = None
    user_factor: float = 1.0
    share_part: float = 1.0
    tier: Tier = Tier.NORMAL
    sweep: int | None = None
    project: ProjectId | None = None

    @property
    def share_weight(self) -> float:
        """Claim on a share, relative to those of other jobs; `weight` is the order of jobs."""
        return self.weight * self.share_part

    def accepts(self, kind: str) -> bool:
        """Return whether the job may run on accelerators of `kind`."""
        return not self.accepted_kinds or kind in self.accepted_kinds

    def with_share_part(self, part: float) -> Self:
        """Return the job with another `share_part`, a tenth of the time of `dataclasses.replace`.

        A decision on thousands of jobs does this for each of them.
        """
        copy = object.__new__(type(self))
        object.__setattr__(copy, "__dict__", self.__dict__ | {"share_part": part})
        return copy

    def waited_s(self, now: float) -> float:
        """Return the seconds for which it has been waiting at `now`."""
        since = self.submitted_at if self.pending_since is None else self.pending_since
        return max(now - since, 0.0)


@dataclass(frozen=True, slots=True)
class Sweep:
    """A group of jobs with a limit on how many of them hold accelerators at once.

    Attributes:
        max_running: the limit.
        num_leaving: jobs that still hold accelerators, but request none: they are being stopped.
        is_paused: none of its jobs may begin.
    """

    max_running: int
    num_leaving: int = 0
    is_paused: bool = False


@dataclass(frozen=True, slots=True)
class Maintenance:
    """A node that takes no new work for maintenance, and is given work again at its end.

    Attributes:
        node_id: the node.
        ends_at: end of the maintenance, in seconds as `Snapshot.now`.
        accelerators: those that may be given out then. They are in the snapshot, on a cordoned
            node, until the maintenance begins.
    """

    node_id: int
    ends_at: float
    accelerators: tuple[Accelerator, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The cluster at one moment: the only input of a policy.

    Attributes:
        now: seconds since the epoch (or since the start of a simulation).
        accelerators: accelerators that may be given out, on schedulable nodes only, and those of
            cordoned nodes.
        jobs: jobs that request accelerators (pending, starting or running).
        held: accelerators that each job holds and is to keep, in slot order; then those kept for
            it.
        kept: the part of `held` on which the job has no trainer: the job lost some, and these bring
            it back to its minimum (see `replacements`). Free unless `releasing`.
        releasing: accelerators whose former trainer has not gone yet; they cannot be given out now.
        vacating: accelerators among `held`, but not among `accelerators`, of running nodes that
            jobs have to leave. A job stays there until its new accelerators are free.
        resizing: jobs with a resize under way that can no longer be revoked; a plan leaves them.
        excluded: accelerators on which a job's trainers did not come up lately, by job.
        cordoned: nodes of which nothing is given out; jobs keep what they hold there (see
            `cordons`).
        maintenance: nodes that are given work again at a known time (see `maintenance`).
        sweeps: sweeps by number, whose jobs beyond the limit wait (see `sweeps`).
        projects: quotas of the projects that have any (see `policies.common.projects`).
        node_sizes: kind -> its accelerators on each node of the cluster, the largest first, in a
            part of it that a group of jobs has chosen; empty: the snapshot is no such part.
        carried: state that the same policy left in its last decision, of the type in
            `policies.POLICY_STATES`. It may be missing at any time (another policy, an upgrade);
            losing it costs decision quality or speed, not correctness.
    """

    now: float
    seed: int
    accelerators: tuple[Accelerator, ...]
    jobs: tuple[Job, ...]
    held: Mapping[JobId, tuple[AcceleratorId, ...]] = field(default_factory=dict)
    kept: Mapping[JobId, tuple[AcceleratorId, ...]] = field(default_factory=dict)
    releasing: frozenset[AcceleratorId] = frozenset()
    vacating: frozenset[AcceleratorId] = frozenset()
    resizing: frozenset[JobId] = frozenset()
    excluded: Mapping[JobId, frozenset[AcceleratorId]] = field(default_factory=dict)
    cordoned: frozenset[int] = frozenset()
    maintenance: tuple[Maintenance, ...] = ()
    sweeps: Mapping[int, Sweep] = field(default_factory=dict)
    projects: Mapping[ProjectId, ProjectQuota] = field(default_factory=dict)
    node_sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    carried: object | None = None

    def manned(self, job_id: JobId) -> tuple[AcceleratorId, ...]:
        """Return the accelerators on which a job has trainers, in slot order."""
        held, kept = self.held.get(job_id, ()), self.kept.get(job_id)
        return held if kept is None else tuple(one for one in held if one not in kept)

    def limit_of(self, job: Job) -> int | None:
        """Return how many accelerators of all kinds the limits of its project leave a job."""
        quota = None if job.project is None else self.projects.get(job.project)
        if quota is None:
            return None
        limits = (quota.limit_left, quota.user_limit_left(job.user))
        return min((limit for limit in limits if limit is not None), default=None)

    def without_given(
        self, given: Mapping[JobId, Mapping[str, int]]
    ) -> Mapping[ProjectId, ProjectQuota]:
        """Return the quotas of the other jobs, once some were given accelerators by kind."""
        used: dict[tuple[ProjectId, int | None], Counter[str]] = {}
        for job in self.jobs:
            if job.project is not None and job.project in self.projects and job.id in given:
                used.setdefault((job.project, job.user), Counter()).update(given[job.id])
        quotas = dict(self.projects)
        for (project, user), counts in used.items():
            quotas[project] = quotas[project].without(user, counts)
        return quotas

    @property
    def in_use(self) -> frozenset[AcceleratorId]:
        """Accelerators on which there is a trainer."""
        return self.releasing.union(*(self.manned(job_id) for job_id in self.held))


@dataclass(frozen=True, slots=True)
class Share:
    """Desired accelerators of a job.

    Attributes:
        kind: its own kind, the only one that policies give.
        count: number of accelerators of it.
        extra: other kind -> number of lent accelerators of it (see `kind_lending`).
        by_node: node -> part of `count` there, from policies that choose places themselves; empty:
            `placement` chooses.
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
    """Finding on mixing kinds in one job.

    Attributes:
        key: identifies the finding, independently of its numbers.
        sentence: the finding with the predicted numbers.
    """

    key: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Decision:
    """Desired state from a policy: a share for every job that is to hold accelerators, and reasons.

    Attributes:
        shares: job -> share; a missing job is to hold none.
        reasons: job -> reason, or a sentence, with numbers; for every job of the snapshot.
        mixes: job -> finding on mixing, for jobs that allow it and where there is one.
        carried: state for the policy's next snapshot.
    """

    shares: Mapping[JobId, Share]
    reasons: Mapping[JobId, Reason | str]
    mixes: Mapping[JobId, MixNote] = field(default_factory=dict)
    carried: object | None = None


@dataclass(frozen=True, slots=True)
class Allocation:
    """A placed decision: job -> accelerators, in the order of the job's slots."""

    accelerators: Mapping[JobId, tuple[AcceleratorId, ...]]
    reasons: Mapping[JobId, Reason | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Resize:
    """One job's change from its held to its newly given accelerators.

    Attributes:
        wanted: the accelerators of the new generation, kept ones first and in their old order.
        batch_size: examples of a step from then on; None: no other number is requested.
        counts: virtual nodes of each of `wanted`; None: split later by the speeds known then.
    """

    job_id: JobId
    held: tuple[AcceleratorId, ...]
    wanted: tuple[AcceleratorId, ...]
    reason: str
    batch_size: int | None = None
    counts: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Changes to make now, shrinks before grows, and jobs that have to wait for a release.

    Attributes:
        resizes: in the order in which they are to be applied.
        waiting: job -> accelerators that it gets once their former trainers have gone.
        reasons: job -> the policy's sentence about it.
        mixes, carried: as in the decision.
        allocation: accelerators of all jobs when none has to wait any more.
    """

    resizes: tuple[Resize, ...]
    waiting: Mapping[JobId, tuple[AcceleratorId, ...]]
    reasons: Mapping[JobId, str]
    mixes: Mapping[JobId, MixNote] = field(default_factory=dict)
    carried: object | None = None
    allocation: Allocation | None = None
