"""What a validation says of jobs that are to predict."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from agents.trainer.contract.user_errors import JobCodeError
from agents.trainer.model.keras_private import model_call
from agents.trainer.model.state import ModelState
from agents.trainer.predict.functions import PredictFunctions
from agents.trainer.predict.job import prediction_job
from agents.trainer.step.prefetch import LocalPiece
from agents.trainer.validate.model_checks import predicting_check
from agents.trainer.validate.run import job_validate
from controlplane.core.protocol.node_messages import ValidationReport
from controlplane.core.protocol.wire import StopCondition, StopKind, Task
from tests.agents.trainer.local_jobs import training_spec
from tests.support.cases import some

BUILD = """
import keras
import numpy as np
import tensorflow as tf


def build(settings):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), {layer}])
    x = np.ones((50, 4), "float32")
    return {result}
"""


def validated(folder: Path, code: str, **changes: Any) -> ValidationReport:
    (folder / "code").mkdir()
    (folder / "code" / "job.py").write_text(code)
    values: dict[str, Any] = {
        "task": Task.PREDICT,
        "shuffle": False,
        "stop": StopCondition(kind=StopKind.EPOCHS, limit=1),
    }
    return job_validate(training_spec(**(values | changes)), folder / "code")


def code(result: str = "model, x", layer: str = "keras.layers.Softmax()") -> str:
    return BUILD.format(result=result, layer=layer)


@pytest.mark.parametrize(
    "result",
    [
        "model, tf.data.Dataset.from_tensor_slices((x, ['cat'] * 50)).batch(20)",
        "model, (x, np.array(['cat'] * 50)), None",
        "[model, x]",
    ],
)
def test_a_model_that_was_never_compiled_will_do(tmp_path: Path, result: str) -> None:
    report = validated(tmp_path, code(result))
    assert report.ok, report.message + report.traceback
    assert report.facts["num_examples"] == 50
    assert report.facts["steps_per_epoch"] == 3
    assert report.facts["outputs"] == ["predictions: float32 [3]"]
    assert report.facts["num_parameters"] == 15
    assert report.facts["state_bytes"] == 15 * 4 + 16  # and Keras's own random state


@pytest.mark.parametrize(
    ("text", "field", "message"),
    [
        (code("model"), "code.build", "return \\(keras.Model, data\\)"),
        (code("None, x"), "code.build", "source_job"),
        (code("model, iter(x)"), "data.train", "iterator"),
        (code(layer="keras.layers.Lambda(lambda x: keras.ops.sum(x))"), "code.build", "first axis"),
        (code(layer="keras.layers.Lambda(lambda x: x[:1])"), "code.build", "for 4 examples"),
    ],
)
def test_what_cannot_be_predicted_with(tmp_path: Path, text: str, field: str, message: str) -> None:
    report = validated(tmp_path, text)
    assert not report.ok
    assert report.field == field, report.message
    assert re.search(message, report.message), report.message


def test_a_prediction_may_call_python(tmp_path: Path) -> None:
    """Unlike a training step: an example's prediction depends on nothing but the example."""
    function = "tf.numpy_function(lambda v: v + 1, [x], 'float32')"
    layer = f"keras.layers.Lambda(lambda x: tf.ensure_shape({function}, (None, 3)))"
    report = validated(tmp_path, code(layer=layer))
    assert report.ok, report.message + report.traceback


class Decoding(keras.Sequential):  # type: ignore[misc]  # no types in Keras
    """Decodes predictions after the last layer."""

    def make_predict_function(self, force: bool = False) -> Any:
        return lambda batches: super().make_predict_function(force)(batches) > 0


def test_what_predict_would_not_do_by_example_is_refused() -> None:
    inputs = keras.Input(batch_shape=(4, 3, 2))
    stateful = keras.Model(inputs, keras.layers.GRU(2, stateful=True, name="memory")(inputs))
    with pytest.raises(JobCodeError, match=r"'memory' .GRU. is stateful"):
        predicting_check(stateful)
    with pytest.raises(JobCodeError, match=r"own make_predict_function.*predict_step\(\)"):
        predicting_check(Decoding([keras.Input((3,))]))


def test_state_that_a_prediction_does_not_keep_gets_a_warning(tmp_path: Path) -> None:
    counter = """
class Counter(keras.layers.Layer):
    def build(self, shape):
        self.count = self.add_weight(shape=(), trainable=False, name="count")

    def call(self, x):
        self.count.assign_add(1.0)
        return x + self.count
"""
    text = code(layer="Counter()").replace("\n\ndef build", f"{counter}\n\ndef build", 1)
    report = validated(tmp_path, text)
    assert report.ok, report.message + report.traceback
    assert "/count' in inference too; validations and" in report.facts["warnings"][0]


