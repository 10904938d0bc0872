"""State transfer to joiners while the other members keep training.

At a common step the members of a new generation meet and continue at once: the old members with
their present virtual nodes, the joiners as *learners* ("listeners"), which take part in every
exchange without contributing. Source and learners transfer the state of that step in threads; a
learner keeps the reduced vectors of the steps meanwhile. Once the state is complete, the learner
applies these vectors through the ordinary functions and so ends with the same bits. Each step
carries a flag "caught up" of every learner; after the first step in which all flags are set, all
members switch to the new mapping.

If a single old member has virtual nodes, its sums are the whole result. This member sends them in
a thread and continues; the learners' flags count one step later, for all members.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Any

from agents.trainer.model.progress import Progress
from agents.trainer.model.schedule import TrainingSchedule
from agents.trainer.resize.switch_header import CatchUpPlan
from agents.trainer.step.outcomes import ReceivedStep
from controlplane.core.protocol.wire import Membership

#: Smaller states are sent while all members wait: faster than the steps of catching up.
STREAM_FROM_BYTES = 4 * 1024**2
#: Pieces of a stream under way at a time; few, because training needs the processor as well.
STREAM_LANES = 2
#: Time limit for a failed or aborted stream to end (it may still write a variable).
STREAM_END_LIMIT_S = 10.0
#: Memory limit of kept vectors: the larger of `KEPT_BYTES` and `KEPT_STATES` times the state.
KEPT_BYTES = 1024**3
KEPT_STATES = 2
#: Steps that a learner replays between two exchanges. With one it would never catch up; with more
#: the other members would wait for it.
REPLAYED_PER_STEP = 2


@dataclass(frozen=True)
class IncomingState:
    """A state in transfer to this trainer.

    Attributes:
        coming: the state's progress, once the variables are set.
    """

    note: CatchUpPlan
    coming: Future[Progress]
    num_bytes: int

    @property
    def is_here(self) -> bool:
        """Return whether the transfer has ended, successfully or not."""
        return self.coming.done()


class Stream:
    """A background thread that sends or receives a state; at most one transfer at a time.

    Sending begins after the first step of the interim session, to keep that step fast.
    """

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="stream")
        self._moving: Future[Any] | None = None
        self._has_stepped = threading.Event()
        self._has_stepped.set()

    def send(self, move: Callable[[], None]) -> None:
        """Call `move` in the thread, once the first step has ended."""
        self._has_stepped.clear()

        def wait_and_move() -> None:
            self.wait_for_step()
            move()

        self._moving = self._executor.submit(wait_and_move)

    def receive(self, move: Callable[[], Progress]) -> Future[Progress]:
        """Call `move` in the thread at once."""
        self._moving = coming = self._executor.submit(move)
        return coming

    def wait_for_step(self) -> None:
        """Block a background thread until the first step of the interim session, if any, ends."""
        self._has_stepped.wait()

    def check(self, waits: bool = False) -> None:
        """Release the sender after a step; check the transfer, or wait for its end if `waits`.

        Raises:
            Exception: the error that ended the transfer.
        """
        self._has_stepped.set()
        if self._moving is not None and (waits or self._moving.done()):
            self._moving.result()
            self._moving = None

    def end(self) -> None:
        """Wait for the end after a failure or an abort, at most `STREAM_END_LIMIT_S`."""
        self._has_stepped.set()
        if self._moving is not None:
            wait([self._moving], timeout=STREAM_END_LIMIT_S)
            self._moving = None


class Rehearsal:
    """Background thread for the rehearsal of the next membership, while steps continue."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="rehearsal")
        self._generation = -1
        self._under_way: Future[None] | None = None

    def is_over(self, generation: int, rehearse: Callable[[], None]) -> bool:
        """Call `rehearse` in the thread, once per generation; return whether it has ended.

        Raises:
            Exception: the error that ended it.
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
        """Wait for the end after a failure or an abort, at most `STREAM_END_LIMIT_S`."""
        if self._under_way is not None:
            wait([self._under_way], timeout=STREAM_END_LIMIT_S)


class StepLog:
    """Received steps that are not replayed yet, in order, within a memory limit."""

    def __init__(self, state_bytes: int) -> None:
        self._limit_bytes = max(KEPT_BYTES, KEPT_STATES * state_bytes)
        self._kept: deque[ReceivedStep] = deque()
        self._num_bytes = 0
        self._largest_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def is_full(self) -> bool:
        """Return whether another step as large as the largest so far would exceed the limit."""
        return self._num_bytes + self._largest_bytes > self._limit_bytes

    def add(self, received: ReceivedStep) -> None:
        size = _num_bytes(received)
        self._largest_bytes = max(self._largest_bytes, size)
        self._num_bytes += size
        self._kept.append(received)

    def take(self) -> ReceivedStep:
        """Remove and return the oldest step."""
        received = self._kept.popleft()
        self._num_bytes -= _num_bytes(received)
        return received


def stream_note(
    old: Membership, new: Membership, joiners: Sequence[int], progress: Progress
) -> CatchUpPlan | None:
    """Plan the interim phase of `new`; None if an old member leaves, which rules it out."""
    shares = {member.slot: member.virtual_nodes for member in old.members}
    if any(new.member(slot) is None for slot in shares):
        return None
    cursor = replace(progress, train_logs={}, history=(), recent=())
    return CatchUpPlan(cursor, shares | dict.fromkeys(joiners, ()))


def interim_membership(membership: Membership, note: CatchUpPlan) -> Membership:
    """Return the membership with the mapping that holds until all learners have caught up."""
    members = [replace(m, virtual_nodes=note.shares[m.slot]) for m in membership.members]
    return replace(membership, members=tuple(members))


def working_slots(membership: Membership) -> list[int]:
    """List the slots of members that have virtual nodes."""
    return [member.slot for member in membership.members if member.virtual_nodes]


def listen(
    arrival: IncomingState,
    state_bytes: int,
    schedule: TrainingSchedule,
    receive_step: Callable[[Progress], ReceivedStep],
    arrive: Callable[[Progress], None],
    replay: Callable[[ReceivedStep], None],
) -> None:
    """Receive steps as a learner until the state is complete and all of them are replayed.

    Args:
        receive_step: takes part in the step at the cursor and returns its reduced vectors.
        arrive: called once with the state's progress, when the variables are set.
        replay: applies a received step.
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
        assert cursor is not None, "a learner has a cursor"
        kept.add(receive_step(cursor))
        cursor = schedule.predicted_next(cursor)


def _num_bytes(received: ReceivedStep) -> int:
    return int(received.vectors.shape.num_elements()) * int(received.vectors.dtype.size)
