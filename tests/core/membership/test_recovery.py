"""Who survives, whom the others suspect, and the membership in which they go on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.membership.recovery import (
    RecoveryDecision,
    SurvivorState,
    judge,
    membership_recover,
    mutually_reachable,
)
from controlplane.core.protocol.wire import Member, SlotAddress
from tests.support.present import present


def trainers(num: int, **of_slot: dict[str, Any]) -> list[SurvivorState]:
    """Make `num` healthy trainers; `s1={...}` changes what is known of slot 1."""
    rows = [SurvivorState(slot=slot) for slot in range(num)]
    return [replace(row, **of_slot.get(f"s{row.slot}", {})) for row in rows]


def decide(
    rows: list[SurvivorState], stalled_for_s: float = 0.0, limit: int = 8
) -> RecoveryDecision | None:
    return judge(rows, stalled_for_s=stalled_for_s, grace_s=2.0, silence_s=4.0, limit=limit)


def stalled(*unreachable: int) -> dict[str, Any]:
    return {"is_stalled": True, "unreachable": frozenset(unreachable)}


LOST = {"is_lost": True}


def test_nothing_is_done_while_nobody_is_missed() -> None:
    assert decide(trainers(3)) is None


def test_a_sure_loss_is_answered_at_once() -> None:
    verdict = present(decide(trainers(3, s1=LOST, s0=stalled(1))))
    assert (verdict.survivors, verdict.lost) == ((0, 2), {1})
    assert not verdict.suspects
    assert not verdict.dropped


def test_a_stalled_trainer_is_waited_with_for_the_grace() -> None:
    rows = trainers(3, s0=stalled(2))
    assert decide(rows, stalled_for_s=1.9) is None
    verdict = present(decide(rows, stalled_for_s=2.0))
    # Slots 0 and 2 are in one complaint each: the junior one goes.
    assert (verdict.survivors, verdict.suspects) == ((0, 1), {2})


def test_the_one_beside_a_dead_node_is_not_outvoted_by_the_dead() -> None:
    silent = {"is_silent": True}
    rows = trainers(4, s0=silent, s1=silent, s2=stalled(0, 1), s3=silent)
    assert decide(rows, stalled_for_s=3.9) is None
    verdict = present(decide(rows, stalled_for_s=4.0))
    # The others still reach the one of whom only its agent says nothing.
    assert (verdict.survivors, verdict.suspects) == ((2, 3), {0, 1})


def test_when_all_have_stalled_nobody_waits() -> None:
    verdict = present(decide(trainers(3, s0=stalled(2), s1=stalled(2), s2=stalled(0, 1))))
    assert (verdict.survivors, verdict.suspects) == ((0, 1), {2})


def test_a_fault_that_has_passed_costs_nobody() -> None:
    verdict = present(decide(trainers(2, s0=stalled(), s1=stalled())))
    assert (verdict.survivors, verdict.suspects, verdict.lost) == ((0, 1), frozenset(), frozenset())


def test_nobody_is_suspected_for_not_reaching_the_dead() -> None:
    verdict = present(decide(trainers(3, s0=stalled(1), s1=LOST, s2=stalled(1))))
    assert (verdict.survivors, verdict.suspects) == ((0, 2), frozenset())


def test_the_larger_side_of_a_cut_network_goes_on() -> None:
    sides = {f"s{slot}": stalled(*(range(2, 5) if slot < 2 else range(2))) for slot in range(5)}
    verdict = present(decide(trainers(5, **sides)))
    assert (verdict.survivors, verdict.suspects) == ((2, 3, 4), {0, 1})


def test_of_equal_sides_the_senior_trainers_goes_on() -> None:
    sides = {f"s{slot}": stalled(*(range(2, 4) if slot < 2 else range(2))) for slot in range(4)}
    verdict = present(decide(trainers(4, **sides)))
    assert verdict.survivors == (0, 1)


def test_ready_joiners_help_and_others_are_dropped() -> None:
    ready = {"is_needed": False, "has_state": False}
    rows = trainers(4, s0=LOST, s2=ready, s3={**ready, "is_ready": False})
    verdict = present(decide(rows))
    assert (verdict.survivors, verdict.dropped) == ((1, 2), {3})


def test_a_lost_joiner_alone_is_no_reason_to_recover() -> None:
    assert decide(trainers(2, s1={"is_lost": True, "is_needed": False})) is None


def test_the_most_that_a_job_may_hold_keeps_the_state_and_those_who_stay() -> None:
    joiner = {"has_state": False}
    rows = trainers(5, s0=LOST, s1={"is_leaving": True}, s3=joiner, s4=joiner)
    verdict = present(decide(rows, limit=2))
    assert (verdict.survivors, verdict.dropped) == ((1, 2), {3, 4})


def test_all_lost_leaves_nobody() -> None:
    verdict = present(decide(trainers(2, s0=LOST, s1=LOST)))
    assert verdict.survivors == ()


@given(num=st.integers(1, 12), data=st.data())
def test_those_who_are_kept_reach_each_other(num: int, data: st.DataObject) -> None:
    rows = [
        SurvivorState(
            slot=slot,
            is_stalled=True,
            unreachable=data.draw(st.frozensets(st.integers(0, 14), max_size=4)),
        )
        for slot in range(num)
    ]
    kept = mutually_reachable(rows)
    slots = {row.slot for row in kept}
    assert kept
    assert all(not (row.unreachable & slots) - {row.slot} for row in kept)
    assert [row.slot for row in kept] == sorted(slots)


@given(num=st.integers(1, 12), cut=st.integers(0, 11))
def test_a_network_in_two_keeps_its_larger_part(num: int, cut: int) -> None:
    low, high = range(min(cut, num)), range(min(cut, num), num)
    rows = [
        SurvivorState(
            slot=slot, is_stalled=True, unreachable=frozenset(high if slot in low else low)
        )
        for slot in range(num)
    ]
    kept = [row.slot for row in mutually_reachable(rows)]
    assert kept == list(max(low, high, key=len))


def member(slot: int, *virtual_nodes: int) -> Member:
    return Member(slot=slot, node_id=7, accelerator_index=slot, virtual_nodes=virtual_nodes)


def recovered(*slots: int, least: int = 1, **other: Any) -> Any:
    values: dict[str, Any] = {
        "leader_slot": 0,
        "cluster_addresses": tuple(SlotAddress(slot=n, address=f"h:{n}") for n in range(8)),
        "generation": 5,
        "num_virtual_nodes": 4,
        "min_accelerators": least,
        "restore": False,
    }
    return membership_recover([member(slot, 0) for slot in slots], **{**values, **other})


class TestMembership:
    def test_the_survivors_share_all_virtual_nodes(self) -> None:
        membership = recovered(0, 3)
        assert [m.slot for m in membership.members] == [0, 3]
        assert [m.virtual_nodes for m in membership.members] == [(0, 1), (2, 3)]
        assert (membership.recover, membership.parked, membership.source_slot) == (
            True,
            False,
            None,
        )

    def test_the_leader_stays_or_the_senior_follows(self) -> None:
        assert recovered(2, 0).leader_slot == 0
        assert recovered(2, 3).leader_slot == 2

    def test_too_few_hold(self) -> None:
        assert recovered(0, 3, least=3).parked
        assert not recovered(0, 3, least=2).parked

    def test_a_survivor_must_be_declared(self) -> None:
        with pytest.raises(AssertionError, match="not declared"):
            recovered(0, 9)
