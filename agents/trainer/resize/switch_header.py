"""The first round of a switch: all members meet, and the source says what is to come.

A broadcast small and of fixed size. It proves that everybody has arrived, that all have built the
same model, and carries the sizes and the joiners; with a state that travels beside the training
(see `streaming`) also where the job stands and who does what meanwhile. Before a growth there may
be one more, beside the steps, that calls to a rehearsal (see `membership_change`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from agents.trainer.collectives.groups import meeting_group
from agents.trainer.collectives.runtime import CollectiveRuntime, broadcast_receive, broadcast_send
from agents.trainer.contract.failures import TrainerError
from agents.trainer.model.progress import Progress
from agents.trainer.model.state import WORD_BYTES, ModelState
from controlplane.core.protocol.wire import Membership

#: int32 words of the broadcast. Its head: magic, bytes of the progress, number of joiners,
#: fingerprint (2), bytes of the stream's note, 1 for a rehearsal. Then the joiners, then that note.
MEETING_WORDS = 1024
MEETING_HEAD = 7
MAGIC = 0x56464C58
#: Instance key above those of the exchanges, with which a group may be shared.
INSTANCE_MEETING = 101


@dataclass(frozen=True, slots=True)
class CatchUpPlan:
    """What listeners need before they have a state: where the job stands, and who does what.

    Attributes:
        cursor: without logs, history and recent steps.
        shares: slot -> virtual nodes until all have caught up; of the listeners none.
    """

    cursor: Progress
    shares: dict[int, tuple[int, ...]]

    def pack(self) -> np.ndarray:
        """Give the note as bytes (uint8)."""
        text = json.dumps({"cursor": self.cursor.to_json(), "shares": [*self.shares.items()]})
        return np.frombuffer(text.encode(), np.uint8)

    @classmethod
    def unpack(cls, payload: np.ndarray) -> CatchUpPlan:
        """Read what `pack` gave."""
        value = json.loads(payload.tobytes())
        shares = {slot: tuple(share) for slot, share in value["shares"]}
        return cls(Progress.from_json(value["cursor"]), shares)


@dataclass(frozen=True, slots=True)
class SwitchHeader:
    """What the source said to everybody; `stream` is set when nobody waits for the state.

    Attributes:
        is_rehearsal: the switch is still to come, with a meeting of its own.
    """

    note_bytes: int
    joiners: tuple[int, ...]
    stream: CatchUpPlan | None
    is_rehearsal: bool


def stream_fits(stream: CatchUpPlan, num_joiners: int) -> bool:
    """Say whether a note has room in a meeting's message."""
    return MEETING_HEAD + num_joiners + words_of(stream.pack().size) <= MEETING_WORDS


def meeting_send(
    runtime: CollectiveRuntime,
    membership: Membership,
    state: ModelState,
    progress: Progress,
    joiners: Sequence[int],
    stream: CatchUpPlan | None = None,
    *,
    is_rehearsal: bool = False,
) -> None:
    """Meet all members as the source, and say what is to come."""
    note = np.zeros(0, np.uint8) if stream is None else stream.pack()
    note_bytes = progress_note(progress).size
    head = [MAGIC, note_bytes, len(joiners), *_fingerprint(state), note.size, int(is_rehearsal)]
    meeting = np.zeros(MEETING_WORDS, np.int32)
    meeting[:MEETING_HEAD] = head
    start = MEETING_HEAD + len(joiners)
    meeting[MEETING_HEAD:start] = joiners
    meeting[start:].view(np.uint8)[: note.size] = note
    group = meeting_group(membership)
    if group.size > 1:
        with runtime.collective():
            broadcast_send(tf.constant(meeting), group, INSTANCE_MEETING, runtime.hint)


def meeting_receive(
    runtime: CollectiveRuntime, membership: Membership, state: ModelState, source_slot: int
) -> SwitchHeader:
    """Meet all members and hear what the source says.

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
    start = MEETING_HEAD + num_joiners
    joiners = tuple(int(slot) for slot in meeting[MEETING_HEAD:start])
    stream_bytes = int(meeting[5])
    payload = meeting[start:].view(np.uint8)[:stream_bytes]
    note = CatchUpPlan.unpack(payload) if stream_bytes else None
    return SwitchHeader(note_bytes, joiners, note, is_rehearsal=bool(meeting[6]))


def progress_note(progress: Progress) -> np.ndarray:
    """Give a progress as the bytes (uint8) that it travels in."""
    return np.frombuffer(json.dumps(progress.to_json()).encode(), np.uint8)


def words_of(num_bytes: int) -> int:
    """Count the int32 words that hold so many bytes."""
    return -(-num_bytes // WORD_BYTES)


def _fingerprint(state: ModelState) -> list[int]:
    return [int(word) for word in np.frombuffer(state.layout_digest()[:8], np.int32)]
