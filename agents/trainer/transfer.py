"""Gives a job's complete state from the source of a generation to its joiners.

Two rounds. The first, a broadcast small and of fixed size, goes to every member: it proves that all
of them have arrived and carries the sizes and the joiners. The second goes to the joiners alone:
the state, in pieces, several at a time. Large variables are cut by rows and travel as they lie in
memory, from the source's buffers into the joiner's; the progress and all small ones, back to back,
make one more piece. The second round may run beside the training: see `streaming`.

Measured on loopback and two shared cores, 120 MB: one broadcast 515 to 845 ms, mostly in making
and touching new buffers of that size; pieces of 4 to 30 MB, four or eight at a time, 120 to 200 ms.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
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
from agents.trainer.state import WORD_BYTES, ModelState, VariableSpec, pack
from controlplane.core.wire import Membership

Tensor = Any
#: int32 words of the first broadcast. Its head: magic, bytes of the progress, number of joiners,
#: fingerprint (2), bytes of the stream's note. Then the joiners, then that note.
MEETING_WORDS = 1024
MEETING_HEAD = 6
MAGIC = 0x56464C58
#: Instance keys above those of the exchanges, with which a group may be shared.
INSTANCE_MEETING = 101
INSTANCE_STATE = 102
#: Variables from this size on travel by themselves, in pieces of about this size.
LARGE_BYTES = 256 * 1024
PIECE_BYTES = 4 * 1024 * 1024
#: Pieces under way at a time. A GPU's collectives have to come in one order on all sides.
LANES = {"nccl": 1}
DEFAULT_LANES = 4
_PLAIN_DTYPES = frozenset({"float16", "bfloat16", "float32", "float64", "int32", "int64"})


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows `low` to `high` of the variable at `position`; all of it when `is_whole`."""

    position: int
    low: int
    high: int
    is_whole: bool


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """How a state is cut up; the same on both sides, as it follows from the variables alone.

    Attributes:
        small: positions of the variables that travel together.
        small_bytes: what they take, back to back.
        pieces: of the large ones.
    """

    small: tuple[int, ...]
    small_bytes: int
    pieces: tuple[Piece, ...]


def transfer_plan(specs: Sequence[VariableSpec], piece_bytes: int = PIECE_BYTES) -> TransferPlan:
    """Cut large variables by rows into pieces of about `piece_bytes`, at least one row each."""
    small: list[int] = []
    small_bytes = 0
    pieces: list[Piece] = []
    for position, spec in enumerate(specs):
        size = math.prod(spec.shape) * int(tf.as_dtype(spec.dtype).size)
        if size < LARGE_BYTES or spec.dtype not in _PLAIN_DTYPES:
            small.append(position)
            small_bytes += size
            continue
        rows = spec.shape[0]
        step = max(1, piece_bytes * rows // size)
        pieces += [
            Piece(position, low, min(low + step, rows), is_whole=step >= rows)
            for low in range(0, rows, step)
        ]
    return TransferPlan(tuple(small), small_bytes, tuple(pieces))


@dataclass(frozen=True, slots=True)
class StreamNote:
    """What listeners need before they have a state: where the job stands, and who does what.

    Attributes:
        cursor: without logs and history.
        shares: slot -> virtual nodes until all have caught up; of the listeners none.
    """

    cursor: Progress
    shares: dict[int, tuple[int, ...]]

    def pack(self) -> np.ndarray:
        """Give the note as bytes (uint8)."""
        text = json.dumps({"cursor": self.cursor.to_json(), "shares": [*self.shares.items()]})
        return np.frombuffer(text.encode(), np.uint8)

    @classmethod
    def unpack(cls, payload: np.ndarray) -> StreamNote:
        """Read what `pack` gave."""
        value = json.loads(payload.tobytes())
        shares = {slot: tuple(share) for slot, share in value["shares"]}
        return cls(Progress.from_json(value["cursor"]), shares)


@dataclass(frozen=True, slots=True)
class Meeting:
    """What the source said to everybody; `stream` is set when nobody waits for the state."""

    note_bytes: int
    joiners: tuple[int, ...]
    stream: StreamNote | None


def stream_fits(stream: StreamNote, num_joiners: int) -> bool:
    """Say whether a note has room in a meeting's message."""
    return MEETING_HEAD + num_joiners + _words(stream.pack().size) <= MEETING_WORDS


def meeting_send(
    runtime: CollectiveRuntime,
    membership: Membership,
    state: ModelState,
    progress: Progress,
    joiners: Sequence[int],
    stream: StreamNote | None = None,
) -> None:
    """Meet all members as the source, and say what is to come."""
    note = np.zeros(0, np.uint8) if stream is None else stream.pack()
    head = [MAGIC, _note(progress).size, len(joiners), *_fingerprint(state), note.size]
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
) -> Meeting:
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
    return Meeting(note_bytes, joiners, StreamNote.unpack(payload) if stream_bytes else None)


