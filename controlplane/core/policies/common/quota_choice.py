"""Choice of the accelerators on which groups of jobs with a quota are decided."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from controlplane.core.policies.common.quota_groups import QuotaGroup
from controlplane.core.values.types import Accelerator, AcceleratorId, Job, Snapshot


def accepts_any(jobs: Iterable[Job], kind: str) -> bool:
    """Return whether one of some jobs may run on a kind."""
    return any(job.accepts(kind) for job in jobs)


def accelerators_choose(
    pools: Pools,
    groups: Sequence[QuotaGroup],
    budgets: Mapping[str, int],
    guaranteed: Mapping[str, int],
    guaranteed_by_kind: Mapping[str, Mapping[str, int]],
    decided: Mapping[str, Mapping[str, int]],
) -> dict[str, list[AcceleratorId]]:
    """Choose accelerators for groups, which take turns, one accelerator each.

    Guarantees of kinds come first, then other guarantees. No group gets more of a kind than its
    limit of it.

    A group first takes what its jobs need of what they hold of their own kind, then all that they
    hold of it. Then it prefers kinds of which it has fewer than the policy gave it among all jobs,
    then those of which there are as many as it may have, of these the kinds that it has chosen,
    where none of its jobs waits those that they hold, then those of which it holds or finds free as
    many. Of a kind it prefers those lent to its jobs, where none waits, then free ones, then those
    of jobs outside of all groups; among like ones, those on its nodes.

    Args:
        pools: those of a snapshot and the same groups.
        budgets: key of a group -> accelerators that it is to have; fewer where there are no more.
        guaranteed: key of a group -> those of them that come before the budgets of others.
        guaranteed_by_kind: key of a group -> kind -> those that come before all others.
        decided: key of a group -> kind -> those that the policy gave it among all jobs.
    """
    choice = _Choice(pools, groups, budgets, decided)
    for kind in sorted({kind for row in guaranteed_by_kind.values() for kind in row}):
        choice.extend({key: row.get(kind, 0) for key, row in guaranteed_by_kind.items()}, kind)
    choice.extend(guaranteed)
    choice.extend(budgets)
    return choice.chosen


class _Choice:
    """Accelerators chosen for groups so far, in turns."""

    def __init__(
        self,
        pools: Pools,
        groups: Sequence[QuotaGroup],
        budgets: Mapping[str, int],
        decided: Mapping[str, Mapping[str, int]],
    ) -> None:
        self.chosen: dict[str, list[AcceleratorId]] = {group.key: [] for group in groups}
        self._pools = pools
        self._groups = {group.key: group for group in groups}
        self._budgets = budgets
        self._decided = decided
        self._counts: dict[str, Counter[str]] = {group.key: Counter() for group in groups}
        self._gone: set[AcceleratorId] = set()

    def extend(self, wanted: Mapping[str, int], kind: str | None = None) -> None:
        """Let groups choose until they have as many as wanted, of one kind or of all kinds.

        Args:
            wanted: key of a group -> accelerators; those without an entry choose nothing.
        """
        wishes = {
            key: self._pools.wishes(
                group, self._budgets[key], self._counts[key], self._decided.get(key, {})
            )
            for key, group in self._groups.items()
            if wanted.get(key)
        }
        turns = deque(wishes)
        while turns:
            key = turns.popleft()
            has = len(self.chosen[key]) if kind is None else self._counts[key][kind]
            is_short = has < wanted[key] and len(self.chosen[key]) < self._budgets[key]
            if is_short and self._choose(key, wishes[key], kind):
                turns.append(key)

    def _choose(self, key: str, wishes: Iterator[Accelerator], kind: str | None) -> bool:
        """Choose the best accelerator that is left for a group; return whether there is one."""
        group, counts = self._groups[key], self._counts[key]
        for one in wishes:
            if one.id in self._gone or kind not in (None, one.kind):
                continue
            if counts[one.kind] < group.most(counts[one.kind] + 1, one.kind):
                self._gone.add(one.id)
                self.chosen[key].append(one.id)
                counts[one.kind] += 1
                return True
        return False


class Pools:
    """Accelerators by holder: of a group, of nobody, of other jobs.

    Args:
        need: returns the accelerators with fewer of which a job does not run.
    """

    def __init__(
        self, snapshot: Snapshot, groups: Sequence[QuotaGroup], need: Callable[[Job], int]
    ) -> None:
        by_id = {one.id: one for one in snapshot.accelerators}
        self._held: dict[str, list[Accelerator]] = {}
        self._lent: dict[str, list[Accelerator]] = {}
        self._waits = {
            group.key: any(not snapshot.held.get(job.id) for job in group.jobs) for group in groups
        }
        for group in groups:
            jobs = sorted(
                group.jobs,
                key=lambda job: (job.id not in snapshot.resizing, -job.weight, job.submitted_at),
            )
            rows = [(need(job), _own(by_id, snapshot.held.get(job.id, ()))) for job in jobs]
            needed = [one for count, row in rows for one in row[:count]]
            self._held[group.key] = needed + [one for count, row in rows for one in row[count:]]
            ids = (one for job in jobs for one in snapshot.held.get(job.id, ()))
            held = [by_id[one] for one in ids if one in by_id]
            self._lent[group.key] = [] if self._waits[group.key] else held
        holders = {one.id: 2 for row in self._held.values() for one in row}
        for accelerator_id in snapshot.in_use:
            holders.setdefault(accelerator_id, 1)
        self._by_kind: dict[str, list[list[Accelerator]]] = {}
        for one in snapshot.accelerators:
            rows_of_kind = self._by_kind.setdefault(one.kind, [[], [], []])
            rows_of_kind[holders.get(one.id, 0)].append(one)
        for rows_of_kind in self._by_kind.values():
            for row in rows_of_kind:
                size = Counter(one.node_id for one in row)
                row.sort(key=lambda one: (-size[one.node_id], one.node_id, one.index))

    def is_holding(self, key: str) -> bool:
        """Return whether a job of a group holds accelerators."""
        return bool(self._held[key])

    def wishes(
        self,
        group: QuotaGroup,
        budget: int,
        chosen: Mapping[str, int],
        decided: Mapping[str, int],
    ) -> Iterator[Accelerator]:
        """Yield the accelerators that a group can use, the best first, some of them twice.

        Args:
            chosen: kind -> accelerators that the group has already; read at the first one.
            decided: kind -> accelerators that the policy gave the group among all jobs.
        """
        held = self._held[group.key]
        own = Counter(one.kind for one in held)
        kinds = [kind for kind in self._by_kind if accepts_any(group.jobs, kind)]
        kinds.sort(
            key=lambda kind: (
                max(chosen.get(kind, 0), own[kind]) >= decided.get(kind, 0),
                -min(sum(map(len, self._by_kind[kind])), budget),
                -chosen.get(kind, 0),
                0 if self._waits[group.key] else -own[kind],
                -min(own[kind] + len(self._by_kind[kind][0]), budget),
                kind,
            )
        )
        nodes = {one.node_id for one in held}
        yield from (one for one in held if one.kind in kinds)
        for kind in kinds:
            yield from (one for one in self._lent[group.key] if one.kind == kind)
            for row in self._by_kind[kind]:
                if nodes:
                    yield from (one for one in row if one.node_id in nodes)
                yield from row


def _own(by_id: Mapping[AcceleratorId, Accelerator], held: Iterable[int]) -> list[Accelerator]:
    """Return what a job holds of its own kind, that of its first accelerator."""
    row = [by_id[one] for one in held if one in by_id]
    return [one for one in row if one.kind == row[0].kind]
