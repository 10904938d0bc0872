"""Prepares the next steps' examples in a thread, so that the accelerator does not wait for data."""

from __future__ import annotations

import dataclasses
import math
import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from agents.trainer.data.sources import ExampleSource
from agents.trainer.model.progress import Activity, Progress
from agents.trainer.model.schedule import TrainingSchedule
from agents.trainer.selection.state import Selection
from agents.trainer.step.batch_plan import (
    SELECTION_STREAM,
    TRAINING_STREAM,
    VALIDATION_STREAM,
    BatchPlan,
    Planner,
    step_seeds,
)
from agents.trainer.step.merging import NOISE_EVERY_STEPS, passes_plan
from agents.trainer.step.microbatches import (
    PiecePlan,
    order_free_pieces,
    pieces_plan,
    virtual_nodes_per_piece,
)
from controlplane.core.protocol.wire import Membership, ReductionMode, TrainingSpec

Tensor = Any
#: Pieces of batches prepared ahead, at most.
QUEUE_LIMIT = 2
STOP_LIMIT_S = 0.2
#: Bytes that a text of an example counts as: about a paragraph.
TEXT_BYTES = 1024


@dataclass(frozen=True)
class LocalPiece:
    """Some virtual nodes of a trainer's part of a batch, ready to be fed.

    Attributes:
        arguments: arguments of the step functions.
        row_merges: additions on the stack of all pieces' rows, after each row of this one.
    """

    arguments: tuple[Tensor, ...]
    row_merges: tuple[int, ...]


@dataclass(frozen=True)
class LocalBatch:
    """One trainer's part of a batch.

    Attributes:
        place: position of the batch in the job (`Progress.place`).
        pieces: at least one, except for a selection pass that computes nothing; consumed once, in
            this order.
        num_pieces: number of pieces.
        program: the program over all trainers' rows, as a tensor.
        indices: int64, places in the data of the whole batch's examples.
    """

    place: tuple[int, int, Activity, int]
    plan: BatchPlan
    pieces: Iterator[LocalPiece]
    num_pieces: int
    program: Tensor
    indices: np.ndarray

    def repeated(self, number: int) -> Iterator[LocalBatch]:
        """Yield the batch several times, with its pieces kept in memory if more than once."""
        if number == 1:
            yield self
            return
        pieces = list(self.pieces)
        for _ in range(number):
            yield dataclasses.replace(self, pieces=iter(pieces))


_Fed = tuple[LocalBatch, LocalPiece]


