"""Stragglers: who is one, what a kind learns from whom, and when virtual nodes move."""

from __future__ import annotations

import pytest

from controlplane.core.estimates.step_time import StepTime
from controlplane.core.virtual_nodes.stragglers import (
    MemberSpeed,
    member_step_times,
    revision_between,
    typical_members,
)
from controlplane.core.virtual_nodes.uneven_split import exchange_by_rows
from tests.core.snapshots import linear
from tests.support.present import present

STEP_TIMES = {"cpu": linear(0.01), "slow": linear(0.03)}


def member(
    slot: int, count: int, seconds: float | None, kind: str = "cpu", noise: float = 0.0
) -> MemberSpeed:
    """Make a member that was heard of long enough, its stretches up to `noise` off."""
    waves = [0.0, 1.0, -1.0, 0.5, -0.5, 0.0]
    over_time = () if seconds is None else tuple(seconds * (1 + noise * wave) for wave in waves)
    return MemberSpeed(slot, kind, count, seconds, over_time)


def step_time_of(which: int, *members: MemberSpeed) -> StepTime | None:
    return member_step_times(members, STEP_TIMES)[which]


def test_small_differences_are_noise() -> None:
    assert step_time_of(1, member(0, 8, 0.08), member(1, 8, 0.1)) == STEP_TIMES["cpu"]
    assert step_time_of(1, member(0, 8, 0.08), member(1, 8, None)) == STEP_TIMES["cpu"]


def test_what_slows_all_alike_makes_no_straggler() -> None:
    both = member(0, 8, 0.16), member(1, 8, 0.17)
    assert member_step_times(both, STEP_TIMES) == [STEP_TIMES["cpu"]] * 2
    assert member_step_times([member(0, 8, 0.3)], STEP_TIMES) == [STEP_TIMES["cpu"]]


def test_a_straggler_has_its_own_speed() -> None:
    slow = present(step_time_of(1, member(0, 8, 0.08), member(1, 8, 0.16)))
    assert slow(5) == pytest.approx(0.1)
    # Twice as slow as the others is also meant where all of them take half as long again.
    slow = present(step_time_of(2, member(0, 8, 0.12), member(1, 8, 0.12), member(2, 8, 0.24)))
    assert slow(5) == pytest.approx(0.1)


def test_a_straggler_is_one_in_its_best_moments_too() -> None:
    """0.14 in the middle; its best stretch is 0.10 or 0.07, the other's middle 0.08."""
    healthy = member(0, 8, 0.08, noise=0.2)
    assert step_time_of(1, healthy, member(1, 8, 0.14, noise=0.25)) != STEP_TIMES["cpu"]
    assert step_time_of(1, healthy, member(1, 8, 0.14, noise=0.5)) == STEP_TIMES["cpu"]


def test_one_report_makes_no_straggler() -> None:
    lately = MemberSpeed(slot=1, kind="cpu", num_virtual_nodes=8, seconds=0.5)
    assert step_time_of(1, member(0, 8, 0.08), lately) == STEP_TIMES["cpu"]


def test_an_unknown_kind_is_taken_by_its_one_measurement() -> None:
    new = present(step_time_of(0, member(0, 4, 0.2, "new")))
    assert new(2) == pytest.approx(0.1)
    assert step_time_of(0, member(0, 4, None, "new")) is None


def test_a_straggler_does_not_tell_its_kind() -> None:
    healthy, straggler = member(0, 8, 0.08), member(2, 8, 0.16)
    assert typical_members([straggler, healthy], STEP_TIMES["cpu"]) == [healthy]
    assert typical_members([straggler, healthy], None) == [healthy]
    # When all of them have slowed down the kind has.
    both = [member(0, 8, 0.16), member(1, 8, 0.17)]
    assert typical_members(both, STEP_TIMES["cpu"]) == both
    # Also with another share of the work, once virtual nodes have moved away from it.
    assert typical_members([member(0, 11, 0.11), member(2, 5, 0.1)], STEP_TIMES["cpu"]) == [
        member(0, 11, 0.11)
    ]
    assert typical_members([member(0, 8, None)], None) == []


def test_virtual_nodes_move_away_from_a_straggler() -> None:
    found = present(revision_between([member(0, 8, 0.08), member(2, 8, 0.15)], STEP_TIMES))
    # 10 ms and 18.75 ms each: 10 + 6 are done after 112 ms, 11 + 5 after 110 ms.
    assert found.counts == (11, 5)
    assert found.reason == (
        "slot 2 is 1.9x slower: 8 → 5 virtual nodes; a step takes 110 ms instead of 150 ms"
    )


