"""Choice of the survivors when trainers of a job are lost, and their next membership.

Pure: the input is the state of each trainer, the output the set of survivors. A trainer is
certainly lost when its process is gone, its node's lease has expired or it was ordered to stop. A
trainer is under suspicion when trainers that wait for it report that it does not answer them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from controlplane.core.estimates.step_time import StepTime
from controlplane.core.protocol.wire import Member, Membership, SlotAddress
from controlplane.core.virtual_nodes.uneven_split import mapping_for


@dataclass(frozen=True, slots=True, kw_only=True)
class SurvivorState:
    """State of one trainer of a job.

    Attributes:
        is_needed: it takes part in the present training or switch; a trainer that only prepares to
            join is not needed, but may help.
        is_lost: certainly gone, without having done its part.
        is_ready: it can take part in a membership at once.
        has_state: it has trained, so it can go on where it stopped.
        is_leaving: the newest resize takes its accelerator away.
        is_stalled: one of its collectives failed; it waits for orders.
        unreachable: slots that did not answer it, stalled trainers only.
        is_silent: its node has sent nothing since the first trainer stalled.
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
class RecoveryDecision:
    """Decision on how a job goes on.

    Attributes:
        survivors: slots of the next membership, by seniority; none: start anew.
        lost: needed trainers that are certainly gone.
        suspects: trainers that the survivors cannot reach; they are to be stopped.
        dropped: all other trainers: not ready, or beyond the limit of the job.
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
) -> RecoveryDecision | None:
    """Decide which trainers go on; None when none is missing, or when it is too early to decide.

    A certain loss is handled at once. Without one, stalled trainers wait `grace_s` for a sign of
    the others, or of their end; when all needed ones have stalled there is nothing to wait for.

    Args:
        trainers: trainers of the open memberships that have not done their part, by seniority.
        stalled_for_s: seconds since the first of them stalled.
        silence_s: seconds within which every live node reports; while one is silent, the grace is
            at least this long.
        limit: largest number of accelerators that the job may hold.
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
    # Trainers with the state come first, then those that are to stay; the sort keeps seniority.
    chosen = sorted(kept, key=lambda row: (not row.has_state, row.is_leaving))[:limit]
    survivors = tuple(row.slot for row in kept if row in chosen)
    suspects = frozenset(row.slot for row in ready if row not in kept)
    return RecoveryDecision(
        survivors=survivors,
        lost=lost,
        suspects=suspects,
        dropped=frozenset(row.slot for row in living) - suspects - {*survivors},
    )


def mutually_reachable(trainers: Sequence[SurvivorState]) -> list[SurvivorState]:
    """Keep a largest set of trainers that can all reach each other, in the given order.

    Greedy: the trainer in most complaints is removed first, the junior of equals. That is exact for
    single trainers that are cut off and for a network that splits in two; of equal halves the one
    with the senior trainer stays. Trainers under complaint whose nodes are silent are removed
    before all others: when the node with all other trainers dies, the only remaining trainer is in
    more complaints than any of them.
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
    cluster_addresses: tuple[SlotAddress, ...],
    generation: int,
    num_virtual_nodes: int,
    min_accelerators: int,
    restore: bool,
    global_batch_size: int | None = None,
    step_times: Mapping[int, StepTime] | None = None,
) -> Membership:
    """Build the membership in which survivors go on from the state in their memory.

    Args:
        members: the survivors by seniority, with their present places; at least one.
        leader_slot: present leader, which stays leader if it is among them.
        cluster_addresses: cluster_addresses of the newest membership; it contains every survivor.
        restore: no trainer has trained yet, and the job starts from a checkpoint.
        global_batch_size: examples of a step; None: as submitted.
        step_times: step times of survivors by slot, as far as known.
    """
    slots = [member.slot for member in members]
    assert slots, "nobody is left to recover"
    assert {*slots} <= {row.slot for row in cluster_addresses}, "a survivor is not declared"
    mapping = mapping_for(num_virtual_nodes, [(step_times or {}).get(slot) for slot in slots])
    return Membership(
        generation=generation,
        members=tuple(
            replace(member, virtual_nodes=virtual_nodes)
            for member, virtual_nodes in zip(members, mapping, strict=True)
        ),
        leader_slot=leader_slot if leader_slot in slots else slots[0],
        source_slot=None,
        cluster_addresses=cluster_addresses,
        restore=restore,
        recover=True,
        parked=len(members) < min_accelerators,
        global_batch_size=global_batch_size,
    )
