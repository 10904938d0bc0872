"""One trainer's life: boot, join, step after step, switch, finish. The loop is `Trainer.run`."""

from __future__ import annotations

import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from agents.trainer.collectives.groups import membership_without, training_group
from agents.trainer.contract.failures import EXIT_DONE, EXIT_FAILED, PEER_LOST, TrainerError
from agents.trainer.contract.ports import HeldPort
from agents.trainer.contract.run_dir import OrderWatcher, ReportWriter
from agents.trainer.contract.user_errors import JobCodeError, own_frames_kept
from agents.trainer.engine.boot import trainer_boot
from agents.trainer.engine.session import MembershipSession
from agents.trainer.model.checkpointing import AsyncCheckpointer
from agents.trainer.model.outputs import state_save
from agents.trainer.model.progress import Progress
from agents.trainer.peers.reachability import slots_unreachable
from agents.trainer.resize.catch_up import IncomingState, listen
from agents.trainer.resize.membership_change import MembershipChange
from agents.trainer.resize.switch_header import CatchUpPlan
from agents.trainer.step.batch_plan import Planner
from agents.trainer.step.stepper import ReceivedStep
from controlplane.core.protocol.codec import encode
from controlplane.core.protocol.wire import Membership, ReportKind, Task, TrainerOrders


def trainer_run(
    run_dir: Path,
    parent_pid: int | None = None,
    watcher: OrderWatcher | None = None,
    held: HeldPort | None = None,
) -> int:
    """Follow the orders in `run_dir` to the end; returns the exit status.

    Args:
        watcher: of this run directory, when it was made earlier than TensorFlow was imported.
        held: this trainer's own port, held since then.
    """
    started_at = time.monotonic()
    watcher = watcher or OrderWatcher(run_dir, parent_pid)
    orders = watcher.orders
    reports = ReportWriter(run_dir, orders.spec.job_id, orders.slot)
    reports.generation = orders.membership.generation
    try:
        return Trainer(run_dir, watcher, reports, started_at, held).run()
    except JobCodeError as error:
        failure = TrainerError("user_code", error.message, error.traceback)
    except TrainerError as error:
        failure = error if error.code != "user_code" else own_frames_kept(error, run_dir / "code")
    except MemoryError:
        failure = TrainerError("out_of_memory", "out of memory", traceback.format_exc())
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        failure = TrainerError("internal", message, traceback.format_exc())
    reports.failed(failure)
    return EXIT_FAILED


