"""SLAQ's shares, worked out by hand."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import pytest

from controlplane.core.cycle import decide
from controlplane.core.estimates.loss_prediction import NoForecast
from controlplane.core.policies.common.loss_gains import EPOCH_S
from controlplane.core.policies.slaq import slaq
from controlplane.core.values.performance import LossForecast
from controlplane.core.values.projects import ProjectQuota
from controlplane.core.values.types import Job, Snapshot
from tests.core.snapshots import (
    Falling,
    Speed,
    accelerators_make,
    after,
    job_make,
    snapshot_make,
)

EIGHT = accelerators_make("cpu cpu cpu cpu", "cpu cpu cpu cpu")
#: So many examples does one accelerator of `Speed(10.0)` do in an epoch.
PER_EPOCH = 10.0 * EPOCH_S


def falling(
    job_id: int, loss: LossForecast | None, weight: float = 1.0, least: int = 1, at: float = 0.0
) -> Job:
    """Make a job that does 10 examples a second on each accelerator."""
    job = job_make(job_id, weight=weight, least=least, at=at)
    return replace(job, performance=Speed(10.0), loss=loss, resize_s=0.0)


def halving(height: float = 1.0, halvings: float = 1.0) -> Falling:
    """Make a loss that halves so often with what one accelerator does in an epoch."""
    return Falling(height, rate=halvings * math.log(2.0) / PER_EPOCH, normaliser=1.0)


def counts(snapshot: Snapshot) -> dict[int, int]:
    return {job_id: share.count for job_id, share in slaq(snapshot).shares.items()}


def test_a_loss_that_is_not_finite_gets_its_minimum_and_a_reason() -> None:
    odd, good = falling(1, NoForecast()), falling(2, halving())
    snapshot = snapshot_make(EIGHT, odd, good)
    assert counts(snapshot) == {1: 1, 2: 7}
    assert "its loss is not finite" in str(slaq(snapshot).reasons[1])


def test_accelerators_go_where_the_loss_falls_most() -> None:
    # Job 1 gains 1/2, 1/4, 1/8 ... by its first, second, third; job 2 a quarter of that. After the
    # minima: 1/4, 1/8 (before 1/16 that is the second of job 2 on equal terms by age), 1/16, ...
    jobs = (falling(1, halving(1.0)), falling(2, halving(0.25)))
    assert counts(snapshot_make(EIGHT[:4], *jobs)) == {1: 3, 2: 1}
    # 1/4, 1/8, 1/16 = 1/16, 1/32 = 1/32.
    assert counts(snapshot_make(EIGHT, *jobs)) == {1: 5, 2: 3}


def test_the_fall_is_told_with_numbers() -> None:
    decision = slaq(snapshot_make(EIGHT[:4], falling(1, halving(1.0)), falling(2, halving(0.25))))
    assert str(decision.reasons[1]) == (
        "Gets 3 of 4 cpu: its loss is expected to fall by 0.875 in 15 s, 88 % of its largest "
        "change so far; on 2 it would be 0.75."
    )
    assert str(decision.reasons[2]).endswith(
        "12 % of its largest change so far; that is its minimum."
    )


def test_gains_are_relative_to_the_largest_change_and_weighted() -> None:
    # A loss ten times as high with changes ten times as large is the same.
    tenfold = replace(halving(10.0), normaliser=10.0)
    assert counts(snapshot_make(EIGHT, falling(1, halving()), falling(2, tenfold))) == {1: 4, 2: 4}
    # Four times the weight is worth two halvings.
    jobs = (falling(1, halving(), weight=4.0), falling(2, halving()))
    assert counts(snapshot_make(EIGHT, *jobs)) == {1: 5, 2: 3}


def test_without_history_a_job_gets_its_fair_share() -> None:
    young = replace(halving(), num_points=4)
    jobs = (falling(1, young), falling(2, halving()), falling(3, None), falling(4, halving(0.001)))
    decision = slaq(snapshot_make(EIGHT, *jobs))
    assert {job_id: share.count for job_id, share in decision.shares.items()} == {
        1: 2,
        2: 3,
        3: 2,
        4: 1,
    }
    assert "fair share among 4 jobs: its loss cannot be predicted from 4" in str(
        decision.reasons[1]
    )


def test_nothing_beyond_the_end_of_a_job_counts() -> None:
    # Job 1 is done after what one accelerator does in an epoch: a second one gains nothing.
    ending = replace(falling(1, halving()), remaining_examples=PER_EPOCH)
    assert counts(snapshot_make(EIGHT, ending, falling(2, halving(0.01)))) == {1: 1, 2: 7}


def test_what_lowers_no_loss_is_shared_fairly() -> None:
    flat = replace(halving(), height=0.0)
    jobs = (falling(1, flat, weight=3.0), falling(2, flat), falling(3, None))
    # After the minima job 1 has the lowest count per weight up to 6 / 3, which is as low as 2 / 1.
    assert counts(snapshot_make(EIGHT, *jobs)) == {1: 6, 2: 1, 3: 1}


def test_what_makes_nothing_faster_is_not_given() -> None:
    alone = replace(falling(1, halving()), performance=Speed(10.0, company=1.0))
    assert counts(snapshot_make(EIGHT, alone)) == {1: 1}


def test_an_epoch_is_left_alone_and_only_what_is_free_is_handed_on() -> None:
    jobs = (falling(1, halving(1.0)), falling(2, halving(0.25)))
    first = snapshot_make(EIGHT, *jobs, now=100.0)
    decision = slaq(first)
    held = {1: (1, 2, 3, 4, 5), 2: (6, 7, 8)}
    turned = (falling(1, halving(0.25)), falling(2, halving(1.0)))

    def later(seconds: float, *jobs: Job, held: dict[int, tuple[int, ...]] = held) -> Snapshot:
        snapshot = snapshot_make(EIGHT, *jobs, held=held, now=100.0 + seconds)
        return replace(snapshot, carried=decision.carried)

    assert counts(later(EPOCH_S - 1.0, *turned)) == {1: 5, 2: 3}
    assert counts(later(EPOCH_S, *turned)) == {1: 3, 2: 5}
    assert counts(later(5.0, turned[1], held={2: (6, 7, 8)})) == {2: 8}


def test_an_epoch_of_a_user_with_a_limit_is_left_alone() -> None:
    """Beside other jobs, without and with a guarantee of another project."""
    other = replace(falling(3, halving(0.1)), max_accelerators=2, project=2)
    for projects in ({}, {2: ProjectQuota(guaranteed=1)}):
        snapshot = replace(
            snapshot_make(EIGHT), projects={1: ProjectQuota(user_limit=4), **projects}
        )
        for now, heights in ((100.0, (1.0, 0.25)), (110.0, (0.25, 1.0))):
            own = [falling(number, halving(height)) for number, height in enumerate(heights, 1)]
            jobs = (*(replace(job, project=1, user=1) for job in own), other)
            snapshot = replace(snapshot, jobs=jobs, now=now)
            snapshot = after(snapshot, decide(snapshot, "slaq"))
        assert [len(snapshot.held[number]) for number in (1, 2, 3)] == [3, 1, 2]


def test_shares_change_only_for_more_than_the_pauses() -> None:
    # Job 1 would give one of 5 to job 2: 1/32 * 0.9 against 1/32 of its own.
    jobs = [falling(1, halving(0.9)), falling(2, halving(1.0))]
    held = {1: (1, 2, 3, 4, 5), 2: (6, 7, 8)}
    assert counts(snapshot_make(EIGHT, *jobs, held=held)) == {1: 4, 2: 4}
    costly = [replace(job, resize_s=5.0) for job in jobs]
    assert counts(snapshot_make(EIGHT, *costly, held=held)) == {1: 5, 2: 3}


def test_where_the_minima_do_not_fit_the_largest_gain_runs_and_waiting_counts() -> None:
    jobs = [falling(1, halving(1.0), least=5), falling(2, halving(1.5), least=5)]
    assert counts(snapshot_make(EIGHT, *jobs)) == {2: 8}
    held = {1: (1, 2, 3, 4, 5)}
    jobs[0] = replace(jobs[0], running_since=10.0)
    running = snapshot_make(EIGHT, *jobs, held=held, now=80.0)
    # It would gain 1.5 times as much, times 1 + 80 / 600; twice is needed, after 200 s.
    assert counts(running) == {1: 8}
    decision = slaq(running)
    assert str(decision.reasons[2]) == (
        "Waits for 5 of kind cpu: 8 of 8 held by 1 job with more to gain. It has waited 80 s."
    )
    assert counts(replace(running, now=190.0)) == {1: 8}
    assert counts(replace(running, now=210.0)) == {2: 8}
    just_begun = (replace(jobs[0], running_since=160.0), jobs[1])
    assert counts(replace(running, jobs=just_begun, now=210.0)) == {1: 8}


def test_thousands_of_jobs_are_shared_out_in_time() -> None:
    nodes = accelerators_make(*["cpu cpu cpu cpu cpu cpu cpu cpu"] * 256)
    jobs = [falling(i, halving(1.0 + i % 7, 0.1 + i % 5)) for i in range(1, 1001)]
    began = time.process_time()
    decision = slaq(snapshot_make(nodes, *jobs))
    assert time.process_time() - began < 1.5
    assert sum(share.count for share in decision.shares.values()) == 2048


def test_another_policys_memory_is_ignored() -> None:
    snapshot = snapshot_make(EIGHT, falling(1, halving()), falling(2, halving()))
    odd = replace(snapshot, carried={"anything": 1})
    assert slaq(odd).shares == slaq(snapshot).shares
    assert slaq(snapshot).shares[1].count == pytest.approx(4)
