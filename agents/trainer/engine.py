"""One trainer's life: boot, join, step after step, switch, finish. The loop is `Trainer.run`."""

from __future__ import annotations

import time
import traceback
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from agents.trainer.beacon import Beacon, wait_until_ready
from agents.trainer.failures import EXIT_DONE, EXIT_FAILED, TrainerError
from agents.trainer.feeder import Feeder
from agents.trainer.orders import OrderWatcher, ReportWriter
from agents.trainer.outputs import CHECKPOINT_FILE, outputs_write
from agents.trainer.planning import Planner
from agents.trainer.progress import Activity, Progress
from agents.trainer.runtime import (
    CollectiveRuntime,
    configure_devices,
    declared_address,
    training_group,
)
from agents.trainer.state import checkpoint_read, checkpoint_write, state_digest
from agents.trainer.step_reports import StepReports
from agents.trainer.stepper import Stepper
from agents.trainer.transfer import state_receive, state_send
from agents.trainer.user_errors import JobCodeError
from agents.trainer.workload import Workload, workload_build
from controlplane.core.wire import Membership, ReportKind, TrainerOrders

Tensor = Any


def trainer_run(run_dir: Path, parent_pid: int | None = None) -> int:
    """Follow the orders in `run_dir` to the end; returns the exit status."""
    started_at = time.monotonic()
    watcher = OrderWatcher(run_dir, parent_pid)
    orders = watcher.orders
    reports = ReportWriter(run_dir, orders.spec.job_id, orders.slot)
    reports.generation = orders.membership.generation
    try:
        Trainer(run_dir, watcher, reports, started_at).run()
    except JobCodeError as error:
        failure = TrainerError("user_code", f"{error.field}: {error.message}", error.traceback)
    except TrainerError as error:
        failure = error
    except MemoryError:
        failure = TrainerError("out_of_memory", "out of memory", traceback.format_exc())
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        failure = TrainerError("internal", message, traceback.format_exc())
    else:
        return EXIT_DONE
    reports.failed(failure)
    return EXIT_FAILED


