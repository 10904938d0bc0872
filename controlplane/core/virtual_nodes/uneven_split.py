"""Split of virtual nodes over unequal accelerators, and whether such a set pays.

A step ends when the slowest trainer is done, so the best split of V virtual nodes minimises the
largest t_i(v_i). All t_i are known, non-decreasing functions, so the least finish time can be
searched for exactly: within a time T each accelerator can run so many virtual nodes, and T suffices
when together they can run V (the planning problem of VirtualFlow, MLSys 2022, section 5).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from controlplane.core.estimates.step_time import StepTime, sync_seconds
from controlplane.core.virtual_nodes.mapping import even_mapping
from controlplane.core.virtual_nodes.reduction_tree import plan_reduction

SecondsByCount = Callable[[int], float]
SecondsBySplit = Callable[[Sequence[int]], float]

#: Least predicted relative gain of an uneven split over the even one.
UNEVEN_GAIN = 0.02


def plan_counts(step_times: Sequence[SecondsByCount], num_virtual_nodes: int) -> tuple[int, ...]:
    """Split virtual nodes over accelerators so that the last one finishes as early as possible.

    Args:
        step_times: seconds by number of virtual nodes (from 1 on) of each accelerator,
            non-decreasing. Equal functions are evaluated once.

    Returns:
        Number of virtual nodes of each accelerator, at least one, `num_virtual_nodes` in total. Of
        all splits with the least finish time one whose other accelerators finish early, too.

    Raises:
        ValueError: there are no accelerators, or more than virtual nodes.
    """
    num = len(step_times)
    if not 1 <= num <= num_virtual_nodes:
        raise ValueError(
            f"{num_virtual_nodes} virtual nodes cannot occupy {num} accelerators; "
            "use at least one and at most as many accelerators as virtual nodes"
        )
    kinds = list(dict.fromkeys(step_times))
    most = num_virtual_nodes - num + 1
    seconds = [[kind(count) for count in range(1, most + 1)] for kind in kinds]
    tables = np.maximum.accumulate(np.array(seconds), axis=1)  # rounding may fall by a last bit
    place = {kind: row for row, kind in enumerate(kinds)}
    rows = np.array([place[step_time] for step_time in step_times])
    finish = _least_finish(tables, np.bincount(rows), num_virtual_nodes)
    room = np.array([np.searchsorted(table, finish, side="right") for table in tables])
    return _trimmed(tables, rows, [int(room[row]) for row in rows], num_virtual_nodes)


def _least_finish(tables: np.ndarray, num_of_kind: np.ndarray, num_virtual_nodes: int) -> float:
    """Search the least time [s] in which all accelerators together can run all virtual nodes.

    `tables` [kinds, counts] holds seconds; the answer is one of them.
    """
    times = np.unique(tables)
    low, high = int(np.searchsorted(times, tables[:, 0].max())), len(times) - 1
    while low < high:
        middle = (low + high) // 2
        room = [np.searchsorted(table, times[middle], side="right") for table in tables]
        if int(np.dot(room, num_of_kind)) >= num_virtual_nodes:
            high = middle
        else:
            low = middle + 1
    return float(times[low])


def _trimmed(
    tables: np.ndarray, rows: np.ndarray, counts: list[int], num_virtual_nodes: int
) -> tuple[int, ...]:
    """Remove the excess, one by one, from the accelerator that finishes last (ties: the later)."""
    heap = [(-tables[rows[i], count - 1], -i) for i, count in enumerate(counts) if count > 1]
    heapq.heapify(heap)
    for _ in range(sum(counts) - num_virtual_nodes):
        _, minus_i = heapq.heappop(heap)
        i = -minus_i
        counts[i] -= 1
        if counts[i] > 1:
            heapq.heappush(heap, (-tables[rows[i], counts[i] - 1], -i))
    return tuple(counts)


def finish_s(step_times: Sequence[SecondsByCount], counts: Sequence[int]) -> float:
    """Return the finish time of the last accelerator, in seconds."""
    return max(step_time(count) for step_time, count in zip(step_times, counts, strict=True))


def mapping_for(
    num_virtual_nodes: int,
    step_times: Sequence[StepTime | None],
    exchange: SecondsBySplit | None = None,
) -> tuple[tuple[int, ...], ...]:
    """Map virtual nodes to accelerators: contiguous runs in the order given.

    The split is even where a speed is unknown, or another split gains less than `UNEVEN_GAIN`.

    Args:
        exchange: seconds of the exchange by split, as far as known. Splits in steps of 2, 4 ...
            virtual nodes are tried, too, as their sums travel in fewer rows.

    Raises:
        ValueError: there are fewer virtual nodes than accelerators (an accelerator would idle).
    """
    even = even_mapping(num_virtual_nodes, len(step_times))
    known = [step_time for step_time in step_times if step_time is not None]
    if len(known) < len(step_times) or len(known) < 2:
        return even
    splits = [plan_counts(known, num_virtual_nodes)]
    if exchange is not None:
        splits += _coarse_splits(known, num_virtual_nodes)

    def step_s(counts: Sequence[int]) -> float:
        return finish_s(known, counts) + (exchange(counts) if exchange is not None else 0.0)

    best = min(splits, key=step_s)
    if step_s(best) * (1.0 + UNEVEN_GAIN) > step_s([len(run) for run in even]):
        return even
    return runs(best)


def _coarse_splits(step_times: Sequence[StepTime], num_virtual_nodes: int) -> list[tuple[int, ...]]:
    """Plan with blocks of 2, 4 ... virtual nodes, as long as they divide and are enough."""
    splits, block = [], 2
    while num_virtual_nodes % block == 0 and num_virtual_nodes // block >= len(step_times):
        by_block = {
            step_time: partial(_blocks_seconds, step_time, block) for step_time in set(step_times)
        }
        counts = plan_counts([by_block[one] for one in step_times], num_virtual_nodes // block)
        splits.append(tuple(count * block for count in counts))
        block *= 2
    return splits


def _blocks_seconds(step_time: StepTime, block: int, number: int) -> float:
    return step_time(number * block)


def rows_of(counts: Sequence[int]) -> int:
    """Count the rows in which each trainer's sums travel in the exact reduction of a split."""
    return plan_reduction(sum(counts), [True] * sum(counts), runs(counts)).rows_per_worker


