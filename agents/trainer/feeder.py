"""Prepares the next steps' examples in a thread, so that the accelerator does not wait for data."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from agents.trainer.data import ExampleSource
from agents.trainer.planning import (
    TRAINING_STREAM,
    VALIDATION_STREAM,
    BatchPlan,
    Planner,
    step_seeds,
)
from agents.trainer.progress import Activity, Course, Progress
from controlplane.core.wire import TrainingSpec

Tensor = Any
#: Batches prepared ahead, at most.
QUEUE_LIMIT = 2


@dataclass(frozen=True)
class LocalBatch:
    """One trainer's part of a batch, ready to be fed.

    Attributes:
        place: which batch of the job it is (`Progress.place`).
        arguments: what the step functions take.
        program: the program over all trainers' rows, as a tensor.
    """

    place: tuple[int, int, Activity, int]
    plan: BatchPlan
    arguments: tuple[Tensor, ...]
    program: Tensor


@dataclass(frozen=True)
class JobData:
    """A job's examples and the frame in which they are visited."""

    spec: TrainingSpec
    course: Course
    train: ExampleSource
    validation: ExampleSource | None
    example_specs: tuple[tf.TensorSpec, ...]
    num_seeds: int

    def order(self, progress: Progress) -> np.ndarray:
        """Give the order of the examples in the cursor's activity."""
        if progress.activity is Activity.TRAIN:
            return self.train.order(self.spec.seed, progress.epoch, self.spec.shuffle)
        assert self.validation is not None
        return self.validation.order(self.spec.seed, 0, False)

    def local_batch(self, planner: Planner, order: np.ndarray, progress: Progress) -> LocalBatch:
        """Fetch one trainer's part of the batch at the cursor.

        Raises:
            JobCodeError: the job's data failed.
        """
        low, high = self.course.bounds(progress)
        plan = planner.plan(high - low)
        is_train = progress.activity is Activity.TRAIN
        source = self.train if is_train else self.validation
        assert source is not None
        arrays = self._fetch(source, order[low:high][plan.positions])
        turn = progress.step
        if not is_train:
            turn = progress.epoch * self.course.num_batches(Activity.VALIDATE) + progress.batch
        seeds = step_seeds(
            self.spec.seed,
            TRAINING_STREAM if is_train else VALIDATION_STREAM,
            turn,
            plan.virtual_nodes,
            self.spec.num_virtual_nodes,
            self.num_seeds,
        )
        fixed = (plan.program, plan.weights, np.int32(plan.num_rows), seeds)
        return LocalBatch(
            place=progress.place,
            plan=plan,
            arguments=tuple(tf.convert_to_tensor(value) for value in (*fixed, *arrays)),
            program=tf.convert_to_tensor(plan.across),
        )

    def _fetch(self, source: ExampleSource, indices: np.ndarray) -> list[Tensor]:
        if not len(indices):  # nothing to do in this batch; the functions still want the dtypes
            return [
                tf.zeros([0, *spec.shape[1:]], spec.dtype)
                if spec.dtype != tf.string
                else tf.zeros([0], tf.string)
                for spec in self.example_specs
            ]
        flat = keras.tree.flatten(source.fetch(indices))
        return [
            tf.convert_to_tensor(array, dtype=spec.dtype)
            for array, spec in zip(flat, self.example_specs, strict=True)
        ]


class Feeder:
    """Runs ahead of the cursor in one membership; thrown away when the membership ends."""

    def __init__(self, data: JobData, planner: Planner, progress: Progress) -> None:
        self._ready: queue.Queue[LocalBatch | BaseException] = queue.Queue(maxsize=QUEUE_LIMIT)
        self._is_stopped = threading.Event()
        batches = self._batches(data, planner, progress)
        threading.Thread(target=self._run, args=(batches,), name="feeder", daemon=True).start()

    def next(self, progress: Progress) -> LocalBatch:
        """Take the batch at the cursor, waiting until it is ready.

        Raises:
            JobCodeError: the job's data failed.
        """
        batch = self._ready.get()
        if isinstance(batch, BaseException):
            raise batch
        assert batch.place == progress.place, f"fed {batch.place}, cursor at {progress.place}"
        return batch

    def stop(self) -> None:
        """End the thread; what it prepared is thrown away."""
        self._is_stopped.set()

    @staticmethod
    def _batches(data: JobData, planner: Planner, progress: Progress) -> Iterator[LocalBatch]:
        visited: tuple[int, Activity] | None = None
        order = np.zeros(0, np.int64)
        for position in data.course.positions(progress):
            if visited != (position.epoch, position.activity):
                visited = (position.epoch, position.activity)
                order = data.order(position)
            yield data.local_batch(planner, order, position)

    def _run(self, batches: Iterator[LocalBatch]) -> None:
        try:
            for batch in batches:
                if not self._put(batch):
                    return
        except BaseException as error:
            self._put(error)

    def _put(self, item: LocalBatch | BaseException) -> bool:
        while not self._is_stopped.is_set():
            try:
                self._ready.put(item, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False
