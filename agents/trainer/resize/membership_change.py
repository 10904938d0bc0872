"""Switches a trainer from one membership to the next: runtime, state, digests.

This module decides which state is sent; `transfer` sends it. Only joiners need state and only the
source sends it; the other members continue at once and meet the joiners in their next step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from agents.trainer.collectives.groups import training_group
from agents.trainer.collectives.runtime import CollectiveRuntime
from agents.trainer.contract.failures import STATE_LOST, TrainerError
from agents.trainer.contract.ports import declared_address
from agents.trainer.contract.run_dir import ReportWriter
from agents.trainer.model.fork import fork_read, is_forked_state
from agents.trainer.model.progress import Progress
from agents.trainer.model.state import ModelState, checkpoint_read
from agents.trainer.peers.readiness import Beacon, wait_until_ready
from agents.trainer.resize.barriers import (
    await_state_received,
    gather_progress,
    shutdown_barrier,
    state_receivers,
    state_source,
)
from agents.trainer.resize.catch_up import (
    STREAM_FROM_BYTES,
    STREAM_LANES,
    IncomingState,
    Rehearsal,
    Stream,
    stream_note,
)
from agents.trainer.resize.digests import Digests
from agents.trainer.resize.switch_header import (
    CatchUpPlan,
    meeting_receive,
    meeting_send,
    progress_note,
    stream_fits,
)
from agents.trainer.resize.transfer import bytes_moved, state_receive, state_send
from controlplane.core.protocol.wire import Membership, TrainerOrders


class MembershipChange:
    """The changes of membership of one trainer."""

    def __init__(
        self,
        runtime: CollectiveRuntime,
        state: ModelState,
        reports: ReportWriter,
        rehearse: Callable[[Membership], None] | None,
    ) -> None:
        """Start the beacon on this trainer's own port; the runtime must be connected.

        Args:
            rehearse: runs the exchange of a coming membership; None for a prediction job, which
                runs no collectives concurrently with its steps.
        """
        self._runtime = runtime
        self._slot = runtime.slot
        self._state = state
        self._reports = reports
        self._beacon = Beacon(runtime.port.beacon)
        self._rehearse = rehearse
        self._rehearsal = Rehearsal()
        self.stream = Stream()
        self._digests = Digests(state, reports, self.stream.wait_for_step)
        self._is_as_built = True

    def join(self, orders: TrainerOrders) -> tuple[Progress, int] | IncomingState:
        """Receive the state of a running job, or start a job together with its first members.

        Returns:
            Progress of the job and bytes moved, or a state in transfer to this learner.

        Raises:
            TrainerError: `peer_lost`, or the state is not available.
        """
        membership = orders.membership
        self._arrive(membership)
        source = membership.source_slot
        if source is None:
            source = membership.leader_slot
        assert source is not None, "a membership with members has a leader"
        if source == self._slot:
            progress = self._first_progress(orders)
            others = [member.slot for member in membership.members if member.slot != source]
            return progress, self._give(membership, progress, others)
        self._wait_for_leader(membership)
        received = self._take(membership, source, keeps=membership.source_slot is None)
        assert received is not None, "a joiner is among the joiners"
        if isinstance(received, IncomingState):
            return received
        progress, moved = received
        if _source_leaves(membership):
            await_state_received(self._runtime, membership)
        self.digest_beside("after", progress)
        return progress, moved

    def is_prepared(self, old: Membership, new: Membership, progress: Progress) -> bool:
        """Return, between two steps, whether the switch to `new` is prepared (in the background).

        If there are joiners, the members of `new` meet beforehand and run their exchange once
        with zeros. Connections, group and buffers then exist before the switch.

        Raises:
            TrainerError: `peer_lost`.
        """
        joiners = _joiners(old, new)
        if not self._can_rehearse(old, new, joiners):
            return True

        def meet_and_rehearse() -> None:
            if new.source_slot == self._slot:
                meeting_send(self._runtime, new, self._state, progress, joiners, is_rehearsal=True)
            else:
                assert new.source_slot is not None, "those who rehearse have a source"
                meeting_receive(self._runtime, new, self._state, new.source_slot)
            assert self._rehearse is not None, "only a training member rehearses"
            self._rehearse(new)

        self._beacon.generation = new.generation  # this runtime is the one that `new` will use
        return self._rehearsal.is_over(new.generation, meet_and_rehearse)

    def end_beside(self) -> None:
        """Wait until the background collectives have ended, after a failure or an abort."""
        self._rehearsal.end()
        self.stream.end()

    def switch(
        self, old: Membership, new: Membership, progress: Progress
    ) -> tuple[int, CatchUpPlan | None]:
        """Switch from `old` to `new`, which has members, after a common step.

        No-op for a trainer that is neither a member of `new` nor its source.

        Returns:
            Bytes moved, and the catch-up plan if joiners start as learners.
        """
        is_source = new.source_slot == self._slot
        is_member = new.member(self._slot) is not None
        if not (is_member or is_source):
            return 0, None
        joiners = _joiners(old, new)
        is_new_runtime = self._arrive(new)
        if is_new_runtime:
            self._wait_for_leader(new)
        moved, note = 0, None
        is_met = bool(joiners) or is_new_runtime
        if is_source and is_met:
            if joiners and not is_new_runtime:
                note = self._stream_note(old, new, joiners, progress)
            moved = self._give(new, progress, joiners, note)
        elif is_source:
            self.digest_beside("before", progress)
        elif is_met:
            assert new.source_slot is not None
            note = meeting_receive(self._runtime, new, self._state, new.source_slot).stream
        if is_met and _source_leaves(new):
            await_state_received(self._runtime, new)
        if not joiners and new.leader_slot == self._slot:
            self.digest_beside("after", progress)
        return moved, note

    def recover(self, orders: TrainerOrders, held: Progress | None) -> tuple[Progress, int]:
        """Meet the remaining members after a loss; the most advanced one sends its state.

        Args:
            held: progress of this trainer's own state; None without a state.

        Returns:
            Progress of the job and bytes moved.

        Raises:
            TrainerError: `peer_lost`, again; the own state is unchanged.
        """
        membership = orders.membership
        assert membership.leader_slot is not None, "a membership with members has a leader"
        self.end_beside()
        self._arrive(membership, reinitialize=True)
        self._wait_for_leader(membership)
        standings = gather_progress(self._runtime, training_group(membership), held)
        source = state_source(standings)
        is_first = source is None
        if source is None:
            source = membership.leader_slot
            receivers = [member.slot for member in membership.members if member.slot != source]
            if source == self._slot:
                held = self._first_progress(orders)
        else:
            receivers = state_receivers(standings, source)
        if source == self._slot:
            assert held is not None, "the source has a state"
            return held, self._give(membership, held, receivers) if receivers else 0
        if not receivers:
            assert held is not None, "everybody is equally far"
            return held, 0
        received = self._take(membership, source, keeps=is_first or held is not None)
        if received is None:
            assert held is not None, "those without a state receive one"
            return held, 0
        assert not isinstance(received, IncomingState), "nobody listens in a recovery"
        self.digest_beside("after", received[0])
        return received

    def close(self, membership: Membership, is_writer: bool) -> None:
        """Pass the shutdown barrier, which the writer enters after reporting its files.

        Raises:
            TrainerError: `peer_lost`: the files may be missing.
        """
        shutdown_barrier(self._runtime, training_group(membership), is_writer)

    def digest_beside(self, role: str, progress: Progress) -> None:
        """Report the digest of the present state, computed in the background."""
        self._digests.report(role, progress, self._state.capture_whole())

    def settle(self) -> None:
        """Wait until the transfer has ended and all digests are reported."""
        self.stream.check(waits=True)
        self._digests.settle()

    def _arrive(self, membership: Membership, reinitialize: bool = False) -> bool:
        """Connect the runtime for a membership and announce that on the beacon.

        Returns:
            Whether the runtime was initialised.
        """
        is_new_runtime = self._runtime.connect(membership, reinitialize)
        self._beacon.generation = membership.generation
        return is_new_runtime

    def _wait_for_leader(self, membership: Membership) -> None:
        leader = membership.leader_slot
        assert leader is not None, "a membership with members has a leader"
        if leader != self._slot:
            address = declared_address(membership.cluster_addresses, leader)
            wait_until_ready(address, membership.generation, lambda: self._runtime.is_superseded)

    def _first_progress(self, orders: TrainerOrders) -> Progress:
        """Start from the state as built (from the seed) or from a checkpoint."""
        if not orders.membership.restore:
            if not self._is_as_built:  # the last owner of the state was lost while sending it
                raise TrainerError(STATE_LOST, "nobody is left who has the state of the training")
            return Progress()
        if orders.checkpoint_path is None:
            raise TrainerError("internal", "orders want a restore but name no checkpoint")
        path = Path(orders.checkpoint_path)
        if is_forked_state(path, orders.spec.fork):
            return fork_read(path, self._state, orders.spec)
        return Progress.from_json(checkpoint_read(path, self._state))

    @property
    def _can_work_beside(self) -> bool:
        """Return whether collectives can run during steps; on GPUs their order must be fixed."""
        return self._runtime.hint == "auto" and self._rehearse is not None

    def _can_rehearse(self, old: Membership, new: Membership, joiners: Sequence[int]) -> bool:
        """Return whether to rehearse `new`; all members of `old` that stay decide alike."""
        if not joiners or old.parked or new.recover or new.member(self._slot) is None:
            return False
        has_source = new.source_slot is not None and new.member(new.source_slot) is not None
        return has_source and self._can_work_beside and not self._runtime.needs_connect(new)

    def _stream_note(
        self, old: Membership, new: Membership, joiners: Sequence[int], progress: Progress
    ) -> CatchUpPlan | None:
        """Plan the start of `new` during the transfer; None: the members wait for the state."""
        is_worth_it = self._state.num_bytes >= STREAM_FROM_BYTES
        # Learners cannot foresee what a selection pass will choose, nor have they the branches of
        # a tuned job: the others wait for them.
        is_waited_for = self._state.selection is not None or self._state.tunables is not None
        if not self._can_work_beside or not is_worth_it or old.parked or is_waited_for:
            return None
        note = stream_note(old, new, joiners, progress)
        return note if note is not None and stream_fits(note, len(joiners)) else None

    def _take(
        self, membership: Membership, source: int, keeps: bool
    ) -> tuple[Progress, int] | IncomingState | None:
        """Meet the other members and receive the state, if this trainer is a joiner.

        Args:
            keeps: keep the current state until the new one is complete; needed if the source is
                lost during the transfer.
        """
        self._is_as_built = self._is_as_built and keeps
        runtime, state = self._runtime, self._state
        meeting = meeting_receive(runtime, membership, state, source)
        if meeting.is_rehearsal:
            assert self._rehearse is not None, "the others train, and so does this one"
            self._rehearse(membership)
            meeting = meeting_receive(runtime, membership, state, source)
        if self._slot not in meeting.joiners:
            return None
        moved = bytes_moved(state, meeting.note_bytes)
        if meeting.stream is None:
            progress = state_receive(
                runtime, membership, state, source, meeting, keeps_until_complete=keeps
            )
            return progress, bytes_moved(state, meeting.note_bytes, 1 + len(progress.parked))
        coming = self.stream.receive(
            partial(state_receive, runtime, membership, state, source, meeting, lanes=STREAM_LANES)
        )
        return IncomingState(meeting.stream, coming, moved)

    def _give(
        self,
        membership: Membership,
        progress: Progress,
        joiners: Sequence[int],
        note: CatchUpPlan | None = None,
    ) -> int:
        runtime, state = self._runtime, self._state
        values = state.capture_whole()
        meeting_send(runtime, membership, state, progress, joiners, note)
        note_bytes = int(progress_note(progress).size)
        moved = bytes_moved(state, note_bytes, 1 + len(progress.parked)) if joiners else 0
        if joiners and note is None:
            state_send(runtime, membership, state, values, progress, joiners)
        elif joiners:
            give = partial(state_send, runtime, membership, state, values, progress, joiners)
            self.stream.send(partial(give, STREAM_LANES))
        self._digests.report("before", progress, values)
        return moved


def _source_leaves(membership: Membership) -> bool:
    source = membership.source_slot
    return source is not None and membership.member(source) is None


def _joiners(old: Membership, new: Membership) -> list[int]:
    return [member.slot for member in new.members if old.member(member.slot) is None]
