"""Custom `train_step` and `test_step` over virtual nodes: weights and logs are those of `fit`."""

import textwrap
from pathlib import Path

import pytest

from agents.trainer.contract.run_dir import ReportWriter
from agents.trainer.engine.workload import workload_build
from tests.agents.trainer.job_texts import SMALL_NETWORK
from tests.agents.trainer.step.keras_runs import assert_same_as_keras, spec, trained_by_engine

HEAD = (
    SMALL_NETWORK
    + """
import tensorflow as tf
from keras import ops

random = np.random.default_rng(8)
X = random.normal(size=(44, 6)).astype("float32")
Y = (X @ random.normal(size=(6, 2)) + 1).astype("float32")
WEIGHT = random.uniform(0, 2, size=44).astype("float32")

def net(kind, **options):
    inputs = keras.Input((6,))
    hidden = layers.Dense(5, activation="tanh", kernel_regularizer="l2")(inputs)
    return kind(inputs, layers.Dense(2)(hidden), **options)

def squares(y, predictions):
    return ops.mean(ops.square(y - predictions), axis=-1)
"""
)

JOBS = {
    "compute_loss and compiled metrics": """
        class Own(keras.Model):
            def train_step(self, data):
                x, y = data
                with tf.GradientTape() as tape:
                    predictions = self(x, training=True)
                    loss = self.compute_loss(y=y, y_pred=predictions)
                gradients = tape.gradient(loss, self.trainable_variables)
                self.optimizer.apply(gradients, self.trainable_variables)
                for metric in self.metrics:
                    if metric.name == "loss":
                        metric.update_state(loss)
                    else:
                        metric.update_state(y, predictions)
                return {metric.name: metric.result() for metric in self.metrics}

        def build(settings):
            model = net(Own)
            model.compile("adam", "mse", metrics=["mae"])
            return model, (X, Y), (X[:15], Y[:15])
    """,
    "trackers of its own, sample weights and a step of its own for validation": """
        class Own(keras.Model):
            def __init__(self, *args, **kwargs):
                super().__init__(*args, **kwargs)
                self.tracker = keras.metrics.Mean("tracked")
                self.error = keras.metrics.MeanAbsoluteError("error")

            @property
            def metrics(self):
                return [self.tracker, self.error]

            def train_step(self, data):
                x, y, weight = data
                with tf.GradientTape() as tape:
                    predictions = self(x, training=True)
                    loss = ops.mean(squares(y, predictions) * weight)
                    loss += sum(self.losses)
                weights = self.trainable_weights
                self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
                self.tracker.update_state(loss)
                self.error.update_state(y, predictions, sample_weight=weight)
                return {"objective": self.tracker.result(), "error": self.error.result()}

            def test_step(self, data):
                x, y, weight = data
                self.error.update_state(y, self(x, training=False))
                return {"plain_error": self.error.result()}

        def build(settings):
            model = net(Own)
            model.compile(keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=0.5))
            return model, (X, Y, WEIGHT), (X[:15], Y[:15], WEIGHT[:15])
    """,
    "an autoencoder without call": """
        class Coder(keras.Model):
            def __init__(self, **options):
                super().__init__(**options)
                self.encoder = keras.Sequential([layers.Dense(4), layers.Dense(2)])
                self.decoder = keras.Sequential([keras.Input((2,)), layers.Dense(6)])
                self.total = keras.metrics.Mean(name="total_loss")
                self.prior = keras.metrics.Mean(name="prior_loss")

            @property
            def metrics(self):
                return [self.total, self.prior]

            def train_step(self, data):
                if isinstance(data, tuple):
                    data = data[0]
                with tf.GradientTape() as tape:
                    code = self.encoder(data)
                    prior = ops.mean(ops.sum(ops.square(code), axis=1))
                    loss = ops.mean(squares(data, self.decoder(code))) + 0.1 * prior
                grads = tape.gradient(loss, self.trainable_weights)
                self.optimizer.apply_gradients(zip(grads, self.trainable_weights))
                self.total.update_state(loss)
                self.prior.update_state(prior)
                return {"loss": self.total.result(), "prior_loss": self.prior.result()}

        def build(settings):
            model = Coder()
            model.compile(optimizer=keras.optimizers.Adam(0.01))
            return model, X, None
    """,
    "Keras's own step, with more around it": """
        class Own(keras.Model):
            def __init__(self, *args, **kwargs):
                super().__init__(*args, **kwargs)
                self.largest = keras.metrics.Mean("size")
                self.count = self.add_weight(shape=(), trainable=False, name="count")

            def train_step(self, data):
                logs = super().train_step(data)
                self.count.assign_add(1.0)
                self.largest.update_state(ops.abs(data[0]))
                return logs | {"size": self.largest.result()}

        def build(settings):
            model = net(Own)
            model.compile("adam", "mse", weighted_metrics=["mae"])
            return model, (X, Y, WEIGHT), (X[:15], Y[:15])
    """,
    "a student that learns from a teacher outside the tape": """
        class Student(keras.Model):
            def __init__(self, **options):
                super().__init__(**options)
                self.teacher, self.student = layers.Dense(2), layers.Dense(2)

            def call(self, x):
                return self.student(x)

            def train_step(self, data):
                x, y = data
                wanted = self.teacher(x)
                with tf.GradientTape() as tape:
                    predictions = self.student(x)
                    with tape.stop_recording():
                        base = self.student(x)
                    loss = ops.mean(squares(y, predictions) + squares(wanted, predictions - base))
                weights = self.student.trainable_variables
                self.optimizer.apply(tape.gradient(loss, weights), weights)
                return self.compute_metrics(x, y, predictions, None)

        def build(settings):
            model = Student()
            model.compile(keras.optimizers.AdamW(0.01), "mse", metrics=["mae"])
            return model, (X, Y), None
    """,
    "inputs moved by their gradient, and a penalty of a gradient": """
        class Own(keras.Model):
            def train_step(self, data):
                x, y = data
                with tf.GradientTape() as tape:
                    tape.watch(x)
                    loss = ops.sum(squares(y, self(x, training=True)))
                moved = x + 0.1 * ops.sign(tape.gradient(loss, x))
                with tf.GradientTape() as tape:
                    with tf.GradientTape() as inner:
                        inner.watch(moved)
                        predictions = self(moved, training=True)
                    slope = inner.gradient(predictions, [moved])[0]
                    loss = ops.mean(squares(y, predictions) + ops.mean(slope ** 2, axis=-1))
                gradients = tape.gradient(loss, self.trainable_variables)
                self.optimizer.apply_gradients(
                    (g, v) for g, v in zip(gradients, self.trainable_variables) if g is not None
                )
                self.compiled_metrics.update_state(y, predictions)
                return {m.name: m.result() for m in self.metrics if m.name != "loss"}

        def build(settings):
            model = net(Own)
            model.compile("sgd", metrics=[keras.metrics.MeanSquaredError("error")])
            return model, (X, Y), None
    """,
    "a tf.function, two losses of one tape, and an embedding": """
        class Own(keras.Model):
            def __init__(self, *args, **kwargs):
                super().__init__(*args, **kwargs)
                self.both = keras.metrics.Mean("both")

            @tf.function
            def train_step(self, data):
                x, y = data
                first, second = self.layers[1].trainable_weights, self.layers[-1].trainable_weights
                with tf.GradientTape(persistent=True) as tape:
                    predictions = self(x, training=True)
                    one = ops.mean(squares(y, predictions))
                    two = ops.mean(ops.abs(y - predictions))
                gradients = tape.gradient(one, first) + tape.gradient(two, second)
                self.optimizer.apply(gradients, first + second)
                self.both.update_state(one + two)
                return {"both": self.both.result()}

        def build(settings):
            inputs = keras.Input((6,))
            words = layers.GlobalAveragePooling1D()(layers.Embedding(9, 4)(inputs))
            model = Own(inputs, layers.Dense(2)(words))
            model.compile(keras.optimizers.SGD(0.2, momentum=0.9))
            return model, (random.integers(0, 9, size=(44, 6)), Y), None
    """,
    "half precision with a scaled loss": """
        class Own(keras.Model):
            def train_step(self, data):
                x, y = data
                with tf.GradientTape() as tape:
                    predictions = self(x, training=True)
                    loss = self.compute_loss(x, y, predictions)
                    scaled = self.optimizer.scale_loss(loss)
                weights = self.trainable_variables
                self.optimizer.apply(tape.gradient(scaled, weights), weights)
                self._loss_tracker.update_state(loss)
                return self.get_metrics_result()

        def build(settings):
            inputs = keras.Input((6,))
            hidden = layers.Dense(5, activation="tanh", dtype="mixed_float16")(inputs)
            model = Own(inputs, layers.Dense(2)(hidden), dtype="mixed_float16")
            optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
            model.compile(optimizer, "mse")
            return model, (X, Y), None
    """,
    "averages of the updated weights, and a copy of some at every third step": """
        class Averaged(keras.Model):
            def __init__(self, **options):
                super().__init__(**options)
                parts = keras.Input((6,)), layers.Dense(4), layers.Dense(2)
                self.network = keras.Sequential(parts)
                self.averages = keras.models.clone_model(self.network)
                self.copy = self.add_weight(shape=(6, 4), trainable=False, name="copy")
                self.count = self.add_weight(shape=(), dtype="int32", trainable=False, name="count")
                self.tracker = keras.metrics.Mean("tracked")

            def call(self, x):
                return self.averages(x)

            def train_step(self, data):
                x, y = data
                with tf.GradientTape() as tape:
                    loss = ops.mean(squares(y, self.network(x)))
                weights = self.network.trainable_weights
                self.count.assign_add(1)
                self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
                for weight, average in zip(self.network.weights, self.averages.weights):
                    average.assign(0.9 * average + 0.1 * weight)
                self.copy.assign(ops.where(self.count % 3 == 0, weights[0], self.copy))
                self.tracker.update_state(loss)
                return {"tracked": self.tracker.result()}

        def build(settings):
            model = Averaged()
            model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
            return model, (X, Y), (X[:15], Y[:15])
    """,
    "averages by hand of a loss that Keras would show as 0": """
        class Own(keras.Model):
            def train_step(self, data):
                x, y = data
                with tf.GradientTape() as tape:
                    loss = ops.mean(squares(y, self(x, training=True)))
                gradients = tape.gradient(loss, self.trainable_variables)
                self.optimizer.apply(gradients, self.trainable_variables)
                self._loss_tracker.update_state(loss, sample_weight=ops.shape(x)[0])
                return {"loss": self._loss_tracker.result()}

        def build(settings):
            model = net(Own)
            model.compile("sgd", "mse")
            return model, (X, Y), (X[:15], Y[:15])
    """,
}


@pytest.mark.parametrize("job", JOBS)
def test_a_custom_step_trains_as_fit(tmp_path: Path, job: str) -> None:
    assert_same_as_keras(HEAD + textwrap.dedent(JOBS[job]), tmp_path)


def test_a_returned_loss_is_averaged_over_the_epoch(tmp_path: Path) -> None:
    tracked = HEAD + textwrap.dedent(JOBS["averages by hand of a loss that Keras would show as 0"])
    update = "self._loss_tracker.update_state(loss, sample_weight=ops.shape(x)[0])"
    plain = tracked.replace(update, "").replace("self._loss_tracker.result()", "loss")
    assert plain.count("loss}") == 1
    logs = []
    for name, code in (("tracked", tracked), ("plain", plain)):
        (tmp_path / name / "code").mkdir(parents=True)
        (tmp_path / name / "code" / "job.py").write_text(code)
        reports = ReportWriter(tmp_path / name, 0, 0)
        logs.append(trained_by_engine(workload_build(tmp_path / name, spec(), reports)))
    assert logs[0][0]["loss"] > logs[0][1]["loss"] > 0
    assert logs[1] == logs[0]
