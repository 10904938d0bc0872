"""Batches of a job that selects: those in the epoch's order are fetched ahead, by one thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from agents.trainer.data.arrays import ArraySource
from agents.trainer.model.progress import Activity, Progress
from agents.trainer.model.schedule import TrainingSchedule
from agents.trainer.selection.state import Selection
from agents.trainer.step.batch_plan import Planner
from agents.trainer.step.functions import example_specs
from agents.trainer.step.prefetch import JobData, LocalBatch, SelectingFeeder
from controlplane.core.protocol.selection import SelectionMethod, SelectionSpec
from controlplane.core.protocol.wire import StopCondition, StopKind
from tests.agents.trainer.local_jobs import membership_of, training_spec

NUM, SIZE, WAIT_S = 50, 10, 60.0
SPEC = SelectionSpec(method=SelectionMethod.SELECTIVE_BACKPROP, history=64)


class WatchedSource(ArraySource):
    """Notes what is fetched, and by which thread; optionally fails at one place."""

    def __init__(self, fails_at: int = -1) -> None:
        x = np.arange(NUM, dtype=np.float32)[:, np.newaxis]
        super().__init__((x, x), "train")
        self.fails_at = fails_at
        self.fetched = threading.Condition()
        self.reads: list[tuple[list[int], str]] = []
        self.readers = 0

    def fetch(self, indices: np.ndarray) -> Any:
        self.readers += 1
        assert self.readers == 1, "two threads read at a time"
        try:
            if self.fails_at in indices:
                raise ValueError("no such example")
            return super().fetch(indices)
        finally:
            self.readers -= 1
            with self.fetched:
                self.reads.append((indices.tolist(), threading.current_thread().name))
                self.fetched.notify_all()

    def wait_for(self, num: int) -> None:
        with self.fetched:
            assert self.fetched.wait_for(lambda: len(self.reads) >= num, WAIT_S)


@pytest.fixture
def source() -> WatchedSource:
    return WatchedSource()


def _feeder(source: WatchedSource) -> SelectingFeeder:
    spec = training_spec(selection=SPEC, shuffle=False, global_batch_size=SIZE)
    stop = StopCondition(kind=StopKind.EPOCHS, limit=9)
    data = JobData(
        spec=spec,
        schedule=TrainingSchedule(NUM, 0, SIZE, stop, selection=SPEC),
        train=source,
        validation=None,
        example_specs=tuple(example_specs(source.fetch(np.arange(2)))),
        num_seeds=0,
        selection=Selection(SPEC, spec.seed, NUM, 2 * SIZE, SIZE),
    )
    source.reads.clear()
    return SelectingFeeder(data, Planner(spec, membership_of({0: (0, 1, 2, 3, 4)}), (0,), 0))


def _examples(batch: LocalBatch) -> list[int]:
    def values() -> Iterator[int]:
        for piece in batch.pieces:
            yield from tf.reshape(piece.arguments[-1], [-1]).numpy().astype(int).tolist()

    return list(values())


@pytest.fixture
def first() -> Progress:
    return Progress(step=3, epoch=1, activity=Activity.SELECT)


def test_the_next_candidates_are_fetched_while_steps_run(
    source: WatchedSource, first: Progress
) -> None:
    feeder = _feeder(source)
    assert _examples(feeder.next(first)) == list(range(20))
    source.wait_for(2)
    assert source.reads[1] == (list(range(20, 40)), "feeder")
    assert feeder._data.selection is not None
    feeder._data.selection.choose(1, np.arange(20), np.zeros(20))  # all of them
    step = replace(first, activity=Activity.TRAIN, batch=1, examples=20, queued=20)
    assert _examples(feeder.next(step)) == list(range(10))
    second = replace(first, step=4, batch=2, examples=20)
    batch = feeder.next(second)
    assert batch.place == second.place
    assert _examples(batch) == list(range(20, 40))
    third = replace(second, batch=3, examples=40)
    assert _examples(feeder.next(third)) == list(range(40, 50))
    assert [reads for reads, name in source.reads if name == "feeder"] == [
        list(range(20, 40)),
        list(range(40, 50)),
    ]
    assert len(source.reads) == 4, "nothing is read twice"
    feeder.stop()


def test_another_batch_than_expected_is_read_anew(source: WatchedSource, first: Progress) -> None:
    feeder = _feeder(source)
    assert _examples(feeder.next(first)) == list(range(20))
    source.wait_for(2)
    later = replace(first, epoch=2)
    assert _examples(feeder.next(later)) == list(range(20))
    feeder.stop()


def test_failing_data_fail_the_batch_that_has_them(first: Progress) -> None:
    source = WatchedSource(fails_at=30)
    feeder = _feeder(source)
    assert _examples(feeder.next(first)) == list(range(20))
    source.wait_for(2)
    with pytest.raises(ValueError, match="no such example"):
        feeder.next(replace(first, batch=1, examples=20))
    feeder.stop()
