"""Life cycle of one trainer: boot, join, train, switch, finish. The main loop is `Trainer.run`."""

from __future__ import annotations

import dataclasses
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agents.trainer.collectives.groups import membership_without, training_group
from agents.trainer.contract.failures import EXIT_DONE, EXIT_FAILED, PEER_LOST, TrainerError
from agents.trainer.contract.full_disk import FULL_DISK_LIMIT_S, room_awaited
from agents.trainer.contract.ports import HeldPort
from agents.trainer.contract.run_dir import OrderWatcher, ReportWriter
from agents.trainer.contract.user_errors import JobCodeError, own_frames_kept
from agents.trainer.engine.boot import trainer_boot
from agents.trainer.engine.session import MembershipSession
from agents.trainer.model.checkpointing import AsyncCheckpointer
from agents.trainer.model.outputs import state_save
from agents.trainer.model.progress import Activity, Progress
from agents.trainer.model.state import state_adopt
from agents.trainer.peers.reachability import slots_unreachable
from agents.trainer.resize.catch_up import IncomingState, listen
from agents.trainer.resize.membership_change import MembershipChange
from agents.trainer.resize.switch_header import CatchUpPlan
from agents.trainer.step.batch_plan import Planner
from agents.trainer.step.outcomes import ReceivedStep
from agents.trainer.tuning.tuner import Tuner
from controlplane.core.protocol.codec import encode
from controlplane.core.protocol.fork import Adoption
from controlplane.core.protocol.wire import Membership, ReportKind, Task, TrainerOrders


def trainer_run(run_dir: Path, watcher: OrderWatcher, held: HeldPort | None) -> int:
    """Follow the orders in `run_dir` to the end; returns the exit status.

    Args:
        watcher: the watcher of this run directory, created before TensorFlow was imported.
        held: this trainer's own port, if taken at that time.
    """
    started_at = time.monotonic()
    orders = watcher.orders
    reports = ReportWriter(run_dir, orders.spec.job_id, orders.slot)
    reports.generation = orders.membership.generation
    failure: TrainerError | None = None
    try:
        status = Trainer(run_dir, watcher, reports, started_at, held).run()
    except JobCodeError as error:
        failure = TrainerError("user_code", error.message, error.traceback)
    except TrainerError as error:
        failure = error if error.code != "user_code" else own_frames_kept(error, run_dir / "code")
    except MemoryError:
        failure = TrainerError("out_of_memory", "out of memory", traceback.format_exc())
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        failure = TrainerError("internal", message, traceback.format_exc())
    if failure is not None:
        status = EXIT_FAILED
        reports.failed(failure)
    reports.settle(FULL_DISK_LIMIT_S)
    return status


