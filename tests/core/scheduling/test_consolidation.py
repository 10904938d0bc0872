"""Moves onto fewer nodes, worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from controlplane.core.scheduling.consolidation import MOST_MOVES
from controlplane.core.scheduling.placement import place
from controlplane.core.scheduling.plan import plan_between
from controlplane.core.values.performance import Performance
from controlplane.core.values.types import Decision, Job, Share, Snapshot
from tests.core.snapshots import Speed, accelerators_make, after, job_make, snapshot_make

#: Half as fast on two nodes: 20 examples/s on one, 10 on two.
FAR = Speed(per_s=10.0, distance=1.0)
SIX = accelerators_make("cpu cpu", "cpu cpu", "cpu cpu")


def known(
    job_id: int,
    performance: Performance | None = FAR,
    remaining: float | None = 1e6,
    resize_s: float = 1.0,
) -> Job:
    """Make a job of known speed."""
    return replace(
        job_make(job_id),
        performance=performance,
        remaining_examples=remaining,
        resize_s=resize_s,
    )


def placed(snapshot: Snapshot, counts: Mapping[int, int]) -> tuple[dict[int, tuple[int, ...]], str]:
    """Place these counts; give the places and the sentence of the first job."""
    shares = {job_id: Share("cpu", count) for job_id, count in counts.items()}
    allocation = place(snapshot, Decision(shares, dict.fromkeys(counts, "Gets some.")))
    return dict(allocation.accelerators), allocation.reasons[min(counts)]


def scattered(job: Job, now: float = 0.0) -> Snapshot:
    """Put one job on two nodes; each has a neighbour that is free."""
    return snapshot_make(SIX, job, held={1: (1, 3)}, now=now)


def test_a_job_moves_to_the_node_of_its_leader_where_that_pays() -> None:
    where, reason = placed(scattered(known(1)), {1: 2})
    assert where == {1: (1, 2)}
    moved = "Moves from 2 nodes to 1: 100 % faster there, for 1.0 s of training."
    assert reason == f"Gets some. {moved}"


def test_a_move_needs_no_waiting_and_happens_once() -> None:
    snapshot = scattered(known(1))
    decision = Decision({1: Share("cpu", 2)}, {1: "Gets 2."})
    plan = plan_between(snapshot, place(snapshot, decision))
    assert [resize.wanted for resize in plan.resizes] == [(1, 2)]
    assert plan.waiting == {}
    moved = after(snapshot, plan)
    assert plan_between(moved, place(moved, decision)).resizes == ()


def test_a_move_must_make_up_for_its_cost() -> None:
    # 10 examples/s on two nodes, 20 on one: what 3 s cost, 30 examples, is back when more than 3 s
    # are left. 50 examples are 5 s.
    assert placed(scattered(known(1, remaining=50.0, resize_s=3.0)), {1: 2})[0] == {1: (1, 2)}
    assert placed(scattered(known(1, remaining=50.0, resize_s=6.0)), {1: 2})[0] == {1: (1, 3)}


def test_nobody_is_moved_for_nothing_or_without_knowledge() -> None:
    for performance in (None, Speed(), Speed(distance=0.01)):
        assert placed(scattered(known(1, performance)), {1: 2})[0] == {1: (1, 3)}
    resizing = replace(scattered(known(1)), resizing=frozenset({1}))
    assert placed(resizing, {1: 2})[0] == {1: (1, 3)}


def test_without_an_end_it_counts_on_as_long_as_it_has_been_running() -> None:
    job = replace(known(1, remaining=None, resize_s=5.0), running_since=100.0)
    assert placed(scattered(job, now=104.0), {1: 2})[0] == {1: (1, 3)}
    assert placed(scattered(job, now=106.0), {1: 2})[0] == {1: (1, 2)}


def test_a_job_that_grows_is_gathered_for_nothing() -> None:
    # Grown by one it would stand on nodes 1 and 2; node 3 has room for all three.
    nodes = accelerators_make("cpu cpu", "cpu", "cpu cpu cpu")
    snapshot = snapshot_make(
        nodes, known(1, resize_s=1e9), known(2, None), held={1: (1, 3), 2: (2,)}
    )
    where, _ = placed(snapshot, {1: 3, 2: 1})
    assert where == {1: (4, 5, 6), 2: (2,)}


def test_what_others_hold_is_not_moved_to() -> None:
    snapshot = snapshot_make(
        SIX, known(1), known(2, None), held={1: (1, 3), 2: (2, 4)}, releasing=(5,)
    )
    assert placed(snapshot, {1: 2, 2: 2})[0] == {1: (1, 3), 2: (2, 4)}


def test_few_are_moved_at_once_and_the_rest_later() -> None:
    number = MOST_MOVES + 3
    nodes = accelerators_make(*["cpu cpu"] * (4 * number))
    held = {i: (4 * i - 3, 4 * i - 1) for i in range(1, number + 1)}
    snapshot = snapshot_make(nodes, *(known(i) for i in held), held=held)
    decision = Decision(dict.fromkeys(held, Share("cpu", 2)), dict.fromkeys(held, "Gets 2."))
    changes = []
    for _ in range(3):
        plan = plan_between(snapshot, place(snapshot, decision))
        changes.append(len(plan.resizes))
        snapshot = after(snapshot, plan)
    assert changes == [MOST_MOVES, 3, 0]
