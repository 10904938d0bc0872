"""Losses that the job's own code divides by a sum: slices count by it, as `fit` divides."""

import textwrap
from pathlib import Path

import pytest

from tests.agents.trainer.step.keras_runs import assert_same_as_keras
from tests.agents.trainer.step.test_masked_losses import HEAD as TOKENS
from tests.agents.trainer.trial_jobs import validated, warnings_of

HEAD = (
    TOKENS
    + """
import tensorflow as tf
from keras import ops

EACH = SPARSE(from_logits=True, reduction="none")

def masked(y, predictions):
    mask = tf.cast(y != 0, tf.float32)
    return tf.reduce_sum(EACH(y, predictions) * mask) / tf.reduce_sum(mask)

class Averaged(keras.Model):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.tracker = keras.metrics.Mean("tracked")
        self.hits = keras.metrics.Mean("hits")
        self.other = keras.optimizers.SGD(0.2)
"""
)
LOSS = """
def loss_of(y, predictions):
    y = tf.cast(y, tf.int32)
    values, mask = EACH(y, predictions), tf.cast(y != 0, tf.float32)
    return LOSS

def build(settings):
    inputs, features = tokens(mask_zero=False)
    model = keras.Model(inputs, layers.Dense(5, kernel_regularizer="l2")(features))
    model.compile(keras.optimizers.SGD(0.5, momentum=0.9), loss_of)
    return model, (X, Y), (X[2:15], Y[2:15])
"""
STEP = """
class Own(Averaged):
    def losses_of(self, data, training):
        x, y = data
        predictions = self(x, training=training)
        mask = tf.cast(y != 0, tf.float32)
        hits = tf.cast(tf.argmax(predictions, -1) == y, tf.float32)
        self.hits.update_state(tf.reduce_sum(hits * mask) / tf.reduce_sum(mask))
        return masked(y, predictions) + tf.add_n(self.losses)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self.losses_of(data, True)
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        self.tracker.update_state(loss)
        return {"tracked": self.tracker.result(), "hits": self.hits.result()}

    def test_step(self, data):
        self.tracker.update_state(self.losses_of(data, False))
        return {"tracked": self.tracker.result(), "hits": self.hits.result()}

def build(settings):
    inputs, features = tokens(mask_zero=False)
    model = Own(inputs, layers.Dense(5, kernel_regularizer="l2")(features))
    model.compile(keras.optimizers.SGD(0.5, momentum=0.9))
    return model, (X, Y), (X[2:15], Y[2:15])
"""
TURNS = """
class Own(Averaged):
    def train_step(self, data):
        x, y = data
        first, last = self.layers[1], self.layers[-1]
        turns = ((first, self.tracker, self.optimizer), (last, self.hits, self.other))
        for part, tracker, optimizer in turns:
            with tf.GradientTape() as tape:
                loss = masked(y, self(x, training=True))
            weights = part.trainable_variables
            optimizer.apply(tape.gradient(loss, weights), weights)
            tracker.update_state(loss)
        return {"first": self.tracker.result(), "second": self.hits.result()}

def build(settings):
    inputs, features = tokens(mask_zero=False)
    model = Own(inputs, layers.Dense(5)(features))
    model.compile(keras.optimizers.SGD(0.5))
    return model, (X, Y), None
"""
OUTPUTS = """
class Own(keras.Model):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        weight = tf.cast(x != 3, tf.float32)
        total = tf.reduce_sum(tf.abs(y["size"] - y_pred["size"])[..., 0] * weight)
        total += 0.5 * tf.reduce_sum(EACH(y["kind"], y_pred["kind"]) * weight)
        return 2.0 * total / tf.reduce_sum(weight)

def build(settings):
    inputs, features = tokens(mask_zero=False)
    outputs = {"kind": layers.Dense(5, name="kind")(features),
               "size": layers.Dense(1, name="size")(features)}
    model = Own(inputs, outputs)
    model.compile("sgd")
    return model, (X, {"kind": Y, "size": X[..., None].astype("float32")}), None
"""
HALF = """
def build(settings):
    keras.config.set_dtype_policy("mixed_float16")
    try:
        inputs, features = tokens(mask_zero=False)
        model = keras.Model(inputs, layers.Dense(5, dtype="float32")(features))
        return compiled(model, keras.optimizers.SGD(0.1), masked), (X, Y), None
    finally:
        keras.config.set_dtype_policy("float32")
"""
#: Batches some of whose slices have nothing but padding, and some nothing else.
FEW = "Y = Y * (np.arange(44) % 5 < 2)[:, None] * (np.arange(44) > 8)[:, None]\n"
#: Slices of such padding in batches that have other examples.
SOME = "Y = random.integers(1, 5, size=(44, 6)) * (np.arange(44) % 2 == 0)[:, None]\n"


def divided(loss: str) -> str:
    return LOSS.replace("return LOSS", f"return {loss}")


SUMS = "tf.reduce_sum(values * mask)"
JOBS = {
    "by the sum of a mask": divided(f"{SUMS} / tf.reduce_sum(mask)"),
    "by a sum that is not 0": divided(f"{SUMS} / (tf.reduce_sum(mask) + 1e-9)"),
    "by a sum of 1 or more": FEW + divided(f"{SUMS} / ops.maximum(ops.sum(mask), 1.0)"),
    "by 0 as by infinity": FEW + divided(f"tf.math.divide_no_nan({SUMS}, ops.sum(mask))"),
    "by 0 in some slices": SOME + divided(f"{SUMS} / tf.reduce_sum(mask)"),
    "by 0 in some slices, in a step": SOME + STEP,
    "a mean of no chosen places": SOME + divided("ops.mean(tf.boolean_mask(values, y != 0))"),
    "one mean by another": divided("3 * ops.mean(values * mask) / ops.mean(mask) - 1"),
    "by a count": divided(f"{SUMS} / tf.cast(tf.math.count_nonzero(y), tf.float32)"),
    "a mean of chosen places": divided("tf.reduce_mean(tf.boolean_mask(values, y != 0))"),
    "by squares of the labels": divided("ops.sum(values) / ops.sum(ops.cast(y, 'float32') ** 2)"),
    "in a step, with a regulariser and another mean over the same places": STEP,
    "in two turns": TURNS,
    "for two outputs in compute_loss, by a mask of the inputs": OUTPUTS,
    "in half precision": HALF,
}


@pytest.mark.parametrize("job", JOBS)
def test_divided_losses_train_as_fit(tmp_path: Path, job: str) -> None:
    assert_same_as_keras(HEAD + textwrap.dedent(JOBS[job]), tmp_path)


@pytest.mark.parametrize("job", JOBS)
def test_divided_losses_are_no_fault(tmp_path: Path, job: str) -> None:
    report = validated(tmp_path, HEAD + textwrap.dedent(JOBS[job]), num_virtual_nodes=3)
    assert report.ok, report.message
    assert not [each for each in warnings_of(report) if "computed for each slice" in each]


@pytest.mark.parametrize(
    "loss",
    [
        "ops.sum(values) / ops.sum(ops.abs(predictions))",
        "ops.sum(values) / ops.sqrt(ops.sum(mask))",
        f"{SUMS} / ops.sum(mask) + ops.sum(values * (1 - mask)) / ops.sum(1 - mask)",
        f"({SUMS} / ops.sum(mask)) ** 2",
    ],
)
def test_other_divisions_are_refused(tmp_path: Path, loss: str) -> None:
    report = validated(tmp_path, HEAD + divided(loss), num_virtual_nodes=3)
    assert (report.ok, report.code) == (False, "loss_not_additive")
