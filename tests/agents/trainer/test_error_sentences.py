"""The headlines of failed jobs, tried with real faults of real Keras code."""

from __future__ import annotations

import textwrap
from pathlib import Path

import keras
import pytest

from agents.trainer.contract.error_sentences import known_sentence
from agents.trainer.contract.user_errors import JobCodeError, user_code
from agents.trainer.validate.job_file import job_load
from agents.trainer.validate.model_summary import model_summary
from controlplane.core.protocol.plain_text import plain_text
from controlplane.core.protocol.wire import ReportKind
from tests.agents.trainer.local_jobs import local_job, training_spec
from tests.agents.trainer.trial_jobs import HEAD, validated

#: A family of errors -> the code, the headline, and the text of the line that is at fault (whose
#: number stands in the headline as {line}; None: no line of the job's was running).
FAULTS = {
    "features": (
        """
        def build(settings):
            model = keras.Sequential([keras.Input((4,)), layers.Dense(1, name="dense")])
            model.compile("sgd","mse")
            return model, (np.zeros((24,5),"float32"), np.zeros((24,1),"float32")), None
        """,
        "The model does not accept the data: dense expects 4 features, the data have 5",
        None,
    ),
    "rank": (
        """
        def build(settings):
            model = keras.Sequential([layers.Conv2D(4, 3, name="conv"), layers.Flatten()])
            model.compile("sgd","mse")
            return model, (np.zeros((24,5),"float32"), np.zeros((24,1),"float32")), None
        """,
        "The model does not accept the data: conv expects examples with at least 3 "
        "dimensions, the data have 1 (shape (5,))",
        None,
    ),
    "an image of another depth": (
        """
        def build(settings):
            i = keras.Input((8,8,3), name="image")
            model = keras.Model(i, layers.Dense(1)(layers.Flatten()(i)))
            model.compile("sgd","mse")
            return model, (np.zeros((24,8,8,1),"float32"), np.zeros((24,1),"float32")), None
        """,
        "The model does not accept the data: dense expects 192 features, its input has 64",
        None,
    ),
    "a matrix product": (
        """
        class Mine(keras.Model):
            def __init__(self):
                super().__init__()
                self.w = self.add_weight(shape=(4,2))
            def call(self, x):
                return ops.matmul(x, self.w)
        def build(settings):
            model = Mine()
            model.compile("sgd","mse")
            return model, (np.zeros((24,5),"float32"), np.zeros((24,2),"float32")), None
        """,
        "The model does not accept the data: a matrix product expects 4 features, the data have 5",
        None,
    ),
    "classes": (
        """
        def build(settings):
            model = keras.Sequential([layers.Dense(3, activation="softmax")])
            model.compile("sgd","categorical_crossentropy")
            return model, (X, np.zeros((24,4),"float32")), None
        """,
        "The labels do not fit the model's output: the labels have the shape (4,), the output (3,)",
        None,
    ),
    "outputs of a regression": (
        """
        def build(settings):
            model = keras.Sequential([layers.Dense(3)])
            model.compile("sgd","mse")
            return model, (X, np.zeros((24,4),"float32")), None
        """,
        "The labels do not fit the model's output: the labels have the shape (4,), the output (3,)",
        None,
    ),
    "a number for each example and several outputs": (
        """
        def build(settings):
            model = keras.Sequential([layers.Dense(3, activation="sigmoid")])
            model.compile("sgd","binary_crossentropy")
            return model, (X, np.zeros((24,),"float32")), None
        """,
        "The labels do not fit the model's output: the labels have the shape of a single "
        "number, the output (3,); for class numbers use a sparse loss, or convert them to "
        "one-hot rows",
        None,
    ),
    "one-hot rows for a sparse loss": (
        """
        def build(settings):
            model = keras.Sequential([layers.Dense(3, activation="softmax")])
            model.compile("sgd","sparse_categorical_crossentropy")
            return model, (X, np.zeros((24,3),"float32")), None
        """,
        "The labels do not fit the model's output: a sparse loss expects one class number an "
        "example, the labels have the shape (3,); for one-hot rows use "
        "categorical_crossentropy",
        None,
    ),
    "a label out of range": (
        """
        def build(settings):
            model = keras.Sequential([layers.Dense(3, activation="softmax")])
            model.compile("sgd","sparse_categorical_crossentropy")
            return model, (X, np.arange(24) % 10), None
        """,
        "A label is out of range: there is a label 9, the model has 3 classes (0 to 2)",
        None,
    ),
    "a label out of range of logits": (
        """
        def build(settings):
            model = keras.Sequential([layers.Dense(3)])
            model.compile("sgd",keras.losses.SparseCategoricalCrossentropy(from_logits=True))
            return model, (X, np.arange(24) % 10), None
        """,
        "A label is out of range: there is a label 9, the model has 3 classes (0 to 2)",
        None,
    ),
    "an index out of range": (
        """
        def build(settings):
            model = keras.Sequential([layers.Embedding(5, 2), layers.Flatten(), layers.Dense(1)])
            model.compile("sgd","mse")
            return model, (np.full((24, 3), 9), np.zeros((24,1),"float32")), None
        """,
        "A number in the data is out of range: embedding takes 0 to 4, the data have 9",
        None,
    ),
    "a missing input": (
        """
        def build(settings):
            a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b")
            model = keras.Model({"a": a, "b": b}, layers.Dense(1)(a+b))
            model.compile("sgd","mse")
            return model, ({"a": X}, Y), None
        """,
        "The model does not accept the data: its input 'b' is missing, the data have 'a'",
        None,
    ),
    "a missing input of an own model": (
        """
        class Mine(keras.Model):
            def __init__(self):
                super().__init__()
                self.d = layers.Dense(1)
            def call(self, x):
                return self.d(x["b"])
        def build(settings):
            model = Mine()
            model.compile("sgd","mse")
            return model, ({"a": X}, Y), None
        """,
        "The model does not accept the data: its input 'b' is missing, the data have 'a'",
        None,
    ),
    "too few inputs": (
        """
        def build(settings):
            a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b")
            model = keras.Model([a, b], layers.Dense(1)(a+b))
            model.compile("sgd","mse")
            return model, (X, Y), None
        """,
        "The model does not accept the data: it has 2 inputs (a, b), the data have 1; give "
        "the inputs as a tuple, or as a dict by these names",
        None,
    ),
    "too many inputs": (
        """
        def build(settings):
            a = keras.Input((4,), name="a")
            model = keras.Model(a, layers.Dense(1)(a))
            model.compile("sgd","mse")
            return model, ((X, X), Y), None
        """,
        "The model does not accept the data: it has 1 input (a), the data have 2; give the "
        "inputs as a tuple, or as a dict by these names",
        None,
    ),
    "too few labels": (
        """
        def build(settings):
            a = keras.Input((4,), name="a")
            model = keras.Model(a, [layers.Dense(1)(a), layers.Dense(2)(a)])
            model.compile("sgd",["mse", "mse"])
            return model, (X, Y), None
        """,
        "The labels do not fit the model's outputs: the model has 2 outputs, the data have "
        "labels for 1",
        None,
    ),
    "types": (
        """
        class Mine(keras.Model):
            def __init__(self):
                super().__init__()
                self.d = layers.Dense(1)
            def call(self, x):
                import tensorflow as tf
                return self.d(x) + tf.reduce_sum(tf.cast(x, tf.float64))
        def build(settings):
            model = Mine()
            model.compile("sgd","mse")
            return model, (X, Y), None
        """,
        "Types do not match: AddV2 gets float32 and float64; convert one of them with "
        "keras.ops.cast",
        None,
    ),
    "a sum": (
        """
        class Mine(keras.Model):
            def __init__(self):
                super().__init__()
                self.d = layers.Dense(3)
            def call(self, x):
                return self.d(x) + x
        def build(settings):
            model = Mine()
            model.compile("sgd","mse")
            return model, (X, Y), None
        """,
        "Two tensors in the model do not fit together: they have the shapes (5, 3) and (5, 4)",
        None,
    ),
    "a missing module": (
        """
        import pandas_is_not_here
        def build(settings):
            pass
        """,
        "There is no module 'pandas_is_not_here' on the node; put it into the uploaded .zip "
        "beside the job's file, or do without it",
        None,
    ),
    "a missing name": (
        """
        from math import cosinus
        def build(settings):
            pass
        """,
        "An import failed: cannot import name 'cosinus' from 'math'",
        None,
    ),
    "syntax": (
        """
        def build(settings)
            pass
        """,
        "job.py, line {line}, is not valid Python: expected ':'",
        "def build(settings)",
    ),
    "indentation": (
        """
        def build(settings):
            x = 1
              y = 2
        """,
        "job.py, line {line}, is not valid Python: unexpected indent",
        "y = 2",
    ),
    "nothing returned": (
        """
        def build(settings):
            model = net()
        """,
        "build(settings) returned nothing; end it with `return` and (compiled keras.Model, "
        "training data, validation data or None)",
        None,
    ),
    "only the model returned": (
        """
        def build(settings):
            return compiled(net())
        """,
        "build(settings) returned a Functional alone; end it with `return` and (compiled "
        "keras.Model, training data, validation data or None)",
        None,
    ),
    "an error of the user's own": (
        """
        def load():
            raise ValueError("the file has no rows")
        def build(settings):
            return load()
        """,
        "build(settings) in job.py raised ValueError: the file has no rows (job.py, line {line})",
        "raise ValueError",
    ),
    "an error in an own layer": (
        """
        class Mine(layers.Layer):
            def call(self, x):
                raise ValueError("I want more")
        def build(settings):
            return compiled(net(Mine())), (X, Y), None
        """,
        "build(settings) in job.py raised ValueError: I want more (job.py, line {line})",
        'raise ValueError("I want more")',
    ),
    "a missing setting": (
        """
        def build(settings):
            return settings["width"]
        """,
        "build(settings) in job.py raised KeyError: 'width' (job.py, line {line})",
        'settings["width"]',
    ),
    "an error without a message": (
        """
        def build(settings):
            assert settings.get("x")
        """,
        "build(settings) in job.py raised AssertionError (job.py, line {line})",
        "assert settings",
    ),
    "an unknown loss": (
        """
        def build(settings):
            model = net()
            model.compile("sgd", "meen")
            return model, (X, Y), None
        """,
        "Keras knows no loss named 'meen'",
        None,
    ),
    "an unknown activation": (
        """
        def build(settings):
            model = keras.Sequential([layers.Dense(1, activation="rellu")])
            model.compile("sgd", "mse")
            return model, (X, Y), None
        """,
        "Keras knows no activation named 'rellu'",
        None,
    ),
    "an end of the process": (
        """
        import sys
        def build(settings):
            sys.exit(1)
        """,
        "build(settings) in job.py raised SystemExit: 1 (job.py, line {line})",
        "sys.exit(1)",
    ),
}