def exchange_by_rows(sync_by_rows: Mapping[int, StepTime], *, is_exact: bool) -> SecondsBySplit:
    """Return the seconds of the exchange by split, from T_sync by number of rows.

    An unmeasured number of rows counts like the nearest measured one: a split is tried once, and
    known afterwards.
    """

    def seconds(counts: Sequence[int]) -> float:
        if len(counts) < 2 or not sync_by_rows:
            return 0.0
        rows = rows_of(counts) if is_exact else 1
        nearest = min(sync_by_rows, key=lambda known: (abs(known - rows), known))
        return sync_seconds(sync_by_rows[nearest], len(counts))

    return seconds


def runs(counts: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Return contiguous runs of these lengths, from 0 on."""
    mapping, low = [], 0
    for count in counts:
        mapping.append(tuple(range(low, low + count)))
        low += count
    return tuple(mapping)


@dataclass(frozen=True, slots=True)
class Team:
    """Accelerators of one job and their predicted common step.

    Attributes:
        kinds: kind -> number of accelerators, the job's own kind first.
        counts: virtual nodes of each accelerator, in the order of `kinds`.
        step_s: seconds of a whole step, exchange included.
    """

    kinds: Mapping[str, int]
    counts: tuple[int, ...]
    step_s: float

    @property
    def total(self) -> int:
        """Accelerators of all kinds together."""
        return sum(self.kinds.values())


def team_plan(
    kinds: Mapping[str, int],
    step_times: Mapping[str, StepTime],
    sync: StepTime | None,
    num_virtual_nodes: int,
) -> Team:
    """Predict the best step of `kinds` together.

    Raises:
        ValueError: no accelerators, or more than virtual nodes.
    """
    functions = [step_times[kind] for kind, number in kinds.items() for _ in range(number)]
    counts = plan_counts(functions, num_virtual_nodes)
    step_s = finish_s(functions, counts) + sync_seconds(sync, len(functions))
    return Team(dict(kinds), counts, step_s)


@dataclass(frozen=True, slots=True)
class MixVerdict:
    """Comparison of accelerators of several kinds together with the best of one kind.

    Attributes:
        alone: the fastest team of one kind.
        mixed: the fastest team of several kinds.
        is_mix: whether the mix gains at least the required share.
    """

    alone: Team
    mixed: Team
    is_mix: bool

    def sentence(self) -> str:
        """Describe the verdict with both numbers."""
        alone, mixed = describe(self.alone.kinds), describe(self.mixed.kinds)
        one, all_ = f"{self.alone.step_s * 1e3:.0f} ms", f"{self.mixed.step_s * 1e3:.0f} ms"
        if self.is_mix:
            return f"{mixed} mixed: {all_} a step instead of {one} on {alone}"
        return f"not mixed: {mixed} would need {all_} a step, {alone} need {one}"


def mix_verdict(
    own_kind: str,
    own_count: int,
    offered: Mapping[str, int],
    step_times: Mapping[str, StepTime],
    sync: StepTime | None,
    *,
    num_virtual_nodes: int,
    max_accelerators: int,
    least_gain: float,
) -> MixVerdict | None:
    """Compare a job's accelerators of one kind with possible sets of several kinds.

    The other kinds are added one by one, fastest first, each with the number of accelerators that
    gives the shortest step (the fewest of equally good ones).

    Args:
        offered: other kinds -> idle accelerators. A kind without a step time is skipped.

    Returns:
        None when there is no comparison: no step time of the own kind, or no accelerators offered.
    """
    room = min(max_accelerators, num_virtual_nodes) - own_count
    known = [kind for kind, number in offered.items() if number > 0 and kind in step_times]
    if own_kind not in step_times or room < 1 or not known:
        return None

    def plan(kinds: Mapping[str, int]) -> Team:
        return team_plan(kinds, step_times, sync, num_virtual_nodes)

    alone = plan({own_kind: own_count})
    best: Team | None = None
    for kind in sorted(known, key=lambda kind: (step_times[kind](1), kind)):
        base = {own_kind: own_count} if best is None or best.step_s >= alone.step_s else best.kinds
        most = min(offered[kind], room - (sum(base.values()) - own_count))
        teams = [plan({**base, kind: number}) for number in _numbers_tried(most)]
        best = min([*([best] if best else []), *teams], key=lambda team: (team.step_s, team.total))
    assert best is not None, "there is room for one and a kind for it"
    is_mix = alone.step_s >= best.step_s * (1.0 + least_gain)
    return MixVerdict(alone, best, is_mix)


def _numbers_tried(most: int) -> list[int]:
    """List the numbers of accelerators to predict: all small ones, then in steps of an eighth."""
    numbers, number = [], 1
    while number < most:
        numbers.append(number)
        number += max(1, number // 8)
    return [*numbers, most] if most > 0 else []


def describe(kinds: Mapping[str, int]) -> str:
    """Format numbers of accelerators by kind, such as `2 fast + 1 slow`."""
    return " + ".join(f"{number} {kind}" for kind, number in kinds.items())