@dataclass(frozen=True)
class JobData:
    """A job's examples and the schedule in which they are visited.

    Attributes:
        pass_examples: most examples of a pass of merged virtual nodes; None: they run one after
            another.
        selection: the queue from which training steps of some epochs take their examples.
    """

    spec: TrainingSpec
    schedule: TrainingSchedule
    train: ExampleSource
    validation: ExampleSource | None
    example_specs: tuple[tf.TensorSpec, ...]
    num_seeds: int
    pass_examples: int | None = None
    selection: Selection | None = None

    def within(self, membership: Membership) -> JobData:
        """Return the same examples, cut into the batches of a membership."""
        schedule = dataclasses.replace(self.schedule, train_batch_size=membership.global_batch_size)
        return dataclasses.replace(self, schedule=schedule)

    def order(self, progress: Progress) -> np.ndarray:
        """Return the order of the examples in the cursor's activity."""
        if progress.activity is not Activity.VALIDATE:
            return self.train.order(self.spec.seed, progress.epoch, self.spec.shuffle)
        assert self.validation is not None
        return self.validation.order(self.spec.seed, 0, False)

    def local_batch(self, planner: Planner, order: np.ndarray, progress: Progress) -> LocalBatch:
        """Plan one trainer's part of the batch at the cursor.

        A piece's examples are fetched when it is taken from `pieces`; that raises JobCodeError if
        the job's data fail.
        """
        low, high = self.schedule.bounds(progress)
        return self.batch_of(planner, order[low:high], progress)

    def batch_of(self, planner: Planner, indices: np.ndarray, progress: Progress) -> LocalBatch:
        """Plan one trainer's part of a batch of the examples at `indices`; see `local_batch`."""
        plan = planner.plan(len(indices))
        is_pass = progress.activity is Activity.SELECT
        only_chooses = is_pass and not self.schedule.computes_losses(progress)
        fewest = self._fewest_passes(planner, progress)
        pieces = () if only_chooses else self._pieces(plan, fewest)
        fetched = self._pieces_fetch(plan, pieces, indices, progress)
        across = tf.convert_to_tensor(plan.across)
        return LocalBatch(progress.place, plan, fetched, len(pieces), across, indices)

    def _pieces(self, plan: BatchPlan, fewest_passes: int) -> tuple[PiecePlan, ...]:
        lengths = [int(length) for length in plan.program[:, 1]]
        if self.pass_examples is not None:
            return order_free_pieces(passes_plan(lengths, self.pass_examples, fewest_passes))
        per_piece = virtual_nodes_per_piece(self.example_bytes, max(lengths, default=1))
        if self.spec.reduction is not ReductionMode.EXACT:
            starts = range(0, len(lengths), per_piece)
            return order_free_pieces((k, min(k + per_piece, len(lengths))) for k in starts)
        merges = [int(merges) for merges in plan.program[:, 2]]
        return pieces_plan(plan.virtual_nodes, merges, per_piece)

    def _fewest_passes(self, planner: Planner, progress: Progress) -> int:
        """Return the least number of passes: 2 if a lone trainer measures noise in this step."""
        is_train = progress.activity is Activity.TRAIN
        is_noise_asked = is_train and progress.step % NOISE_EVERY_STEPS == 0
        return 2 if is_noise_asked and len(planner.owned) == 1 else 1

    def _pieces_fetch(
        self,
        plan: BatchPlan,
        pieces: Sequence[PiecePlan],
        batch: np.ndarray,
        progress: Progress,
    ) -> Iterator[LocalPiece]:
        """Fetch the pieces of `batch` (places in the data) one by one."""
        source = self.validation if progress.activity is Activity.VALIDATE else self.train
        assert source is not None
        seeds = self._seeds(plan, progress)
        starts = np.append(plan.program[:, 0], np.int32(len(plan.positions)))
        for piece in pieces:
            part = slice(piece.first, piece.last)
            low, high = starts[piece.first], starts[piece.last]
            program = plan.program[part].copy()
            program[:, 0] -= low
            program[:, 2] = piece.merges
            num_rows = np.int32(len(piece.row_merges))
            fixed = (program, plan.weights[part], num_rows, seeds[part])
            arrays = self._fetch(source, batch[plan.positions[low:high]])
            arguments = tuple(tf.convert_to_tensor(value) for value in (*fixed, *arrays))
            del arrays
            fetched = LocalPiece(arguments, piece.row_merges)
            del arguments
            yield fetched
            del fetched  # frees its memory, unless still in use, while the next one is made

    def _seeds(self, plan: BatchPlan, progress: Progress) -> np.ndarray:
        stream, turn = TRAINING_STREAM, progress.step
        if progress.activity is Activity.VALIDATE:
            stream = VALIDATION_STREAM
            turn = progress.epoch * self.schedule.num_batches(Activity.VALIDATE) + progress.batch
        elif progress.activity is Activity.SELECT:
            stream = SELECTION_STREAM
            turn = progress.epoch * self.schedule.num_train + progress.examples
        return step_seeds(
            self.spec.seed,
            stream,
            turn,
            plan.virtual_nodes,
            self.spec.num_virtual_nodes,
            self.num_seeds,
        )

    @property
    def example_bytes(self) -> int:
        """Bytes of one example in memory; of text, whose length varies, an assumed number."""
        return sum(
            math.prod(spec.shape[1:]) * (spec.dtype.size or TEXT_BYTES)
            for spec in self.example_specs
        )

    def _fetch(self, source: ExampleSource, indices: np.ndarray) -> list[Tensor]:
        if not len(indices):  # no examples in this batch; the functions still need the dtypes
            return [tf.zeros([0, *spec.shape[1:]], spec.dtype) for spec in self.example_specs]
        flat = keras.tree.flatten(source.fetch(indices))
        return [
            tf.convert_to_tensor(array, dtype=spec.dtype)
            for array, spec in zip(flat, self.example_specs, strict=True)
        ]


class Feeder:
    """Prefetches batches ahead of the cursor in one membership; discarded when that ends."""

    def __init__(self, data: JobData, planner: Planner, progress: Progress) -> None:
        self._ready: queue.Queue[_Fed | BaseException] = queue.Queue(maxsize=QUEUE_LIMIT)
        self._is_stopped = threading.Event()
        batches = self._batches(data, planner, progress)
        self._thread = threading.Thread(
            target=self._run, args=(batches,), name="feeder", daemon=True
        )
        self._thread.start()

    def next(self, progress: Progress) -> LocalBatch:
        """Take the batch at the cursor, waiting until it is ready.

        Raises:
            JobCodeError: the job's data failed.
        """
        batch, first = self._take()
        assert batch.place == progress.place, f"fed {batch.place}, cursor at {progress.place}"
        return dataclasses.replace(batch, pieces=self._rest(batch, [first]))

    def _rest(self, batch: LocalBatch, waiting: list[LocalPiece]) -> Iterator[LocalPiece]:
        """Yield the pieces of a batch, the first of which `waiting` holds."""
        for _ in range(batch.num_pieces):
            if not waiting:
                owner, piece = self._take()
                assert owner is batch, "pieces of a batch come in a row"
                waiting.append(piece)
                del piece
            yield waiting.pop()

    def _take(self) -> _Fed:
        fed = self._ready.get()
        if isinstance(fed, BaseException):
            raise fed
        return fed

    def stop(self, limit_s: float | None = STOP_LIMIT_S) -> None:
        """End the thread and discard the prefetched pieces.

        Waits up to `limit_s` (None: to its end), so that the runtime is not re-initialised while
        the thread uses it. Only slow data of the job keeps the thread running longer.
        """
        self._is_stopped.set()
        with suppress(queue.Empty):  # the thread may be waiting for room
            self._ready.get_nowait()
        self._thread.join(timeout=limit_s)

    @staticmethod
    def _batches(data: JobData, planner: Planner, progress: Progress) -> Iterator[_Fed]:
        visited: tuple[int, Activity] | None = None
        order = np.zeros(0, np.int64)
        for position in data.schedule.positions(progress):
            if visited != (position.epoch, position.activity):
                visited = (position.epoch, position.activity)
                order = data.order(position)
            batch = data.local_batch(planner, order, position)
            for piece in batch.pieces:
                fed = (batch, piece)
                del piece
                yield fed
                del fed

    def _run(self, batches: Iterator[_Fed]) -> None:
        try:
            for fed in batches:
                if not self._put(fed):
                    return
                del fed
        except BaseException as error:
            self._put(error)

    def _put(self, item: _Fed | BaseException) -> bool:
        while not self._is_stopped.is_set():
            try:
                self._ready.put(item, timeout=0.1)
            except queue.Full:
                continue
            return not self._is_stopped.is_set()
        return False


