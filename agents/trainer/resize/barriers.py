"""Barriers of a membership change: each gathers a few whole numbers from all members.

One gathers the members' progress, one confirms the state transfer, one confirms that the final
files are written. A lost member fails the barrier for all others (`peer_lost`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from agents.trainer.collectives.groups import TrainerGroup, receipt_group, training_group
from agents.trainer.collectives.runtime import (
    COLLECTIVE_LIMIT_S,
    CollectiveRuntime,
    all_gather,
    broadcast_receive,
    broadcast_send,
)
from agents.trainer.contract.failures import PEER_LOST, TrainerError
from agents.trainer.model.progress import Progress
from controlplane.core.protocol.wire import Membership

#: Instance keys above the keys of the exchanges and below the keys of the transfer.
INSTANCE_CENSUS = 91
INSTANCE_CLOSING = 92
INSTANCE_CLOSED = 93
INSTANCE_HELD = 94
INSTANCE_RECEIPT = 95
#: Timeout of members whose own shutdown no longer depends on the barrier.
CLOSED_LIMIT_S = 5.0


@dataclass(frozen=True, slots=True)
class MemberProgress:
    """Progress of the trainer in `slot` (`Progress.distance`); None if it has no state."""

    slot: int
    distance: tuple[int, ...] | None


def gather_progress(
    runtime: CollectiveRuntime, group: TrainerGroup, held: Progress | None
) -> list[MemberProgress]:
    """Gather the progress of all members of `group`; `held` is this trainer's own, if any.

    Raises:
        TrainerError: `peer_lost`.
    """
    mine = MemberProgress(runtime.slot, None if held is None else held.distance)
    if group.size == 1:
        return [mine]
    has_state = mine.distance is not None
    row = np.array([mine.slot, has_state, *(mine.distance or Progress().distance)], np.int32)
    with runtime.collective():
        gathered = all_gather(
            tf.constant(row), tf.constant([group.size, group.key]), INSTANCE_CENSUS, runtime.hint
        ).numpy()
    rows = gathered.reshape(group.size, row.size).tolist()
    return [MemberProgress(slot, tuple(distance) if has else None) for slot, has, *distance in rows]


def state_source(standings: Sequence[MemberProgress]) -> int | None:
    """Return the slot that sends the state: the most advanced, then the lowest; None: no state."""
    having = [standing for standing in standings if standing.distance is not None]
    if not having:
        return None
    furthest = max(standing.distance for standing in having if standing.distance is not None)
    return min(standing.slot for standing in having if standing.distance == furthest)


def state_receivers(standings: Sequence[MemberProgress], source: int) -> list[int]:
    """List the slots, ascending, whose progress differs from the progress of `source`."""
    by_slot = {standing.slot: standing.distance for standing in standings}
    return sorted(slot for slot, distance in by_slot.items() if distance != by_slot[source])


def await_state_received(runtime: CollectiveRuntime, membership: Membership) -> None:
    """Block a leaving source until all members have received its state.

    Unsent data is lost when a process ends. So the members pass a barrier, then their leader
    sends an acknowledgement to the source.

    Raises:
        TrainerError: `peer_lost`.
    """
    word, hint = tf.zeros([1], tf.int32), runtime.hint
    pair = receipt_group(membership)
    if runtime.slot == membership.source_slot:
        with runtime.collective():
            broadcast_receive((1,), pair, INSTANCE_RECEIPT, hint)
        return
    group = training_group(membership)
    with runtime.collective():
        if group.size > 1:
            all_gather(word, tf.constant([group.size, group.key]), INSTANCE_HELD, hint)
        if runtime.slot == membership.leader_slot:
            broadcast_send(word, pair, INSTANCE_RECEIPT, hint)


def shutdown_barrier(runtime: CollectiveRuntime, group: TrainerGroup, is_writer: bool) -> None:
    """Wait until the writer, which enters last, has written and reported its files.

    The second round confirms that the first has reached all members, because unsent data is lost
    when a process ends. Failures after a member has done its part are ignored.

    Raises:
        TrainerError: `peer_lost`; not raised in the writer: the files may be missing.
    """
    if group.size == 1:
        return
    word = tf.zeros([1], tf.int32)
    who = tf.constant([group.size, group.key])
    is_known = is_writer
    try:
        with runtime.collective(CLOSED_LIMIT_S if is_writer else COLLECTIVE_LIMIT_S):
            all_gather(word, who, INSTANCE_CLOSING, runtime.hint)
        is_known = True
        with runtime.collective(CLOSED_LIMIT_S):
            all_gather(word, who, INSTANCE_CLOSED, runtime.hint)
    except TrainerError as failure:
        if not is_known or failure.code != PEER_LOST:
            raise