class Trainer:
    """The process that does a job's steps on one accelerator."""

    def __init__(
        self,
        run_dir: Path,
        watcher: OrderWatcher,
        reports: ReportWriter,
        started_at: float,
        held: HeldPort | None = None,
    ) -> None:
        """Boot the runtime, build the job and get ready; nothing is trained yet."""
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
        self.stepped_at = started_at
        booted = trainer_boot(run_dir, watcher, reports, started_at, held)
        self.runtime, self.work, self.task = booted.runtime, booted.work, booted.task
        self.stepper = booted.task.stepper
        self.readiness = booted.readiness
        state = self.work.state
        rehearse = self._rehearse if self.spec.task is Task.TRAIN else None
        self.membership_change = MembershipChange(self.runtime, state, reports, rehearse)
        if booted.peer_filter is not None:
            booted.peer_filter.refresh()  # the beacon has a socket now
        self.saver = AsyncCheckpointer(self.outputs, self.spec.checkpoint_every_s, state, reports)

    def run(self) -> int:
        """Follow orders until the job or this trainer's part in it is over; gives the exit status.

        A lost peer interrupts whatever is under way. State and progress then are those after the
        last step that was completed here, and stay so until there are orders to recover.
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
        """Do steps until there are orders to follow now; None when the job is over."""
        if self.membership.hold and not self.progress.is_over:
            return self.watcher.wait_for(self._is_next)  # all members are at the same point
        while not self.progress.is_over:
            orders = self.watcher.recovery_after(self.membership.generation)
            if orders is not None:
                return orders
            started_at = time.monotonic()
            session = self.session
            assert session is not None, "a member has a session"
            batch = session.batch(self.progress)
            outcome = self.stepper.step(batch, self._holds_next)
            self.stepped_at = time.monotonic()
            if self._is_leader():
                self.task.take(self.progress, outcome)
            seconds = self.stepped_at - started_at
            self.progress = session.advance(
                self.progress, batch.plan.num_examples, outcome, seconds
            )
            if self._is_leader() and not self.progress.is_failed:
                self.saver.after_step(self.progress)
            if session.is_interim:
                self._end_interim(outcome.is_agreed)
            elif outcome.is_agreed and not self.progress.is_over:
                assert self._coming is not None, "an agreement includes this trainer"
                return self._coming
        self._finish()
        return None

    def _holds_next(self) -> bool:
        """Say whether there are orders, kept then, that can be followed after the step under way.

        While joiners listen this says who has caught up; the next orders wait until all have.
        """
        if self.session is not None and self.session.is_interim:
            return True
        self._coming = orders = self.watcher.next_after(self.membership.generation)
        if orders is None or orders.membership.recover:
            return False
        return self.membership_change.is_prepared(self.membership, orders.membership, self.progress)

    def _is_leader(self) -> bool:
        return self.membership.leader_slot == self.slot

    # ---- memberships ---------------------------------------------------------------------------

    def _wait_to_join(self) -> TrainerOrders:
        """Say that this trainer is ready and wait for the orders to come in.

        While it waits, another membership may replace the first; it is ready for that too.
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
        """Go over to the membership of `orders`; says whether this trainer is in it."""
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
            moved, note = self.membership_change.switch(self.membership, new, self.progress)
        self.has_state = True
        if new.resume_at is not None:
            self.progress = self.work.data.course.resumed(self.progress, new.resume_at)
        pause_s = 0.0 if joins else time.monotonic() - self.stepped_at
        session = self._enter(new, note)
        self._take_up_scaling()
        self._report_switched(pause_s=pause_s, bytes_moved=moved, joined=joins)
        session.report_missed(self.progress)
        return True

    def _listen(self, new: Membership, arrival: IncomingState) -> None:
        """Take part in the others' steps until the state has come and they are all done here too.

        Until then there is no state that could count in a recovery.
        """
        self.progress = arrival.note.cursor
        session, stepper = self._enter(new, arrival.note), self.stepper

        def hear(cursor: Progress) -> ReceivedStep:
            self._yield_to_recovery()
            heard: ReceivedStep = stepper.listen(session.batch(cursor))
            return heard

        def arrive(progress: Progress) -> None:
            self.progress = progress
            session.report_missed(progress)
            self.membership_change.digest_beside("after", progress)
            self._take_up_scaling()

        def replay(heard: ReceivedStep) -> None:
            outcome = stepper.replay(heard)
            self.progress = session.advance(
                self.progress, heard.num_examples, outcome, heard.seconds
            )

        listen(arrival, self.work.state.num_bytes, session.data.course, hear, arrive, replay)
        self.has_state = True
        self._report_switched(pause_s=0.0, bytes_moved=arrival.num_bytes, joined=True)

    def _end_interim(self, is_agreed: bool) -> None:
        """Take up the membership's own mapping once all have caught up."""
        self.membership_change.stream.check()
        if is_agreed and not self.progress.is_over:
            self._close_session()
            self.progress = self._enter(self.membership).judged(self.progress)

    def _leave(self, new: Membership) -> None:
        """End this trainer's part: others go on, or the job is stopped and its state saved."""
        if not self.has_state or new.recover:
            pass  # nobody waits for this trainer
        elif new.members:
            self.membership_change.switch(self.membership, new, self.progress)
        elif new.source_slot == self.slot:
            self.reports.phase("saving")
            state = self.work.state
            values = state.capture()
            saved = state_save(self.outputs, state.specs, values, self.progress)
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
        """Wait until everything that runs beside has been reported."""
        self.membership_change.settle()
        self.saver.settle()

    def _yield_to_recovery(self) -> None:
        """Go back to the others rather than end in a generation that is over."""
        if self.watcher.recovery_after(self.reports.generation) is not None:
            raise TrainerError(PEER_LOST, f"generation {self.reports.generation} is over")

    def _stall(self, failure: TrainerError) -> TrainerOrders:
        """Keep what there is and wait for the orders that say who goes on with it."""
        self._close_session()
        self.membership_change.end_beside()
        orders = self.watcher.recovery_after(self.reports.generation)
        if orders is not None:
            return orders
        peers = {member.slot for member in self.membership.members} - {self.slot}
        lost = slots_unreachable(self.membership.declaration, peers)
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
        """Use the time until the orders come for what will most likely have to be done anyway.

        A runtime that is initialised again drops its compiled functions. That takes longest, and is
        for nothing only if the orders name another leader.
        """
        self.runtime.renew(membership_without(self.membership, lost))
        group = training_group(self.membership)
        planner = Planner(self.spec, self.membership, group.slots, self.slot)
        self.task.warm_up(planner, lambda: not self._is_way_out(self.watcher.orders))

    def _is_next(self, orders: TrainerOrders) -> bool:
        """Say whether these orders may be followed and come after those that were last."""
        return orders.go and orders.membership.generation > self.reports.generation

    def _is_way_out(self, orders: TrainerOrders) -> bool:
        """Say whether orders lead out of a stall: to recover, or to leave a job that goes on."""
        new = orders.membership
        is_left_out = bool(new.members) and new.member(self.slot) is None
        leaves = is_left_out and new.source_slot != self.slot and self.has_state
        return self._is_next(orders) and (new.recover or leaves)

    def _close_session(self) -> None:
        """Stop what runs along with the steps of a membership."""
        if self.session is None:
            return
        self.session.close()
        self.session = None
        if self._is_leader():
            self.task.close()

    def _enter(self, membership: Membership, note: CatchUpPlan | None = None) -> MembershipSession:
        """Take the place in a membership; with `note` as long as some listen."""
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
        )
        self.stepper.enter(self.session.group)
        return self.session

    def _rehearse(self, membership: Membership) -> None:
        """Run the exchange of a membership that this trainer will be in."""
        group = training_group(membership)
        planner = Planner(self.spec, membership, group.slots, self.slot)
        batch_size = membership.global_batch_size or self.spec.global_batch_size
        plan = planner.plan(batch_size)
        self.stepper.rehearse(group, plan.rows_per_worker, plan.across)

    def _take_up_scaling(self) -> None:
        """Let the learning rate follow the membership's batch, from the state that is there now."""
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
            },
        )
        if not self.membership.hold:
            self.reports.phase(self.task.phase)

    # ---- end -----------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Give the last values their final form; the leader leaves the job's results.

        The others end after it: should it be lost before its files are written, they write them.
        Of a job that failed the leader alone says so, when its files are there.
        """
        found = self.progress.found if self.progress.is_failed else None
        if found is None:
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
        results = self.task.results_save(self.outputs, self.progress)
        self._settle()
        self._yield_to_recovery()
        if found is None:
            self.reports.write(ReportKind.FINISHED, ending | results)
        else:
            failure = TrainerError(found.code, found.failure_text)
            self.reports.failed(failure, ending | results | {"nonfinite": encode(found)})
        self.membership_change.close(self.membership, is_writer=True)
