"""Slots: the numbered places of a job's trainers, declared to TensorFlow's runtime in advance.

A trainer's slot number and RPC address are fixed for its life and never reused in its job. A
cluster_addresses lists more slots than are used, so that most resizes need no new one: a changed
cluster_addresses costs every trainer a re-initialisation of its collectives.

Each accelerator has a port range of its own on its node. Two trainers that are alive at once are on
different accelerators, so their ports differ whatever jobs they belong to.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from controlplane.core.estimates.step_time import StepTime
from controlplane.core.protocol.wire import Member, Membership, SlotAddress
from controlplane.core.values.types import AcceleratorId
from controlplane.core.virtual_nodes.uneven_split import SecondsBySplit, mapping_for, runs

#: Slots declared for each accelerator: the number of times that a job can use one without a new
#: cluster_addresses.
SPARE_SLOTS_PER_ACCELERATOR = 4

#: At most this many slots are declared at a time, those of the wanted accelerators first.
MAX_DECLARED_SLOTS = 256


@dataclass(frozen=True, slots=True)
class TrainerAddresses:
    """Addresses of an accelerator's trainers: `num_ports` ports of `host` from `first_port` on."""

    accelerator_id: AcceleratorId
    node_id: int
    accelerator_index: int
    host: str
    first_port: int
    num_ports: int

    def address(self, turn: int) -> str:
        """Return the address of the accelerator's `turn`-th trainer, cycling through its ports."""
        return f"{self.host}:{self.first_port + turn % self.num_ports}"

    def owns(self, address: str) -> bool:
        """Return whether `address` is one of this accelerator's."""
        host, _, port = address.rpartition(":")
        return host == self.host and 0 <= int(port) - self.first_port < self.num_ports


def places_on_node(
    node_id: int,
    host: str,
    first_port: int,
    last_port: int,
    accelerators: Sequence[tuple[AcceleratorId, int]],
) -> list[TrainerAddresses]:
    """Split a node's ports evenly over its accelerators, given as (id, index) pairs.

    Raises:
        ValueError: the node has fewer ports than accelerators.
    """
    if not accelerators:
        return []
    num_ports = (last_port - first_port + 1) // (1 + max(index for _, index in accelerators))
    if num_ports < 1:
        raise ValueError(
            f"node {node_id} has {last_port - first_port + 1} ports for {len(accelerators)} "
            "accelerators; give its agent a larger port range"
        )
    return [
        TrainerAddresses(
            accelerator_id, node_id, index, host, first_port + index * num_ports, num_ports
        )
        for accelerator_id, index in accelerators
    ]


@dataclass(frozen=True, slots=True)
class SlotHistory:
    """State that a job's former generations leave to the next one.

    Attributes:
        job_id: varies the ports that different jobs use on one accelerator.
        active: the membership that trains now; None before the first and after a stop.
        newest: the membership requested last, active or not; None before the first.
        live: slot of each accelerator that has a trainer of this job which may stay.
        used: every slot number that a trainer ever had.
        next_slot: lowest number that was never declared.
    """

    job_id: int
    active: Membership | None
    newest: Membership | None
    live: Mapping[AcceleratorId, int]
    used: Collection[int]
    next_slot: int


