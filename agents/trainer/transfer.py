"""Gives a job's complete state from the source of a generation to its joiners.

Two broadcasts. The first, small and of fixed size, goes to every member: it proves that all of them
have arrived and carries the sizes and the joiners. The second goes to the joiners alone: progress
and all variables, back to back.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from agents.trainer.failures import TrainerError
from agents.trainer.progress import Progress
from agents.trainer.runtime import (
    CollectiveRuntime,
    Group,
    broadcast_receive,
    broadcast_send,
    meeting_group,
    transfer_group,
)
from agents.trainer.state import WORD_BYTES, ModelState, pack
from controlplane.core.wire import Membership

Tensor = Any
#: int32 words of the first broadcast: magic, sizes (2), fingerprint (2), joiners (count, slots).
MEETING_WORDS = 1024
MAGIC = 0x56464C57
#: Instance keys above those of the exchanges, with which a group may be shared.
INSTANCE_MEETING = 101
INSTANCE_STATE = 102
#: The state travels in pieces of at most so many words (256 MiB).
CHUNK_WORDS = 2**26


def state_send(
    runtime: CollectiveRuntime,
    membership: Membership,
    state: ModelState,
    values: Sequence[Tensor],
    progress: Progress,
    joiners: Sequence[int],
) -> int:
    """Give `values` and `progress` to the joiners, as the source; returns the bytes moved."""
    note = np.frombuffer(json.dumps(progress.to_json()).encode(), np.uint8)
    note_words = np.zeros(-(-note.size // WORD_BYTES), np.int32)
    note_words.view(np.uint8)[: note.size] = note
    payload = np.concatenate([note_words, pack(values)])
    meeting = np.zeros(MEETING_WORDS, np.int32)
    meeting[:5] = [MAGIC, note.size, len(joiners), *_fingerprint(state)]
    meeting[5 : 5 + len(joiners)] = joiners
    group = meeting_group(membership)
    with runtime.collective():
        if group.size > 1:
            broadcast_send(tf.constant(meeting), group, INSTANCE_MEETING, runtime.hint)
        if not joiners:
            return 0
        group = transfer_group(membership, runtime.slot, joiners)
        for instance, low in _chunks(payload.size):
            chunk = tf.constant(payload[low : low + CHUNK_WORDS])
            broadcast_send(chunk, group, instance, runtime.hint)
    return int(payload.nbytes)


def state_receive(
    runtime: CollectiveRuntime, membership: Membership, state: ModelState, source_slot: int
) -> tuple[Progress, int] | None:
    """Meet the others; a joiner also takes the state and returns progress and bytes moved.

    Raises:
        TrainerError: a peer is lost, or the source trains another model.
    """
    with runtime.collective():
        received = broadcast_receive(
            (MEETING_WORDS,), meeting_group(membership), INSTANCE_MEETING, runtime.hint
        )
    meeting = received.numpy()
    magic, note_bytes, num_joiners = (int(word) for word in meeting[:3])
    if magic != MAGIC or list(meeting[3:5]) != _fingerprint(state):
        raise TrainerError(
            "user_code",
            f"slot {source_slot} built another model or other data than this trainer: build() "
            "must give the same everywhere (look for unseeded random numbers, the order of a set "
            "or of a folder's files, the time)",
        )
    joiners = [int(slot) for slot in meeting[5 : 5 + num_joiners]]
    if runtime.slot not in joiners:
        return None
    group = transfer_group(membership, source_slot, joiners)
    payload = _receive_chunks(runtime, group, note_bytes, state.num_bytes)
    note_words = -(-note_bytes // WORD_BYTES)
    progress = Progress.from_json(json.loads(payload[:note_words].tobytes()[:note_bytes]))
    state.put_bytes(payload[note_words:].view(np.uint8))
    return progress, int(payload.nbytes)


def _receive_chunks(
    runtime: CollectiveRuntime, group: Group, note_bytes: int, state_bytes: int
) -> np.ndarray:
    total = -(-note_bytes // WORD_BYTES) + -(-state_bytes // WORD_BYTES)
    with runtime.collective():
        chunks = [
            broadcast_receive(
                (min(CHUNK_WORDS, total - low),), group, instance, runtime.hint
            ).numpy()
            for instance, low in _chunks(total)
        ]
    return chunks[0] if len(chunks) == 1 else np.concatenate(chunks)


def _chunks(total: int) -> list[tuple[int, int]]:
    """List (instance key, first word) of each piece."""
    return [(INSTANCE_STATE + index, low) for index, low in enumerate(range(0, total, CHUNK_WORDS))]


def _fingerprint(state: ModelState) -> list[int]:
    return [int(word) for word in np.frombuffer(state.layout_digest()[:8], np.int32)]
