"""Policies on clusters small enough to work out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controlplane.core.cycle import decide
from controlplane.core.policies import POLICIES, PRIORITY_USES, PriorityUse, policy_summary
from controlplane.core.policies.common.fair_admission import AGEING_S
from controlplane.core.policies.common.fair_fill import progressive_fill
from controlplane.core.values.explanations import reason
from controlplane.core.values.types import Share
from tests.core.snapshots import Speed, accelerators_make, after, job_make, snapshot_make

FOUR = accelerators_make("cpu cpu", "cpu cpu")


def counts(name: str, snapshot) -> dict[int, int]:
    return {job_id: share.count for job_id, share in POLICIES[name](snapshot).shares.items()}


def test_fill_is_proportional_to_weights() -> None:
    jobs = [job_make(1, weight=3), job_make(2, weight=1)]
    assert progressive_fill(jobs, 8) == {1: 6, 2: 2}


def test_fill_gives_what_a_capped_job_cannot_use_to_the_others() -> None:
    jobs = [job_make(1, weight=10, most=2), job_make(2), job_make(3)]
    assert progressive_fill(jobs, 8) == {1: 2, 2: 3, 3: 3}


def test_fill_serves_minima_before_weights() -> None:
    jobs = [job_make(1, weight=100), job_make(2, least=3)]
    assert progressive_fill(jobs, 5) == {1: 2, 2: 3}


def test_fill_refuses_minima_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="6 of 4"):
        progressive_fill([job_make(1, least=3), job_make(2, least=3)], 4)


def test_one_job_alone_gets_everything_it_can_use() -> None:
    assert counts("weighted_fair", snapshot_make(FOUR, job_make(1))) == {1: 4}


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_a_job_alone_comes_to_all_that_it_can_use(name: str) -> None:
    """Tests of tiers and projects rest on it."""
    snapshot = snapshot_make(FOUR, replace(job_make(1), performance=Speed()))
    for now in range(0, 400, 100):
        snapshot = after(snapshot, decide(replace(snapshot, now=float(now)), name))
    assert len(snapshot.held[1]) == 4, "docs/policies/index.md: all policies"


def test_equal_jobs_share_equally_and_the_old_one_shrinks() -> None:
    snapshot = snapshot_make(FOUR, job_make(1), job_make(2, at=5), held={1: (1, 2, 3, 4)}, now=5)
    assert counts("weighted_fair", snapshot) == {1: 2, 2: 2}


def test_higher_priority_shrinks_the_lower() -> None:
    snapshot = snapshot_make(
        FOUR, job_make(1, weight=1), job_make(2, weight=3, at=5), held={1: (1, 2, 3, 4)}, now=5
    )
    assert counts("weighted_fair", snapshot) == {1: 1, 2: 3}


def test_lower_priority_waits_while_it_would_take_from_the_higher() -> None:
    snapshot = snapshot_make(
        FOUR, job_make(1, weight=3), job_make(2, weight=1, at=5), held={1: (1, 2, 3, 4)}, now=5
    )
    decision = POLICIES["weighted_fair"](snapshot)
    assert {job: share.count for job, share in decision.shares.items()} == {1: 4}
    assert "4 of 4 held by 1 job of higher priority." in str(decision.reasons[2])


def test_waiting_lets_a_lower_priority_in_at_last() -> None:
    jobs = (job_make(1, weight=3), job_make(2, weight=1, at=0))
    held = {1: (1, 2, 3, 4)}
    before = snapshot_make(FOUR, *jobs, held=held, now=2 * AGEING_S - 1)
    assert counts("weighted_fair", before) == {1: 4}
    at_last = snapshot_make(FOUR, *jobs, held=held, now=2 * AGEING_S)
    assert counts("weighted_fair", at_last) == {1: 3, 2: 1}


def test_backfill_passes_a_job_that_cannot_enter() -> None:
    first = job_make(1, weight=3, most=3)
    large = job_make(2, weight=2, least=2, at=1)
    small = job_make(3, weight=1, most=1, at=2)
    snapshot = snapshot_make(FOUR, first, large, small, held={1: (1, 2, 3)}, now=2)
    assert counts("weighted_fair", snapshot) == {1: 3, 3: 1}


def test_more_jobs_than_accelerators_queue_by_priority() -> None:
    jobs = [job_make(i, weight=i, at=0) for i in range(1, 7)]
    assert counts("weighted_fair", snapshot_make(FOUR, *jobs)) == {6: 1, 5: 1, 4: 1, 3: 1}


def test_important_newcomer_preempts_the_least_important() -> None:
    jobs = [job_make(i, weight=i, least=2, at=0) for i in (1, 2)]
    newcomer = job_make(3, weight=5, least=2, at=9)
    snapshot = snapshot_make(FOUR, *jobs, newcomer, held={1: (1, 2), 2: (3, 4)}, now=9)
    assert counts("weighted_fair", snapshot) == {2: 2, 3: 2}


def test_kinds_are_not_mixed_in_a_job() -> None:
    mixed = accelerators_make("cpu cpu", "gpu gpu gpu")
    snapshot = snapshot_make(mixed, job_make(1), job_make(2, kinds="cpu", at=1), now=1)
    shares = POLICIES["weighted_fair"](snapshot).shares
    assert (shares[1].kind, shares[1].count) == ("gpu", 3)
    assert (shares[2].kind, shares[2].count) == ("cpu", 2)


@pytest.mark.parametrize("name", ["weighted_fair", "weighted_fair_power_of_two"])
@pytest.mark.parametrize("most", [1, 2])
def test_a_new_job_goes_where_others_can_leave_something(name: str, most: int) -> None:
    """The jobs on six GPUs need all of them; that on two CPUs one of these, and may use both."""
    nodes = accelerators_make("cpu cpu", "gpu gpu gpu gpu gpu gpu")
    running = [
        job_make(1, weight=50, most=most),
        job_make(2, weight=25, least=3, most=3),
        job_make(3, weight=25, least=3, most=3),
    ]
    held = {1: (1, 2)[:most], 2: (3, 4, 5), 3: (6, 7, 8)}
    snapshot = snapshot_make(nodes, *running, job_make(4, most=1), held=held)
    decision = POLICIES[name](snapshot)
    if most == 1:
        assert decision.shares[4] == Share("cpu", 1)
    else:
        assert "of kind cpu: 2 of 2 held" in str(decision.reasons[4])


@pytest.mark.parametrize("name", ["fifo", "priority", "tiresias"])
def test_a_full_demand_goes_where_it_is_fastest(name: str) -> None:
    """Without room there, or without a known speed, to the kind with the most left."""
    nodes = accelerators_make("slow slow slow slow", "fast fast")
    speed = Speed(by_kind={"fast": 2.0})
    jobs = [job_make(number, least=2, most=2, at=number) for number in (1, 2)]
    known = [replace(job, performance=speed) for job in jobs]
    shares = POLICIES[name](snapshot_make(nodes, *known, now=2)).shares
    assert [shares[number].kind for number in (1, 2)] == ["fast", "slow"]
    assert POLICIES[name](snapshot_make(nodes, jobs[0], now=2)).shares[1].kind == "slow"


def test_job_that_can_never_run_says_so() -> None:
    for name in POLICIES:
        decision = POLICIES[name](snapshot_make(FOUR, job_make(1, least=6)))
        assert decision.shares == {}
        assert "needs 6 accelerators of one accepted kind, nodes that take work have 4" in str(
            decision.reasons[1]
        )


def test_fifo_first_job_that_does_not_fit_blocks_the_rest() -> None:
    jobs = (
        job_make(1, most=2, at=0),
        job_make(2, most=4, at=1),
        job_make(3, weight=9, most=1, at=2),
    )
    decision = POLICIES["fifo"](snapshot_make(FOUR, *jobs, now=2))
    assert {job: share.count for job, share in decision.shares.items()} == {1: 2}
    assert "behind job 2" in str(decision.reasons[3])


def test_priority_serves_the_highest_first_and_takes_nothing_back() -> None:
    jobs = (job_make(1, most=3), job_make(2, weight=2, most=1, at=1), job_make(3, most=1))
    held = {1: (1, 2, 3)}
    snapshot = snapshot_make(FOUR, *jobs, held=held, now=1)
    assert counts("priority", snapshot) == {1: 3, 2: 1}


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_policy_says_what_it_does(name: str) -> None:
    summary = policy_summary(name)
    assert summary.endswith(".")
    assert 20 < len(summary) < 100


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_policies_use_priorities_as_registered(name: str) -> None:
    def given(weights: tuple[float, float], least: int) -> dict[int, int]:
        jobs = [
            replace(
                job_make(number, weight=weight, least=least, most=4),
                performance=Speed(company=0.1),
                remaining_examples=1e4,
                most_accelerators=4,
            )
            for number, weight in enumerate(weights, 1)
        ]
        return counts(name, snapshot_make(FOUR, *jobs))

    is_used = any(given((9.0, 1.0), least) != given((1.0, 9.0), least) for least in (1, 3, 4))
    is_registered = PRIORITY_USES[name] is not PriorityUse.NONE
    assert is_used == is_registered, "PriorityUse of its entry in core/policies/__init__.py"


def test_a_queue_says_that_it_leaves_what_runs_as_it_is() -> None:
    """What another policy gave before stays, though it is not the full demand."""
    held = {1: (1,), 2: (2, 3)}
    jobs = [job_make(1, most=4), job_make(2, most=2)]
    decision = POLICIES["fifo"](snapshot_make(FOUR, *jobs, held=held))
    assert {job_id: share.count for job_id, share in decision.shares.items()} == {1: 1, 2: 2}
    assert decision.reasons[1] == reason("queue_keeps", count=1, kind="cpu", demand=4)
    assert decision.reasons[2] == reason("queue_holds", count=2, kind="cpu")
