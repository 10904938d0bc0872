"""Loads a job: imports the user's file, calls `build(settings)` and wraps the result."""

from __future__ import annotations

import copy
import importlib.util
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from types import ModuleType
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from agents.trainer.contract.user_errors import ENTRY_MODULE, JobCodeError, user_code
from agents.trainer.data.arrays import ClassWeightedSource, TypedSource, UnitWeightedSource
from agents.trainer.data.nests import is_text
from agents.trainer.data.sources import ExampleSource, source_open
from agents.trainer.model.stateful_ops import random_operations
from agents.trainer.predict.job import prediction_job
from controlplane.core.protocol.wire import Task

#: Keys of the optional fourth element of `build`'s result: arguments of `fit` about the data.
FIT_ARGUMENTS = frozenset({"class_weight"})
#: Other arguments of `fit` that users may put there, and their proper place.
MISPLACED_ARGUMENTS = {
    "batch_size": "set the global batch size in the submission",
    "epochs": "set the stop condition in the submission",
    "steps_per_epoch": "set the stop condition in the submission",
    "shuffle": "set shuffle in the submission",
    "sample_weight": "return the training data as (x, y, sample_weight)",
    "validation_data": "return it as the third element",
    "validation_split": "split the arrays in build and return the parts",
    "callbacks": "callbacks are not run; use a learning rate schedule and a metric stop condition",
}


@dataclass(frozen=True)
class LoadedJob:
    """The result of a job's code: a model, compiled if it is to be trained, and its data.

    Attributes:
        random: operations by which a `tf.data.Dataset` of training data draws random numbers.
    """

    model: keras.Model
    train: ExampleSource
    validation: ExampleSource | None
    random: Collection[str] = ()


def job_load(
    code_dir: Path,
    entry_file: str,
    settings: dict[str, Any],
    seed: int = 0,
    task: Task = Task.TRAIN,
    source: Path | None = None,
) -> LoadedJob:
    """Import `code_dir/entry_file`, call its `build(settings)` and wrap the data.

    Python's, NumPy's and TensorFlow's random generators are seeded first, so that a random split or
    initialisation in the user's code is the same on every trainer.

    Args:
        source: in a prediction job, the file with the model to use instead of `build`'s.

    Raises:
        JobCodeError: the code failed, or its result cannot be trained.
    """
    keras.utils.set_random_seed(seed % 2**32)
    module = _import_entry(code_dir, entry_file)
    _refuse_graph_mode()
    build = getattr(module, "build", None)
    if not callable(build):
        raise JobCodeError(
            "no_build",
            "code",
            f"{entry_file} defines no function build(settings); it must return "
            "(compiled keras.Model, training data, validation data or None)",
        )
    with user_code(code_dir, "code", f"build(settings) in {entry_file}", is_all_theirs=True):
        result = build(copy.deepcopy(settings))
    _refuse_graph_mode()
    if task is Task.PREDICT:
        return LoadedJob(*prediction_job(result, code_dir, source), None)
    model, train_data, validation_data, arguments = _result_split(result)
    train = source_open(train_data, "data.train", code_dir)
    if "class_weight" in arguments:
        train = ClassWeightedSource(train, arguments["class_weight"])
    validation = None
    if validation_data is not None:
        validation = source_open(validation_data, "data.validation", code_dir)
        train, validation = _sources_matched(train, validation)
    is_dataset = isinstance(train_data, tf.data.Dataset)
    return LoadedJob(model, train, validation, random_operations(train_data) if is_dataset else ())


def _refuse_graph_mode() -> None:
    """Raise if the job's code turned eager execution off for the whole process."""
    if not tf.executing_eagerly():
        raise JobCodeError(
            "eager_execution_disabled",
            "code",
            "the code turns eager execution off, as tf.compat.v1.disable_eager_execution() and "
            "disable_v2_behavior() do, and Keras 3 cannot train without it; leave such calls out: "
            "steps are traced all the same",
        )


