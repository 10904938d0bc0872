"""MultiWorkerMirroredStrategy: one worker, configured by TF_CONFIG.

Keras 3's `fit` raises an error under this strategy, so the networks are built with `tf_keras`,
which stands in as `keras` before any template is imported. Arms: `fit`, and `loop`, a hand-written
training loop. Every worker gets its own part of each global batch straight from its own data set.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import tensorflow as tf
import tf_keras

from benchmarks.throughput_arms.job import NETWORKS, build
from benchmarks.throughput_arms.serve import NUM_THREADS, Run, Stamps, serve

SHUFFLED_EXAMPLES = 4096


class Clock(tf_keras.callbacks.Callback):  # type: ignore[misc]
    """Reads the clock after every step."""

    def __init__(self) -> None:
        super().__init__()
        self.stamps: Stamps = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        self.stamps.append(time.perf_counter())


class Arms:
    """Builds networks under one strategy."""

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy
        self._rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]

    def make(self, network: str, arm: str) -> Run:
        """Build a network and its share of the data."""
        tf_keras.utils.set_random_seed(0)
        with self._strategy.scope():
            model, (x, y), _ = build({"network": network})
        batch_size = NETWORKS[network][2]
        size = self._strategy.num_replicas_in_sync
        low, high = (batch_size * rank // size for rank in (self._rank, self._rank + 1))
        share = tf.data.Dataset.from_tensor_slices((x, y)).shard(size, self._rank).cache()
        share = share.shuffle(SHUFFLED_EXAMPLES).repeat().batch(high - low).prefetch(2)
        data = self._strategy.distribute_datasets_from_function(lambda _: share)
        return fit_run(model, data) if arm == "fit" else self._loop_run(model, data, batch_size)

    def _loop_run(self, model: Any, data: Any, batch_size: int) -> Run:
        strategy = self._strategy
        loss_of = tf_keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction=tf_keras.losses.Reduction.NONE
        )
        with strategy.scope():
            accuracy = tf_keras.metrics.SparseCategoricalAccuracy()

        def train(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                predictions = model(x, training=True)
                losses = loss_of(y, predictions)
                places = tf.cast(tf.size(losses) // tf.shape(x)[0], tf.float32)
                loss = tf.reduce_sum(losses) / places / batch_size
                if model.losses:
                    loss += tf.nn.scale_regularization_loss(tf.add_n(model.losses))
            gradients = tape.gradient(loss, model.trainable_variables)
            model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            accuracy.update_state(y, predictions)
            return loss

        @tf.function  # type: ignore[untyped-decorator]
        def step(iterator: Any) -> Any:
            losses = strategy.run(train, args=next(iterator))
            return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

        iterator = iter(data)

        def run(steps: int) -> Stamps:
            stamps = []
            for _ in range(steps):
                float(step(iterator))
                stamps.append(time.perf_counter())
            return stamps

        return run


def fit_run(model: Any, data: Any) -> Run:
    """Train with `fit`."""

    def run(steps: int) -> Stamps:
        clock = Clock()
        model.fit(data, steps_per_epoch=steps, verbose=0, callbacks=[clock])
        return clock.stamps

    return run


if __name__ == "__main__":
    sys.modules["keras"] = tf_keras  # the templates say `import keras`
    tf.config.threading.set_intra_op_parallelism_threads(NUM_THREADS)
    tf.config.threading.set_inter_op_parallelism_threads(NUM_THREADS)
    tf.config.set_visible_devices([], "GPU")
    serve(Arms(tf.distribute.MultiWorkerMirroredStrategy()).make)
