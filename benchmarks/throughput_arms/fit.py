"""Keras 3's own `fit` on arrays: compiled as Keras chooses, one step at a time."""

from __future__ import annotations

import time
from typing import Any

import keras
import tensorflow as tf

from benchmarks.throughput_arms.job import NETWORKS, build
from benchmarks.throughput_arms.serve import NUM_THREADS, Run, Stamps, serve


class Clock(keras.callbacks.Callback):  # type: ignore[misc]
    """Reads the clock after every step and stops after some number of them."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps
        self.stamps: Stamps = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        self.stamps.append(time.perf_counter())
        if len(self.stamps) == self.steps:
            self.model.stop_training = True


def make(network: str, _arm: str) -> Run:
    """Build a network; `fit` compiles itself in its first run."""
    keras.utils.set_random_seed(0)
    model, (x, y), _ = build({"network": network})

    def run(steps: int) -> Stamps:
        clock = Clock(steps)
        batch_size = NETWORKS[network][2]
        model.fit(x, y, batch_size=batch_size, epochs=steps, verbose=0, callbacks=[clock])
        return clock.stamps

    return run


if __name__ == "__main__":
    tf.config.threading.set_intra_op_parallelism_threads(NUM_THREADS)
    tf.config.threading.set_inter_op_parallelism_threads(NUM_THREADS)
    tf.config.set_visible_devices([], "GPU")
    serve(make)
