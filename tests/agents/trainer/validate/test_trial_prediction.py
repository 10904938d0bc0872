"""What a validation says of jobs that are to predict."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import keras
import pytest

from agents.trainer.validate.run import job_validate
from controlplane.core.protocol.wire import StopCondition, StopKind, Task, ValidationReport
from tests.agents.trainer.local_jobs import training_spec

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


@pytest.mark.parametrize("result", ["model, x", "model, (x, x[:, 0]), None", "[model, x]"])
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


def test_the_model_of_another_job_takes_the_place_of_its_own(tmp_path: Path) -> None:
    other = keras.Sequential([keras.Input((4,)), keras.layers.Dense(7, name="wide")])
    other.compile("adam", "mse")
    other.save(tmp_path / "source.keras")
    report = validated(tmp_path, code("None, x"), model_sha256="a" * 64)
    assert report.ok, report.message + report.traceback
    assert report.facts["outputs"] == ["predictions: float32 [7]"]
    assert report.facts["state_bytes"] == 35 * 4 + 16  # nothing of its optimizer


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
