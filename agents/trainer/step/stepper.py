"""Steps of a membership: run this trainer's virtual nodes, exchange with the peers, update."""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from agents.trainer.collectives.groups import TrainerGroup, lone_group
from agents.trainer.collectives.runtime import CollectiveRuntime
from agents.trainer.collectives.step_metadata import (
    BusyTimer,
    StepMetadata,
    notes_read,
    notes_write,
)
from agents.trainer.collectives.tree_reduction import Exchange, TreeReduction
from agents.trainer.contract.failures import TrainerError
from agents.trainer.model.progress import Activity
from agents.trainer.step.functions import StepFunctions
from agents.trainer.step.outcomes import ReceivedStep, StepOutcome, of_all_turns
from agents.trainer.step.prefetch import LocalBatch
from controlplane.core.estimates.noise_scale import gradient_noise
from controlplane.core.protocol.wire import ReductionMode
from controlplane.core.selection.cost import ExampleTimes
from controlplane.core.selection.guard import NOT_MEASURED

Tensor = Any
#: Phase of a group (see `TrainerGroup`) during a rehearsal; its steps use the phases 0 and 1.
REHEARSAL_PHASE = 2
#: TensorFlow's errors of a device, a driver or its own runtime (CUDA and cuDNN errors among
#: them); every other error is a fault of the model.
_DEVICE_ERRORS = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DataLossError,
    tf.errors.DeadlineExceededError,
    tf.errors.InternalError,
    tf.errors.UnavailableError,
    tf.errors.UnknownError,
)
#: Part of the message if a Python function of the model raised an error that TensorFlow has not.
_PYTHON_TRACEBACK = "Traceback (most recent call last)"


