"""Slots, leaders and declarations along a job's life."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.membership.slots import (
    MAX_DECLARED_SLOTS,
    SPARE_SLOTS_PER_ACCELERATOR,
    SlotHistory,
    membership_next,
    places_on_node,
)
from controlplane.core.protocol.wire import Membership

PLACES = {
    place.accelerator_id: place
    for node_id, port in ((1, 20000), (2, 30000))
    for place in places_on_node(
        node_id, "10.0.0.1", port, port + 99, [(node_id * 10, 0), (node_id * 10 + 1, 1)]
    )
}


class Life:
    """A job whose memberships follow one another, each active before the next is asked for."""

    def __init__(self) -> None:
        self.active: Membership | None = None
        self.newest: Membership | None = None
        self.live: dict[int, int] = {}
        self.used: set[int] = set()
        self.next_slot = 0
        self.generation = 0

    def resize(self, *wanted: int, has_checkpoint: bool = False) -> Membership:
        self.generation += 1
        history = SlotHistory(5, self.active, self.newest, self.live, self.used, self.next_slot)
        membership, self.next_slot = membership_next(
            history,
            wanted,
            PLACES,
            generation=self.generation,
            num_virtual_nodes=8,
            has_checkpoint=has_checkpoint,
        )
        self.newest = membership
        self.active = membership if wanted else None
        by_address = {row.slot: row.address for row in membership.cluster_addresses}
        self.live = {
            next(a for a in wanted if PLACES[a].owns(by_address[member.slot])): member.slot
            for member in membership.members
        }
        self.used |= set(self.live.values())
        return membership


def test_ports_are_split_by_accelerator() -> None:
    assert PLACES[10].address(0) == "10.0.0.1:20000"
    assert PLACES[11].address(0) == "10.0.0.1:20050"
    assert PLACES[10].address(50) == "10.0.0.1:20000"
    assert PLACES[11].owns("10.0.0.1:20099")
    assert not PLACES[11].owns("10.0.0.1:20049")
    assert not PLACES[11].owns("10.0.0.2:20099")


def test_too_few_ports_are_refused() -> None:
    with pytest.raises(ValueError, match="node 3 has 1 ports for 2 accelerators"):
        places_on_node(3, "h", 5000, 5000, [(1, 0), (2, 1)])


def test_first_generation_has_no_source_and_restores_only_with_a_checkpoint() -> None:
    first = Life().resize(10, 20)
    assert [member.virtual_nodes for member in first.members] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert (first.leader_slot, first.source_slot, first.restore) == (
        first.members[0].slot,
        None,
        False,
    )
    assert Life().resize(10, has_checkpoint=True).restore


def test_grow_keeps_slots_leader_and_declaration() -> None:
    life = Life()
    one = life.resize(10)
    three = life.resize(10, 11, 20)
    assert three.members[0].slot == one.members[0].slot
    assert three.leader_slot == three.source_slot == one.leader_slot
    assert three.cluster_addresses == one.cluster_addresses


def test_leader_that_leaves_hands_over_its_state() -> None:
    life = Life()
    old = life.resize(10, 11)
    new = life.resize(11, 20)
    assert new.leader_slot == old.members[1].slot == new.source_slot
    moved = life.resize(21)
    assert moved.source_slot == new.leader_slot
    assert moved.leader_slot == moved.members[0].slot != moved.source_slot


def test_stop_keeps_a_source_to_write_the_checkpoint() -> None:
    life = Life()
    old = life.resize(10, 11)
    stop = life.resize()
    assert (stop.members, stop.leader_slot, stop.source_slot) == ((), None, old.leader_slot)


def test_a_job_that_starts_again_is_led_by_its_first_accelerator() -> None:
    """Slots declared for the others may be lower ones: here that of 20, which is lent."""
    life = Life()
    life.resize(20, 10)
    life.resize()
    assert life.resize(10, 20).members[0].node_id == 1


def test_coming_back_often_makes_a_new_declaration() -> None:
    life = Life()
    first = life.resize(10)
    for _ in range(SPARE_SLOTS_PER_ACCELERATOR):
        assert life.resize(10, 20).cluster_addresses == first.cluster_addresses
        life.resize(10)
    again = life.resize(10, 20)
    assert again.cluster_addresses != first.cluster_addresses
    assert again.members[0].slot == first.members[0].slot


@given(
    steps=st.lists(
        st.lists(st.sampled_from(sorted(PLACES)), unique=True, max_size=4), min_size=1, max_size=12
    )
)
def test_slots_are_never_reused_and_always_declared(steps: list[list[int]]) -> None:
    life = Life()
    seen: dict[int, str] = {}
    for wanted in steps:
        before = dict(life.live)
        membership = life.resize(*wanted)
        addresses = {row.slot: row.address for row in membership.cluster_addresses}
        assert len(addresses) == len(membership.cluster_addresses) <= MAX_DECLARED_SLOTS
        assert len(set(addresses.values())) == len(addresses)
        for accelerator, slot in life.live.items():
            assert PLACES[accelerator].owns(addresses[slot])
            assert seen.setdefault(slot, addresses[slot]) == addresses[slot]
            if accelerator not in before:
                assert slot not in before.values()
        if membership.source_slot is not None:
            assert membership.source_slot in addresses
        taken = sorted(node for member in membership.members for node in member.virtual_nodes)
        assert taken == (list(range(8)) if wanted else [])
