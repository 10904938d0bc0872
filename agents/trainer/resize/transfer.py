"""Sends a job's complete state from the source of a generation to its joiners.

After the meeting (`switch_header`) the state goes to the joiners alone, in pieces, several at a
time. Large variables are cut by rows and sent from the source's buffers into the joiner's without
repacking; the progress and all small variables, back to back, form one more piece. The transfer
may run during training: see `catch_up`. Parked branches follow, one after another.

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

from agents.trainer.collectives.groups import TrainerGroup, transfer_group
from agents.trainer.collectives.runtime import CollectiveRuntime, broadcast_receive, broadcast_send
from agents.trainer.model.progress import Progress
from agents.trainer.model.state import WORD_BYTES, ModelState, VariableSpec, pack
from agents.trainer.resize.switch_header import SwitchHeader, progress_note, words_of
from controlplane.core.protocol.wire import Membership

Tensor = Any
#: Instance keys above the keys of the exchanges and meetings, which may use the same group.
INSTANCE_STATE = 102
#: Variables from `LARGE_BYTES` on are sent separately, in pieces of about `PIECE_BYTES`.
LARGE_BYTES = 256 * 1024
PIECE_BYTES = 4 * 1024 * 1024
#: Pieces under way at a time. GPU collectives must run in the same order on all ranks.
LANES = {"nccl": 1}
DEFAULT_LANES = 4
_PLAIN_DTYPES = frozenset({"float16", "bfloat16", "float32", "float64", "int32", "int64"})


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows `low` to `high` of the variable at `position`; all of it when `is_whole`."""

    position: int
    low: int
    high: int
    is_whole: bool


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """How a state is cut into pieces; equal on both sides, a function of the variables alone.

    Attributes:
        small: positions of the variables that are sent together.
        small_bytes: their total size, back to back.
        pieces: the pieces of the large variables.
    """

    small: tuple[int, ...]
    small_bytes: int
    pieces: tuple[Chunk, ...]


