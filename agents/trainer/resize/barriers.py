"""Barriers of a membership change: each gathers a few whole numbers from all members.

One gathers the members' progress, one confirms the state transfer, one confirms that the final
files are written. A lost member fails the barrier for all others (`peer_lost`).
"""

from __future__ import annotations

from collections.abc import Mapping

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


#: Progress of the trainer in each slot (`Progress.distance`); None if it has no state.
Standings = Mapping[int, tuple[int, ...] | None]


def gather_progress(
    runtime: CollectiveRuntime, group: TrainerGroup, held: Progress | None
) -> Standings:
    """Gather the progress of all members of `group`; `held` is this trainer's own, if any.

    Raises:
        TrainerError: `peer_lost`.
    """
    if group.size == 1:
        return {runtime.slot: None if held is None else held.distance}
    distance = (held or Progress()).distance
    row = np.array([runtime.slot, held is not None, *distance], np.int32)
    with runtime.collective():
        gathered = all_gather(
            tf.constant(row), tf.constant([group.size, group.key]), INSTANCE_CENSUS, runtime.hint
        ).numpy()
    rows = gathered.reshape(group.size, row.size).tolist()
    return {slot: tuple(distance) if has else None for slot, has, *distance in rows}


def state_source(standings: Standings) -> int | None:
    """Return the slot that sends the state: the most advanced, then the lowest; None: no state."""
    furthest = max((each for each in standings.values() if each is not None), default=None)
    if furthest is None:
        return None
    return min(slot for slot, distance in standings.items() if distance == furthest)


def state_receivers(standings: Standings, source: int) -> list[int]:
    """List the slots, ascending, whose progress differs from the progress of `source`."""
    return sorted(slot for slot, each in standings.items() if each != standings[source])


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
