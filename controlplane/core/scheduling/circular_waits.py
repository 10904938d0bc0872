"""Resolution of circular waits: jobs that hold what others of them are to get.

A job that moves holds its accelerators until the new ones are free. Jobs that are to swap places
would therefore wait for each other without end. One job of each such cycle makes way, at the least
cost: it moves on by way of idle accelerators, or gives up a part of its own, or stops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from controlplane.core.values.explanations import counted
from controlplane.core.values.types import AcceleratorId, Job, JobId, Snapshot

_CAUSE = "because jobs that are to swap places would wait for each other."


@dataclass(frozen=True, slots=True)
class BlockedMove:
    """A job that holds all it has until `blocked`, a part of `wanted`, is free."""

    job: Job
    held: tuple[AcceleratorId, ...]
    wanted: tuple[AcceleratorId, ...]
    blocked: tuple[AcceleratorId, ...]


@dataclass(frozen=True, slots=True)
class Detour:
    """What a job holds until its wanted accelerators are free, and why; nothing: it stops."""

    accelerators: tuple[AcceleratorId, ...]
    reason: str


def detours(
    snapshot: Snapshot, moves: Sequence[BlockedMove], given: Iterable[AcceleratorId]
) -> dict[JobId, Detour]:
    """Choose one job of each circular wait and what it does.

    Cycles in which a job also waits for accelerators that are about to be released are left for a
    later plan.

    Args:
        moves: all jobs that hold everything until others have left.
        given: accelerators that are to be held by some job.
    """
    by_id = {move.job.id: move for move in moves}
    holder = {one: move.job.id for move in moves for one in move.held if one not in move.wanted}
    waits = {
        move.job.id: {holder[one] for one in move.blocked}
        for move in moves
        if all(one in holder for one in move.blocked)
    }
    if not waits:
        return {}
    taken = snapshot.in_use.union(given, *snapshot.held.values())
    kinds = {one.id: one.kind for one in snapshot.accelerators}
    idle = dict.fromkeys(
        one.id
        for one in snapshot.accelerators
        if one.id not in taken and one.node_id not in snapshot.cordoned
    )

    def stopover(move: BlockedMove) -> tuple[AcceleratorId, ...]:
        """Return idle accelerators of one kind on which the job can run meanwhile, the most.

        Those that it is to get anyway come first. Empty: there are less than its minimum.
        """
        job = move.job
        excluded = snapshot.excluded.get(job.id, frozenset())
        own = [one for one in move.wanted if one not in move.blocked]
        by_kind: dict[str, list[AcceleratorId]] = {}
        for one in (*own, *idle):
            if job.accepts(kinds[one]) and one not in excluded:
                by_kind.setdefault(kinds[one], []).append(one)
        most = max(by_kind.values(), key=len, default=[])[: max(len(move.wanted), len(move.held))]
        most = most[: job.max_accelerators]
        return tuple(most) if len(most) >= job.min_accelerators else ()

    found: dict[JobId, Detour] = {}
    for cycle in _cycles(waits):
        options = (
            option
            for place, number in enumerate(cycle)
            for option in _options(by_id[number], by_id[cycle[place - 1]], stopover)
        )
        _, number, detour = min(options, key=lambda option: option[0])
        found[number] = detour
        for one in detour.accelerators:
            idle.pop(one, None)
    return found


def _cycles(waits: Mapping[JobId, set[JobId]]) -> Iterator[list[JobId]]:
    """Yield cycles without a common job; each job waits for the next, the last for the first."""
    left = dict.fromkeys(waits)
    path: list[JobId] = []
    while left:
        if not path:
            path.append(next(iter(left)))
        following = min(waits[path[-1]].intersection(left), default=None)
        if following is None:
            del left[path.pop()]
        elif following in path:
            cycle = path[path.index(following) :]
            yield cycle
            for job in cycle:
                del left[job]
            del path[-len(cycle) :]
        else:
            path.append(following)


def _options(
    move: BlockedMove,
    waiter: BlockedMove,
    stopover: Callable[[BlockedMove], tuple[AcceleratorId, ...]],
) -> Iterator[tuple[tuple[float, ...], JobId, Detour]]:
    """Yield what a job can do for `waiter`, which waits for it: (cost, job, detour)."""
    job = move.job

    def option(
        rank: int, accelerators: tuple[AcceleratorId, ...], words: str
    ) -> tuple[tuple[float, ...], JobId, Detour]:
        lost = max(len(move.held) - len(accelerators), 0)
        # A job that was stopped for another one is not stopped again as soon as it runs.
        standing = job.weight * lost, job.changed_at or 0.0, -job.submitted_at, job.id
        cost = (rank > 0, -job.tier.rank, rank, *standing)
        return cost, job.id, Detour(accelerators, f"{words}, {_CAUSE}")

    between = stopover(move)
    if between:
        is_part = set(between) <= set(move.wanted)
        idle = counted(len(between), "idle accelerator")
        stop = f"{len(between)} of its new accelerators" if is_part else idle
        yield option(0, between, f"Moves to {stop} first")
    asked = set(waiter.wanted)
    kept = [one for one in move.held if one not in asked]
    kept += [one for one in move.held if one in asked][: max(job.min_accelerators - len(kept), 0)]
    rest = tuple(one for one in move.held if one in kept)
    in_reach = [one for one in waiter.wanted if one not in waiter.blocked or one in move.held]
    freed = len(move.held) - len(rest)
    is_enough = len(set(in_reach).difference(rest)) >= waiter.job.min_accelerators
    if freed and is_enough:
        yield option(1, rest, f"Gives up {freed} of {len(move.held)} accelerators first")
    yield option(2, (), "Stops until its new accelerators are free")