def transfer_plan(specs: Sequence[VariableSpec], piece_bytes: int = PIECE_BYTES) -> TransferPlan:
    """Cut large variables by rows into pieces of about `piece_bytes`, at least one row each."""
    small: list[int] = []
    small_bytes = 0
    pieces: list[Chunk] = []
    for position, spec in enumerate(specs):
        size = math.prod(spec.shape) * int(tf.as_dtype(spec.dtype).size)
        if size < LARGE_BYTES or spec.dtype not in _PLAIN_DTYPES:
            small.append(position)
            small_bytes += size
            continue
        rows = spec.shape[0]
        step = max(1, piece_bytes * rows // size)
        pieces += [
            Chunk(position, low, min(low + step, rows), is_whole=step >= rows)
            for low in range(0, rows, step)
        ]
    return TransferPlan(tuple(small), small_bytes, tuple(pieces))


def state_send(
    runtime: CollectiveRuntime,
    membership: Membership,
    state: ModelState,
    values: Sequence[Tensor],
    progress: Progress,
    joiners: Sequence[int],
    lanes: int = DEFAULT_LANES,
) -> None:
    """Send `values` of the whole state and `progress`, as the source, to at least one joiner."""
    plan = transfer_plan(state.specs)
    group = transfer_group(membership, runtime.slot, joiners)
    size = len(state.specs)
    with runtime.collective():
        for number in range(len(values) // size):
            note = progress_note(progress) if number == 0 else np.zeros(0, np.uint8)
            part = values[number * size : (number + 1) * size]
            _send_pieces(runtime, group, plan, part, note, number, lanes)


def _send_pieces(
    runtime: CollectiveRuntime,
    group: TrainerGroup,
    plan: TransferPlan,
    values: Sequence[Tensor],
    note: np.ndarray,
    number: int,
    lanes: int,
) -> None:
    """Send one state: the present one, which is number 0 and has a note, or a parked branch."""
    note_words = np.zeros(words_of(note.size), np.int32)
    note_words.view(np.uint8)[: note.size] = note
    together = np.concatenate([note_words, pack([values[index] for index in plan.small])])

    def send(index: int) -> None:
        value = tf.constant(together)
        if index:
            piece = plan.pieces[index - 1]
            value = values[piece.position]
            value = value if piece.is_whole else value[piece.low : piece.high]
        broadcast_send(value, group, _instance(plan, number) + index, runtime.hint)

    _side_by_side(send, 1 + len(plan.pieces), runtime.hint, lanes)


def _instance(plan: TransferPlan, number: int) -> int:
    """Return the instance key of a state's first piece; no key of a group is used twice."""
    return INSTANCE_STATE + number * (1 + len(plan.pieces))


def bytes_moved(state: ModelState, note_bytes: int, num_states: int = 1) -> int:
    """Count the bytes that a joiner receives: the pieces, and the rest in whole words."""
    small_bytes = transfer_plan(state.specs).small_bytes
    words = words_of(note_bytes) + num_states * words_of(small_bytes)
    return WORD_BYTES * words + num_states * (state.num_bytes - small_bytes)


def state_receive(
    runtime: CollectiveRuntime,
    membership: Membership,
    state: ModelState,
    source_slot: int,
    meeting: SwitchHeader,
    *,
    keeps_until_complete: bool = False,
    lanes: int = DEFAULT_LANES,
) -> Progress:
    """Receive the whole state, as a joiner after the meeting; returns its progress.

    Args:
        keeps_until_complete: change no variable before all pieces have arrived, which takes the
            memory of a second state; for trainers whose present state may still be needed.

    Raises:
        TrainerError: `peer_lost`.
    """
    group = transfer_group(membership, source_slot, meeting.joiners)
    plan = transfer_plan(state.specs)
    is_held = keeps_until_complete and state.tunables is not None
    held = state.capture() if is_held else None
    note_words = words_of(meeting.note_bytes)
    together, kept = _receive_pieces(
        runtime, group, state, plan, note_words, keeps_until_complete, lanes
    )
    _put(state, plan, together[note_words:], kept)
    progress = Progress.from_json(json.loads(together.tobytes()[: meeting.note_bytes]))
    try:
        parked = _receive_parked(runtime, group, state, plan, progress.parked, lanes)
    except BaseException:
        if held is not None:
            state.put(held)
        raise
    state.branches.parked = parked
    return progress


def _receive_parked(
    runtime: CollectiveRuntime,
    group: TrainerGroup,
    state: ModelState,
    plan: TransferPlan,
    numbers: Sequence[int],
    lanes: int,
) -> dict[int, tuple[Tensor, ...]]:
    """Receive the parked branches by way of the variables, whose present values are put back."""
    parked: dict[int, tuple[Tensor, ...]] = {}
    present = state.capture() if numbers else []
    for place, number in enumerate(numbers, start=1):
        together, kept = _receive_pieces(runtime, group, state, plan, 0, True, lanes, place)
        _put(state, plan, together, kept)
        parked[number] = tuple(state.capture())
    if numbers:
        state.put(present)
    return parked


def _put(
    state: ModelState, plan: TransferPlan, small: np.ndarray, kept: list[tuple[Chunk, Tensor]]
) -> None:
    """Assign the pieces of a state that are not assigned yet, and the small variables."""
    for piece, value in kept:
        _assign(state, piece, value)
    state.put_bytes(small.view(np.uint8), plan.small)


def _receive_pieces(
    runtime: CollectiveRuntime,
    group: TrainerGroup,
    state: ModelState,
    plan: TransferPlan,
    note_words: int,
    is_kept: bool,
    lanes: int,
    number: int = 0,
) -> tuple[np.ndarray, list[tuple[Chunk, Tensor]]]:
    """Receive all pieces.

    Returns:
        The piece of progress and small variables, and the pieces not assigned yet (`is_kept`).
    """
    together: list[np.ndarray] = []
    kept: list[tuple[Chunk, Tensor]] = []

    def receive(index: int) -> None:
        instance = _instance(plan, number) + index
        if index == 0:
            num_words = note_words + words_of(plan.small_bytes)
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


def _assign(state: ModelState, piece: Chunk, value: Tensor) -> None:
    variable = state.variables[piece.position].value
    if piece.is_whole:
        variable.assign(value)
    else:
        # Not variable[low:high].assign(): it reads the variable, which copies all of it.
        tf.raw_ops.ResourceStridedSliceAssign(
            ref=variable.handle, begin=[piece.low], end=[piece.high], strides=[1], value=value
        )


def _side_by_side(move: Callable[[int], None], number: int, hint: str, lanes: int) -> None:
    """Call `move` for 0 to `number` - 1, in this order, `lanes` at a time.

    Raises:
        Exception: the error of the first failed call, after all calls have ended.
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