def test_a_split_that_costs_more_to_exchange_than_it_saves_is_undone() -> None:
    """12 + 4 were a try; their two rows take 200 ms more, and 8 + 8 are better after all."""
    members = [member(0, 12, 0.12), member(1, 4, 0.12, "slow")]
    by_rows = {1: linear(0.001, 0.05), 2: linear(0.001, 0.25)}
    assert revision_between(members, STEP_TIMES) is None
    found = present(revision_between(members, STEP_TIMES, exchange_by_rows(by_rows, is_exact=True)))
    assert found.counts == (8, 8)
    assert (found.before_s, found.after_s) == (pytest.approx(0.372), pytest.approx(0.292))


def test_predictions_are_in_proportion_to_what_is_measured() -> None:
    members = [member(0, 8, 0.16), member(2, 8, 0.3)]  # all take twice as long as usual
    found = present(revision_between(members, STEP_TIMES, measured_s=0.32))
    # 80 and 150 become 110: 11 + 5 as above.
    assert found.counts == (11, 5)
    assert (found.before_s, found.after_s) == (0.32, pytest.approx(0.32 * 11 / 15))


def test_virtual_nodes_come_back_when_it_has_recovered() -> None:
    found = present(revision_between([member(0, 11, 0.11), member(2, 5, 0.05)], STEP_TIMES))
    assert found.counts == (8, 8)


@pytest.mark.parametrize("num_slow", range(13))
def test_a_change_is_waited_for_until_it_is_over(num_slow: int) -> None:
    """Half a minute in which a member becomes three times slower: a split by its half is wrong."""
    healthy = MemberSpeed(0, "cpu", 8, 0.08, (0.08,) * 12)
    # As measured: before it slowed down it was a trace slower than the other one.
    over_time = (0.0801,) * (12 - num_slow) + (0.24,) * num_slow
    found = revision_between([healthy, MemberSpeed(2, "cpu", 8, 0.24, over_time)], STEP_TIMES)
    if num_slow < 11:
        assert found is None
    else:
        assert found is not None
        assert found.counts == (12, 4)
        assert found.reason.startswith("slot 2 is 3.0x slower: 8 → 4 virtual nodes")


@pytest.mark.parametrize("num_fast", range(13))
def test_nor_is_a_straggler_trusted_again_for_a_few_good_moments(num_fast: int) -> None:
    """It has recovered when most of the half minute says so; until then it keeps its share."""
    healthy = MemberSpeed(0, "cpu", 12, 0.12, (0.12,) * 12)
    over_time = (0.12,) * (12 - num_fast) + (0.04,) * num_fast
    found = revision_between([healthy, MemberSpeed(2, "cpu", 4, 0.04, over_time)], STEP_TIMES)
    assert (None if found is None else found.counts) == (None if num_fast < 7 else (8, 8))


def test_kinds_are_split_by_their_speed() -> None:
    found = present(revision_between([member(0, 4, 0.04), member(1, 4, 0.12, "slow")], STEP_TIMES))
    assert found.counts == (6, 2)
    assert found.reason.startswith("slot 1 is 3.0x slower: 4 → 2 virtual nodes")


@pytest.mark.parametrize(
    "members",
    [
        [member(0, 8, 0.08), member(1, 8, 0.09)],  # noise
        [member(0, 2, 0.02), member(1, 2, 0.025)],  # too coarse to gain anything
        [member(0, 8, 0.08), member(1, 8, None)],  # somebody was not heard of
        [member(0, 8, 0.08)],
        [member(slot, 2, 0.02 * f) for slot, f in enumerate([0.75, 1.0, 1.25, 1.3])],
    ],
)
def test_nothing_moves_for_too_little(members: list[MemberSpeed]) -> None:
    assert revision_between(members, STEP_TIMES) is None


def test_a_split_that_was_just_made_stays() -> None:
    """What a revision leads to, measured, asks for no other one."""
    assert revision_between([member(0, 8, 0.08), member(2, 8, 0.15)], STEP_TIMES) is not None
    after = [member(0, 11, 0.11), member(2, 5, 5 * 0.01875)]
    assert revision_between(after, STEP_TIMES) is None
