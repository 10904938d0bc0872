"""Notes: a few numbers sent along with the sums of a step, which saves a message of their own.

In the exact mode each trainer's notes arrive by rank: whether it holds the orders for the next
generation, its slot, and the seconds it was busy with the step. In the fast mode the runtime sums
all notes, so the seconds are at the trainer's own rank in a row of one place per trainer. Further
numbers that only the leader sets (the others send zeros) may follow; all trainers read their sum.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from agents.trainer.collectives.groups import TrainerGroup
from agents.trainer.model.progress import Activity
from controlplane.core.protocol.wire import ReductionMode


@dataclass(frozen=True)
class StepMetadata:
    """The notes of all trainers of a group in one step.

    Attributes:
        is_agreed: all trainers hold the next orders.
        slots: slots by rank, as received; empty in the fast mode, which has no order.
        busy_s: seconds by rank that each trainer was busy with this step outside the exchange; 0
            if not measured.
        from_leader: numbers that the leader has sent along.
    """

    is_agreed: bool
    slots: tuple[int, ...]
    busy_s: tuple[float, ...]
    from_leader: tuple[float, ...] = ()


class BusyTimer:
    """Measures the seconds from the end of an exchange to the start of the next one."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._activity: Activity | None = None

    def stop(self, activity: Activity) -> float:
        """Return the seconds since the last exchange; 0 for the first step of its kind."""
        is_first = activity is not self._activity
        self._activity = activity
        return 0.0 if is_first or self._since is None else time.monotonic() - self._since

    def start(self) -> None:
        """Measure from now on: an exchange has ended."""
        self._since = time.monotonic()


def notes_write(
    mode: ReductionMode,
    group: TrainerGroup,
    slot: int,
    holds_next: bool,
    busy_s: float,
    from_leader: Sequence[float] = (),
) -> list[float]:
    """Return one trainer's notes; their number is the same for each trainer of the group."""
    if mode is ReductionMode.EXACT:
        return [float(holds_next), float(slot), busy_s, *from_leader]
    row = [0.0] * group.size
    row[group.slots.index(slot)] = busy_s
    return [float(holds_next), *row, *from_leader]


def notes_read(mode: ReductionMode, group: TrainerGroup, notes: np.ndarray) -> StepMetadata:
    """Parse the exchanged notes: [size, 3 + n] by rank in the exact mode, else [1, 1 + size + n].

    n is the number of `from_leader`.
    """
    is_agreed = bool(notes[:, 0].sum() == group.size)
    if mode is ReductionMode.EXACT:
        slots = tuple(int(slot) for slot in notes[:, 1])
        from_leader = notes[:, 3:].sum(0).tolist()
        return StepMetadata(is_agreed, slots, tuple(notes[:, 2].tolist()), tuple(from_leader))
    busy_s, from_leader = notes[0, 1 : 1 + group.size], notes[0, 1 + group.size :]
    return StepMetadata(is_agreed, (), tuple(busy_s.tolist()), tuple(from_leader.tolist()))