def _sources_matched(
    train: ExampleSource, validation: ExampleSource
) -> tuple[ExampleSource, ExampleSource]:
    """Adapt training and validation data to the same parts, so that one set of functions fits.

    Validation data get the types of the training data, which `fit` leaves as they are.

    Raises:
        JobCodeError: their structures or shapes differ, or a value would change with its type.
    """
    first = np.zeros(1, dtype=np.int64)
    examples = [source.fetch(first) for source in (train, validation)]
    num_common = min(map(len, examples))
    wanted, given = (parts[:num_common] for parts in examples)
    if _shapes(wanted) != _shapes(given):
        raise JobCodeError(
            "data_structure",
            "data.validation",
            f"validation examples look like {_layout(given)}, training examples like "
            f"{_layout(wanted)}; give both the same structure and shapes",
        )
    if _layout(wanted) != _layout(given):
        validation = TypedSource(validation, examples[0], "data.validation")
    if validation.has_sample_weight and not train.has_sample_weight:
        return UnitWeightedSource(train, validation.fetch(first)[2]), validation
    if train.has_sample_weight and not validation.has_sample_weight:
        return train, UnitWeightedSource(validation, train.fetch(first)[2])
    return train, validation


def _layout(parts: tuple[Any, ...]) -> str:
    """Describe parts by structure, shape of one example and type."""
    described = keras.tree.map_structure(
        lambda leaf: f"{'text' if is_text(leaf) else leaf.dtype}{list(leaf.shape[1:])}", parts
    )
    return str(described).replace("'", "")


def _shapes(parts: tuple[Any, ...]) -> list[Any]:
    """List places and shapes of one example's arrays, in the same order for a dict in any order."""
    return [(path, leaf.shape[1:]) for path, leaf in keras.tree.flatten_with_path(parts)]


def _import_entry(code_dir: Path, entry_file: str) -> ModuleType:
    path = (code_dir / entry_file).resolve()
    if not path.is_relative_to(code_dir.resolve()) or not path.is_file():
        raise JobCodeError(
            "no_entry_file", "entry_file", f"there is no file {entry_file!r} in the code"
        )
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # for the user's own helper modules beside it
    spec = importlib.util.spec_from_file_location(ENTRY_MODULE, path)
    if spec is None or spec.loader is None:
        raise JobCodeError("no_entry_file", "entry_file", f"{entry_file!r} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[ENTRY_MODULE] = module  # dataclasses and pickle look up the module by name
    with user_code(code_dir, "code", f"importing {entry_file}"):
        spec.loader.exec_module(module)
    return module


def _result_split(result: Any) -> tuple[keras.Model, Any, Any, Mapping[str, Any]]:
    """Check the shape of `build`'s result: three elements, or four with arguments of `fit`."""
    if not isinstance(result, (tuple, list)) or len(result) not in (3, 4):
        raise JobCodeError(
            "build_result",
            "code.build",
            f"build(settings) returned {_returned(result)}; end it with `return` and (compiled "
            "keras.Model, training data, validation data or None)",
        )
    model, train, validation = result[:3]
    _check_model(model)
    arguments = result[3] if len(result) == 4 else {}
    _check_arguments(arguments)
    return model, train, validation, arguments


def _returned(result: Any) -> str:
    if result is None:
        return "nothing"
    if isinstance(result, (tuple, list)):
        return f"{len(result)} element{'s' * (len(result) != 1)}"
    return f"a {type(result).__name__} alone"


def _check_model(model: Any) -> None:
    if not isinstance(model, keras.Model):
        raise JobCodeError(
            "build_result",
            "code.build",
            f"the first element of build's result is a {type(model).__name__}, not a keras.Model",
        )
    if not model.compiled:
        raise JobCodeError(
            "not_compiled",
            "code.build",
            "the model is not compiled; call model.compile(optimizer=..., loss=...) in build",
        )


def _check_arguments(arguments: Any) -> None:
    if not isinstance(arguments, Mapping):
        raise JobCodeError(
            "build_result",
            "code.build",
            "the fourth element of build's result must be a dict like {'class_weight': {0: 1.0}}",
        )
    for name in arguments:
        if name not in FIT_ARGUMENTS:
            hint = MISPLACED_ARGUMENTS.get(str(name), "only class_weight may stand there")
            raise JobCodeError(
                "build_result",
                "code.build",
                f"{name!r} in the fourth element of the result: {hint}",
            )
    class_weight = arguments.get("class_weight", {})
    is_valid = isinstance(class_weight, Mapping) and all(
        isinstance(key, Integral) and isinstance(value, Real)  # NumPy's, too
        for key, value in class_weight.items()
    )
    if not is_valid:
        raise JobCodeError(
            "class_weight",
            "code.build",
            "class_weight must be a dict from class number to weight: {0: 1.0, 1: 5.0}",
        )