@pytest.mark.parametrize("family", FAULTS)
def test_the_headline_says_what_is_wrong(family: str, tmp_path: Path) -> None:
    code, headline, at_fault = FAULTS[family]
    keras.backend.clear_session()  # names of layers count from the beginning
    report = validated(tmp_path, code)
    text = (HEAD + textwrap.dedent(code)).splitlines()
    line = 0
    if at_fault is not None:
        line = next(n for n, written in enumerate(text, 1) if at_fault in written)
    assert report.message == headline.format(line=line)
    assert not report.ok
    assert report.code in ("user_code", "build_result")
    assert plain_text(report.traceback) == report.traceback
    assert "\\x1b" not in report.traceback
    assert "site-packages" not in report.traceback
    if at_fault is not None:
        assert f"job.py, line {line}" in report.traceback.splitlines()[0]
    elif report.code == "user_code":  # the place where the model is made, or a line in it
        assert "job.py, line " in report.traceback.splitlines()[0]


def test_the_original_message_stands_below(tmp_path: Path) -> None:
    report = validated(tmp_path, FAULTS["features"][0])
    assert report.traceback.startswith("The model is made in job.py, line ")
    assert "expected axis -1 of input shape to have value 4, but received" in report.traceback
    assert "dense (Dense)" in report.facts["summary"]  # with the model, as far as it went