def test_the_model_of_another_job_takes_the_place_of_its_own(tmp_path: Path) -> None:
    other = keras.Sequential([keras.Input((4,)), keras.layers.Dense(7, name="wide")])
    other.compile("adam", "mse")
    other.save(tmp_path / "source.keras")
    report = validated(tmp_path, code("None, x"), model_sha256="a" * 64)
    assert report.ok, report.message + report.traceback
    assert report.facts["outputs"] == ["predictions: float32 [7]"]
    assert report.facts["state_bytes"] == 35 * 4 + 16  # nothing of its optimizer


READER = """
import keras
import numpy as np
from keras import ops

register = keras.saving.register_keras_serializable("readers")


class Reader(keras.Model):
    def __init__(self, **options):
        super().__init__(**options)
        self.dense = keras.layers.Dense(3)

    def steps(self):
        return ops.cast(self.optimizer.iterations, "float32")


@register
class InCall(Reader):
    def call(self, inputs):
        return self.dense(inputs) + self.steps()


@register
class InStep(Reader):
    def call(self, inputs):
        return self.dense(inputs)

    def predict_step(self, data):
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        return self(x) + self.steps()


class Own(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return ops.mean(ops.square(y_true - y_pred), axis=-1)


def build(settings):
    return None, np.ones((50, 4), "float32")
"""


def _reader_saved(path: Path, name: str, loss: str) -> float:
    """Train a model that reads its optimizer and save it; returns the first prediction of Keras."""
    names: dict[str, Any] = {}
    exec(READER, names)
    model = names[name]()
    model.compile("adam", names[loss]() if loss == "Own" else loss)
    model.fit(np.ones((8, 4)), np.ones((8, 3)), batch_size=2, verbose=0)
    model.save(path)
    return float(model.predict(np.ones((1, 4)), verbose=0)[0, 0])


@pytest.mark.parametrize("name", ["InCall", "InStep"])
def test_a_source_model_may_read_its_optimizer(name: str, tmp_path: Path) -> None:
    expected = _reader_saved(tmp_path / "source.keras", name, "mse")
    report = validated(tmp_path, READER, model_sha256="a" * 64)
    assert report.ok, report.message + report.traceback
    assert report.facts["state_bytes"] == 15 * 4 + 16  # nothing of its optimizer
    inputs = np.ones((1, 4), "float32")
    model, _ = prediction_job((None, inputs), tmp_path, tmp_path / "source.keras")
    model_call(model, inputs, training=False)
    functions = PredictFunctions(model, ModelState(model, is_trained=False), (inputs,))
    seeds = np.zeros((1, len(functions.state.seeds), 2), np.int64)
    fixed = (np.array([[0, 1, 0, 1]], np.int32), np.ones(1, np.float32), np.int32(1), seeds)
    arguments = tuple(tf.convert_to_tensor(value) for value in (*fixed, inputs))
    rows = functions.predict(LocalPiece(arguments, (0,)))
    found = functions.layout.unpack(rows)["predictions"][0, 0]
    assert found == pytest.approx(expected, abs=1e-6)
    assert abs(found - float(model(inputs)[0, 0])) == pytest.approx(4.0 * (name == "InStep"))


@pytest.mark.parametrize("name", some(["InCall", "InStep"], ["InStep"]))
def test_a_source_model_whose_optimizer_cannot_be_made_says_so(name: str, tmp_path: Path) -> None:
    _reader_saved(tmp_path / "source.keras", name, "Own")
    report = validated(tmp_path, READER.replace("class Own", "class Other"), model_sha256="a" * 64)
    assert (report.ok, report.code, report.field) == (False, "user_code", "code.build")
    assert report.message.startswith(f"{name} reads its optimizer and has none: compile")
    assert "register the classes of its optimizer, losses and metrics" in report.message


def test_a_model_of_unknown_classes_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "source.keras").write_bytes(b"no archive")
    report = validated(tmp_path, code("None, x"), model_sha256="a" * 64)
    assert (report.ok, report.field) == (False, "source_job")
    assert "register_keras_serializable" in report.message


def test_a_source_model_with_a_function_of_python_needs_a_call(tmp_path: Path) -> None:
    layers = [keras.Input((4,)), keras.layers.Lambda(lambda x: x * 2.0)]
    keras.Sequential(layers).save(tmp_path / "source.keras")
    report = validated(tmp_path, code("None, x"), model_sha256="0" * 64)
    assert (report.code, report.field) == ("source_model", "source_job")
    assert "for a Lambda layer, keras.config.enable_unsafe_deserialization()" in report.message