def membership_next(
    history: SlotHistory,
    wanted: Sequence[AcceleratorId],
    places: Mapping[AcceleratorId, TrainerAddresses],
    *,
    generation: int,
    num_virtual_nodes: int,
    has_checkpoint: bool,
    step_times: Mapping[AcceleratorId, StepTime] | None = None,
    exchange: SecondsBySplit | None = None,
    counts: Mapping[AcceleratorId, int] | None = None,
) -> tuple[Membership, int]:
    """Build the membership of a new generation; return it with the job's new `next_slot`.

    Trainers that stay keep their slots and their seniority, new ones follow in the order of
    `wanted`. The leader stays if it can; when it leaves, the most senior trainer succeeds it and
    every trainer re-initialises.

    Args:
        wanted: accelerators of the generation, those of the job's own kind before lent ones; empty
            means save and stop.
        places: every accelerator of the cluster, `wanted` included.
        step_times: step time of each accelerator, as far as known; virtual nodes are spread evenly
            unless all are known and an uneven split is faster.
        exchange: seconds of the exchange by split, as far as known.
        counts: virtual nodes of each accelerator, where already decided.

    Raises:
        ValueError: more accelerators than virtual nodes.
    """
    active = history.active
    cluster_addresses: tuple[SlotAddress, ...] = (
        history.newest.cluster_addresses if history.newest else ()
    )
    slots, missing = _slots_assign(history, wanted, places, cluster_addresses)
    next_slot = history.next_slot
    if missing:
        cluster_addresses = _declare(history, wanted, places, cluster_addresses)
        next_slot = max(row.slot for row in cluster_addresses) + 1
        slots, missing = _slots_assign(history, wanted, places, cluster_addresses)
        assert not missing, f"no slot declared for accelerators {missing}"
    seniority = {member.slot: rank for rank, member in enumerate(active.members if active else ())}
    ordered = sorted(wanted, key=lambda one: seniority.get(slots[one], len(seniority)))
    mapping = _mapping(ordered, num_virtual_nodes, step_times or {}, exchange, counts)
    members = tuple(
        Member(
            slot=slots[accelerator],
            node_id=places[accelerator].node_id,
            accelerator_index=places[accelerator].accelerator_index,
            virtual_nodes=virtual_nodes,
        )
        for accelerator, virtual_nodes in zip(ordered, mapping, strict=True)
    )
    leader = _leader(active, members)
    membership = Membership(
        generation=generation,
        members=members,
        leader_slot=leader,
        source_slot=_source(active, leader),
        cluster_addresses=cluster_addresses,
        restore=active is None and has_checkpoint,
    )
    return membership, next_slot


def _mapping(
    ordered: Sequence[AcceleratorId],
    num_virtual_nodes: int,
    step_times: Mapping[AcceleratorId, StepTime],
    exchange: SecondsBySplit | None,
    counts: Mapping[AcceleratorId, int] | None,
) -> Sequence[tuple[int, ...]]:
    """Return the virtual nodes of each accelerator, as decided or as is fastest."""
    if counts is not None:
        assert sum(counts.values()) == num_virtual_nodes, "a split holds every virtual node"
        return runs([counts[accelerator] for accelerator in ordered])
    if not ordered:
        return ()
    return mapping_for(num_virtual_nodes, [step_times.get(one) for one in ordered], exchange)


def _slots_assign(
    history: SlotHistory,
    wanted: Sequence[AcceleratorId],
    places: Mapping[AcceleratorId, TrainerAddresses],
    cluster_addresses: Sequence[SlotAddress],
) -> tuple[dict[AcceleratorId, int], list[AcceleratorId]]:
    """Find a slot for each wanted accelerator: its live one, else a declared one never used."""
    used = set(history.used)
    slots: dict[AcceleratorId, int] = {}
    missing: list[AcceleratorId] = []
    for accelerator in wanted:
        fresh = (
            row.slot
            for row in cluster_addresses
            if row.slot not in used and places[accelerator].owns(row.address)
        )
        slot = history.live.get(accelerator, next(fresh, None))
        if slot is None:
            missing.append(accelerator)
        else:
            slots[accelerator] = slot
    return slots, missing


def _declare(
    history: SlotHistory,
    wanted: Sequence[AcceleratorId],
    places: Mapping[AcceleratorId, TrainerAddresses],
    old: Sequence[SlotAddress],
) -> tuple[SlotAddress, ...]:
    """Declare the slots in use and fresh ones for every accelerator, wanted ones first."""
    needed = set(history.live.values())
    if history.active is not None:
        needed |= {member.slot for member in history.active.members}
    kept = [row for row in old if row.slot in needed]
    others = sorted(set(places) - set(wanted), key=lambda a: (places[a].node_id, a))
    fresh: list[SlotAddress] = []
    for accelerator in [*wanted, *others]:
        if accelerator in wanted or len(kept) + len(fresh) < MAX_DECLARED_SLOTS:
            for _ in range(SPARE_SLOTS_PER_ACCELERATOR):
                slot = history.next_slot + len(fresh)
                # Slot numbers only grow, so a job's trainers cycle through an accelerator's ports.
                turn = history.job_id * SPARE_SLOTS_PER_ACCELERATOR + slot
                fresh.append(SlotAddress(slot=slot, address=places[accelerator].address(turn)))
    return (*kept, *fresh)


def _leader(active: Membership | None, members: tuple[Member, ...]) -> int | None:
    if not members:
        return None
    slots = [member.slot for member in members]
    if active is not None and active.leader_slot in slots:
        return active.leader_slot
    return slots[0]


def _source(active: Membership | None, leader: int | None) -> int | None:
    if active is None:
        return None
    if leader is not None and active.member(leader) is not None:
        return leader
    return active.leader_slot