class Trainer:
    """The process that does a job's steps on one accelerator."""

    def __init__(
        self,
        run_dir: Path,
        watcher: OrderWatcher,
        reports: ReportWriter,
        started_at: float,
        held: HeldPort | None,
    ) -> None:
        """Boot the runtime, build the job and trace its functions; no step is run for training."""
        orders = watcher.orders
        self.outputs = run_dir / "outputs"
        self.watcher = watcher
        self.reports = reports
        self.spec = orders.spec
        self.slot = orders.slot
        self.membership = orders.membership
        self.progress = Progress()
        self.has_state = False
        self.session: MembershipSession | None = None
        self._coming: TrainerOrders | None = None
        self._final_values: list[Any] = []  # of an ended training, before they are finalized
        self.stepped_at = started_at
        booted = trainer_boot(run_dir, watcher, reports, started_at, held)
        self.runtime, self.task, self.work = booted.runtime, booted.task, booted.task.work
        self.stepper = booted.task.stepper
        self.readiness = booted.readiness
        state = self.work.state
        rehearse = self._rehearse if self.spec.task is Task.TRAIN else None
        self.membership_change = MembershipChange(self.runtime, state, reports, rehearse)
        if booted.peer_filter is not None:
            booted.peer_filter.refresh()  # the beacon has a socket now
        self.saver = AsyncCheckpointer(self.outputs, self.spec.checkpoint_every_s, state, reports)

    def run(self) -> int:
        """Follow orders until the job or this trainer's part in it ends; returns the exit status.

        A lost peer interrupts any operation under way. State and progress are then those after
        the last step completed here, and stay so until orders to recover arrive.
        """
        orders: TrainerOrders | None = self._wait_to_join()
        while orders is not None:
            try:
                orders = self._train() if self._follow(orders) else None
            except TrainerError as failure:
                if failure.code != PEER_LOST:
                    raise
                orders = self._stall(failure)
        is_reporter = self.progress.is_failed and self._is_leader()
        return EXIT_FAILED if is_reporter else EXIT_DONE

    def _train(self) -> TrainerOrders | None:
        """Run steps until there are orders to follow now; returns None when the job is over."""
        if self.membership.parked and not self.progress.is_over:
            return self.watcher.wait_for(self._is_next)  # all members are at the same point
        while not self.progress.is_over:
            orders = self.watcher.recovery_after(self.membership.generation)
            if orders is not None:
                return orders
            started_at = time.monotonic()
            session = self.session
            assert session is not None, "a member has a session"
            batch = session.batch(self.progress)
            if self.work.data.selection is not None:
                self.stepper.times = session.times
            if self.work.tuner is not None:
                self._prepare_trial(session, self.work.tuner)
            outcome = self.stepper.step(batch, self._holds_next)
            self.stepped_at = time.monotonic()
            if self._is_leader():
                self.task.take(self.progress, outcome)
            seconds = self.stepped_at - started_at
            if self.progress.activity is Activity.SELECT:
                self.progress = session.select(self.progress, batch, outcome, seconds)
            else:
                self.progress = session.advance(
                    self.progress, batch.plan.num_examples, outcome, seconds
                )
            if self._is_leader() and not self.progress.is_failed:
                self.saver.after_step(self.progress, self.watcher.orders.save_request)
            if session.is_interim:
                self._end_interim(outcome.is_agreed)
            elif outcome.is_agreed and not self.progress.is_over:
                assert self._coming is not None, "an agreement includes this trainer"
                return self._coming
        self._finish()
        return None

    def _prepare_trial(self, session: MembershipSession, tuner: Tuner) -> None:
        """Begin a search if one is due; as the leader, propose the next trial."""
        self.progress = session.search_begin(self.progress)
        self.stepper.is_trial = self.progress.is_trying
        if self._is_leader():
            self.stepper.proposal = tuner.note(self.progress)
        else:
            self.stepper.proposal = (0.0,) * tuner.num_values

    def _holds_next(self) -> bool:
        """Report whether new orders can be followed after this step; keeps them in `_coming`.

        In an interim session the vote means "caught up": True here, False from learners.
        """
        if self.session is not None and self.session.is_interim:
            return True
        self._coming = orders = self.watcher.next_after(self.membership.generation)
        if orders is None or orders.membership.recover:
            return False
        if self._adoption_of(orders.membership) is not None and orders.adopted_path is None:
            return False  # the state is not here yet
        return self.membership_change.is_prepared(self.membership, orders.membership, self.progress)

    def _adoption_of(self, membership: Membership) -> Adoption | None:
        """Return the adoption that a membership asks for, unless it has been made."""
        adoption = membership.adoption
        is_new = adoption is not None and adoption.number > self.progress.adopted
        return adoption if is_new else None

    def _is_leader(self) -> bool:
        return self.membership.leader_slot == self.slot

    # ---- memberships ---------------------------------------------------------------------------

    def _wait_to_join(self) -> TrainerOrders:
        """Report READY and wait for the orders to join.

        A new membership may replace the first one meanwhile; READY is then reported for it too.
        """
        ready_for = -1
        orders = self.watcher.orders
        while True:
            if ready_for != orders.membership.generation:
                ready_for = self.reports.generation = orders.membership.generation
                self.reports.write(ReportKind.READY, self.readiness)
            if orders.go:
                return orders
            orders = self.watcher.wait_for_change(orders)

    def _follow(self, orders: TrainerOrders) -> bool:
        """Switch to the membership of `orders`; returns whether this trainer is in it."""
        new = orders.membership
        self._close_session()
        self.reports.generation = new.generation
        if new.member(self.slot) is None:
            self._leave(new)
            return False
        joins = not self.has_state
        note: CatchUpPlan | None = None
        if new.recover:
            held = None if joins else self.progress
            self.progress, moved = self.membership_change.recover(orders, held)
        elif joins:
            arrived = self.membership_change.join(orders)
            if isinstance(arrived, IncomingState):
                self._listen(new, arrived)
                return True
            self.progress, moved = arrived
        else:
            self._adopt(orders)
            moved, note = self.membership_change.switch(self.membership, new, self.progress)
        self.has_state = True
        if new.resume_at is not None:
            self.progress = self.work.data.schedule.resumed(self.progress, new.resume_at)
        pause_s = 0.0 if joins else time.monotonic() - self.stepped_at
        session = self._enter(new, note)
        self._take_up_scaling()
        self._report_switched(pause_s=pause_s, bytes_moved=moved, joined=joins)
        session.report_missed(self.progress)
        return True

    def _adopt(self, orders: TrainerOrders) -> None:
        """Go on with the state of the orders' adoption; all members do, after the same step."""
        adoption = self._adoption_of(orders.membership)
        if adoption is not None:
            assert orders.adopted_path is not None, "members agree once all of them have the file"
            state_adopt(Path(orders.adopted_path), self.work.state)
            self.progress = dataclasses.replace(self.progress, adopted=adoption.number)

    def _listen(self, new: Membership, arrival: IncomingState) -> None:
        """Run as a learner until the state has arrived and all received steps are replayed.

        Until then this trainer has no state that counts in a recovery.
        """
        self.progress = arrival.note.cursor
        session, stepper = self._enter(new, arrival.note), self.stepper

        def receive_step(cursor: Progress) -> ReceivedStep:
            self._yield_to_recovery()
            received: ReceivedStep = stepper.listen(session.batch(cursor))
            return received

        def arrive(progress: Progress) -> None:
            self.progress = progress
            session.report_missed(progress)
            self.membership_change.digest_beside("after", progress)
            self._take_up_scaling()

        def replay(received: ReceivedStep) -> None:
            outcome = stepper.replay(received)
            self.progress = session.advance(
                self.progress, received.num_examples, outcome, received.seconds
            )

        listen(
            arrival, self.work.state.num_bytes, session.data.schedule, receive_step, arrive, replay
        )
        self.has_state = True
        self._report_switched(pause_s=0.0, bytes_moved=arrival.num_bytes, joined=True)

    def _end_interim(self, is_agreed: bool) -> None:
        """Switch to the membership's own mapping once all learners have caught up."""
        self.membership_change.stream.check()
        if is_agreed and not self.progress.is_over:
            self._close_session()
            self.progress = self._enter(self.membership).judged(self.progress)

    def _leave(self, new: Membership) -> None:
        """End this trainer's part; if the job is stopped, the source saves its state first."""
        if not self.has_state or new.recover:
            pass  # no member waits for this trainer
        elif new.members:
            self.membership_change.switch(self.membership, new, self.progress)
        elif new.source_slot == self.slot:
            self.reports.phase("saving")
            state = self.work.state
            values = state.capture_whole()
            saved = room_awaited(lambda: state_save(self.outputs, state, values, self.progress))
            self._settle()
            self._yield_to_recovery()
            self.reports.write(ReportKind.CHECKPOINTED, saved | {"is_last": True})
            self.membership_change.close(self.membership, is_writer=True)
            return
        else:
            self.membership_change.close(self.membership, is_writer=False)
        self.reports.write(ReportKind.LEFT, {"step": self.progress.step})
        self._settle()

    def _settle(self) -> None:
        """Wait until all background work (transfer, digests, checkpoint) has been reported."""
        self.membership_change.settle()
        self.saver.settle()

    def _yield_to_recovery(self) -> None:
        """Raise `peer_lost` if there are orders to recover: the present generation is over."""
        if self.watcher.recovery_after(self.reports.generation) is not None:
            raise TrainerError(PEER_LOST, f"generation {self.reports.generation} is over")

    def _stall(self, failure: TrainerError) -> TrainerOrders:
        """Report STALLED, keep the state and wait for orders to recover or to leave."""
        self._close_session()
        self.membership_change.end_beside()
        orders = self.watcher.recovery_after(self.reports.generation)
        if orders is not None:
            return orders
        peers = {member.slot for member in self.membership.members} - {self.slot}
        lost = slots_unreachable(self.membership.cluster_addresses, peers)
        self.reports.write(
            ReportKind.STALLED,
            {
                "step": self.progress.step,
                "message": failure.message,
                "unreachable": lost,
            },
        )
        if self.has_state:
            self._prepare_to_recover(lost)
        return self.watcher.wait_for(self._is_way_out)

    def _prepare_to_recover(self, lost: Sequence[int]) -> None:
        """Re-initialise the runtime without the lost slots and warm up, before the orders arrive.

        Re-initialising drops the compiled functions; compiling them again takes longest. The work
        is wasted only if the orders name another leader.
        """
        self.runtime.renew(membership_without(self.membership, lost))
        group = training_group(self.membership)
        planner = Planner(self.spec, self.membership, group.slots, self.slot)
        self.task.warm_up(planner, lambda: not self._is_way_out(self.watcher.orders))

    def _is_next(self, orders: TrainerOrders) -> bool:
        """Return whether the orders may be followed and are newer than the present generation."""
        return orders.go and orders.membership.generation > self.reports.generation

    def _is_way_out(self, orders: TrainerOrders) -> bool:
        """Return whether orders end a stall: to recover, or to leave a job that continues."""
        new = orders.membership
        is_left_out = bool(new.members) and new.member(self.slot) is None
        leaves = is_left_out and new.source_slot != self.slot and self.has_state
        return self._is_next(orders) and (new.recover or leaves)

    def _close_session(self) -> None:
        """Close the session of the present membership, if one is open."""
        if self.session is None:
            return
        self.session.close()
        self.session = None
        if self._is_leader():
            self.task.close()

    def _enter(self, membership: Membership, note: CatchUpPlan | None = None) -> MembershipSession:
        """Open the session of a membership; with `note`, an interim one while learners catch up."""
        self.membership = membership
        self.session = MembershipSession(
            self.work,
            self.spec,
            self.slot,
            self.reports,
            self.task.phase,
            membership,
            self.progress,
            note,
            lambda: self.watcher.orders.report_every_s,
        )
        self.stepper.enter(self.session.group)
        return self.session

    def _rehearse(self, membership: Membership) -> None:
        """Run the gradient exchange of a coming membership once, with zeros."""
        group = training_group(membership)
        planner = Planner(self.spec, membership, group.slots, self.slot)
        batch_size = membership.global_batch_size or self.spec.global_batch_size
        plan = planner.plan(batch_size)
        self.stepper.rehearse(group, plan.rows_per_worker, plan.across)

    def _take_up_scaling(self) -> None:
        """Scale the learning rate to the membership's batch size, using the present state."""
        scaling = self.work.state.scaling
        if scaling is not None:
            scaling.enter(self.membership.global_batch_size or self.spec.global_batch_size)

    def _report_switched(self, pause_s: float, bytes_moved: int, joined: bool) -> None:
        self.reports.write(
            ReportKind.SWITCHED,
            {
                "step": self.progress.step,
                "pause_s": pause_s,
                "bytes_moved": bytes_moved,
                "joined": joined,
                "adopted": self.progress.adopted,
            },
        )
        if not self.membership.parked:
            self.reports.phase(self.task.phase)

    # ---- end -----------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Finalize the variables; the leader writes and reports the job's results.

        The other members end after the leader: if it is lost before its files are written, they
        write them. A failed job is reported by the leader alone, after its files are written.
        """
        found = self.progress.found if self.progress.is_failed else None
        if found is None:
            if not self._final_values and self.spec.task is Task.TRAIN:
                self._final_values = self.work.state.capture()
            self.task.finish()
        ending = {
            "step": self.progress.step,
            "epoch": self.progress.epoch,
            "reason": self.progress.ended_by if found is None else found.code,
        }
        self._close_session()
        if not self._is_leader():
            self._settle()
            self.membership_change.close(self.membership, is_writer=False)
            self.reports.write(ReportKind.FINISHED, ending)
            return
        self.reports.phase("saving")
        if self._final_values:  # for other jobs to start from
            self.saver.save(self.progress, self._final_values)
        results = room_awaited(lambda: self.task.results_save(self.outputs, self.progress))
        results["passed"] = dataclasses.asdict(self.progress.passed)
        self._settle()
        self._yield_to_recovery()
        if found is None:
            self.reports.write(ReportKind.FINISHED, ending | results)
        else:
            failure = TrainerError(found.code, found.failure_text)
            self.reports.failed(failure, ending | results | {"nonfinite": encode(found)})
        self.membership_change.close(self.membership, is_writer=True)
