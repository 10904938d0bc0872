"""A state that is given to joiners while the others train on, so that nobody waits for it.

At a common step the members of a new generation meet and go on at once: the old ones with the
virtual nodes that they had, the joiners as *listeners*, which take part in every exchange with
nothing of their own. The source sends the state of that step in a thread; a listener receives it in
one and keeps the reduced vectors of the steps meanwhile. When the state is there it applies them
through the functions that everybody uses, so it ends with the same bits. In each step it says
whether it has caught up; when all have, everybody takes up the new mapping after that step.

Where only one of the old members is left to work, its sums are the whole result. It sends them in a
thread and goes on; what the listeners answer counts a step later, for everybody.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Any

from agents.trainer.model.progress import Progress, TrainingSchedule
from agents.trainer.resize.switch_header import CatchUpPlan
from agents.trainer.step.stepper import ReceivedStep
from controlplane.core.protocol.wire import Membership

#: States smaller than this are waited for: that takes less than the steps of catching up.
STREAM_FROM_BYTES = 4 * 1024**2
#: Pieces of a stream under way at a time; the training needs the processor, too.
STREAM_LANES = 2
#: A stream whose collectives have failed ends at once; only a variable may still be written.
STREAM_END_LIMIT_S = 10.0
#: Kept vectors may take that, or as much as some states where those are larger.
KEPT_BYTES = 1024**3
KEPT_STATES = 2
#: Steps to catch up with between two exchanges. With one nobody would ever catch up; with more the
#: others would wait for it.
REPLAYED_PER_STEP = 2


@dataclass(frozen=True)
class IncomingState:
    """A state that is on its way to this trainer.

    Attributes:
        coming: its progress, once the variables are set to it.
    """

    note: CatchUpPlan
    coming: Future[Progress]
    num_bytes: int

    @property
    def is_here(self) -> bool:
        """Say whether the variables are set, or never will be."""
        return self.coming.done()


class Stream:
    """What is sent or received beside the steps, at most one thing at a time.

    It begins after the first step beside listeners, which has enough to do.
    """

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="stream")
        self._moving: Future[Any] | None = None
        self._has_stepped = threading.Event()
        self._has_stepped.set()

    def send(self, move: Callable[[], None]) -> None:
        """Call `move` in a thread, from the end of the first step on."""
        self._has_stepped.clear()

        def wait_and_move() -> None:
            self.wait_for_step()
            move()

        self._moving = self._executor.submit(wait_and_move)

    def receive(self, move: Callable[[], Progress]) -> Future[Progress]:
        """Call `move` in a thread at once."""
        self._moving = coming = self._executor.submit(move)
        return coming

    def wait_for_step(self) -> None:
        """Wait, in a thread, until the first step beside listeners is done, or there is none."""
        self._has_stepped.wait()

    def check(self, waits: bool = False) -> None:
        """See, after a step, that what moves goes on, or wait until it has arrived.

        Raises:
            whatever ended it.
        """
        self._has_stepped.set()
        if self._moving is not None and (waits or self._moving.done()):
            self._moving.result()
            self._moving = None

    def end(self) -> None:
        """Wait until nothing moves any more, after a failure or an abort."""
        self._has_stepped.set()
        if self._moving is not None:
            wait([self._moving], timeout=STREAM_END_LIMIT_S)
            self._moving = None


class Rehearsal:
    """What the members of a membership to come do together beside the steps of the present one."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="rehearsal")
        self._generation = -1
        self._under_way: Future[None] | None = None

    def is_over(self, generation: int, rehearse: Callable[[], None]) -> bool:
        """Call `rehearse` in a thread, once for a generation; say whether it has ended.

        Raises:
            whatever ended it.
        """
        if self._generation != generation:
            self._generation = generation
            self._under_way = self._executor.submit(rehearse)
        assert self._under_way is not None, "it was begun"
        if not self._under_way.done():
            return False
        self._under_way.result()
        return True

    def end(self) -> None:
        """Wait until it has ended, after a failure or an abort."""
        if self._under_way is not None:
            wait([self._under_way], timeout=STREAM_END_LIMIT_S)


class StepLog:
    """Steps that were heard and not done yet, in order, within a number of bytes."""

    def __init__(self, state_bytes: int) -> None:
        self._limit_bytes = max(KEPT_BYTES, KEPT_STATES * state_bytes)
        self._kept: deque[ReceivedStep] = deque()
        self._num_bytes = 0
        self._largest_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def is_full(self) -> bool:
        """Say whether another one like the largest so far would be too much."""
        return self._num_bytes + self._largest_bytes > self._limit_bytes

    def add(self, heard: ReceivedStep) -> None:
        """Keep one more."""
        size = _num_bytes(heard)
        self._largest_bytes = max(self._largest_bytes, size)
        self._num_bytes += size
        self._kept.append(heard)

    def take(self) -> ReceivedStep:
        """Give the oldest."""
        heard = self._kept.popleft()
        self._num_bytes -= _num_bytes(heard)
        return heard


def stream_note(
    old: Membership, new: Membership, joiners: Sequence[int], progress: Progress
) -> CatchUpPlan | None:
    """Describe how `new` begins while its joiners listen; None where somebody leaves at once."""
    shares = {member.slot: member.virtual_nodes for member in old.members}
    if any(new.member(slot) is None for slot in shares):
        return None
    cursor = replace(progress, train_logs={}, history=(), recent=())
    return CatchUpPlan(cursor, shares | dict.fromkeys(joiners, ()))


def interim_membership(membership: Membership, note: CatchUpPlan) -> Membership:
    """Give the membership with the mapping that holds until all have caught up."""
    members = [replace(m, virtual_nodes=note.shares[m.slot]) for m in membership.members]
    return replace(membership, members=tuple(members))


def working_slots(membership: Membership) -> list[int]:
    """List those that have virtual nodes."""
    return [member.slot for member in membership.members if member.virtual_nodes]


def listen(
    arrival: IncomingState,
    state_bytes: int,
    course: TrainingSchedule,
    hear: Callable[[Progress], ReceivedStep],
    arrive: Callable[[Progress], None],
    replay: Callable[[ReceivedStep], None],
) -> None:
    """Hear the others' steps until the state has come and they have all been done here too.

    Args:
        hear: takes part in the step at the cursor.
        arrive: is told once, when the variables are set to the state of this progress.
        replay: does a step that was heard.
    """
    cursor: Progress | None = arrival.note.cursor
    kept = StepLog(state_bytes)
    has_arrived = False
    while True:
        must_wait = cursor is None or cursor.is_over or kept.is_full
        if not has_arrived and (must_wait or arrival.is_here):
            arrive(arrival.coming.result())
            has_arrived = True
        if has_arrived:
            for _ in range(len(kept) if must_wait else min(len(kept), REPLAYED_PER_STEP)):
                replay(kept.take())
            if not kept:
                return
        assert cursor is not None, "who waits for the state catches up"
        kept.add(hear(cursor))
        cursor = course.foreseen(cursor)


def _num_bytes(heard: ReceivedStep) -> int:
    return int(heard.vector.shape.num_elements()) * int(heard.vector.dtype.size)
