"""The result of `build` in a prediction job: a model, compiled or not, and inputs."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from agents.trainer.contract.user_errors import JobCodeError, user_traceback
from agents.trainer.data.arrays import AdaptedSource
from agents.trainer.data.nests import PART_NAMES
from agents.trainer.data.sources import source_open

#: Name of the file with another job's model, beside the code folder.
SOURCE_FILE = "source.keras"
_UNSAFE = "keras.config.enable_unsafe_deserialization"
RESULT_FORM = "(keras.Model, data), or what the training job's build returns"


class InputSource(AdaptedSource):
    """The inputs of examples, without labels and sample weights."""

    has_sample_weight = False

    def fetch(self, indices: np.ndarray) -> tuple[Any, ...]:
        inputs: tuple[Any, ...] = self._source.fetch(indices)[:1]
        return inputs


def prediction_job(
    result: Any, code_dir: Path, source: Path | None
) -> tuple[keras.Model, InputSource]:
    """Take inputs, and the model unless the file `source` holds one, from `build`'s result.

    Raises:
        JobCodeError: the result has another form, or the model cannot be loaded.
    """
    if not isinstance(result, tuple | list) or not 2 <= len(result) <= 4:
        got = f"{len(result)} elements" if isinstance(result, tuple | list) else type(result)
        raise JobCodeError(
            "build_result", "code.build", f"build(settings) returned {got}; return {RESULT_FORM}"
        )
    model, data = result[:2]
    if type(data) is tuple and len(data) <= len(PART_NAMES):  # arrays (x, y); y may be text
        data = data[:1]
    if isinstance(data, tf.data.Dataset) and type(data.element_spec) is tuple:
        data = data.map(lambda *parts: parts[:1])
    if source is not None:
        model = _source_load(source, code_dir)
    elif not isinstance(model, keras.Model):
        raise JobCodeError(
            "build_result",
            "code.build",
            f"the first element of build's result is a {type(model).__name__}, not a keras.Model; "
            "return a model with its weights, or name the job whose model to use as source_job",
        )
    return model, InputSource(source_open(data, "data.train", code_dir))


def _source_load(source: Path, code_dir: Path) -> keras.Model:
    """Load another job's model; the job's own code, already imported, may define its classes.

    A model of a class of its own may read its optimizer, as Keras's `predict` lets it, so it gets
    one if optimizer, losses and metrics can be made again.
    """
    try:
        model = keras.saving.load_model(source, compile=False)
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        hint = (
            "classes of its own have to be registered by this job's code: "
            "@keras.saving.register_keras_serializable()"
        )
        if _UNSAFE in reason:
            hint = f"for a Lambda layer, {_UNSAFE}() has to be called by this job's code"
        raise JobCodeError(
            "source_model",
            "source_job",
            f"the source job's model cannot be loaded ({reason[:300]}); {hint}",
            user_traceback(error, code_dir),
        ) from error
    if type(model).__module__.partition(".")[0] != "keras":
        with suppress(Exception):
            model = keras.saving.load_model(source)
    return model
