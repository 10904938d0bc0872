"""Choice of the accelerators on which groups of jobs with a quota are decided."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from controlplane.core.values.types import Accelerator, AcceleratorId, Job, Snapshot


@dataclass(frozen=True, slots=True)
class Group:
    """Jobs that share a quota.

    Attributes:
        key: identifies the group.
        whose: the quota's owner in sentences.
        guaranteed: accelerators that the jobs get at once if they can use them.
        limit: most that they may have together; None: there is no limit.
    """

    key: str
    whose: str
    jobs: tuple[Job, ...]
    guaranteed: int
    limit: int | None

    def most(self, count: int) -> int:
        """Return a count, or the limit if that is less."""
        return count if self.limit is None else min(count, self.limit)


def accepts_any(jobs: Iterable[Job], kind: str) -> bool:
    """Return whether one of some jobs may run on a kind."""
    return any(job.accepts(kind) for job in jobs)


def accelerators_choose(
    snapshot: Snapshot,
    groups: Sequence[Group],
    budgets: Mapping[str, int],
    guaranteed: Mapping[str, int],
) -> dict[str, list[AcceleratorId]]:
    """Choose accelerators for groups, which take turns, one accelerator each; guarantees first.

    A group first takes what its jobs hold, of their own kind. Then it prefers kinds of which there
    are as many as it may have, of these the kinds of which it holds or finds free as many, and of a
    kind free ones, then those of jobs outside of all groups.

    Args:
        budgets: key of a group -> accelerators that it is to have; fewer where there are no more.
        guaranteed: key of a group -> those of them that come before the budgets of others.
    """
    pools = _Pools(snapshot, groups)
    wishes = {group.key: pools.wishes(group, budgets[group.key]) for group in groups}
    chosen: dict[str, list[AcceleratorId]] = {group.key: [] for group in groups}
    gone: set[AcceleratorId] = set()
    first = {key: min(budget, guaranteed.get(key, 0)) for key, budget in budgets.items()}
    for limits in (first, budgets):
        turns = deque(key for key in chosen if len(chosen[key]) < limits[key])
        while turns:
            key = turns.popleft()
            found = next((one.id for one in wishes[key] if one.id not in gone), None)
            if found is None:
                continue
            gone.add(found)
            chosen[key].append(found)
            if len(chosen[key]) < limits[key]:
                turns.append(key)
    return chosen


class _Pools:
    """Accelerators by holder: of a group, of nobody, of other jobs."""

    def __init__(self, snapshot: Snapshot, groups: Sequence[Group]) -> None:
        by_id = {one.id: one for one in snapshot.accelerators}
        self._held: dict[str, list[Accelerator]] = {}
        for group in groups:
            jobs = sorted(
                group.jobs,
                key=lambda job: (job.id not in snapshot.resizing, -job.weight, job.submitted_at),
            )
            self._held[group.key] = [
                one for job in jobs for one in _own(by_id, snapshot.held.get(job.id, ()))
            ]
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

    def wishes(self, group: Group, budget: int) -> Iterator[Accelerator]:
        """Yield the accelerators that a group can use, the best first."""
        held = self._held[group.key]
        own = Counter(one.kind for one in held)
        kinds = [kind for kind in self._by_kind if accepts_any(group.jobs, kind)]
        kinds.sort(
            key=lambda kind: (
                -min(sum(map(len, self._by_kind[kind])), budget),
                -min(own[kind] + len(self._by_kind[kind][0]), budget),
                -own[kind],
                kind,
            )
        )
        yield from (one for one in held if one.kind in kinds)
        for kind in kinds:
            for row in self._by_kind[kind]:
                yield from row


def _own(by_id: Mapping[AcceleratorId, Accelerator], held: Iterable[int]) -> list[Accelerator]:
    """Return what a job holds of its own kind, that of its first accelerator."""
    row = [by_id[one] for one in held if one in by_id]
    return [one for one in row if one.kind == row[0].kind]
