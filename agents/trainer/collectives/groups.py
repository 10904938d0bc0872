"""Groups of trainers that run collectives together, derived from a membership alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from controlplane.core.protocol.wire import Membership

#: Number of group purposes in one generation, from 0: training, meeting, transfer, receipt.
PURPOSES = 4


@dataclass(frozen=True, slots=True)
class TrainerGroup:
    """A set of trainers that run collectives together.

    Attributes:
        size: number of participants.
        key: int32, unique among all groups of the job.
        slots: the participants by rank. TensorFlow ranks tasks by their names as text: 1, 10, 2.
        phase: number of the mapping within the group; message shapes may differ between mappings,
            and an instance key identifies one shape.
        sole_worker: slot of the only participant with virtual nodes while all others are learners;
            this worker does not wait for them. None in every other mapping.
    """

    size: int
    key: int
    slots: tuple[int, ...]
    phase: int = 0
    sole_worker: int | None = None


def training_group(membership: Membership) -> TrainerGroup:
    """Make the group that reduces gradients in a generation."""
    return _group({member.slot for member in membership.members}, _key(membership, 0))


def meeting_group(membership: Membership) -> TrainerGroup:
    """Group the members of a generation and the source of their state, for the first rendezvous.

    Forming a group takes a round trip of each participant to the leader, so if the source stays a
    member, the training group is used.
    """
    training = training_group(membership)
    if membership.source_slot is None or membership.source_slot in training.slots:
        return training
    return _group({*training.slots, membership.source_slot}, _key(membership, 1))


def transfer_group(
    membership: Membership, source_slot: int, joiners: Sequence[int]
) -> TrainerGroup:
    """Group the source of a generation's state and the joiners that receive it."""
    meeting = meeting_group(membership)
    slots = {source_slot, *joiners}
    return meeting if slots == set(meeting.slots) else _group(slots, _key(membership, 2))


def receipt_group(membership: Membership) -> TrainerGroup:
    """Group the leader of a generation and the leaving source of its state."""
    assert membership.leader_slot is not None, "a membership with members has a leader"
    assert membership.source_slot is not None, "a receiver without a source"
    meeting = meeting_group(membership)
    slots = {membership.leader_slot, membership.source_slot}
    return meeting if slots == set(meeting.slots) else _group(slots, _key(membership, 3))


def membership_without(membership: Membership, lost: Collection[int]) -> Membership:
    """Predict the membership after losing the slots `lost`; keeps the leader if it remains."""
    left = tuple(member for member in membership.members if member.slot not in lost)
    slots = [member.slot for member in left]
    is_led = membership.leader_slot in slots or not slots
    leader = membership.leader_slot if is_led else slots[0]
    return replace(membership, members=left, leader_slot=leader)


def _group(slots: Iterable[int], key: int) -> TrainerGroup:
    # TensorFlow ranks tasks by device name, as text.
    ordered = tuple(sorted(slots, key=lambda slot: f"{slot}/"))
    return TrainerGroup(size=len(ordered), key=key, slots=ordered)


def lone_group(slot: int) -> TrainerGroup:
    """Make a group of one, for warming up."""
    return TrainerGroup(size=1, key=2**30 + slot, slots=(slot,))


def _key(membership: Membership, purpose: int) -> int:
    key = 1 + PURPOSES * membership.generation + purpose
    assert 0 < key < 2**30, "group keys are positive int32 below those of the lone groups"
    return key
