"""A step over virtual nodes is Keras's own step: `fit` gives the same weights and the same logs.

Without dropout and batch statistics, which depend on the slices, both differ by rounding only.
"""

import textwrap
from pathlib import Path

import pytest

from tests.agents.trainer.job_texts import SMALL_NETWORK
from tests.agents.trainer.step.keras_runs import assert_same_as_keras
from tests.support.cases import some

HEAD = (
    SMALL_NETWORK
    + """
random = np.random.default_rng(8)
X = random.normal(size=(44, 4)).astype("float32")  # 4 batches
Y = (X[:, :1] + X[:, 1:2] > 0).astype("float32")
"""
)

JOBS = {
    "a plain network with Adam, validation data and a short last batch": """
        class Both(keras.metrics.MeanSquaredError):
            def result(self):
                square = super().result()
                return {"square": square, "root": ops.sqrt(square)}

        def build(settings):
            hidden = layers.Dense(5, activation="tanh")
            model = compiled(net(hidden), "adam", metrics=["accuracy", Both()])
            return model, (X[:40], Y[:40]), (X[:15], Y[:15])
    """,
    "a summed loss beside a regulariser, and class weights": """
        def build(settings):
            model = compiled(
                net(layers.Dense(5, kernel_regularizer="l2")),
                "rmsprop",
                keras.losses.MeanSquaredError(reduction="sum"),
                metrics=["accuracy"],
                weighted_metrics=["accuracy"],
            )
            return model, (X, Y), (X[:9], Y[:9]), {"class_weight": {0: 0.5, 1: 4.0}}
    """,
    "summed and mean losses of several outputs, weighted": """
        def build(settings):
            a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b")
            joined = layers.Concatenate()([a, b])
            outputs = {"p": layers.Dense(1)(joined), "q": layers.Dense(2)(joined)}
            model = keras.Model({"a": a, "b": b}, outputs)
            model.compile(
                keras.optimizers.SGD(0.01),
                {"p": "mse", "q": keras.losses.MeanAbsoluteError(reduction="sum")},
                loss_weights={"p": 0.3, "q": 0.02},
                metrics={"p": ["mae"]},
                weighted_metrics={"q": ["mse"]},
            )
            weights = {"p": np.linspace(0, 3, 44), "q": np.linspace(2, 1, 44)}
            x, y = {"a": X, "b": X[::-1]}, {"p": Y, "q": X[:, :2]}
            in_another_order = {"b": X[:11], "a": X[11:22]}, {"q": X[:11, 2:], "p": Y[:11]}
            return model, (x, y, weights), in_another_order
    """,
    "add_loss and an activity regulariser": """
        class Penalised(layers.Layer):
            def call(self, inputs):
                self.add_loss(0.1 * ops.mean(ops.square(inputs)))
                return inputs

        def build(settings):
            dense = layers.Dense(5, activity_regularizer=keras.regularizers.L2(0.1))
            return compiled(net(dense, Penalised())), (X, Y), None
    """,
    "decay, global clipping, averaged weights and a schedule": """
        def build(settings):
            schedule = keras.optimizers.schedules.ExponentialDecay(0.05, 3, 0.7)
            optimizer = keras.optimizers.AdamW(
                schedule, weight_decay=0.1, global_clipnorm=0.1, use_ema=True, ema_momentum=0.8
            )
            return compiled(net(layers.Dense(6)), optimizer), (X, Y), None
    """,
    "a compute_loss of one's own, clipped sums of gradients, a frozen layer and a constraint": """
        class Own(keras.Model):
            def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
                return ops.mean(ops.abs(y - y_pred)) * 3

        def build(settings):
            inputs = keras.Input((3,))
            words = layers.Flatten()(layers.Embedding(7, 4)(inputs))
            hidden = layers.Dense(4, trainable=False)(words)
            outputs = layers.Dense(1, kernel_constraint=keras.constraints.UnitNorm())(hidden)
            optimizer = keras.optimizers.SGD(
                0.1, momentum=0.9, clipvalue=0.05, gradient_accumulation_steps=2
            )
            words = random.integers(0, 7, size=(44, 3))
            return compiled(Own(inputs, outputs), optimizer, loss=None), (words, Y), None
    """,
    "weights per time step": """
        def build(settings):
            inputs = keras.Input((6, 2))
            features = layers.GRU(3, return_sequences=True)(inputs)
            model = keras.Model(inputs, layers.Dense(1)(features))
            model.compile(keras.optimizers.SGD(0.1), "mse", weighted_metrics=["mae"])
            x = random.normal(size=(44, 6, 2))
            return model, (x, x[..., :1], (random.random((44, 6)) > 0.4) * 1.0), None
    """,
    "a head that training alone has, made first": """
        class Headed(keras.Model):
            def __init__(self):
                super().__init__()
                self.body = layers.Dense(4)
                self.side, self.end = layers.Dense(1), layers.Dense(1)
                self.of_loss = layers.Dense(1)

            def call(self, inputs, training=False):
                hidden = self.body(inputs)
                side = self.side(hidden) if training else None
                return (self.end(hidden), side) if training else self.end(hidden)

            def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
                ends = keras.tree.flatten(y_pred)
                return sum(ops.mean(ops.square(y - self.of_loss(end))) for end in ends)

        def build(settings):
            return compiled(Headed(), loss=None), (X, Y), (X[:15], Y[:15])
    """,
    "a list of metrics of one's own": """
        class Own(keras.Model):
            def __init__(self, *ends):
                super().__init__(*ends)
                self.size = keras.metrics.Mean("size")

            @property
            def metrics(self):
                return [self.size]

            def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
                self.size.update_state(ops.mean(ops.abs(y_pred), axis=-1))
                return ops.mean(ops.abs(y - y_pred))

        def build(settings):
            inputs = keras.Input((4,))
            return compiled(Own(inputs, layers.Dense(1)(inputs)), loss=None), (X, Y), None
    """,
    "text, looked up": """
        import tensorflow as tf

        def build(settings):
            inputs = keras.Input((3,), dtype="string")
            numbers = layers.StringLookup(vocabulary=["a", "bb"])(inputs)
            words = layers.Flatten()(layers.Embedding(4, 2)(numbers))
            model = keras.Model(inputs, layers.Dense(1, activation="sigmoid")(words))
            text = tf.constant(random.choice(["a", "bb", "ccc"], size=(44, 3)))  # fit takes tensors
            return compiled(model), (text, Y), (text[:15], Y[:15])
    """,
    "text, split into words": """
        import tensorflow as tf

        def build(settings):
            inputs = keras.Input((), dtype="string")
            numbers = layers.TextVectorization(
                vocabulary=["a", "bb"], output_sequence_length=4
            )(inputs)
            words = layers.Flatten()(layers.Embedding(4, 2)(numbers))
            model = keras.Model(inputs, layers.Dense(1, activation="sigmoid")(words))
            texts = [" ".join(row) for row in random.choice(["a", "bb", "ccc"], size=(44, 3))]
            text = tf.constant(texts)
            return compiled(model), (text, Y), (text[:15], Y[:15])
    """,
    "text and numbers in a feature space": """
        import tensorflow as tf
        from keras.utils import FeatureSpace

        def build(settings):
            text = random.choice(["a", "bb", "ccc"], size=44)
            data = {"word": text, "hashed": text[::-1], "number": X[:, 0]}
            space = FeatureSpace({
                "word": FeatureSpace.string_categorical(),
                "hashed": FeatureSpace.string_hashed(5),
                "number": FeatureSpace.float_normalized(),
            })
            space.adapt(tf.data.Dataset.from_tensor_slices(data))
            outputs = layers.Dense(1, activation="sigmoid")(space.get_encoded_features())
            return compiled(keras.Model(space.get_inputs(), outputs)), (data, Y), None
    """,
    "inputs in a named tuple": """
        from collections import namedtuple

        Pair = namedtuple("Pair", "left right")

        class Own(keras.Model):
            def __init__(self):
                super().__init__()
                self.dense = layers.Dense(3)

            def build(self, shape):
                self.dense.build((None, 4))

            def call(self, pair):
                return ops.sum(self.dense(pair.left) * self.dense(pair.right), -1, keepdims=True)

        def build(settings):
            model = Own()
            model.build(None)
            return compiled(model, "sgd", "mse"), (Pair(X, X[::-1]), Y), None
    """,
    "a model that build has trained before": """
        def build(settings):
            model = compiled(net(layers.Dense(5, activation="tanh")), "adam", metrics=["accuracy"])
            model.fit(X, Y, batch_size=11, verbose=0, shuffle=False)
            return model, (X, Y), (X[:15], Y[:15])
    """,
    "mixed precision with a loss scale": """
        def build(settings):
            keras.config.set_dtype_policy("mixed_float16")
            try:
                head = layers.Dense(1, activation="sigmoid", dtype="float32")
                model = keras.Sequential([keras.Input((4,)), layers.Dense(8), head])
                return compiled(model, keras.optimizers.SGD(0.1)), (X, Y), None
            finally:
                keras.config.set_dtype_policy("float32")
    """,
    "scales of float8, of numbers that are as large in every slice": """
        def build(settings):
            model = keras.Sequential([
                keras.Input((4,)), layers.Dense(1, dtype="float8_from_float32"),
            ])
            return compiled(model, "sgd", "mae"), (np.sign(X), Y), None
    """,
}


