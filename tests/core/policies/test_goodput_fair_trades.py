"""Our own policy lets jobs trade kinds wherever all of them together gain more than it costs."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.cycle import decide
from controlplane.core.policies import POLICIES
from controlplane.core.policies.goodput_fair.envelopes import Envelopes
from controlplane.core.policies.goodput_fair.forecast import Fluid
from controlplane.core.values.types import Job, Snapshot
from tests.core.snapshots import (
    Speed,
    accelerators_make,
    after,
    job_make,
    snapshot_make,
    snapshots,
)

#: Cycles of two minutes in which jobs are to have found their places.
MOST_CYCLES, CYCLE_S = 12, 120.0


def trader(
    job_id: int, speeds: dict[str, float], held: int, *, resize_s: float = 0.8, least: int = 1
) -> Job:
    """Make a job of hours that has run for ten minutes and can use what it holds, and no more."""
    return replace(
        job_make(job_id, least=least, most=held),
        performance=Speed(by_kind=speeds),
        remaining_examples=1e6 * held,
        done_examples=6e3 * held,
        attained_accelerator_s=600.0 * held,
        running_since=400.0,
        changed_at=400.0,
        most_accelerators=held,
        resize_s=resize_s,
    )


def full_cluster(*jobs_by_kind: tuple[str, tuple[Job, ...]]) -> Snapshot:
    """Make one node for each kind; its jobs fill it with what they can use."""
    sizes = {kind: sum(job.max_accelerators for job in jobs) for kind, jobs in jobs_by_kind}
    accelerators = accelerators_make(*(" ".join([kind] * size) for kind, size in sizes.items()))
    free = iter(one.id for one in accelerators)
    jobs = [job for _, row in jobs_by_kind for job in row]
    held = {job.id: tuple(next(free) for _ in range(job.max_accelerators)) for job in jobs}
    return snapshot_make(accelerators, *jobs, held=held, now=1000.0)


def kinds_in_the_end(snapshot: Snapshot) -> dict[int, str]:
    """Decide and obey for a while, and return the kind of each job then."""
    kinds = {one.id: one.kind for one in snapshot.accelerators}
    for _ in range(MOST_CYCLES):
        plan = decide(snapshot, "goodput_fair")
        snapshot = replace(after(snapshot, plan), now=snapshot.now + CYCLE_S)
    return {job_id: kinds[row[0]] for job_id, row in snapshot.held.items()}


costs = st.sampled_from([0.1, 0.8, 30.0])


@given(
    num_kinds=st.integers(2, 4),
    size=st.sampled_from([1, 2, 4]),
    is_gang=st.booleans(),
    resize_s=costs,
)
def test_jobs_that_are_ten_times_as_fast_elsewhere_all_get_there(
    num_kinds: int, size: int, is_gang: bool, resize_s: float
) -> None:
    """Each is faster on the kind of the next one, the last one on that of the first."""
    names = "wxyz"[:num_kinds]
    faster = {kind: names[(i + 1) % num_kinds] for i, kind in enumerate(names)}
    least = size if is_gang else 1
    rows = [
        (kind, (trader(i, {faster[kind]: 10.0}, size, resize_s=resize_s, least=least),))
        for i, kind in enumerate(names, start=1)
    ]
    assert kinds_in_the_end(full_cluster(*rows)) == {
        i: faster[kind] for i, kind in enumerate(names, start=1)
    }


@given(parts=st.sampled_from([(1, 1, 1, 1), (2, 2), (1, 3), (2, 1, 1)]), resize_s=costs)
def test_one_large_job_trades_with_several_small_ones(
    parts: tuple[int, ...], resize_s: float
) -> None:
    large = trader(1, {"y": 10.0}, 4, resize_s=resize_s)
    small = tuple(
        trader(i, {"x": 10.0}, count, resize_s=resize_s) for i, count in enumerate(parts, start=2)
    )
    found = kinds_in_the_end(full_cluster(("x", (large,)), ("y", small)))
    assert found == {1: "y"} | {job.id: "x" for job in small}


@pytest.mark.parametrize(
    ("other", "resize_s", "expected"),
    [
        (1.0, 0.8, "yx"),  # the other one is as fast either way
        (0.8, 0.8, "yx"),  # it loses a fifth, and the first one gains nine times as much
        (0.8, 30.0, "yx"),
        (0.1, 0.8, "xy"),  # it would lose what the first one gains
    ],
)
def test_gain_of_one_pays_for_the_loss_of_the_other(
    other: float, resize_s: float, expected: str
) -> None:
    first = trader(1, {"x": 1.0, "y": 10.0}, 4, resize_s=resize_s)
    second = trader(2, {"x": other * 10.0, "y": 10.0}, 4, resize_s=resize_s)
    found = kinds_in_the_end(full_cluster(("x", (first,)), ("y", (second,))))
    assert found[1] + found[2] == expected


@pytest.mark.parametrize(("gain", "expected"), [(1.03, "xy"), (2.0, "yx")])
def test_a_trade_has_to_gain_more_than_it_costs(gain: float, expected: str) -> None:
    first, second = (trader(i, {kind: gain}, 4, resize_s=30.0) for i, kind in ((1, "y"), (2, "x")))
    found = kinds_in_the_end(full_cluster(("x", (first,)), ("y", (second,))))
    assert found[1] + found[2] == expected


@pytest.mark.parametrize(
    ("capacity", "expected"),
    [
        (3, (3 * 5.0, 5.0, 2.0)),  # exactly the best job: others would displace 5, gain only 2
        (4, (17.0, 2.0, 2.0)),
        (6, (21.0, 2.0, 0.0)),  # full, and nobody waits for what a job might leave
        (7, (21.0, 0.0, 0.0)),
    ],
)
def test_prices_tell_those_who_come_from_those_who_stay(
    capacity: int, expected: tuple[float, float, float]
) -> None:
    """Two jobs of up to 3 accelerators, worth 5 and 2 on each."""
    counts = np.array([[0.0, 3.0], [0.0, 3.0]])
    values = np.array([[0.0, 15.0], [0.0, 6.0]])
    fluid = Fluid(Envelopes(counts, values), np.ones(2), capacity)
    assert fluid.clear(np.ones(2)) == expected


@given(snapshot=snapshots())
def test_nobody_waits_for_one_kind_while_another_is_idle(snapshot: Snapshot) -> None:
    """Whatever keeps the kind on which a job is worth most from it; idle ones may be waited for."""
    decision = POLICIES["goodput_fair"](snapshot)
    idle = Counter(one.kind for one in snapshot.accelerators)
    for share in decision.shares.values():
        idle[share.kind] -= share.count
    waiting = [job for job in snapshot.jobs if job.id not in decision.shares]
    texts = {job.id: str(decision.reasons[job.id]) for job in waiting}
    awaited = {found[1] for text in texts.values() if (found := re.search(r"of kind (\w+)", text))}
    for job in waiting:
        free = {kind for kind in idle if job.accepts(kind) and idle[kind] >= job.min_accelerators}
        works = {kind for kind in free if job.performance is None or _rate(job, kind) > 0.0}
        assert works <= awaited, (job, texts[job.id])


def _rate(job: Job, kind: str) -> float:
    assert job.performance is not None
    return job.performance.goodput(kind, job.min_accelerators, 1)


@pytest.mark.parametrize("is_known", [True, False])
def test_a_start_goes_to_an_idle_kind_where_the_better_one_has_just_begun(is_known: bool) -> None:
    """Four that began 10 s ago fill the kind on which all are ten times as fast."""
    speeds = {"fast": 10.0}
    begun = [
        replace(trader(i, speeds, 1, resize_s=30.0), running_since=990.0, changed_at=990.0)
        for i in range(1, 5)
    ]
    new = replace(
        job_make(5, weight=3.0, at=900.0),
        performance=Speed(by_kind=speeds) if is_known else None,
        remaining_examples=1e4,
        resize_s=30.0,
    )
    snapshot = snapshot_make(
        accelerators_make("fast fast fast fast", "slow slow slow slow"),
        *begun,
        new,
        held={i: (i,) for i in range(1, 5)},
        now=1000.0,
    )
    shares = POLICIES["goodput_fair"](snapshot).shares
    assert {shares[i].kind for i in range(1, 5)} == {"fast"}
    assert shares[5].kind == "slow"