class Trainer:
    """The process that does a job's steps on one accelerator."""

    def __init__(
        self, run_dir: Path, watcher: OrderWatcher, reports: ReportWriter, started_at: float
    ) -> None:
        """Boot the runtime, build the job and get ready; nothing is trained yet."""
        orders = watcher.orders
        self.run_dir = run_dir
        self.watcher = watcher
        self.reports = reports
        self.spec = orders.spec
        self.slot = orders.slot
        reports.phase("booting")
        configure_devices(orders.accelerator)
        self.runtime = CollectiveRuntime(self.slot, orders.accelerator)
        self.membership = orders.membership
        self.runtime.connect(self.membership)
        self.beacon = Beacon(_own_port(self.membership, self.slot))
        self.beside = ThreadPoolExecutor(1, thread_name_prefix="digest")
        self.pending: list[Future[None]] = []
        boot_s = time.monotonic() - started_at
        self.work: Workload = workload_build(run_dir, self.spec, reports)
        self.progress = Progress()
        trace_s = self._warm_up()
        reports.write(ReportKind.READY, boot_s=boot_s, build_s=self.work.build_s, trace_s=trace_s)

    def run(self) -> None:
        """Join, then do steps until the job or this trainer's part in it is over."""
        self._join(self.watcher.wait_for_go())
        while not self.progress.is_over:
            orders = self.watcher.next_after(self.membership.generation)
            started_at = time.monotonic()
            batch = self.feeder.next(self.progress)
            outcome = self.stepper.step(batch, holds_next=orders is not None)
            ended_at = time.monotonic()
            self._advance(batch.plan.num_examples, outcome.loss, ended_at - started_at)
            if outcome.is_agreed and orders is not None and not self.progress.is_over:
                if not self._switch(orders, ended_at):
                    return
        self._finish()

    # ---- steps ---------------------------------------------------------------------------------

    def _advance(self, num_examples: int, loss: float, seconds: float) -> None:
        """Move the cursor past a batch; at an activity's end, collect and reset its metrics."""
        course = self.work.data.course
        is_train = self.progress.activity is Activity.TRAIN
        self.progress = course.after_batch(self.progress, seconds)
        if is_train and self._is_leader():
            self.step_reports.add(self.progress, num_examples, seconds, loss)
        if not course.is_activity_over(self.progress):
            return
        logs = self.work.logs()
        if is_train:
            logs |= self.work.learning_rate()
        self.work.model.reset_metrics()
        epoch = self.progress.epoch
        try:
            self.progress = course.after_activity(self.progress, logs)
        except KeyError as error:
            known = ", ".join(sorted(logs))
            raise TrainerError(
                "user_code", f"stop.metric {error} is not in the epoch's logs ({known})"
            ) from error
        if self._is_leader():
            self.step_reports.flush()
            self._report_activity(epoch)

    def _report_activity(self, epoch: int) -> None:
        if self.progress.epoch == epoch:
            self.reports.phase("evaluating")
            return
        row = self.progress.history[-1]
        self.reports.write(
            ReportKind.EPOCH, epoch=row.epoch, step=row.step, logs=_json_numbers(row.logs)
        )
        if self.work.data.course.num_validation and not self.progress.is_over:
            self.reports.phase("training")

    def _is_leader(self) -> bool:
        return self.membership.leader_slot == self.slot

    # ---- memberships ---------------------------------------------------------------------------

    def _join(self, orders: TrainerOrders) -> None:
        """Come into a running job, or begin it together with the other first members."""
        membership = orders.membership
        self.runtime.connect(membership)
        self.beacon.generation = membership.generation
        self.reports.generation = membership.generation
        source = membership.source_slot
        slots = [member.slot for member in membership.members]
        moved = 0
        if source is None:
            source = membership.leader_slot
            assert source is not None
            if source == self.slot:
                self._make_state(orders)
                moved = self._give_state(membership, [slot for slot in slots if slot != source])
        if source != self.slot:
            leader = membership.leader_slot
            assert leader is not None
            if leader != self.slot:
                wait_until_ready(
                    declared_address(membership.declaration, leader), membership.generation
                )
            received = state_receive(self.runtime, membership, self.work.state, source)
            assert received is not None, "a joiner is among the joiners"
            self.progress, moved = received
            self._digest_beside("after", self.work.state.capture())
        self._enter(membership)
        self._report_switched(pause_s=0.0, bytes_moved=moved, joined=True)

    def _make_state(self, orders: TrainerOrders) -> None:
        """Be the first to have the state: the seed's, as built, or a checkpoint's."""
        if orders.membership.restore:
            if orders.checkpoint_path is None:
                raise TrainerError("internal", "orders want a restore but name no checkpoint")
            restored = checkpoint_read(Path(orders.checkpoint_path), self.work.state)
            self.progress = Progress.from_json(restored)

    def _give_state(self, membership: Membership, joiners: list[int]) -> int:
        values = self.work.state.capture()
        self._digest_beside("before", values)
        return state_send(self.runtime, membership, self.work.state, values, self.progress, joiners)

    def _switch(self, orders: TrainerOrders, ended_at: float) -> bool:
        """Go over to the next membership; says whether this trainer is in it.

        All old members are here after the same step. Only the source and the joiners have state to
        move; the others are ready at once and wait for the joiners in their next step.
        """
        old, new = self.membership, orders.membership
        if self._is_leader():
            self.step_reports.flush()
        self.feeder.stop()
        self.reports.generation = new.generation
        if not new.members:
            self._save_and_leave(new)
            return False
        is_source = new.source_slot == self.slot
        is_member = new.member(self.slot) is not None
        joiners = [member.slot for member in new.members if old.member(member.slot) is None]
        moved = 0
        if is_member or is_source:
            is_new_runtime = self.runtime.connect(new)
            self.beacon.generation = new.generation
            if is_new_runtime:
                self._wait_for_leader(new)
            if is_source:
                moved = self._meet_as_source(new, joiners, is_new_runtime)
            elif joiners or is_new_runtime:
                assert new.source_slot is not None
                state_receive(self.runtime, new, self.work.state, new.source_slot)
        if not is_member:
            self.reports.write(ReportKind.LEFT, step=self.progress.step)
            self._settle()
            return False
        pause_s = time.monotonic() - ended_at
        self._enter(new)
        if not joiners and self._is_leader():
            self._digest_beside("after", self.work.state.capture())
        self._report_switched(pause_s=pause_s, bytes_moved=moved, joined=False)
        return True

    def _wait_for_leader(self, membership: Membership) -> None:
        leader = membership.leader_slot
        if leader is not None and leader != self.slot:
            wait_until_ready(
                declared_address(membership.declaration, leader), membership.generation
            )

    def _meet_as_source(self, new: Membership, joiners: list[int], is_new_runtime: bool) -> int:
        if joiners or is_new_runtime:
            return self._give_state(new, joiners)
        self._digest_beside("before", self.work.state.capture())
        return 0

    def _enter(self, membership: Membership) -> None:
        """Take the place in a membership: group, plan, data."""
        self.membership = membership
        group = training_group(membership)
        self.stepper.enter(group)
        planner = Planner(self.spec, membership, group.slots, self.slot)
        self.feeder = Feeder(self.work.data, planner, self.progress)
        self.step_reports = StepReports(self.reports, len(membership.members))

    def _report_switched(self, pause_s: float, bytes_moved: int, joined: bool) -> None:
        self.reports.write(
            ReportKind.SWITCHED,
            step=self.progress.step,
            pause_s=pause_s,
            bytes_moved=bytes_moved,
            joined=joined,
        )
        self.reports.phase("training")

    def _warm_up(self) -> float:
        """Trace and run everything once, so that nobody waits for it later; state is put back."""
        started_at = time.monotonic()
        self.reports.phase("tracing")
        self.functions = self.work.trace()
        group = training_group(self.membership)
        self.stepper = Stepper(
            self.functions, self.spec.reduction, self.runtime.hint, self.slot, group
        )
        planner = Planner(self.spec, self.membership, group.slots, self.slot)
        if self.membership.source_slot is not None or self._is_leader():
            self._warm_up_collectives(planner.rows_per_worker)
        self.work.warm_up(self.functions, planner)
        return time.monotonic() - started_at

    def _warm_up_collectives(self, rows_per_worker: int) -> None:
        """Run the collectives too, where the leader is sure to be there to resolve them."""
        try:
            self.stepper.warm_up(rows_per_worker)
        except TrainerError:  # it has just gone; whoever comes next is met at the switch
            self.runtime.reconnect(self.membership)

    # ---- ends ----------------------------------------------------------------------------------

    def _save_and_leave(self, membership: Membership) -> None:
        """Preempted to nothing: the source keeps the state in a file, all leave."""
        step = self.progress.step
        if membership.source_slot != self.slot:
            self.reports.write(ReportKind.LEFT, step=step)
            self._settle()
            return
        self.reports.phase("saving")
        path = self.run_dir / "outputs" / CHECKPOINT_FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        state = self.work.state
        digest = checkpoint_write(path, state.specs, state.capture(), self.progress.to_json())
        self._settle()
        self.reports.write(
            ReportKind.CHECKPOINTED,
            step=step,
            epoch=self.progress.epoch,
            file=CHECKPOINT_FILE,
            sha256=digest,
            bytes=path.stat().st_size,
        )

    def _finish(self) -> None:
        """Give the last values their final form; the leader leaves the job's results."""
        model = self.work.model
        model.optimizer.finalize_variable_values(model.trainable_variables)
        assert self.progress.ended_by is not None
        ending = {
            "step": self.progress.step,
            "epoch": self.progress.epoch,
            "reason": str(self.progress.ended_by),
        }
        if self._is_leader():
            self.step_reports.flush()
            self.reports.phase("saving")
            digest = state_digest(self.work.state.specs, self.work.state.capture())
            files, metrics = outputs_write(self.run_dir / "outputs", model, self.progress, digest)
            ending |= {"metrics": _json_numbers(metrics), "digest": digest, "files": files}
        self._settle()
        self.reports.write(ReportKind.FINISHED, **ending)

    def _digest_beside(self, role: str, values: list[Tensor]) -> None:
        """Compute and report a digest beside the training, from values that nobody changes."""
        step, generation = self.progress.step, self.membership.generation
        generation = max(generation, self.reports.generation)

        def compute() -> None:
            digest = state_digest(self.work.state.specs, values)
            self.reports.write(ReportKind.DIGEST, generation, step=step, sha256=digest, role=role)

        self.pending.append(self.beside.submit(compute))

    def _settle(self) -> None:
        """Wait for what still runs beside."""
        for future in self.pending:
            future.result()


def _own_port(membership: Membership, slot: int) -> int:
    return int(declared_address(membership.declaration, slot).rpartition(":")[2])


def _json_numbers(logs: dict[str, float]) -> dict[str, float | None]:
    """JSON knows neither nan nor infinity; both become null."""
    return {name: value if abs(value) < float("inf") else None for name, value in logs.items()}
