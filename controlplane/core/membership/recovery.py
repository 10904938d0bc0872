"""Who goes on when trainers of a job are lost, and in which membership.

Pure: the caller says what is known of each trainer, the answer says who survives. A trainer is lost
for sure when its process is gone, its node's lease is over or it was told to stop. It is under
suspicion when trainers that wait for it say that it does not answer them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controlplane.core.estimates.step_time import StepTime
from controlplane.core.protocol.wire import Member, Membership, SlotAddress
from controlplane.core.virtual_nodes.uneven_split import mapping_for


@dataclass(frozen=True, slots=True, kw_only=True)
class SurvivorState:
    """What is known of one trainer of a job.

    Attributes:
        is_needed: it takes part in the training or the switch that goes on now; somebody who only
            gets ready to join is not needed, but may help.
        is_lost: gone for sure, without having done its part.
        is_ready: it can take part in a membership at once.
        has_state: it has trained, so it can go on where it stopped.
        is_leaving: the newest resize takes its accelerator away.
        is_stalled: a collective of its failed; it waits for orders.
        unreachable: slots that did not answer it, stalled trainers only.
        is_silent: nothing was heard of its node since the first trainer stalled.
    """

    slot: int
    is_needed: bool = True
    is_lost: bool = False
    is_ready: bool = True
    has_state: bool = True
    is_leaving: bool = False
    is_stalled: bool = False
    unreachable: frozenset[int] = frozenset()
    is_silent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How a job goes on.

    Attributes:
        survivors: slots of the next membership, by seniority; none: start anew.
        lost: needed trainers that are gone for sure.
        suspects: those that the survivors cannot reach; they are to be stopped.
        dropped: the others that there is no use for: not ready, or more than the job may have.
    """

    survivors: tuple[int, ...]
    lost: frozenset[int]
    suspects: frozenset[int]
    dropped: frozenset[int]


def judge(
    trainers: Sequence[SurvivorState],
    *,
    stalled_for_s: float,
    grace_s: float,
    silence_s: float,
    limit: int,
) -> Verdict | None:
    """Decide who goes on; None when nobody is missed, or when it is too early to say.

    A sure loss is answered at once. Without one, stalled trainers are given `grace_s` for the
    others to be heard of, or for their end to be seen; when all needed ones have stalled there is
    nothing to wait for.

    Args:
        trainers: those of the open memberships that have not done their part, by seniority.
        stalled_for_s: time since the first of them stalled.
        silence_s: time in which every node that is there is heard of; as long as one is not, the
            grace lasts so long at least.
        limit: the most accelerators that the job may hold.
    """
    lost = frozenset(row.slot for row in trainers if row.is_lost and row.is_needed)
    living = [row for row in trainers if not row.is_lost]
    needed = [row for row in living if row.is_needed]
    is_stalled = any(row.is_stalled for row in living)
    if any(row.is_silent for row in needed):
        grace_s = max(grace_s, silence_s)
    is_sure = is_stalled and (stalled_for_s >= grace_s or all(row.is_stalled for row in needed))
    if not lost and not is_sure:
        return None
    ready = [row for row in living if row.is_ready]
    kept = mutually_reachable(ready) if is_sure else ready
    # Whoever has the state comes first, then whoever is meant to stay; the sort keeps seniority.
    chosen = sorted(kept, key=lambda row: (not row.has_state, row.is_leaving))[:limit]
    survivors = tuple(row.slot for row in kept if row in chosen)
    suspects = frozenset(row.slot for row in ready if row not in kept)
    return Verdict(
        survivors=survivors,
        lost=lost,
        suspects=suspects,
        dropped=frozenset(row.slot for row in living) - suspects - {*survivors},
    )


def mutually_reachable(trainers: Sequence[SurvivorState]) -> list[SurvivorState]:
    """Keep a largest set in which nobody complains of another, in the given order.

    Greedy: whoever is in most complaints goes first, the junior of equals. That is exact for single
    trainers that are cut off and for a network that falls in two; of equal halves the one with the
    senior trainer stays. Before all others go those who are complained of and whose nodes are not
    heard of either: the only one that is left when the node with all others dies is in more
    complaints than any of them.
    """
    kept = list(trainers)
    for _ in trainers:
        slots = {row.slot for row in kept}
        broken = {
            frozenset((row.slot, other))
            for row in kept
            for other in row.unreachable & slots
            if other != row.slot
        }
        if not broken:
            break
        complaints = [sum(row.slot in pair for pair in broken) for row in kept]
        worst = max(
            range(len(kept)),
            key=lambda rank: (
                kept[rank].is_silent and complaints[rank] > 0,
                complaints[rank],
                rank,
            ),
        )
        del kept[worst]
    return kept


def membership_recover(
    members: Sequence[Member],
    *,
    leader_slot: int | None,
    declaration: tuple[SlotAddress, ...],
    generation: int,
    num_virtual_nodes: int,
    min_accelerators: int,
    restore: bool,
    global_batch_size: int | None = None,
    step_times: Mapping[int, StepTime] | None = None,
) -> Membership:
    """Make the membership in which survivors go on from what they have in memory.

    Args:
        members: the survivors by seniority, with the places that they have; at least one.
        leader_slot: who led so far, and leads on if it is among them.
        declaration: that of the newest membership; every survivor stands in it.
        restore: nobody has trained yet, and the job starts from a checkpoint.
        global_batch_size: examples of a step; None: as submitted.
        step_times: how fast survivors are, by slot, as far as known.
    """
    slots = [member.slot for member in members]
    assert slots, "nobody is left to recover"
    assert {*slots} <= {row.slot for row in declaration}, "a survivor is not declared"
    mapping = mapping_for(num_virtual_nodes, [(step_times or {}).get(slot) for slot in slots])
    return Membership(
        generation=generation,
        members=tuple(
            Member(
                slot=member.slot,
                node_id=member.node_id,
                accelerator_index=member.accelerator_index,
                virtual_nodes=virtual_nodes,
            )
            for member, virtual_nodes in zip(members, mapping, strict=True)
        ),
        leader_slot=leader_slot if leader_slot in slots else slots[0],
        source_slot=None,
        declaration=declaration,
        restore=restore,
        recover=True,
        hold=len(members) < min_accelerators,
        global_batch_size=global_batch_size,
    )
