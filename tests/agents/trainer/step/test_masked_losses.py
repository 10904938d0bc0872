"""Means over unmasked places: slices count by the number of their places, as `fit` divides."""

import textwrap
from pathlib import Path

import pytest

from tests.agents.trainer.job_texts import SMALL_NETWORK
from tests.agents.trainer.step.keras_runs import assert_same_as_keras

HEAD = (
    SMALL_NETWORK
    + """
random = np.random.default_rng(8)
LENGTHS = np.r_[np.zeros(2), random.integers(1, 7, size=42)]
IS_REAL = np.arange(6) < LENGTHS[:, None]
X = random.integers(1, 9, size=(44, 6)) * IS_REAL
Y = random.integers(1, 5, size=(44, 6)) * IS_REAL
SPARSE = keras.losses.SparseCategoricalCrossentropy

def tokens(mask_zero=True):
    inputs = keras.Input((6,))
    return inputs, layers.Embedding(9, 4, mask_zero=mask_zero)(inputs)
"""
)

JOBS = {
    "an embedding's mask, with momentum and validation data": """
        def build(settings):
            inputs, features = tokens()
            outputs = layers.Dense(5)(layers.SimpleRNN(4, return_sequences=True)(features))
            model = keras.Model(inputs, outputs)
            optimizer = keras.optimizers.SGD(0.5, momentum=0.9)
            model.compile(optimizer, SPARSE(from_logits=True), metrics=["accuracy"])
            return model, (X, Y), (X[:15], Y[:15])
    """,
    "a class that the loss ignores": """
        def build(settings):
            inputs, features = tokens(mask_zero=False)
            model = keras.Model(inputs, layers.Dense(5, activation="softmax")(features))
            model.compile(keras.optimizers.SGD(0.5), SPARSE(ignore_class=0))
            return model, (X, Y), (X[:15], Y[:15])
    """,
    "an ignored class under a mask, and sample weights": """
        def build(settings):
            inputs, features = tokens()
            model = keras.Model(inputs, layers.Dense(5)(features))
            model.compile(
                keras.optimizers.SGD(0.5), SPARSE(from_logits=True, ignore_class=3),
                weighted_metrics=["sparse_categorical_crossentropy"],
            )
            weight = random.uniform(0, 2, size=(44, 6)).astype("float32")
            return model, (X, Y, weight), None
    """,
    "a mean that divides by the sample weights": """
        def build(settings):
            inputs, features = tokens(mask_zero=False)
            model = keras.Model(inputs, layers.Dense(5)(features))
            model.compile(keras.optimizers.SGD(0.5),
                          SPARSE(from_logits=True, reduction="mean_with_sample_weight"))
            weight = random.uniform(0, 2, size=(44, 6)) * IS_REAL
            return model, (X, Y, weight), (X[:15], Y[:15], weight[:15])
    """,
    "weights of examples, by which a mean divides": """
        def build(settings):
            model = net(layers.Dense(5, activation="tanh", kernel_regularizer="l2"))
            model.compile("rmsprop", keras.losses.MeanAbsoluteError("mean_with_sample_weight"))
            x, y = (random.normal(size=(44, size)) for size in (4, 1))
            return model, (x, y, random.uniform(0, 2, size=44)), (x[:15], y[:15])
    """,
    "sample weights and a mask, by which a mean divides": """
        def build(settings):
            inputs, features = tokens()
            model = keras.Model(inputs, layers.Dense(5)(features))
            model.compile(keras.optimizers.SGD(0.5),
                          SPARSE(from_logits=True, reduction="mean_with_sample_weight"))
            return model, (X, Y, random.uniform(0, 2, size=(44, 6))), None
    """,
    "a mask, a weight of the loss and a regulariser": """
        def build(settings):
            inputs = keras.Input((6, 1))
            features = layers.Dense(4, kernel_regularizer="l2")(layers.Masking()(inputs))
            model = keras.Model(inputs, layers.Dense(1)(features))
            model.compile(keras.optimizers.SGD(0.05, clipnorm=0.1), "mse", loss_weights=[3.0])
            x = X[..., None].astype("float32")
            return model, (x, x ** 2), (x[:15], x[:15])
    """,
    "two outputs with one mask": """
        def build(settings):
            inputs, features = tokens()
            hidden = layers.Dense(4, activation="tanh")(features)
            outputs = {"kind": layers.Dense(5, name="kind")(hidden),
                       "size": layers.Dense(1, name="size")(hidden)}
            model = keras.Model(inputs, outputs)
            model.compile("sgd", {"kind": SPARSE(from_logits=True), "size": "mae"},
                          loss_weights={"kind": 1.0, "size": 0.5})
            y = {"kind": Y, "size": X[..., None].astype("float32")}
            return model, (X, y), (X[:22], {name: each[:22] for name, each in y.items()})
    """,
    "a masked loss of single numbers beside one of weight 0": """
        def build(settings):
            inputs, features = tokens()
            flat = layers.Reshape((24,))(features)
            outputs = {"kind": layers.Dense(5, name="kind")(features),
                       "size": layers.Dense(1, name="size")(flat)}
            model = keras.Model(inputs, outputs)
            model.compile("sgd", {"kind": SPARSE(from_logits=True), "size": "mse"},
                          loss_weights={"kind": 2.0, "size": 0.0})
            return model, (X, {"kind": Y, "size": X[:, :1].astype("float32")}), None
    """,
    "batches without an unmasked place, and a regulariser": """
        def build(settings):
            inputs = keras.Input((6, 1))
            features = layers.Dense(4, kernel_regularizer="l2")(layers.Masking()(inputs))
            model = keras.Model(inputs, layers.Dense(1)(features))
            model.compile("sgd", "mse")
            few = X[..., None] * (np.arange(44) < 3)[:, None, None]
            return model, (few.astype("float32"), X[..., None] * 1.0), None
    """,
    "float16 with a loss scale": """
        def build(settings):
            keras.config.set_dtype_policy("mixed_float16")
            try:
                inputs, features = tokens()
                features = layers.Dense(8, activation="tanh")(features)
                model = keras.Model(inputs, layers.Dense(5, dtype="float32")(features))
                return compiled(model, keras.optimizers.SGD(0.1),
                                SPARSE(from_logits=True)), (X, Y), None
            finally:
                keras.config.set_dtype_policy("float32")
    """,
}


@pytest.mark.parametrize("name", JOBS)
def test_virtual_nodes_train_what_fit_trains(name: str, tmp_path: Path) -> None:
    assert_same_as_keras(HEAD + textwrap.dedent(JOBS[name]), tmp_path)