def test_an_own_error_of_another_kind_is_told_with_its_first_line(tmp_path: Path) -> None:
    code = "def build(settings):\n    raise RuntimeError('\\x1b[1mno\\x1b[0m disk\\nsecond line')\n"
    report = validated(tmp_path, code)
    assert "raised RuntimeError: no disk (job.py, line " in report.message
    assert "second line" not in report.message
    assert "second line" in report.traceback


@pytest.mark.parametrize(
    "text",
    [
        "Layer expects 2 input(s) with keys [nonsense, but it received 1 input tensors",
        "Input 0 of layer 'x' is incompatible with the layer: expected axis 7 of input shape to "
        "have value 4, but received input with shape ()",
        f"indices[0] = {'9' * 5000} is not in [0, 3)",
        "Exception encountered when calling a\n\nb\n\nArguments received by " * 50,
    ],
)
def test_words_of_keras_without_their_sense_do_no_harm(text: str, tmp_path: Path) -> None:
    known_sentence(text)
    with pytest.raises(JobCodeError), user_code(tmp_path, "code", "a test"):
        raise ValueError(text)
    with pytest.raises(JobCodeError), user_code(tmp_path, "code", "a test"):
        raise KeyError


LABEL_OUT_OF_RANGE = """
import keras
import numpy as np

def build(settings):
    x = np.zeros((60, 4), "float32")
    labels = np.arange(60) % 3
    labels[-1] = 12
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    return model, (x, labels), None
"""