#: Jobs that are the same only when the batch is one slice.
IN_ONE_SLICE = {
    "batch normalisation and a counter of calls": """
        class Counter(layers.Layer):
            def build(self, shape):
                self.calls = self.add_weight(shape=(), dtype="int32", trainable=False, name="n",
                                             initializer="zeros")

            def call(self, inputs, training=False):
                if training:
                    self.calls.assign_add(1)
                return inputs

        def build(settings):
            middle = layers.Dense(5), layers.BatchNormalization(momentum=0.5), Counter()
            return compiled(net(*middle)), (X, Y), (X[:15], Y[:15])
    """,
}


#: Each of these has a case in tests/conformance or test_functions.py, or is like another one here.
NIGHTLY = (
    "a plain network with Adam, validation data and a short last batch",
    "add_loss and an activity regulariser",
    "decay, global clipping, averaged weights and a schedule",
    "weights per time step",
    "a list of metrics of one's own",
    "inputs in a named tuple",
    "a model that build has trained before",
    "scales of float8, of numbers that are as large in every slice",
)


@pytest.mark.parametrize("name", some([*JOBS, *IN_ONE_SLICE], NIGHTLY))
def test_virtual_nodes_train_what_fit_trains(name: str, tmp_path: Path) -> None:
    code = HEAD + textwrap.dedent((JOBS | IN_ONE_SLICE)[name])
    assert_same_as_keras(code, tmp_path, 1 if name in IN_ONE_SLICE else 3)
