"""Projects: the frame of every policy that keeps guarantees and limits of groups of jobs.

A group is a project, or the jobs of one user in a project. The policy decides for all jobs first.
Where its decision keeps every guarantee and limit, that is the decision. Otherwise the groups that
have too few or too many accelerators are set apart: each is decided on as many as it is to have,
and the policy decides for all other jobs with what these leave. Accelerators that are idle after
that are offered to the groups that are apart, up to their limits.

Guarantees and limits of one kind of accelerator are kept alike. A group that is apart has its
guaranteed accelerators of a kind among its own, where the policy may use them as it does; a waiting
job that fits on those that stay idle is decided on these alone.

A guarantee is therefore lent to everybody until a job of the project can use it, and comes back
with one decision. A limit keeps no other job waiting: no job is seen with a demand above it, and a
group with a waiting job that does not fit below it is set apart.

Without quotas the policy sees its snapshot unchanged. A group that is apart has a state of its own
(`QuotaStates`), in which users who are apart in it have theirs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import wraps

from controlplane.core.policies.common.guarantees import guarantees, guarantees_by_kind
from controlplane.core.policies.common.look_ahead import seen_ahead
from controlplane.core.policies.common.parts import DecidedPart, Policy, part_decide, part_of
from controlplane.core.policies.common.quota_choice import Pools, accelerators_choose, accepts_any
from controlplane.core.policies.common.quota_groups import (
    QuotaGroup,
    projects_of,
    users_in_projects,
)
from controlplane.core.policies.common.quota_notes import quota_note
from controlplane.core.policies.common.quota_states import OTHERS, QuotaStates, joined, main_state
from controlplane.core.policies.common.rates import node_sizes
from controlplane.core.scheduling.placement import place
from controlplane.core.scheduling.pools import capacity_by_kind, kinds_able, room_of
from controlplane.core.values.explanations import Reason, reason
from controlplane.core.values.types import AcceleratorId, Decision, Job, JobId, Share, Snapshot


def projects_kept(policy: Policy, *, is_rigid: bool) -> Policy:
    """Return a policy that keeps the quotas of projects, and of users in them.

    Args:
        is_rigid: whether jobs wait for all the accelerators that they can use.
    """
    by_user = _kept(_flat(policy), users_in_projects, is_rigid=is_rigid)
    return seen_ahead(_kept(by_user, projects_of, is_rigid=is_rigid))


def _flat(policy: Policy) -> Policy:
    """Return a policy that is given one state for all its jobs."""

    @wraps(policy)
    def flat(snapshot: Snapshot) -> Decision:
        return policy(replace(snapshot, carried=main_state(snapshot)))

    return flat


def _kept(
    policy: Policy, groups_of: Callable[[Snapshot], list[QuotaGroup]], *, is_rigid: bool
) -> Policy:
    @wraps(policy)
    def kept(snapshot: Snapshot) -> Decision:
        groups = groups_of(snapshot)
        if not groups:
            return policy(snapshot)
        return _Frame(policy, snapshot, is_rigid=is_rigid).decide(groups)

    return kept


class _Frame:
    """One decision on a snapshot in which some jobs have quotas."""

    def __init__(self, policy: Policy, snapshot: Snapshot, *, is_rigid: bool) -> None:
        self._policy = policy
        self._snapshot = snapshot
        self._is_rigid = is_rigid
        self._capacity = capacity_by_kind(snapshot)
        carried, ids = snapshot.carried, frozenset(job.id for job in snapshot.jobs)
        self._main = carried.of(ids) if isinstance(carried, QuotaStates) else carried
        self._reasons: dict[JobId, Reason | str] = {}
        self._wanted: dict[str, int] = {}
        self._wanted_by_kind: dict[str, dict[str, int]] = {}
        self._counts: dict[str, dict[str, int]] = {}
        self._decided: dict[tuple[str, frozenset[AcceleratorId]], DecidedPart] = {}

    def decide(self, groups: Sequence[QuotaGroup]) -> Decision:
        """Let the policy decide, and set apart the groups whose quotas that does not keep."""
        groups = [self._limited(group) for group in groups]
        limited = {job.id: job for group in groups for job in group.jobs}
        jobs = tuple(
            limited.get(job.id, job) for job in self._snapshot.jobs if job.id not in self._reasons
        )
        sizes = node_sizes(self._snapshot)
        whole = replace(self._snapshot, jobs=jobs, carried=self._main, node_sizes=sizes)
        decision = self._policy(whole) if jobs else Decision({}, {}, carried=self._main)
        self._wanted_by_kind = guarantees_by_kind(groups, self._capacity)
        self._wanted = {
            key: max(count, sum(self._wanted_by_kind[key].values()))
            for key, count in guarantees(groups, self._capacity).items()
        }
        budgets: dict[str, int] = {}
        parts: dict[str, DecidedPart] = {}
        rest: DecidedPart | None = None
        for _ in groups:
            inside = (group for group in groups if group.key not in budgets)
            found = self._broken(inside, decision)
            if not found:
                break
            budgets |= found
            parts = self._parts(whole, [one for one in groups if one.key in budgets], budgets)
            rest = self._rest(whole, groups, parts)
            decision = rest.decision
        if rest is None:
            carried = decision.carried
            if isinstance(carried, QuotaStates):  # of groups inside these
                carried = QuotaStates({OTHERS: carried})
            reasons = {**decision.reasons, **self._reasons}
            return replace(decision, reasons=reasons, carried=carried)
        apart = [group for group in groups if group.key in parts]
        parts = self._lent(whole, apart, parts, rest)
        return self._joined(apart, parts, rest)

    def _limited(self, group: QuotaGroup) -> QuotaGroup:
        """Lower the demands of a group's jobs to its limits; jobs that need more are left out.

        A job does not accept the kinds of whose limit its minimum is more. Kinds of which there are
        fewer than that do not count.
        """
        if group.limit is None and not group.limit_by_kind:
            return group
        jobs = []
        for job in group.jobs:
            limits = {
                kind: group.most(group.most(job.max_accelerators, kind))
                for kind in kinds_able(job, self._capacity)
            }
            limit = max(limits.values(), default=group.most(job.max_accelerators))
            if limit < job.min_accelerators:
                self._reasons[job.id] = reason(
                    "quota_small",
                    accelerators=job.min_accelerators,
                    whose=group.whose,
                    limit=limit,
                )
                continue
            kinds = frozenset(kind for kind, n in limits.items() if n >= job.min_accelerators)
            if len(kinds) < len(limits):
                job = replace(job, accepted_kinds=kinds)
            if limit < job.max_accelerators:
                job = replace(job, max_accelerators=limit)
            jobs.append(job)
        return replace(group, jobs=tuple(jobs))

    def _broken(self, groups: Iterable[QuotaGroup], decision: Decision) -> dict[str, int]:
        """Return the groups to set apart, with the accelerators that each is to have."""
        found: dict[str, int] = {}
        for group in groups:
            shares = (decision.shares[job.id] for job in group.jobs if job.id in decision.shares)
            given = sum((Counter(share.by_kind) for share in shares), Counter[str]())
            got = given.total()
            wanted = self._wanted_by_kind[group.key]
            is_over = any(group.most(n, kind) < n for kind, n in given.items())
            is_short = got < self._wanted[group.key] or any(
                given[kind] < n and _is_wished(group.jobs, kind, decision)
                for kind, n in wanted.items()
            )
            is_full = any(
                job.id not in decision.shares and self._is_kept_waiting(job, group, given)
                for job in group.jobs
            )
            if is_over or is_short or is_full or group.most(got) < got:
                counts = {
                    kind: group.most(max(given[kind], wanted.get(kind, 0)), kind)
                    for kind in {*given, *wanted}
                }
                total = sum(counts.values())
                found[group.key] = group.most(max(self._wanted[group.key], total))
                self._counts[group.key] = counts
        return found

    def _is_kept_waiting(self, job: Job, group: QuotaGroup, given: Counter[str]) -> bool:
        """Return whether a job waits for more than the limits of its group leave."""
        if group.limit is None and not group.limit_by_kind:
            return False
        need = self._need(job)
        after = {kind: given[kind] + need for kind in self._capacity if job.accepts(kind)}
        is_above_all = after and all(group.most(n, kind) < n for kind, n in after.items())
        return bool(is_above_all) or group.most(given.total() + need) < given.total() + need

    def _need(self, job: Job) -> int:
        """Return the accelerators for which a job waits."""
        if not self._is_rigid:
            return job.min_accelerators
        return max(min(job.max_accelerators, room_of(job, self._capacity)), job.min_accelerators)

    def _parts(
        self, whole: Snapshot, apart: Sequence[QuotaGroup], budgets: Mapping[str, int]
    ) -> dict[str, DecidedPart]:
        """Decide for each group on accelerators of its own.

        Where a group uses fewer than it may, or a job waits for what another one has to leave, the
        groups choose once more, the others without what they leave idle: a job may then start at
        once, or stay where it is. They also choose without the kinds of which the group itself
        leaves some idle, for a job that waits for other ones; at last it does so alone, beside what
        all others hold or are to have, for a job that starts then. Groups that hold accelerators
        come first, so that two whose guarantees are of the same accelerators do not have them in
        turns.
        """
        pools = Pools(whole, apart, self._need)
        by_key = {group.key: group for group in apart}

        def chosen(
            counts: Mapping[str, int], groups: Mapping[str, QuotaGroup]
        ) -> dict[str, list[AcceleratorId]]:
            rows = list(groups.values())
            return accelerators_choose(
                pools, rows, counts, self._wanted, self._wanted_by_kind, self._counts
            )

        def decided(choice: Mapping[str, list[AcceleratorId]]) -> dict[str, DecidedPart]:
            return {key: self._part(whole, by_key[key], row) for key, row in choice.items()}

        parts = decided(chosen(budgets, by_key))
        for key in sorted(budgets, key=lambda key: (not pools.is_holding(key), key)):
            if parts[key].total == budgets[key] and not parts[key].num_late:
                continue
            used = {one: part.total for one, part in parts.items()} | {key: budgets[key]}
            narrow = self._narrowed(by_key[key], parts[key], budgets[key])
            for group in (None if used == budgets else by_key[key], narrow):
                choice = chosen(used, {**by_key, key: group}) if group is not None else {}
                if choice and self._part(whole, by_key[key], choice[key]) is not parts[key]:
                    parts = _better(parts, decided(choice))
            own = (whole.held.get(job.id, ()) for job in by_key[key].jobs)
            others = whole.in_use.difference(*own)
            others = others.union(*(part.taken for one, part in parts.items() if one != key))
            beside = self._alone(whole, by_key[key], others, budgets[key])
            narrow = self._narrowed(by_key[key], beside, budgets[key])
            if narrow is not None:
                beside = self._alone(whole, narrow, others, budgets[key])
                if len(beside.decision.shares) > len(parts[key].decision.shares):
                    parts = _better(parts, {**parts, key: beside})
        return parts

    def _alone(
        self, whole: Snapshot, group: QuotaGroup, others: Collection[AcceleratorId], budget: int
    ) -> DecidedPart:
        """Decide for one group on as many as it is to have, which leaves others what they have."""
        rows = tuple(one for one in whole.accelerators if one.id not in others)
        pools = Pools(replace(whole, accelerators=rows), [group], self._need)
        by_kind = {group.key: self._wanted_by_kind[group.key]}
        chosen = accelerators_choose(pools, [group], {group.key: budget}, {}, by_kind, {})
        return self._part(whole, group, chosen[group.key])

    def _narrowed(self, group: QuotaGroup, part: DecidedPart, budget: int) -> QuotaGroup | None:
        """Limit a group to what it uses of the kinds of which its part leaves some idle.

        None: no job has fewer of another kind than it can use, nor waits for one and fits in the
        rest of its budget.
        """
        idle = {one.kind for one in part.snapshot.accelerators if one.id not in part.taken}
        others = self._capacity.keys() - idle
        room = budget - part.total
        shares = part.decision.shares
        if not idle or not any(
            shares[job.id].kind in others and shares[job.id].total < job.max_accelerators
            if job.id in shares
            else job.min_accelerators <= room
            and not any(job.accepts(kind) for kind in idle)
            and any(job.accepts(kind) for kind in others)
            for job in group.jobs
        ):
            return None
        given = part.given
        limits = {**group.limit_by_kind, **{kind: given[kind] for kind in idle}}
        return replace(group, limit_by_kind=limits)

    def _part(
        self, whole: Snapshot, group: QuotaGroup, chosen: Collection[AcceleratorId]
    ) -> DecidedPart:
        known = self._decided.get((group.key, frozenset(chosen)))
        if known is not None:
            return known
        others = frozenset(one.id for one in whole.accelerators).difference(chosen)
        left = part_of(whole, group.jobs, others)
        carried = self._snapshot.carried
        states = carried.by_group if isinstance(carried, QuotaStates) else {}
        state = states.get(group.key, self._main)
        part = part_decide(self._policy, whole, left, state, joined)
        for kind, count in self._wanted_by_kind[group.key].items():
            part = self._kind_offered(part, kind, count)
        self._decided[group.key, frozenset(chosen)] = part
        return part

    def _kind_offered(self, part: DecidedPart, kind: str, count: int) -> DecidedPart:
        """Decide for waiting jobs of a part on guaranteed accelerators of a kind that are idle."""
        whole, decision = part.whole, part.decision
        waiting = tuple(
            job for job in part.snapshot.jobs if job.id not in decision.shares and job.accepts(kind)
        )
        num_left = count - part.given[kind]
        if num_left <= 0 or not waiting:
            return part
        idle = [
            one.id
            for one in part.snapshot.accelerators
            if one.kind == kind and one.id not in part.taken
        ]
        others = frozenset(one.id for one in whole.accelerators).difference(idle[:num_left])
        given = {job_id: share.by_kind for job_id, share in decision.shares.items()}
        left = part_of(whole, waiting, others)
        left = replace(left, projects=whole.without_given(given))  # for the limits of users
        more = part_decide(self._policy, whole, left, decision.carried, joined).decision
        if not more.shares:
            return part
        shares = {**decision.shares, **more.shares}
        reasons = {**decision.reasons, **{one: more.reasons[one] for one in more.shares}}
        return replace(part, decision=replace(decision, shares=shares, reasons=reasons))

    def _rest(
        self, whole: Snapshot, groups: Sequence[QuotaGroup], parts: Mapping[str, DecidedPart]
    ) -> DecidedPart:
        """Decide for the jobs that are not apart on what the parts leave."""
        apart = {job.id for group in groups if group.key in parts for job in group.jobs}
        taken = frozenset[AcceleratorId]().union(*(part.taken for part in parts.values()))
        jobs = tuple(job for job in whole.jobs if job.id not in apart)
        left = part_of(whole, jobs, taken)
        return part_decide(self._policy, whole, left, self._main, joined)

    def _lent(
        self,
        whole: Snapshot,
        apart: Sequence[QuotaGroup],
        parts: Mapping[str, DecidedPart],
        rest: DecidedPart,
    ) -> dict[str, DecidedPart]:
        """Offer accelerators that stay idle to the groups that are apart.

        A group that gets no more from those it chooses then chooses none of the kinds that it
        leaves idle.
        """
        taken = rest.taken.union(*(part.taken for part in parts.values()))
        idle = [one for one in whole.accelerators if one.id not in taken]
        found = dict(parts)
        for group in apart:
            part = found[group.key]
            given = part.given
            usable = {
                one.id
                for one in idle
                if accepts_any(group.jobs, one.kind)
                and given[one.kind] < group.most(given[one.kind] + 1, one.kind)
            }
            room = group.most(part.total + len(usable)) - part.total
            wish = group.usable((job, job.max_accelerators) for job in group.jobs) - part.total
            if min(room, wish, len(usable)) <= 0:
                continue
            others = {one.id for one in whole.accelerators} - part.taken - usable
            more = self._alone(whole, group, others, part.total + room)
            narrow = self._narrowed(group, more, part.total + room)
            if narrow is not None and more.total <= part.total:
                more = self._alone(whole, narrow, others, part.total + room)
            if more.total > part.total:
                found[group.key] = more
                taken = taken.difference(part.taken).union(more.taken)
                idle = [one for one in whole.accelerators if one.id not in taken]
        return found

    def _joined(
        self, apart: Sequence[QuotaGroup], parts: Mapping[str, DecidedPart], rest: DecidedPart
    ) -> Decision:
        """Return the decision on all jobs, with the state of each group."""
        shares = dict(rest.decision.shares)
        reasons = self._reasons | self._rest_reasons(rest)
        carried = {OTHERS: rest.decision.carried}
        for group in apart:
            part = parts[group.key]
            shares |= part.decision.shares
            carried[group.key] = part.decision.carried
            note = quota_note(group, part)
            for job in group.jobs:
                own = part.decision.reasons.get(job.id, self._needed(job))
                reasons[job.id] = reason("quota_own", own=own, note=note)
        known = {key: state for key, state in carried.items() if state is not None}
        shares = self._as_near(shares, parts)
        return Decision(shares, reasons, carried=QuotaStates(known) if known else None)

    def _as_near(
        self, shares: Mapping[JobId, Share], parts: Mapping[str, DecidedPart]
    ) -> dict[JobId, Share]:
        """Give jobs that would be on more nodes than in their part the places that they have there.

        The policy gave them a count for these nodes, and could give another one elsewhere.
        """
        node_of = {one.id: one.node_id for one in self._snapshot.accelerators}
        found = place(self._snapshot, Decision(shares, {})).accelerators
        near = dict(shares)
        for part in parts.values():
            for job_id, row in part.placed.items():
                by_node = Counter(node_of[one] for one in row)
                if len({node_of[one] for one in found[job_id]}) > len(by_node):
                    near[job_id] = replace(shares[job_id], by_node=by_node)
        return near

    def _rest_reasons(self, rest: DecidedPart) -> dict[JobId, Reason | str]:
        """Return the reasons of jobs that are not apart, with what these were not shown."""
        taken = len(rest.whole.accelerators) - len(rest.snapshot.accelerators)
        note = reason("quota_taken", accelerators=taken)
        reasons: dict[JobId, Reason | str] = {}
        for job in rest.snapshot.jobs:
            own = rest.decision.reasons.get(job.id, self._needed(job))
            reasons[job.id] = reason("quota_own", own=own, note=note) if taken else own
        return reasons

    def _needed(self, job: Job) -> Reason:
        """Say what a job waits for whose minimum is not in its part."""
        least, limit = job.min_accelerators, self._snapshot.limit_of(job)
        if limit is None or limit >= least:
            return reason("quota_needs", accelerators=least)
        whose = "owner in this project"  # jobs above the limit of a project are in no part
        return reason("quota_small", accelerators=least, whose=whose, limit=limit)


def _better(parts: dict[str, DecidedPart], again: dict[str, DecidedPart]) -> dict[str, DecidedPart]:
    """Return other parts if no group gets fewer there, and fewer jobs are late or more is given."""
    more = [again[key].total - part.total for key, part in parts.items()]
    if min(more) < 0:
        return parts
    late, late_again = (sum(part.num_late for part in one.values()) for one in (parts, again))
    return again if (late_again, -sum(more)) < (late, 0) else parts


def _is_wished(jobs: Iterable[Job], kind: str, decision: Decision) -> bool:
    """Return whether one of some jobs accepts a kind, and is given fewer than it can use."""
    return any(
        job.id not in decision.shares or decision.shares[job.id].total < job.max_accelerators
        for job in jobs
        if job.accepts(kind)
    )