def state_send(
    runtime: CollectiveRuntime,
    membership: Membership,
    state: ModelState,
    values: Sequence[Tensor],
    progress: Progress,
    joiners: Sequence[int],
    lanes: int = DEFAULT_LANES,
) -> None:
    """Give `values` and `progress` to the joiners, which are at least one, as the source."""
    plan = transfer_plan(state.specs)
    note = _note(progress)
    group = transfer_group(membership, runtime.slot, joiners)
    note_words = np.zeros(_words(note.size), np.int32)
    note_words.view(np.uint8)[: note.size] = note
    together = np.concatenate([note_words, pack([values[index] for index in plan.small])])

    def send(index: int) -> None:
        value = tf.constant(together)
        if index:
            piece = plan.pieces[index - 1]
            value = values[piece.position]
            value = value if piece.is_whole else value[piece.low : piece.high]
        broadcast_send(value, group, INSTANCE_STATE + index, runtime.hint)

    with runtime.collective():
        _side_by_side(send, 1 + len(plan.pieces), runtime.hint, lanes)


def bytes_moved(state: ModelState, note_bytes: int) -> int:
    """Count what a joiner receives: pieces, and the rest in whole words."""
    small_bytes = transfer_plan(state.specs).small_bytes
    words = _words(note_bytes) + _words(small_bytes)
    return WORD_BYTES * words + state.num_bytes - small_bytes


def progress_bytes(progress: Progress) -> int:
    """Count the bytes that a progress travels in."""
    return int(_note(progress).size)


def state_receive(
    runtime: CollectiveRuntime,
    membership: Membership,
    state: ModelState,
    source_slot: int,
    meeting: Meeting,
    *,
    keeps_until_complete: bool = False,
    lanes: int = DEFAULT_LANES,
) -> Progress:
    """Take the state, as a joiner that has met the others; returns its progress.

    Args:
        keeps_until_complete: change no variable before all has arrived, which takes the memory of
            a second state; for those that have a state of their own to lose.

    Raises:
        TrainerError: `peer_lost`.
    """
    group = transfer_group(membership, source_slot, meeting.joiners)
    plan = transfer_plan(state.specs)
    together, kept = _receive_pieces(
        runtime, group, state, plan, _words(meeting.note_bytes), keeps_until_complete, lanes
    )
    for piece, value in kept:
        _assign(state, piece, value)
    progress = Progress.from_json(json.loads(together.tobytes()[: meeting.note_bytes]))
    state.put_bytes(together[_words(meeting.note_bytes) :].view(np.uint8), plan.small)
    return progress


def _receive_pieces(
    runtime: CollectiveRuntime,
    group: Group,
    state: ModelState,
    plan: TransferPlan,
    note_words: int,
    is_kept: bool,
    lanes: int,
) -> tuple[np.ndarray, list[tuple[Piece, Tensor]]]:
    """Take all pieces; gives that of progress and small variables, and those not assigned yet."""
    together: list[np.ndarray] = []
    kept: list[tuple[Piece, Tensor]] = []

    def receive(index: int) -> None:
        instance = INSTANCE_STATE + index
        if index == 0:
            num_words = note_words + _words(plan.small_bytes)
            together.append(broadcast_receive((num_words,), group, instance, runtime.hint).numpy())
            return
        piece = plan.pieces[index - 1]
        spec = state.specs[piece.position]
        shape = (piece.high - piece.low, *spec.shape[1:])
        dtype = tf.as_dtype(spec.dtype)
        value = broadcast_receive(shape, group, instance, runtime.hint, dtype)
        if is_kept:
            kept.append((piece, value))
        else:
            _assign(state, piece, value)

    with runtime.collective():
        _side_by_side(receive, 1 + len(plan.pieces), runtime.hint, lanes)
    return together[0], kept


def _assign(state: ModelState, piece: Piece, value: Tensor) -> None:
    variable = state.variables[piece.position].value
    if piece.is_whole:
        variable.assign(value)
    else:
        # Not variable[low:high].assign(): that reads the variable, which makes it copied whole.
        tf.raw_ops.ResourceStridedSliceAssign(
            ref=variable.handle, begin=[piece.low], end=[piece.high], strides=[1], value=value
        )


def _side_by_side(move: Callable[[int], None], number: int, hint: str, lanes: int) -> None:
    """Call `move` for 0 to `number` - 1, several at a time, in that order.

    Raises:
        whatever the first call that failed raised; all calls have ended then.
    """
    lanes = min(number, LANES.get(hint, lanes))
    with ThreadPoolExecutor(lanes, thread_name_prefix="transfer") as executor:
        moves = [executor.submit(move, index) for index in range(number)]
        try:
            for each in moves:
                each.result()
        except BaseException:
            for each in moves:
                each.cancel()
            raise


def _note(progress: Progress) -> np.ndarray:
    return np.frombuffer(json.dumps(progress.to_json()).encode(), np.uint8)


def _words(num_bytes: int) -> int:
    return -(-num_bytes // WORD_BYTES)


def _fingerprint(state: ModelState) -> list[int]:
    return [int(word) for word in np.frombuffer(state.layout_digest()[:8], np.int32)]
