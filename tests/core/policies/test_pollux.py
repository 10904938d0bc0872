"""Pollux' search: its arithmetic by hand, its repairs, and what comes out on small clusters."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.cycle import decide
from controlplane.core.policies.pollux.policy import LEAST_GAIN, keep_factor, pollux
from controlplane.core.policies.pollux.search import (
    Problem,
    fitness,
    packed_minima,
    repair,
    search,
    settle,
)
from controlplane.core.values.types import Job, Snapshot
from tests.core.performances import Curve
from tests.core.snapshots import Speed, accelerators_make, job_make, snapshot_make

TWO_NODES = accelerators_make("gpu gpu gpu gpu", "gpu gpu gpu gpu")


def problem_make(base: list[list[int]], room: list[int], **changes: object) -> Problem:
    """Make a problem of jobs that speed up in proportion, by half as much on several nodes."""
    num_jobs = len(base)
    counts = np.arange(sum(room) + 1, dtype=float)
    table = np.stack([counts, counts / 2])
    problem = Problem(
        base=np.array(base, dtype=np.int16),
        room=np.array(room, dtype=np.int16),
        least=np.ones(num_jobs, dtype=np.int16),
        most=np.full(num_jobs, sum(room), dtype=np.int16),
        pinned=np.zeros(num_jobs, dtype=bool),
        weights=np.ones(num_jobs),
        keep=np.ones(num_jobs),
        speedups=np.broadcast_to(table, (num_jobs, *table.shape)),
    )
    return dataclasses.replace(problem, **changes)


def ints(*rows: list[int]) -> np.ndarray:
    return np.array([rows], dtype=np.int16)


def repaired(problem: Problem, *rows: list[int]) -> list[list[int]]:
    return repair(problem, ints(*rows), np.random.default_rng(0))[0].tolist()


def job_of(job_id: int, performance: Curve | None, **changes: object) -> Job:
    return dataclasses.replace(
        job_make(job_id, most=8), performance=performance, most_accelerators=8, **changes
    )


def test_fitness_is_the_harmonic_mean_of_scaled_speedups() -> None:
    problem = problem_make([[0, 0], [0, 0]], [4, 4])
    # Speedups 4 and 2, a quarter of each counts: 1.001 and 0.501.
    assert fitness(problem, ints([4, 0], [0, 2]))[0] == pytest.approx(2 / (1 / 1.001 + 1 / 0.501))
    # On two nodes the second is worth half: 4 / 2 / 4 + 0.001.
    assert fitness(problem, ints([4, 0], [0, 4]))[0] == pytest.approx(1.001)
    assert fitness(problem, ints([2, 2], [0, 0]))[0] == pytest.approx(2 / (1 / 0.501 + 1 / 0.001))


def test_fitness_takes_the_penalty_off_changed_rows_and_weighs_jobs() -> None:
    problem = problem_make(
        [[4, 0], [0, 2]], [4, 4], keep=np.array([0.5, 0.5]), weights=np.array([3.0, 1.0])
    )
    stay = 4 / (3 / 1.001 + 1 / 0.501)
    assert fitness(problem, ints([4, 0], [0, 2]))[0] == pytest.approx(stay)
    # The second job doubles, but counts half for it: nothing is won.
    assert fitness(problem, ints([4, 0], [0, 4]))[0] == pytest.approx(stay)


def test_keep_factor_is_what_a_life_with_one_more_resize_would_have_been() -> None:
    job = dataclasses.replace(job_make(1, at=100.0), resize_s=30.0, num_resizes=2)
    assert keep_factor(job, 1000.0) == pytest.approx((900 - 60) / (900 + 30))
    assert keep_factor(job, 150.0) == 0.0


def test_repair_lets_earlier_rows_win_a_node() -> None:
    problem = problem_make([[0, 0]] * 3, [4, 4])
    assert repaired(problem, [3, 0], [2, 0], [1, 1]) == [[3, 0], [1, 0], [0, 1]]


def test_repair_lets_one_job_that_spans_nodes_on_a_node() -> None:
    problem = problem_make([[0, 0, 0]] * 2, [4, 4, 4])
    assert repaired(problem, [1, 1, 0], [0, 1, 1]) == [[1, 1, 0], [0, 0, 1]]
    assert repaired(problem, [1, 1, 0], [0, 2, 0]) == [[1, 1, 0], [0, 2, 0]]


def test_repair_cuts_to_the_cap_and_keeps_pinned_rows() -> None:
    problem = problem_make([[4, 2], [0, 0]], [4, 4], most=np.array([3, 3], dtype=np.int16))
    assert sum(repaired(problem, [4, 2], [0, 0])[0]) == 3
    pinned = dataclasses.replace(problem, pinned=np.array([True, False]))
    assert repaired(pinned, [0, 0], [0, 3]) == [[4, 2], [0, 2]]


def test_repair_brings_a_job_up_to_its_minimum_or_empties_it() -> None:
    problem = problem_make([[0, 0]] * 2, [4, 4], least=np.array([1, 3], dtype=np.int16))
    assert repaired(problem, [1, 0], [1, 0]) == [[1, 0], [3, 0]]
    assert repaired(problem, [4, 2], [0, 1]) == [[4, 2], [0, 0]]
    assert repaired(problem, [2, 0], [0, 1]) == [[2, 0], [0, 3]]


@given(
    states=st.lists(
        st.lists(st.lists(st.integers(0, 4), min_size=3, max_size=3), min_size=4, max_size=4),
        min_size=1,
        max_size=3,
    ),
    least=st.lists(st.integers(1, 5), min_size=4, max_size=4),
    most=st.lists(st.integers(5, 9), min_size=4, max_size=4),
)
def test_repaired_states_are_possible_and_stay(
    states: list[list[list[int]]], least: list[int], most: list[int]
) -> None:
    problem = problem_make(
        [[0, 0, 0]] * 4,
        [4, 3, 2],
        least=np.array(least, dtype=np.int16),
        most=np.array(most, dtype=np.int16),
    )
    random = np.random.default_rng(0)
    once = repair(problem, np.array(states, dtype=np.int16), random)
    counts = once.sum(axis=2)
    assert (once >= 0).all()
    assert (once.sum(axis=1) <= problem.room).all()
    assert (counts <= problem.most).all()
    assert ((counts == 0) | (counts >= problem.least)).all()
    spanning = (once > 0) & (np.count_nonzero(once, axis=2) > 1)[:, :, None]
    assert (spanning.sum(axis=1) <= 1).all()
    assert (repair(problem, once, random) == once).all()


def test_search_finds_the_best_of_all_states() -> None:
    """Three jobs on two nodes of 2: brute force over all possible states."""
    table = np.array([[0, 1, 1.8, 2.4, 2.8], [0, 1, 1.5, 2.0, 2.2]])
    problem = problem_make([[0, 0]] * 3, [2, 2], speedups=np.stack([table, table * 2, table]))
    grids = np.indices((3,) * 6).reshape(6, -1).T.reshape(-1, 3, 2).astype(np.int16)
    possible = grids[(repair(problem, grids, np.random.default_rng(0)) == grids).all(axis=(1, 2))]
    best = fitness(problem, possible).max()
    for seed in range(5):
        _, values = search(problem, packed_minima(problem)[None], np.random.default_rng(seed))
        assert values[0] == pytest.approx(best)


def test_settle_takes_back_what_brings_nothing() -> None:
    problem = problem_make([[2, 0], [0, 2]], [4, 4], keep=np.array([0.9999, 0.9999]))
    swapped = np.array([[0, 2], [4, 0]], dtype=np.int16)
    assert settle(problem, swapped).tolist()[0] == [0, 2]  # the other one needs its node
    needless = np.array([[0, 2], [0, 2]], dtype=np.int16)
    assert settle(problem, needless).tolist() == [[2, 0], [0, 2]]


def test_jobs_stay_on_one_node_where_the_network_is_slow() -> None:
    jobs = [job_of(i, Curve(drag=0.05, spread=0.5)) for i in (1, 2)]
    decision = pollux(snapshot_make(TWO_NODES, *jobs, now=1000.0))
    assert {i: dict(share.by_node) for i, share in decision.shares.items()} in (
        {1: {1: 4}, 2: {2: 4}},
        {1: {2: 4}, 2: {1: 4}},
    )
    assert "1.00 times as fast as on its fair share of 4" in str(decision.reasons[1])


def test_a_job_starts_on_one_and_at_most_doubles() -> None:
    jobs = [
        dataclasses.replace(job_of(1, Curve()), most_accelerators=0),
        dataclasses.replace(job_of(2, Curve()), most_accelerators=2),
    ]
    shares = pollux(snapshot_make(TWO_NODES, *jobs, now=1000.0)).shares
    assert (shares[1].count, shares[2].count) == (1, 4)


def test_a_new_job_makes_room_for_itself_on_a_full_cluster() -> None:
    jobs = [job_of(1, Curve(drag=0.1)), job_of(2, Curve(drag=0.1), submitted_at=990.0)]
    held = {1: (1, 2, 3, 4, 5, 6, 7, 8)}
    decision = pollux(snapshot_make(TWO_NODES, *jobs, held=held, now=1000.0))
    assert decision.shares[1].count == decision.shares[2].count == 4
    assert str(decision.reasons[1]).startswith("Is cut from 8 to 4 gpu for job 2, on 1 node; 1.00 ")
    assert "; the mean speedup of 2 jobs goes from " in str(decision.reasons[1])


def test_every_job_of_a_crowd_has_something_and_the_rest_waits_with_numbers() -> None:
    jobs = [job_of(i, Curve(drag=0.1)) for i in range(1, 10)]
    decision = pollux(snapshot_make(TWO_NODES, *jobs, now=1000.0))
    assert sorted(share.count for share in decision.shares.values()) == [1] * 8
    waiting = next(job.id for job in jobs if job.id not in decision.shares)
    assert "Waits for 1 of kind gpu; 8 of 8 held by 8 jobs; no way" in str(
        decision.reasons[waiting]
    )


@given(
    seed=st.integers(0, 1000),
    drags=st.lists(st.floats(0.0, 0.5), min_size=1, max_size=5),
    carries=st.booleans(),
)
def test_an_unchanged_cluster_is_not_reshuffled(
    seed: int, drags: list[float], carries: bool
) -> None:
    """Another seed every round, resizes that cost next to nothing: no change for nothing."""
    jobs = [
        job_of(i, Curve(drag=drag, spread=0.7), resize_s=0.1) for i, drag in enumerate(drags, 1)
    ]
    snapshot = snapshot_make(TWO_NODES, *jobs, now=5000.0)
    mean_speedups = [0.0]
    for number in range(6):
        decision = pollux(dataclasses.replace(snapshot, seed=seed + number))
        held = _places(snapshot, decision.shares)
        carried = decision.carried if carries else None
        is_changed = held != snapshot.held
        snapshot = dataclasses.replace(snapshot, held=held, carried=carried)
        mean_speedups.append(_mean_speedup(snapshot))
        if is_changed:
            assert mean_speedups[-1] >= mean_speedups[-2] * (1.0 + LEAST_GAIN)
        else:
            assert mean_speedups[-1] == mean_speedups[-2]


def _mean_speedup(snapshot: Snapshot) -> float:
    """Give the harmonic mean of the speedups on a fair share of the two nodes, by hand."""
    node_of = {one.id: one.node_id for one in snapshot.accelerators}
    fair = -(-len(node_of) // len(snapshot.jobs))
    total = 0.0
    for job in snapshot.jobs:
        held = snapshot.held.get(job.id, ())
        assert job.performance is not None
        goodput = job.performance.goodput("gpu", len(held), len({node_of[a] for a in held}))
        total += 1.0 / (goodput / job.performance.goodput("gpu", fair, 1) / 4 + 1e-3)
    return len(snapshot.jobs) / total


def _places(snapshot: Snapshot, shares: dict) -> dict[int, tuple[int, ...]]:
    """Give each share accelerators by node, those that the job has first."""
    node_of = {one.id: one.node_id for one in snapshot.accelerators}
    free = set(node_of)
    left = {(i, node): n for i, share in shares.items() for node, n in share.by_node.items()}
    held: dict[int, tuple[int, ...]] = dict.fromkeys(shares, ())
    for keeps in (True, False):
        for (i, node), count in left.items():
            own = snapshot.held.get(i, ())
            usable = [a for a in (own if keeps else sorted(free)) if node_of[a] == node]
            chosen = [a for a in usable if a in free][:count]
            free.difference_update(chosen)
            left[i, node] = count - len(chosen)
            held[i] += tuple(chosen)
    return {i: tuple(sorted(row)) for i, row in held.items()}


def test_the_answer_depends_on_the_seed_alone() -> None:
    jobs = [job_of(i, Curve(drag=0.02 * i)) for i in range(1, 6)]
    snapshot = snapshot_make(TWO_NODES, *jobs, now=1000.0)
    first, second = pollux(snapshot), pollux(snapshot)
    assert first.shares == second.shares
    assert first.reasons == second.reasons


def test_a_job_below_its_minimum_under_change_breaks_no_decision() -> None:
    job = job_make(1, least=3, most=3)
    snapshot = snapshot_make(accelerators_make("gpu gpu gpu"), job, held={1: (1,)})
    plan = decide(dataclasses.replace(snapshot, resizing=frozenset({1})), "pollux")
    assert plan.resizes == ()


def test_a_job_for_which_nobody_makes_way_starts_on_an_idle_kind() -> None:
    """On the fast ones it would be faster, but job 1 is being changed and keeps both."""
    speed = Speed(by_kind={"fast": 4.0, "slow": 1.0, "still": 0.0})
    jobs = [dataclasses.replace(job_make(number, most=2), performance=speed) for number in (1, 2)]
    nodes = accelerators_make("fast fast", "slow slow", "still still still")
    snapshot = snapshot_make(nodes, *jobs, held={1: (1, 2)}, resizing=(1,))
    (resize,) = decide(snapshot, "pollux").resizes
    assert set(resize.wanted) <= {3, 4}
