"""The first round of a switch ("meeting"): a rendezvous of all members with a header.

The source broadcasts a small header of fixed size. The broadcast proves that all members have
arrived and have built the same model, and carries the sizes and the joiners. If the state is sent
during training (see `catch_up`), the header also carries the cursor and the interim mapping.
Before a growth there may be one more meeting, in the background, that starts a rehearsal (see
`membership_change`).
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
from agents.trainer.model.state import SAME_BUILD, WORD_BYTES, ModelState
from controlplane.core.protocol.wire import Membership

#: int32 words of the broadcast. Head: magic, bytes of the progress, number of joiners,
#: fingerprint (2), bytes of the catch-up plan, 1 for a rehearsal. Then the joiners, then the plan.
MEETING_WORDS = 1024
MEETING_HEAD = 7
MAGIC = 0x56464C58
#: Instance key above the keys of the exchanges, which may use the same group.
INSTANCE_MEETING = 101


@dataclass(frozen=True, slots=True)
class CatchUpPlan:
    """Cursor and interim mapping that learners need before they have a state.

    Attributes:
        cursor: progress without logs, history and recent steps.
        shares: slot -> virtual nodes until all have caught up; empty for learners.
    """

    cursor: Progress
    shares: dict[int, tuple[int, ...]]

    def pack(self) -> np.ndarray:
        """Serialize the plan to bytes (uint8)."""
        text = json.dumps({"cursor": self.cursor.to_json(), "shares": [*self.shares.items()]})
        return np.frombuffer(text.encode(), np.uint8)

    @classmethod
    def unpack(cls, payload: np.ndarray) -> CatchUpPlan:
        """Parse the result of `pack`."""
        value = json.loads(payload.tobytes())
        shares = {slot: tuple(share) for slot, share in value["shares"]}
        return cls(Progress.from_json(value["cursor"]), shares)


@dataclass(frozen=True, slots=True)
class SwitchHeader:
    """The header that the source broadcast.

    Attributes:
        note_bytes: size of the serialized progress.
        stream: set if the state is sent during training; no member waits for it then.
        is_rehearsal: this meeting starts a rehearsal; the switch has one of its own.
    """

    note_bytes: int
    joiners: tuple[int, ...]
    stream: CatchUpPlan | None
    is_rehearsal: bool


def stream_fits(stream: CatchUpPlan, num_joiners: int) -> bool:
    """Return whether a catch-up plan fits into the header."""
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
    """Meet all members as the source and broadcast the header."""
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
    """Meet all members and receive the header from the source.

    Raises:
        TrainerError: a peer is lost, or the source has built another model or other data.
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
            f"slot {source_slot} built another model or other data than this trainer: {SAME_BUILD}",
        )
    start = MEETING_HEAD + num_joiners
    joiners = tuple(int(slot) for slot in meeting[MEETING_HEAD:start])
    stream_bytes = int(meeting[5])
    payload = meeting[start:].view(np.uint8)[:stream_bytes]
    note = CatchUpPlan.unpack(payload) if stream_bytes else None
    return SwitchHeader(note_bytes, joiners, note, is_rehearsal=bool(meeting[6]))


def progress_note(progress: Progress) -> np.ndarray:
    """Serialize a progress to bytes (uint8)."""
    return np.frombuffer(json.dumps(progress.to_json()).encode(), np.uint8)


def words_of(num_bytes: int) -> int:
    """Return how many int32 words hold `num_bytes`."""
    return -(-num_bytes // WORD_BYTES)


def _fingerprint(state: ModelState) -> list[int]:
    return [int(word) for word in np.frombuffer(state.layout_digest()[:8], np.int32)]
