"""Barriers of a membership change: each gathers a few whole numbers from all members.

One gathers the members' progress, one confirms the state transfer, one confirms that the final
files are written. A lost member fails the barrier for all others (`peer_lost`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from agents.trainer.collectives.groups import Group, receipt_group, training_group
from agents.trainer.collectives.runtime import (
    CollectiveRuntime,
    all_gather,
    broadcast_receive,
    broadcast_send,
)
from agents.trainer.contract.failures import PEER_LOST, TrainerError
from agents.trainer.model.progress import Progress
from controlplane.core.protocol.wire import Membership

#: Instance keys above those of the exchanges and below those of the transfer.
INSTANCE_CENSUS = 91
INSTANCE_CLOSING = 92
INSTANCE_CLOSED = 93
INSTANCE_HELD = 94
INSTANCE_RECEIPT = 95
#: What those who know already that all is done wait for those who do not.
CLOSED_LIMIT_S = 5.0


@dataclass(frozen=True, slots=True)
class MemberProgress:
    """How far the state of the trainer in `slot` is (`Progress.distance`); None without a state."""

    slot: int
    distance: tuple[int, ...] | None


def gather_progress(
    runtime: CollectiveRuntime, group: Group, held: Progress | None
) -> list[MemberProgress]:
    """Tell all members of `group` how far the own state is and hear the same of them.

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
    """Choose who gives the state: the furthest, of these the lowest slot; None: nobody has one."""
    having = [standing for standing in standings if standing.distance is not None]
    if not having:
        return None
    furthest = max(standing.distance for standing in having if standing.distance is not None)
    return min(standing.slot for standing in having if standing.distance == furthest)


def state_receivers(standings: Sequence[MemberProgress], source: int) -> list[int]:
    """List the slots, ascending, that are not as far as `source`."""
    by_slot = {standing.slot: standing.distance for standing in standings}
    return sorted(slot for slot, distance in by_slot.items() if distance != by_slot[source])


def await_state_received(runtime: CollectiveRuntime, membership: Membership) -> None:
    """Keep a source that leaves until all members have what it gave them.

    A process that ends takes along what it has not sent yet. So the members meet, and their leader
    tells the source, which has nothing to send any more then.

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


def shutdown_barrier(runtime: CollectiveRuntime, group: Group, is_writer: bool) -> None:
    """Wait until the writer has left its files and said so; it comes last.

    The second round tells the writer that the first one has reached everybody: a process that ends
    takes along what it has not sent yet. Who has done its part minds no failure any more.

    Raises:
        TrainerError: `peer_lost`, and this is not the writer: the files may be missing.
    """
    if group.size == 1:
        return
    word = tf.zeros([1], tf.int32)
    who = tf.constant([group.size, group.key])
    is_known = is_writer
    try:
        if is_writer:
            with runtime.collective(CLOSED_LIMIT_S):
                all_gather(word, who, INSTANCE_CLOSING, runtime.hint)
        else:
            with runtime.collective():
                all_gather(word, who, INSTANCE_CLOSING, runtime.hint)
        is_known = True
        with runtime.collective(CLOSED_LIMIT_S):
            all_gather(word, who, INSTANCE_CLOSED, runtime.hint)
    except TrainerError as failure:
        if not is_known or failure.code != PEER_LOST:
            raise
