"""Job files whose data do not fit the model, and the headlines that they end with."""

from __future__ import annotations

from tests.agents.trainer.trial_jobs import returning

SOFTMAX = 'layers.Dense(3, activation="softmax")'
SPARSE = "sparse_categorical_crossentropy"
PIXELS = 'layers.Reshape((2, 2, 1)), layers.Dense(1, activation="sigmoid")'
TWO_INPUTS = 'a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b")'
TWICE = """
a = keras.Input((4,))
twice = keras.Model(a, {"p": layers.Dense(1)(a), "q": layers.Dense(1)(a)})
"""


def fitting(parts: str, data: str = "(X, Y)", loss: str = "mse") -> str:
    """Give a job of a sequential model."""
    return returning(f"compiled(keras.Sequential([{parts}]), loss='{loss}')", data)


#: A family of errors -> the code and the headline.
MISFITS: dict[str, tuple[str, ...]] = {
    "features": (
        fitting('keras.Input((4,)), layers.Dense(1, name="dense")', "(np.zeros((24, 5)), Y)"),
        "The model does not accept the data: dense expects 4 features, the data have 5",
    ),
    "rank": (
        fitting('layers.Conv2D(4, 3, name="conv"), layers.Flatten()', "(np.zeros((24, 5)), Y)"),
        "The model does not accept the data: conv expects examples with at least 3 "
        "dimensions, the data have 1 (shape (5,))",
    ),
    "an image of another depth": (
        returning(
            'compiled(keras.Model(image, layers.Dense(1)(layers.Flatten()(image))), loss="mse")',
            "(np.zeros((24, 8, 8, 1)), Y)",
            'image = keras.Input((8, 8, 3), name="image")',
        ),
        "The model does not accept the data: dense expects 192 features, its input has 64",
    ),
    "a matrix product": (
        returning(
            'compiled(Mine(), loss="mse")',
            "(np.zeros((24, 5)), np.zeros((24, 2)))",
            """
            class Mine(keras.Model):
                def __init__(self):
                    super().__init__()
                    self.w = self.add_weight(shape=(4, 2))
                def call(self, x):
                    return ops.matmul(x, self.w)
            """,
        ),
        "The model does not accept the data: a matrix product expects 4 features, the data have 5",
    ),
    "classes": (
        fitting(SOFTMAX, "(X, np.zeros((24, 4)))", "categorical_crossentropy"),
        "The labels do not fit the model's output: the labels have the shape (4,), the output (3,)",
    ),
    "outputs of a regression": (
        fitting("layers.Dense(3)", "(X, np.zeros((24, 4)))"),
        "The labels do not fit the model's output: the labels have the shape (4,), the output (3,)",
    ),
    "a number for each example and several outputs": (
        returning("compiled(net(out=3))", "(X, np.zeros(24))"),
        "The labels do not fit the model's output: the labels have the shape of a single "
        "number, the output (3,); for class numbers use a sparse loss, or convert them to "
        "one-hot rows",
    ),
    "a weight for each example and a loss for each of its pixels": (
        fitting(PIXELS, '(X, X.reshape(24, 2, 2, 1), np.ones(24, "float32"))'),
        "The sample weights do not fit the loss: there is one for each example, and an example's "
        "loss has the shape (2, 2); give weights with as many dimensions, as by "
        "weights.reshape(-1, 1, 1)",
    ),
    "whole numbers as such weights": (
        fitting(
            PIXELS,
            '(X, X.reshape(24, 2, 2, 1) > 0, np.ones(24, "int32"))',
            "binary_crossentropy",
        ),
        "The sample weights do not fit the loss: there is one for each example, and an example's "
        "loss has the shape (2, 2); give weights with as many dimensions, as by "
        "weights.reshape(-1, 1, 1)",
    ),
    "one-hot rows for a sparse loss": (
        fitting(SOFTMAX, "(X, np.zeros((24, 3)))", SPARSE),
        "The labels do not fit the model's output: a sparse loss expects one class number an "
        "example, the labels have the shape (3,); for one-hot rows use "
        "categorical_crossentropy",
    ),
    "a label out of range": (
        fitting(SOFTMAX, "(X, np.arange(24) % 10)", SPARSE),
        "A label is out of range: there is a label 9, the model has 3 classes (0 to 2)",
    ),
    "a label out of range of logits": (
        returning(
            "compiled(net(out=3, activation=None), loss=of_logits)",
            "(X, np.arange(24) % 10)",
            "of_logits = keras.losses.SparseCategoricalCrossentropy(from_logits=True)",
        ),
        "A label is out of range: there is a label 9, the model has 3 classes (0 to 2)",
    ),
    "an index out of range": (
        fitting(
            "layers.Embedding(5, 2), layers.Flatten(), layers.Dense(1)",
            "(np.full((24, 3), 9), Y)",
        ),
        "A number in the data is out of range: embedding takes 0 to 4, the data have 9",
    ),
    "a missing input": (
        returning(
            'compiled(keras.Model({"a": a, "b": b}, layers.Dense(1)(a + b)))',
            '({"a": X}, Y)',
            TWO_INPUTS,
        ),
        "The model does not accept the data: its input 'b' is missing, the data have 'a'",
    ),
    "a missing input of an own model": (
        returning(
            "compiled(Mine())",
            '({"a": X}, Y)',
            """
            class Mine(keras.Model):
                def __init__(self):
                    super().__init__()
                    self.d = layers.Dense(1)
                def call(self, x):
                    return self.d(x["b"])
            """,
        ),
        "The model does not accept the data: its input 'b' is missing, the data have 'a'",
    ),
    "no labels for an output": (
        returning(
            'compiled(twice, loss={"p": "mse"}, metrics={"p": ["mae"]})', '(X, {"p": Y})', TWICE
        ),
        "The labels have no 'q', which is an output of the model; with metrics give an entry for "
        "each output, None for one without a loss",
    ),
    "too few inputs": (
        returning("compiled(keras.Model([a, b], layers.Dense(1)(a + b)))", before=TWO_INPUTS),
        "The model does not accept the data: it has 2 inputs (a, b), the data have 1; give "
        "the inputs as one tuple, ((a, b), y), or as a dict by these names",
    ),
    "too many inputs": (
        returning("compiled(keras.Model(a, layers.Dense(1)(a)))", "((X, X), Y)", TWO_INPUTS),
        "The model does not accept the data: it has 1 input (a), the data have 2; give the "
        "inputs as one tuple, ((a, b), y), or as a dict by these names",
    ),
    "too few labels": (
        returning(
            "compiled(keras.Model(a, [layers.Dense(1)(a), layers.Dense(2)(a)]), "
            'loss=["mse", "mse"])',
            before=TWO_INPUTS,
        ),
        "The labels do not fit the model's outputs: the model has 2 outputs, the data have "
        "labels for 1",
    ),
    "labels under another name than the output": (
        returning('compiled(twice, loss={"p": "mse"})', '(X, {"p": Y, "other": Y})', TWICE),
        "The text 'p' stands where a step takes numbers; labels in a dict need the names of the "
        "model's outputs as keys",
    ),
}
