"""Tiresias and Optimus, by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from numpy.typing import NDArray

from controlplane.core.cycle import decide
from controlplane.core.policies.optimus import optimus
from controlplane.core.policies.tiresias import THRESHOLD_S, tiresias
from controlplane.core.values.explanations import reason
from controlplane.core.values.types import Job, Snapshot
from tests.core.snapshots import Speed, accelerators_make, after, job_make, snapshot_make

FOUR = accelerators_make("gpu gpu gpu gpu")


def counts(snapshot: Snapshot, policy) -> dict[int, int]:
    return {job_id: share.count for job_id, share in policy(snapshot).shares.items()}


def test_tiresias_gives_full_demands_and_lets_smaller_jobs_pass() -> None:
    """Job 2 wants three, of which one is left: job 3 behind it fits."""
    jobs = [job_make(1, most=3, least=3), job_make(2, most=3, least=3, at=1.0),
            job_make(3, most=1, at=2.0)]  # fmt: skip
    assert counts(snapshot_make(FOUR, *jobs), tiresias) == {1: 3, 3: 1}


def test_tiresias_serves_who_had_little_first() -> None:
    old = dataclasses.replace(job_make(1, most=4, least=4), attained_accelerator_s=THRESHOLD_S)
    new = job_make(2, most=2, at=500.0)
    snapshot = snapshot_make(FOUR, old, new, held={1: (1, 2, 3, 4)})
    decision = tiresias(snapshot)
    assert {job_id: share.count for job_id, share in decision.shares.items()} == {2: 2}
    assert "place 1 of the second queue, 16.0 accelerator-hours" in str(decision.reasons[1])


def test_tiresias_remembers_who_came_to_the_second_queue_first() -> None:
    """Job 2 had its hours before job 1, which arrived earlier; without memory arrival counts."""
    first, second = job_make(1, most=4, least=4), job_make(2, most=4, least=4, at=5.0)
    done = dataclasses.replace(second, attained_accelerator_s=THRESHOLD_S)
    before = tiresias(snapshot_make(FOUR, first, done))
    both = snapshot_make(
        FOUR, dataclasses.replace(first, attained_accelerator_s=2 * THRESHOLD_S), done
    )
    assert counts(both, tiresias) == {1: 4}
    assert counts(dataclasses.replace(both, carried=before.carried), tiresias) == {2: 4}


class Rates:
    """A `Performance` from a table of examples a second."""

    def __init__(self, *rates: float) -> None:
        self.rates = np.array([0.0, *rates])

    def goodput(self, kind: str, num_accelerators: int, num_nodes: int) -> float:
        return float(self.rates[num_accelerators])

    def goodputs(self, kind: str, most: int, per_node: int) -> NDArray[np.float64]:
        return self.rates[: most + 1]

    def batch_size(self, kind: str, num_accelerators: int, num_nodes: int) -> int:
        return 1


def with_rates(job: Job, left: float, *rates: float) -> Job:
    return dataclasses.replace(job, remaining_examples=left, performance=Rates(*rates))


def test_optimus_gives_to_whom_it_saves_most() -> None:
    """One each. The third: 100 examples go from 100 to 50 s, 240 go from 240 to 160 s: job 2.

    The fourth: job 1 saves 50 s, job 2 would go from 160 to 150 s.
    """
    jobs = [
        with_rates(job_make(1, most=4), 100.0, 1.0, 2.0, 2.5, 3.0),
        with_rates(job_make(2, most=4), 240.0, 1.0, 1.5, 1.6, 1.7),
    ]
    assert counts(snapshot_make(FOUR, *jobs), optimus) == {1: 2, 2: 2}


def test_optimus_gives_nobody_what_slows_it_down() -> None:
    jobs = [with_rates(job_make(1, most=4), 100.0, 1.0, 2.0, 1.5, 1.4)]
    decision = optimus(snapshot_make(FOUR, *jobs))
    assert decision.shares[1].count == 2
    assert "about 50 s are left, one more would not shorten that" in str(decision.reasons[1])


def test_optimus_without_predictions_shares_alike() -> None:
    """Nothing is known of either: the next one saves most where there are fewest."""
    jobs = [job_make(1, most=4), job_make(2, most=4, at=1.0)]
    assert counts(snapshot_make(FOUR, *jobs), optimus) == {1: 2, 2: 2}
    for given in optimus(snapshot_make(FOUR, *jobs)).reasons.values():
        assert str(given).endswith("how long it takes there is not known.")


def test_optimus_comes_to_rest_where_a_job_is_faster_on_fewer() -> None:
    """The third was lured to the fast ones whenever the fourth had some, and away again."""
    slowed_by_company = dataclasses.replace(
        job_make(3, weight=2, least=2, most=3), performance=Speed(company=2.0)
    )
    snapshot = snapshot_make(
        accelerators_make("slow", "slow", "fast fast fast", "slow fast"),
        job_make(1, most=2),
        job_make(2, least=2, most=2),
        slowed_by_company,
        job_make(4, weight=2, most=1),
        held={1: (1,), 2: (4, 5), 4: (3,)},
    )
    plan = decide(snapshot, "optimus")
    assert plan.resizes
    snapshot = after(snapshot, plan)
    assert decide(snapshot, "optimus").resizes == ()
    assert set(snapshot.held) == {1, 2, 3, 4}


def test_optimus_serves_in_order_of_arrival_while_there_are_any() -> None:
    jobs = [job_make(n, least=2, most=4, at=float(n)) for n in (1, 2, 3)]
    decision = optimus(snapshot_make(FOUR, *jobs))
    assert {job_id: share.count for job_id, share in decision.shares.items()} == {1: 2, 2: 2}
    assert "Waits for 2 of kind gpu: 4 of 4 held by 2 jobs" in str(decision.reasons[3])


@pytest.mark.parametrize("policy", [tiresias, optimus])
def test_who_can_never_start_is_told(policy) -> None:
    decision = policy(snapshot_make(FOUR, job_make(1, least=5, most=8)))
    assert decision.reasons[1] == reason("cannot_start", accelerators=5, most=4)


@pytest.mark.parametrize("name", ["optimus", "pollux", "slaq"])
def test_a_job_does_not_wait_for_the_fastest_kind_while_another_is_idle(name: str) -> None:
    """Half of two fast accelerators is faster than half of two slow ones, but both are held."""
    speed = Speed(by_kind={"fast": 3.0})
    known = [dataclasses.replace(job_make(one, most=2), performance=speed) for one in (1, 2)]
    holder = dataclasses.replace(known[0], min_accelerators=2)
    nodes = accelerators_make("fast fast", "slow slow")
    plan = decide(snapshot_make(nodes, holder, known[1], held={1: (1, 2)}), name)
    assert plan.allocation is not None
    assert set(plan.allocation.accelerators) == {1, 2}


@pytest.mark.parametrize("name", ["optimus", "pollux", "slaq"])
def test_a_job_that_does_not_fit_takes_no_room_of_a_kind(name: str) -> None:
    """Job 3 waits for two fast ones, of which one is idle; job 4 is faster on slow ones."""
    small = dataclasses.replace(
        job_make(4, most=1, at=9.0), performance=Speed(by_kind={"slow": 2.0})
    )
    jobs = [job_make(1, least=2, most=2), job_make(2, most=1), job_make(3, least=2, kinds="fast")]
    nodes = accelerators_make("fast fast fast", "slow")
    plan = decide(snapshot_make(nodes, *jobs, small, held={1: (1, 2), 2: (4,)}), name)
    assert plan.allocation is not None
    assert plan.allocation.accelerators[4] == (3,)


def test_a_job_that_may_not_enter_starts_on_an_idle_kind() -> None:
    """Its share of fast ones would be larger, but job 1 is not to get less for it."""
    jobs = [job_make(1, weight=10.0, most=8), job_make(2, weight=9.0, at=9.0)]
    nodes = accelerators_make("fast " * 8, "slow slow")
    plan = decide(snapshot_make(nodes, *jobs, held={1: (1, 2, 3, 4, 5, 6, 7, 8)}), "weighted_fair")
    assert plan.allocation is not None
    assert plan.allocation.accelerators[2] == (9, 10)


def test_a_waiting_job_that_does_not_fit_takes_no_share_of_a_kind() -> None:
    """Three of four fast ones are idle, and too few for the large jobs; job 5 did not see them."""
    jobs = [
        job_make(1, weight=10.0, most=1),
        job_make(2, weight=10.0, most=2),
        *(job_make(one, weight=9.0, least=4, kinds="fast") for one in (3, 4)),
        job_make(5, most=1, at=9.0),
    ]
    nodes = accelerators_make("fast fast fast fast", "slow slow")
    plan = decide(snapshot_make(nodes, *jobs, held={1: (1,), 2: (5, 6)}), "weighted_fair")
    assert plan.allocation is not None
    assert plan.allocation.accelerators[5][0] in {2, 3, 4}
