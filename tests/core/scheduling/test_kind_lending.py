"""Lending idle accelerators of other kinds: when it pays, when it ends, and what is said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from controlplane.core.cycle import decide, decision_check
from controlplane.core.estimates.step_time import StepTime
from controlplane.core.policies import POLICIES
from controlplane.core.scheduling.kind_lending import mix
from controlplane.core.values.projects import ProjectQuota
from controlplane.core.values.types import Decision, Share, Snapshot
from tests.core.snapshots import (
    Speed,
    accelerators_make,
    after,
    job_make,
    linear,
    snapshot_make,
)

KNOWN = {"fast": linear(0.01), "slow": linear(0.03)}
#: Accelerators 1 and 2 are fast, 3 and 4 slow.
FOUR = accelerators_make("fast fast", "slow slow")


def cluster(
    mixes: Mapping[str, StepTime] | None = KNOWN,
    held: dict[int, tuple[int, ...]] | None = None,
    most: int = 8,
    sync_s: float = 0.001,
) -> Snapshot:
    """Make one job with 16 virtual nodes on two fast accelerators, two slow ones beside."""
    sync_time = linear(0.0001, sync_s)
    job = job_make(1, kinds="fast slow", mixes=mixes, most=most, sync_time=sync_time)
    return snapshot_make(FOUR, job, held={1: (1, 2)} if held is None else held)


def lent(snapshot: Snapshot) -> tuple[Mapping[str, int], Decision]:
    decision = mix(snapshot, POLICIES["weighted_fair"](snapshot))
    decision_check(snapshot, decision)
    assert decision.shares[1] == Share("fast", 2, decision.shares[1].extra)
    return decision.shares[1].extra, decision


def test_what_is_idle_is_lent_where_it_shortens_the_step() -> None:
    # 8 + 8: 80 ms. 6 + 6 + 2 + 2: 60 ms.
    extra, decision = lent(cluster())
    assert extra == {"slow": 2}
    assert str(decision.reasons[1]).endswith(
        "2 fast + 2 slow mixed: 61 ms a step instead of 81 ms on 2 fast."
    )
    assert decision.mixes[1].key == "mixed fast + slow"


def test_nothing_is_lent_beyond_the_maximum() -> None:
    # 7 + 7 + 2: 70 ms.
    assert lent(cluster(most=3))[0] == {"slow": 1}
    assert lent(cluster(most=2)) == ({}, lent(cluster(most=2))[1])
    assert lent(cluster(most=2))[1].mixes == {}


@pytest.mark.parametrize(("limit", "extra"), [(1, {"slow": 1}), (0, {})])
def test_nothing_is_lent_beyond_the_limit_of_a_kind(limit: int, extra: dict[str, int]) -> None:
    snapshot = cluster()
    quota = ProjectQuota(limit_by_kind={"slow": limit})
    jobs = tuple(replace(job, project=7) for job in snapshot.jobs)
    assert lent(replace(snapshot, jobs=jobs, projects={7: quota}))[0] == extra


def test_a_job_that_does_not_mix_is_left_alone() -> None:
    extra, decision = lent(cluster(mixes=None))
    assert extra == {}
    assert decision.mixes == {}


def test_a_mix_that_does_not_pay_is_refused_with_both_numbers() -> None:
    extra, decision = lent(cluster(mixes={"fast": linear(0.01), "slow": linear(0.5)}))
    assert extra == {}
    assert decision.mixes[1].key == "not mixed fast + slow"
    assert decision.mixes[1].sentence == (
        "Not mixed: 2 fast + 1 slow would need 501 ms a step, 2 fast need 81 ms."
    )


@pytest.mark.parametrize(("sync_s", "begins"), [(0.002, True), (0.003, False)])
def test_a_mix_begins_from_five_percent_on_and_then_stays(sync_s: float, begins: bool) -> None:
    # 15 + 1: 150 ms against 160 ms alone, which is 5.3 percent with 2 ms for the exchange and 4.6
    # with 3.
    mixes = {"fast": linear(0.01), "slow": linear(0.1)}
    job = job_make(1, kinds="fast slow", mixes=mixes, sync_time=linear(1e-9, sync_s))
    accelerators = accelerators_make("fast", "slow")
    apart = snapshot_make(accelerators, job, held={1: (1,)})
    together = snapshot_make(accelerators, job, held={1: (1, 2)})
    assert bool(decide(apart, "weighted_fair").resizes) == begins
    assert decide(together, "weighted_fair").resizes == ()


def test_a_kind_that_was_never_measured_is_tried_with_one() -> None:
    extra, decision = lent(cluster(mixes={"fast": linear(0.01)}))
    assert extra == {"slow": 1}
    assert decision.mixes[1].key == "tried slow"
    # The trial goes on while it is there, and nothing is tried before the own kind is known.
    assert lent(cluster(mixes={"fast": linear(0.01)}, held={1: (1, 2, 4)}))[0] == {"slow": 1}
    assert lent(cluster(mixes={}))[0] == {}


def test_what_was_lent_goes_back_as_soon_as_somebody_needs_it() -> None:
    job = job_make(1, kinds="fast slow", mixes=KNOWN)
    other = job_make(2, kinds="slow", weight=0.1, least=2, at=10.0)
    snapshot = snapshot_make(FOUR, job, other, held={1: (1, 2, 3, 4)})
    plan = decide(snapshot, "fifo")
    assert [(row.job_id, row.wanted) for row in plan.resizes] == [(1, (1, 2))]
    assert plan.waiting == {2: (3, 4)}
    snapshot = after(snapshot, plan)
    assert [(row.job_id, row.wanted) for row in decide(snapshot, "fifo").resizes] == [(2, (3, 4))]


def test_the_more_important_job_is_lent_first() -> None:
    jobs = [
        job_make(1, kinds="fast slow", mixes=KNOWN, most=2, least=1),
        job_make(2, kinds="fast slow", mixes=KNOWN, most=2, least=1, weight=5),
    ]
    accelerators = accelerators_make("fast fast", "slow")
    snapshot = snapshot_make(accelerators, *jobs, held={1: (1,), 2: (2,)})
    decision = mix(snapshot, Decision({1: Share("fast", 1), 2: Share("fast", 1)}, {1: "a", 2: "b"}))
    assert decision.shares[2].extra == {"slow": 1}
    assert decision.shares[1].extra == {}


def test_a_mixed_job_stays_in_the_pool_of_its_leader() -> None:
    """Three slow ones beside one fast: the policy still sees a job of one fast accelerator."""
    accelerators = accelerators_make("fast", "slow slow slow")
    job = job_make(1, kinds="fast slow", mixes=KNOWN)
    snapshot = snapshot_make(accelerators, job, held={1: (1, 2, 3, 4)})
    assert decide(snapshot, "weighted_fair").resizes == ()
    assert decide(snapshot, "fifo").resizes == ()


def test_a_mixed_job_that_moves_leaves_its_old_kind_before_it_is_lent_any_of_it() -> None:
    """A leader that stayed would keep it in the old pool: it would move in every cycle."""
    job = job_make(1, kinds="fast slow", mixes=KNOWN)
    job = replace(job, performance=Speed(by_kind={"slow": 0.1}), remaining_examples=1e6)
    snapshot = snapshot_make(FOUR, job, held={1: (3, 4)})
    moved = after(snapshot, decide(snapshot, "goodput_fair"))
    assert moved.held == {1: (1, 2)}
    plan = decide(moved, "goodput_fair")
    assert plan.allocation.accelerators == {1: (1, 2, 3, 4)}
    assert "Moves" not in str(plan.reasons[1])