class Stepper:
    """Runs steps; a new membership changes only its group.

    Attributes:
        times: sent with the next exchange; only the leader of a job that selects sets it.
        proposal: sent with each step; only the leader of a job that is tuned sets it.
        is_trial: the next step belongs to a trial, which a non-finite loss ends without an update.
    """

    def __init__(
        self,
        functions: StepFunctions,
        mode: ReductionMode,
        runtime: CollectiveRuntime,
        group: TrainerGroup,
        *,
        stops_at_nonfinite: bool = False,
        pass_size: int = 0,
    ) -> None:
        """Trace the exchanges for steps of `functions`.

        Args:
            stops_at_nonfinite: refuse updates with a non-finite loss. Ignored with a loss scale,
                which has to process such a step to be lowered.
            pass_size: most candidates of a selection pass, in a job that selects its examples.
        """
        self.functions = functions
        self._is_refusable = stops_at_nonfinite and not functions.has_loss_scale
        self._runtime = runtime
        reduction = TreeReduction(functions.dtype, mode, runtime.hint)
        self._train_exchange = Exchange(reduction, functions.train_width, 0)
        self._validate_exchange = Exchange(reduction, functions.validate_width, 1)
        self._losses_exchange = Exchange(reduction, pass_size, 2)
        self._mode = mode
        self._sender = ThreadPoolExecutor(1, thread_name_prefix="sender")
        self._sent: Future[bool] | None = None
        self._group = group
        self._selects = functions.state.selection is not None
        self.times = NOT_MEASURED
        tunables = functions.state.tunables
        self._no_proposal = () if tunables is None else (0.0,) * len(tunables.names)
        self.proposal = self._no_proposal
        self.is_trial = False
        self.enter(group)

    def warm_up(self, rows_per_worker: int) -> None:
        """Run both exchanges once in a group of one; the leader must be reachable.

        Raises:
            TrainerError: `peer_lost`; the runtime has to be initialised again.
        """
        group = lone_group(self._runtime.slot)
        with self._runtime.collective():
            self._train_exchange.warm_up(group, rows_per_worker)
            if self.functions.has_validation:
                self._validate_exchange.warm_up(group, rows_per_worker)
            if self.functions.losses is not None:
                self._losses_exchange.warm_up(group, rows_per_worker)

    def rehearse(self, group: TrainerGroup, rows_per_worker: int, program: np.ndarray) -> None:
        """Run the exchange of a coming group with zeros, while steps of the present group run.

        Raises:
            TrainerError: `peer_lost`.
        """
        exchange = self._train_exchange
        rows = tf.zeros([rows_per_worker, exchange.width], self.functions.dtype)
        nothing = ((0.0, 0.0) if self._selects else ()) + self._no_proposal
        written = notes_write(self._mode, group, self._runtime.slot, False, 0.0, nothing)
        notes = tf.constant(written, self.functions.dtype)
        group = replace(group, phase=REHEARSAL_PHASE)
        with self._runtime.collective():
            exchange(rows, notes, rows_per_worker, tf.convert_to_tensor(program), group)

    def enter(self, group: TrainerGroup) -> None:
        """Use `group` from the next step on."""
        if group.key != self._group.key:
            self._sent = None  # a send under way failed with its generation
        self._was_agreed = False
        self._group = group
        # Learners cannot foresee a refusal; the job then stops once they have caught up.
        self._can_refuse = self._is_refusable and group.phase == 0
        self._busy = BusyTimer()
        self._is_group_checked = group.size == 1 or self._mode is ReductionMode.FAST

    def step(self, batch: LocalBatch, holds_next: Callable[[], bool]) -> StepOutcome:
        """Run the step for `batch` and vote on whether this trainer holds the next orders.

        Args:
            holds_next: returns the vote; called as late as possible, right before the exchange.

        Raises:
            TrainerError: `peer_lost`, or an error of `step_failures`.
        """
        activity = batch.place[2]
        if activity is Activity.SELECT:
            return self._select(batch, holds_next)
        state, last = self.functions.state, self._num_turns(activity) - 1
        before = state.capture() if last else []
        outcomes: list[StepOutcome] = []
        is_done = False
        try:
            for turn, part in enumerate(batch.repeated(1 + last)):
                votes = holds_next if turn == last else lambda: False
                outcomes.append(self._turn(turn, part, votes))
                if outcomes[-1].is_refused:
                    break
            else:
                is_done = True
        finally:
            if last and not is_done:  # of a step, all turns are done or none
                state.put(before)
        outcome = of_all_turns(outcomes)
        if not outcome.is_refused:
            self._observe(outcome, batch.plan.num_examples)
        return outcome

    def _num_turns(self, activity: Activity) -> int:
        return len(self.functions.turns) if activity is Activity.TRAIN else 1

    def _turn(self, turn: int, batch: LocalBatch, holds_next: Callable[[], bool]) -> StepOutcome:
        """Run one turn of a step of training, or a step of validation."""
        is_train = batch.place[2] is Activity.TRAIN
        with step_failures():
            compute = self.functions.turns[turn].train if is_train else self.functions.validate
            rows = local_rows(compute, batch)
            if self._runtime.hint != "auto":  # GPU operations are asynchronous
                tf.test.experimental.sync_devices()
        busy_s = self._busy.stop(batch.place[2])
        exchange = self._exchange(batch.place[2])
        vector, notes = self._reduce(exchange, rows, batch, holds_next(), busy_s)
        self._busy.start()
        noted = dict(zip(self._group.slots, notes.busy_s, strict=True))
        can_refuse = is_train and (self._can_refuse or self.is_trial)
        proposal = notes.from_leader[2 * self._selects :]
        if can_refuse and not math.isfinite(loss := self._loss(vector, turn)):
            return StepOutcome(loss, notes.is_agreed, noted, is_refused=True, proposal=proposal)
        done = self._update(vector, batch.place[2], turn)
        times = self._times(notes)
        return replace(
            done, is_agreed=notes.is_agreed, busy_s=noted, times=times, proposal=proposal
        )

    def _select(self, batch: LocalBatch, holds_next: Callable[[], bool]) -> StepOutcome:
        """Compute the candidates' losses, each on one trainer, and gather them on all.

        Each trainer's losses are one vector with zeros at all other candidates. Their sum has the
        same bits in any order.
        """
        if not batch.num_pieces:
            return StepOutcome(float("nan"), False, {})
        with step_failures():
            rows = self._own_losses(batch)
            if self._group.size > 1:
                rows = tf.constant(rows, self.functions.dtype)
        vector, notes = self._reduce(self._losses_exchange, rows, batch, holds_next(), busy_s=0.0)
        self._busy.start()
        losses = np.asarray(vector)[: batch.plan.num_examples]
        times = self._times(notes)
        proposal = notes.from_leader[2:]
        return StepOutcome(
            float("nan"), notes.is_agreed, {}, losses=losses, times=times, proposal=proposal
        )

    def _times(self, notes: StepMetadata) -> ExampleTimes:
        return ExampleTimes(*notes.from_leader[:2]) if self._selects else NOT_MEASURED

    def _own_losses(self, batch: LocalBatch) -> np.ndarray:
        """Compute the losses of this trainer's virtual nodes: [num_rows, pass size].

        They stand in the first row; the other rows of the reduction's plan are zero.
        """
        plan = batch.plan
        rows = np.zeros([plan.num_rows, self._losses_exchange.width], np.float32)
        done = 0
        for piece in batch.pieces:
            if not piece.arguments[0].shape[0]:
                continue
            losses = self.functions.losses(*piece.arguments).numpy()
            rows[0, plan.positions[done : done + len(losses)]] = losses
            done += len(losses)
        return rows

    def listen(self, batch: LocalBatch) -> ReceivedStep:
        """Take part in the step for `batch` as a learner: contribute nothing, change no state.

        Raises:
            TrainerError: `peer_lost`, or an error of `step_failures`.
        """
        started_at = time.monotonic()
        activity = batch.place[2]
        exchange = self._exchange(activity)
        vectors = []
        for _ in range(self._num_turns(activity)):
            with step_failures():
                nothing = tf.zeros([0, exchange.width], self.functions.dtype)
            vector, _ = self._reduce(exchange, nothing, batch, holds_next=False, busy_s=0.0)
            vectors.append(vector)
        seconds = time.monotonic() - started_at
        return ReceivedStep(activity, batch.plan.num_examples, tf.stack(vectors), seconds)

    def replay(self, received: ReceivedStep) -> StepOutcome:
        """Apply the updates of a received step.

        Raises:
            TrainerError: an error of `step_failures`.
        """
        outcome = of_all_turns(
            [
                self._update(vector, received.activity, turn)
                for turn, vector in enumerate(tf.unstack(received.vectors))
            ]
        )
        self._observe(outcome, received.num_examples)
        return outcome

    def _exchange(self, activity: Activity) -> Exchange:
        return self._train_exchange if activity is Activity.TRAIN else self._validate_exchange

    def _loss(self, vector: Tensor, turn: int) -> float:
        with step_failures():
            return self.functions.loss_of(vector, turn)

    def _observe(self, outcome: StepOutcome, num_examples: int) -> None:
        """Adapt the learning rate to the batch size, in a job whose batch size may change."""
        if self.functions.state.scaling is not None:
            self.functions.state.scaling.observe(outcome.noise, num_examples)

    def _update(self, vector: Tensor, activity: Activity, turn: int) -> StepOutcome:
        """Update the state from a reduced vector; returns loss, noise and skip flag of the turn."""
        with step_failures():
            if activity is not Activity.TRAIN:
                self.functions.count(vector)
                return StepOutcome(float("nan"), False, {})
            apply = self.functions.turns[turn].apply
            loss, *squares, is_skipped = apply(vector).numpy().tolist()
            noise = gradient_noise(*squares)
            return StepOutcome(loss, False, {}, noise=noise, is_skipped=bool(is_skipped))

    def _reduce(
        self, exchange: Exchange, rows: Tensor, batch: LocalBatch, holds_next: bool, busy_s: float
    ) -> tuple[Tensor, StepMetadata]:
        group = self._group
        from_leader = self._from_leader()
        if group.size == 1:
            return rows[0], StepMetadata(holds_next, group.slots, (busy_s,), from_leader)
        is_agreed = self._sent_await()
        if group.sole_worker is not None:
            return self._result_share(exchange, rows, holds_next, busy_s, is_agreed)
        slot = self._runtime.slot
        written = notes_write(self._mode, group, slot, holds_next, busy_s, from_leader)
        notes = tf.constant(written, self.functions.dtype)
        with self._runtime.collective():
            vector, notes = exchange(rows, notes, batch.plan.rows_per_worker, batch.program, group)
            noted = notes_read(self._mode, group, notes.numpy())
        self._check_ranks(noted.slots)
        return vector, noted

    def _from_leader(self) -> tuple[float, ...]:
        """Return the numbers sent along: times, then proposal, rounded as an exchange does."""
        note = self.proposal
        if self._selects:
            note = (self.times.loss_s, self.times.step_s, *note)
        return tuple(float(np.float32(value)) for value in note)

    def _result_share(
        self, exchange: Exchange, rows: Tensor, holds_next: bool, busy_s: float, is_agreed: bool
    ) -> tuple[Tensor, StepMetadata]:
        """Send the sole worker's sums to the learners in a thread, or receive them as a learner.

        The worker receives the votes of a step only at the end of its next one; so an agreement
        takes effect, for all trainers, one step after the one in which all agreed.
        """
        group, slot = self._group, self._runtime.slot
        if slot == group.sole_worker:
            vector = rows[0]
            self._sent = self._sender.submit(self._result_send, exchange, vector, holds_next, group)
        else:
            is_agreed = self._was_agreed
            with self._runtime.collective():
                vector, self._was_agreed = exchange.result_receive(holds_next, group)
        busy = tuple(busy_s if each == slot else 0.0 for each in group.slots)
        return vector, StepMetadata(is_agreed, group.slots, busy)

    def _result_send(
        self, exchange: Exchange, vector: Tensor, holds_next: bool, group: TrainerGroup
    ) -> bool:
        with self._runtime.collective():
            return exchange.result_send(vector, holds_next, group)

    def _sent_await(self) -> bool:
        """Wait until the learners have received the last step sent, if any; returns the agreement.

        Raises:
            TrainerError: `peer_lost`.
        """
        sent, self._sent = self._sent, None
        return sent is not None and sent.result()

    def _check_ranks(self, slots: tuple[int, ...]) -> None:
        """Check, once per membership, that rows arrive in the order that the plan assumes."""
        if self._is_group_checked:
            return
        if slots != self._group.slots:
            raise TrainerError("internal", f"ranks are {slots}, planned for {self._group.slots}")
        self._is_group_checked = True


