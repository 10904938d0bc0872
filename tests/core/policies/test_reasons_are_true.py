"""Reasons of policies hold in their decision: numbers, kinds, and the jobs in the way."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.cycle import decide
from controlplane.core.policies import POLICIES
from controlplane.core.policies.goodput_fair.policy import goodput_fair
from controlplane.core.scheduling.pools import capacity_by_kind
from controlplane.core.values.explanations import others_jobs_hidden
from controlplane.core.values.tiers import Tier
from controlplane.core.values.types import Decision, Job, Snapshot
from tests.core.snapshots import (
    Speed,
    accelerators_make,
    job_make,
    per_policy,
    snapshot_make,
    snapshots,
)

#: Accelerators of a job now: "Keeps 2 of 6 fast".
_HOLDS = re.compile(r"^(?:Keeps|Is given|Gets|Tries|Moves to) (\d+) of (\d+) (\w+)")
#: Accelerators of other jobs: "3 of 6 held by".
_HELD = re.compile(r"of kind (\w+)[;:] (\d+) of (\d+) held")
#: Accelerators that a job does not get: "4 would be 20 % faster, but other jobs gain more".
_TOO_MANY = re.compile(r"(\d+) would be \d+ % faster, but other jobs gain more")

#: Numbers of the jobs of a test.
NUMBER = re.compile(r"\b7\d{6}\b")


def given_by_kind(decision: Decision) -> Counter[str]:
    found: Counter[str] = Counter()
    for share in decision.shares.values():
        found[share.kind] += share.count
    return found


@pytest.mark.parametrize("name", sorted(POLICIES))
@per_policy
@given(snapshot=snapshots())
def test_jobs_have_what_they_are_told_to_have(name: str, snapshot: Snapshot) -> None:
    decision, capacity = POLICIES[name](snapshot), capacity_by_kind(snapshot)
    for job in snapshot.jobs:
        text, share = str(decision.reasons[job.id]), decision.shares.get(job.id)
        held = _HOLDS.match(text)
        if held is not None:
            assert share is not None, text
            told = int(held[1]), int(held[2]), held[3]
            assert told == (share.count, capacity[share.kind], share.kind), text
        if share is not None:
            assert not text.startswith(("Waits", "Needs", "Cannot")), text


@given(snapshot=snapshots())
def test_other_jobs_stand_in_the_way_only_where_nothing_is_idle(snapshot: Snapshot) -> None:
    decision, capacity = goodput_fair(snapshot), capacity_by_kind(snapshot)
    used = given_by_kind(decision)
    for job in snapshot.jobs:
        text, share = str(decision.reasons[job.id]), decision.shares.get(job.id)
        waits = _HELD.search(text)
        if waits is not None:
            assert (int(waits[2]), int(waits[3])) == (used[waits[1]], capacity[waits[1]]), text
            assert capacity[waits[1]] - used[waits[1]] < job.min_accelerators, text
        more = _TOO_MANY.search(text)
        if more is not None:
            assert share is not None, text
            assert int(more[1]) - share.count > capacity[share.kind] - used[share.kind], text


def test_idle_accelerators_are_with_no_other_job() -> None:
    job = replace(
        job_make(1, most=8),
        performance=Speed(company=0.05),
        remaining_examples=1e4,
        attained_accelerator_s=40.0,
        running_since=80.0,
        changed_at=90.0,
        most_accelerators=4,
        resize_s=30.0,
    )
    nodes = accelerators_make(*["gpu gpu gpu gpu"] * 2)
    snapshot = snapshot_make(nodes, job, held={1: (1, 2, 3, 4)}, now=100.0)
    decision = goodput_fair(snapshot)
    assert decision.shares[1].count == 4
    text = str(decision.reasons[1])
    assert "5 would be 20 % faster, which does not pay for a change now" in text, text


@given(snapshot=snapshots())
def test_who_keeps_its_number_on_other_nodes_is_told_so(snapshot: Snapshot) -> None:
    decision = goodput_fair(snapshot)
    nodes = {one.id: (one.node_id, one.kind) for one in snapshot.accelerators}
    for job_id, share in decision.shares.items():
        held = [nodes[one] for one in snapshot.held.get(job_id, ())]
        now = Counter(node for node, kind in held if kind == share.kind)
        if now.total() == share.count and share.by_node:
            is_told = ", but moves " in str(decision.reasons[job_id])
            assert is_told == (now != share.by_node), str(decision.reasons[job_id])


def test_a_move_is_told_with_its_nodes() -> None:
    """On two nodes it is a tenth as fast as on one, where there is room."""
    job = replace(begun(1, 2, 500.0), performance=Speed(distance=9.0), resize_s=0.8)
    nodes = accelerators_make(*["gpu gpu gpu gpu"] * 2)
    text = str(goodput_fair(snapshot_make(nodes, job, held={1: (1, 5)}, now=1000.0)).reasons[1])
    assert text.startswith("Keeps 2 of 8 gpu, but moves from 2 to 1 node; "), text


@given(snapshot=snapshots(), weight=st.sampled_from([1.0, 10.0]))
def test_a_job_without_any_speed_is_one_of_unknown_speed(snapshot: Snapshot, weight: float) -> None:
    """A model that has it do nothing wherever it may run tells nothing: it is not left out."""
    still = job_make(99, weight=weight)
    dead = replace(still, performance=Speed(per_s=0.0), remaining_examples=1e4)
    told, unknown = (
        goodput_fair(replace(snapshot, jobs=(*snapshot.jobs, job))) for job in (dead, still)
    )
    assert told.shares == unknown.shares


@pytest.mark.parametrize("name", ["gavel", "optimus", "pollux", "sia", "srtf"])
def test_a_model_without_any_speed_is_no_reason(name: str) -> None:
    """Gavel stopped such a job for "needs 1 accelerator, nodes that take work have 4"."""
    dead = replace(job_make(1, most=2), performance=Speed(per_s=0.0), remaining_examples=1e4)
    other = replace(job_make(2, most=2), performance=Speed(), remaining_examples=1e4)
    nodes = accelerators_make("cpu cpu", "cpu cpu")
    told, unknown = (
        POLICIES[name](snapshot_make(nodes, job, other, held={1: (1, 2)}))
        for job in (dead, replace(dead, performance=None))
    )
    assert told.shares == unknown.shares
    assert str(told.reasons[1]) == str(unknown.reasons[1])


def begun(job_id: int, count: int, ago_s: float) -> Job:
    """Make a job of hours with a fixed number of accelerators, running for so long at 1000 s."""
    return replace(
        job_make(job_id, least=count, most=count),
        performance=Speed(company=0.1),
        remaining_examples=1e6,
        attained_accelerator_s=count * ago_s,
        running_since=1000.0 - ago_s,
        changed_at=1000.0 - ago_s,
        most_accelerators=count,
        resize_s=30.0,
    )


WAITS = "Waits for 6 more of kind gpu; 6 of 8 held by 2 jobs{}; job 1 holds 4."


@pytest.mark.parametrize(
    ("ago_s", "is_known", "large", "small"),
    [
        (
            20.0,
            True,
            WAITS.format(", some of which have just begun or end soon"),
            "Waits for 1 of kind gpu: 2 of 8 idle, but kept for job 3, which waits for more "
            "until others may be stopped.",
        ),
        (
            500.0,
            False,
            WAITS.format(", none of which is stopped yet for a job of unknown speed"),
            "Waits for 1 of kind gpu: 2 of 8 idle, but kept for job 3, which waits for more "
            "until others may be stopped.",
        ),
        (
            500.0,
            True,
            "Is given 8 of 8 gpu;",
            "Waits for 1 of kind gpu; 8 of 8 held by job 3, which has more to gain from them, "
            "and is of higher priority.",
        ),
    ],
    ids=["has just begun", "unknown speed", "makes way"],
)
def test_a_wait_is_told_by_its_cause(ago_s: float, is_known: bool, large: str, small: str) -> None:
    """A large short job waits for both that run, a small long one for the large one."""
    waiting = [
        replace(
            job_make(number, least=least, most=least, at=at, weight=weight),
            performance=Speed(company=0.1) if is_known else None,
            remaining_examples=work,
        )
        for number, least, at, weight, work in ((3, 8, 990.0, 1.0, 5e2), (4, 1, 995.0, 1e-3, 1e6))
    ]
    held = {1: (1, 2, 3, 4), 2: (5, 6)}
    running = [begun(1, 4, ago_s), begun(2, 2, ago_s)]
    nodes = accelerators_make(*["gpu gpu gpu gpu"] * 2)
    snapshot = snapshot_make(nodes, *running, *waiting, held=held, now=1000.0)
    reasons = goodput_fair(snapshot).reasons
    assert str(reasons[3]).startswith(large), str(reasons[3])
    assert str(reasons[4]).startswith(small), str(reasons[4])


def test_what_a_start_on_one_node_leaves_goes_to_a_job_that_waits() -> None:
    """One is idle on each of three nodes. One job begins on one of them, another takes two."""
    running = [replace(begun(i, 3, 500.0), weight=5.0) for i in (1, 2, 3)]
    new = job_make(4, least=1, most=4, at=990.0)
    known = replace(
        job_make(5, least=2, most=2, at=990.0, weight=1e-3),
        performance=Speed(company=0.1),
        remaining_examples=1e6,
    )
    nodes = accelerators_make(*["gpu gpu gpu gpu"] * 3)
    held = {1: (1, 2, 3), 2: (5, 6, 7), 3: (9, 10, 11)}
    decision = goodput_fair(snapshot_make(nodes, *running, new, known, held=held, now=1000.0))
    assert {i: share.count for i, share in decision.shares.items()} == {
        1: 3,
        2: 3,
        3: 3,
        4: 1,
        5: 2,
    }


@pytest.mark.parametrize("name", sorted(POLICIES))
@per_policy
@given(
    snapshot=snapshots(tiers=tuple(Tier)),
    groups=st.lists(st.tuples(st.integers(1, 2), st.sampled_from([None, 1, 2])), min_size=6),
)
def test_jobs_that_readers_may_not_see_are_called_so(
    name: str, snapshot: Snapshot, groups: list[tuple[int, int | None]]
) -> None:
    of = {job.id + 7_000_000: groups[job.id - 1] for job in snapshot.jobs}
    jobs = tuple(
        replace(job, id=number, user=user, project=project)
        for job, (number, (user, project)) in zip(snapshot.jobs, of.items(), strict=True)
    )
    held = {job_id + 7_000_000: places for job_id, places in snapshot.held.items()}
    for job_id, text in decide(replace(snapshot, jobs=jobs, held=held), name).reasons.items():
        user, project = of[job_id]
        seen = {one for one in of if of[one] == (user, project or of[one][1])}
        for found in re.finditer(r"(another user's |other )?(?:job )?\b(7\d{6})\b", text):
            number = int(found[2])
            named = {None: number in seen, "other ": number not in seen}
            is_own = of[number][0] == user
            assert named.get(found[1], False) if is_own else found[1] == "another user's ", text
        assert {int(n) for n in NUMBER.findall(others_jobs_hidden(text))} <= seen


@pytest.mark.parametrize(
    ("held", "told"),
    [
        ({1: (1, 2)}, "Gets its full demand of 2 of 2 slow: it would end in 83 min,"),
        ({1: (3, 4)}, "Gets its full demand of 2 of 2 fast: it would end in 8 min,"),
        ({2: (3, 4)}, "Gets its full demand of 2 of 2 slow: it would end in 83 min,"),
        ({2: (3, 4), 3: (1, 2)}, "Waits for 2 of kind fast, its full demand:"),
    ],
    ids=["stays", "fast", "fast is taken", "waits"],
)
def test_srtf_tells_the_end_on_the_kind_that_is_given(
    held: dict[int, tuple[int, ...]], told: str
) -> None:
    """Ten times as fast on one kind: 100,000 examples at 20 or at 200 a second."""
    job = replace(
        job_make(1, most=2), performance=Speed(by_kind={"fast": 10.0}), remaining_examples=1e5
    )
    short = [
        replace(job_make(i, most=2, kinds=kind), performance=Speed(), remaining_examples=100.0)
        for i, kind in ((2, "fast"), (3, "slow"))
        if i in held
    ]
    snapshot = snapshot_make(accelerators_make("slow slow", "fast fast"), job, *short, held=held)
    text = str(POLICIES["srtf"](snapshot).reasons[1])
    assert text.startswith(told), text
    if told.startswith("Waits"):
        assert text.endswith("once started it would end in 8 min."), text


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("tiresias", "Waits for 4 accelerators at once, 3 of 4 gpu left by those before it:"),
        ("srtf", "Waits for 4 of kind gpu, its full demand: 3 of 4 gpu left, the rest goes to"),
    ],
)
def test_a_job_that_is_passed_is_told_what_those_before_it_leave(name: str, told: str) -> None:
    sizes = {1: 1, 2: 4, 3: 3}
    jobs = [
        replace(
            job_make(i, least=n, most=n, at=float(i)), performance=Speed(), remaining_examples=n * i
        )
        for i, n in sizes.items()
    ]
    snapshot = snapshot_make(accelerators_make("gpu gpu gpu gpu"), *jobs, now=1000.0)
    decision = POLICIES[name](snapshot)
    assert set(decision.shares) == {1, 3}
    assert str(decision.reasons[2]).startswith(told)