def test_a_step_that_fails_is_told_in_the_same_words(tmp_path: Path) -> None:
    with local_job(tmp_path, training_spec(shuffle=False), LABEL_OUT_OF_RANGE) as job:
        membership = job.plan(1, None)
        job.prepare(membership)
        job.wait_ready(membership)
        job.go(membership)
        trainer = job.trainers[0]
        trainer.process.wait(timeout=120.0)
        trainer.read()
        report = trainer.last(ReportKind.FAILED)
    assert report is not None
    assert report.data["code"] == "user_code"
    assert report.data["message"] == (
        "A label is out of range: there is a label 12, the model has 3 classes (0 to 2)"
    )
    assert report.data["traceback"].startswith("The model is made in job.py, line 5, in build")
    assert "is not in [0, 3)" in report.data["traceback"]


def test_a_trainer_tells_a_fault_of_the_code_in_the_same_words(tmp_path: Path) -> None:
    code = HEAD + textwrap.dedent(FAULTS["features"][0])
    with local_job(tmp_path, training_spec(global_batch_size=8), code) as job:
        job.prepare(job.plan(1, None))
        trainer = job.trainers[0]
        trainer.process.wait(timeout=120.0)
        trainer.read()
        report = trainer.last(ReportKind.FAILED)
    assert report is not None
    assert report.data["message"] == FAULTS["features"][1]


class TestSummary:
    def test_nothing_is_cut(self) -> None:
        inputs = keras.Input((4,), name="measurements_of_the_last_twenty_four_hours")
        parts = [
            keras.layers.Dense(1000, name=f"a_dense_layer_with_quite_a_long_name_{n}")(inputs)
            for n in range(3)
        ]
        outputs = keras.layers.Concatenate(name="all_of_them")(parts)
        text = model_summary(keras.Model(inputs, outputs))
        assert "…" not in text
        for column in ("Layer (type)", "Output Shape", "Param #", "Connected to"):
            assert column in text
        for number in range(3):
            assert f"a_dense_layer_with_quite_a_long_name_{number} (Dense)" in text
            assert f"a_dense_layer_with_quite_a_long_name_{number}[0][0]" in text
        assert "5,000" in text
        assert plain_text(text) == text

    def test_a_small_model_needs_no_width(self) -> None:
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, name="dense")])
        text = model_summary(model)
        assert max(len(line) for line in text.splitlines()) == 88
        assert "Param #" in text
        assert "Total params: 5" in text

    def test_it_stays_with_a_job_that_builds(self, tmp_path: Path) -> None:
        (tmp_path / "job.py").write_text(LABEL_OUT_OF_RANGE)
        job = job_load(tmp_path, "job.py", {})
        assert "Param #" in model_summary(job.model)