class SelectingFeeder:
    """Fetches the batches of a job that selects its examples in one membership.

    Which batch comes next depends on what the last selection pass has chosen. The next batch of the
    epoch's order, the candidates of the next pass above all, is known: it is fetched ahead, while
    the present one and steps of chosen examples run. The job's data are read by one thread at a
    time.
    """

    def __init__(self, data: JobData, planner: Planner) -> None:
        assert data.selection is not None, "a job that selects has a queue"
        self._data = data
        self._selection = data.selection
        self._planner = planner
        self._visited: tuple[int, Activity] | None = None
        self._order = np.zeros(0, np.int64)
        self._reading = threading.Lock()
        self._ahead: _Ahead | None = None

    def next(self, progress: Progress) -> LocalBatch:
        """Return the batch at the cursor.

        Raises:
            JobCodeError: the job's data failed; also raised when a piece is taken.
        """
        if self._data.schedule.takes_queued(progress):
            indices = self._selection.queued(self._data.schedule.bounds(progress)[1])
            batch = self._data.batch_of(self._planner, indices, progress)
            return dataclasses.replace(batch, pieces=self._pieces(batch, [], None))
        is_validating = progress.activity is Activity.VALIDATE
        visited = (progress.epoch, Activity.VALIDATE if is_validating else Activity.TRAIN)
        if self._visited != visited:
            self._visited = visited
            self._order = self._data.order(progress)
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.key == _key(progress):
            batch, waiting = ahead.batch, ahead.take()
        else:
            batch, waiting = self._data.local_batch(self._planner, self._order, progress), []
        following = self._data.schedule.following(progress)
        pieces = self._pieces(batch, waiting, following)
        return dataclasses.replace(batch, place=progress.place, pieces=pieces)

    def _pieces(
        self, batch: LocalBatch, waiting: list[LocalPiece], following: Progress | None
    ) -> Iterator[LocalPiece]:
        """Yield a batch's pieces, first those `waiting`; before the last, begin with `following`.

        The last one is then used while the next batch is fetched.
        """
        for number in range(batch.num_pieces):
            if not waiting:
                with self._reading:
                    waiting.append(next(batch.pieces))
            if number == batch.num_pieces - 1 and following is not None:
                coming = self._data.local_batch(self._planner, self._order, following)
                self._ahead = _Ahead(coming, _key(following), self._reading)
            yield waiting.pop(0)

    def examples(self, indices: np.ndarray) -> tuple[Any, ...]:
        """Read training examples, as `ExampleSource.fetch`, beside what is fetched ahead."""
        with self._reading:
            return self._data.train.fetch(indices)

    def stop(self) -> None:
        """Discard what is fetched ahead; waits for it like `Feeder.stop`."""
        if self._ahead is not None:
            self._ahead.stop()
            self._ahead = None


class _Ahead:
    """The first pieces of a coming batch, fetched in a thread.

    Attributes:
        key: the coming batch, see `_key`.
    """

    def __init__(
        self, batch: LocalBatch, key: tuple[int, Activity, int], reading: threading.Lock
    ) -> None:
        self.batch = batch
        self.key = key
        self._reading = reading
        self._fetched: list[LocalPiece] = []
        self._error: BaseException | None = None
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feeder", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for _ in range(min(QUEUE_LIMIT, self.batch.num_pieces)):
                with self._reading:
                    if self._is_stopped.is_set():
                        return
                    self._fetched.append(next(self.batch.pieces))
        except BaseException as error:
            self._error = error

    def take(self) -> list[LocalPiece]:
        """Return the fetched pieces, waiting until they are ready.

        Raises:
            JobCodeError: the job's data failed.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error
        fetched, self._fetched = self._fetched, []
        return fetched

    def stop(self) -> None:
        """End the thread after the piece that it fetches; waits up to `STOP_LIMIT_S`."""
        self._is_stopped.set()
        self._thread.join(timeout=STOP_LIMIT_S)


def _key(progress: Progress) -> tuple[int, Activity, int]:
    """Identify a batch of the epoch's order; steps of chosen examples may come before it."""
    return progress.epoch, progress.activity, progress.examples
