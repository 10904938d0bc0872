"""Trial of a prediction job before it is queued: builds the job and predicts two slices."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from agents.trainer.contract.user_errors import user_code
from agents.trainer.data.fingerprint import data_fingerprint
from agents.trainer.model.keras_private import model_call
from agents.trainer.model.state import ModelState
from agents.trainer.predict.functions import PredictFunctions
from agents.trainer.predict.job import SOURCE_FILE
from agents.trainer.step.batch_plan import TRAINING_STREAM, step_seeds
from agents.trainer.step.prefetch import LocalPiece
from agents.trainer.validate.job_file import LoadedJob, job_load
from agents.trainer.validate.model_checks import predicting_check
from agents.trainer.validate.model_summary import model_facts
from agents.trainer.validate.split_checks import inference_changes
from controlplane.core.protocol.wire import TrainingSpec
from controlplane.core.virtual_nodes.mapping import even_bounds


def prediction_try(spec: TrainingSpec, code_dir: Path) -> tuple[dict[str, Any], list[str]]:
    """Build the job and predict its smallest and largest slice; returns facts and warnings.

    Raises:
        JobCodeError: the job's code, data or model cannot be used.
    """
    started_at = time.perf_counter()
    source = None if spec.model_sha256 is None else code_dir.parent / SOURCE_FILE
    settings = dict(spec.settings)
    job = job_load(code_dir, spec.entry_file, settings, spec.seed, spec.task, source)
    facts: dict[str, Any] = {
        "build_s": round(time.perf_counter() - started_at, 3),
        "num_examples": len(job.train),
        "steps_per_epoch": math.ceil(len(job.train) / spec.global_batch_size),
        "data_fingerprint": data_fingerprint(job.train, None),
    }
    bounds = even_bounds(min(spec.global_batch_size, len(job.train)), spec.num_virtual_nodes)
    sizes = sorted({high - low for low, high in bounds if high > low})
    predicting_check(job.model)  # first: a stateful layer fails with slices
    with user_code(code_dir, "code.build", "building the model for the first examples"):
        model_call(job.model, _examples(job, sizes[-1])[0], training=False)
    predicting_check(job.model)  # a subclassed model has layers only after it is built
    facts |= model_facts(job.model, is_trained=False)
    with user_code(code_dir, "code.build", "a prediction"):
        tried, changed = _slices_try(job, sizes)
    return facts | tried, inference_changes(changed)


def _examples(job: LoadedJob, number: int) -> tuple[Any, ...]:
    return job.train.fetch(np.arange(number, dtype=np.int64))


def _slices_try(job: LoadedJob, sizes: list[int]) -> tuple[dict[str, Any], list[Any]]:
    """Predict with the engine's own functions, each size twice; returns facts, changed state."""
    started_at = time.perf_counter()
    functions = PredictFunctions(
        job.model, ModelState(job.model, is_trained=False), _examples(job, 1)
    )
    num_seeds = len(functions.state.seeds)
    seeds = step_seeds(0, TRAINING_STREAM, 0, [0], 1, num_seeds)
    slice_s = trace_s = 0.0
    for size in sizes:
        fixed = (np.array([[0, size, 0, 1]], np.int32), np.ones(1, np.float32), np.int32(1), seeds)
        arrays = keras.tree.flatten(_examples(job, size))
        arguments = tuple(tf.convert_to_tensor(value) for value in (*fixed, *arrays))
        functions.predict(LocalPiece(arguments, (0,)))
        trace_s = trace_s or time.perf_counter() - started_at
        again_at = time.perf_counter()
        functions.predict(LocalPiece(arguments, (0,)))
        slice_s = time.perf_counter() - again_at
    facts = {
        "outputs": [
            f"{output.name}: {output.dtype.name} {list(output.shape)}"
            for output in functions.layout.outputs
        ],
        "trace_s": round(trace_s, 3),
        "slice_s": round(slice_s, 5),
        "slice_examples": sizes[-1],
    }
    return facts, functions.changed