def local_rows(compute: Callable[..., Tensor], batch: LocalBatch) -> Tensor:
    """Run this trainer's virtual nodes piece by piece; returns their sums [n, width]."""
    stack: list[Tensor] = []
    for piece in batch.pieces:
        rows = compute(*piece.arguments)
        if batch.num_pieces == 1:
            return rows
        for row, merges in zip(
            tf.unstack(rows, len(piece.row_merges)), piece.row_merges, strict=True
        ):
            stack.append(row)
            for _ in range(merges):
                right = stack.pop()
                stack.append(stack.pop() + right)
    return tf.stack(stack)


@contextmanager
def step_failures() -> Iterator[None]:
    """Convert TensorFlow's errors inside the block, which runs the model, to `TrainerError`.

    Raises:
        TrainerError: `out_of_memory`; `internal`, which ends this trainer but not the job;
            `user_code`, with a traceback that is not cut down to the user's frames yet.
    """
    try:
        yield
    except (tf.errors.ResourceExhaustedError, MemoryError) as error:
        raise TrainerError("out_of_memory", f"a step ran out of memory: {error}") from error
    except tf.errors.OpError as error:
        is_device = isinstance(error, _DEVICE_ERRORS) and _PYTHON_TRACEBACK not in error.message
        code, what = ("internal", "device") if is_device else ("user_code", "model")
        message = f"the {what} failed in a step ({type(error).__name__}): {error.message}"
        raise TrainerError(code, message, traceback.format_exc()) from error
