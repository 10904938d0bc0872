"""Trainings of a job's code by the engine and by Keras's `fit`, to be compared."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from agents.trainer.contract.run_dir import ReportWriter
from agents.trainer.data.sources import ExampleSource
from agents.trainer.engine.workload import BuiltJob, workload_build
from agents.trainer.model.progress import Activity, Progress
from agents.trainer.step.batch_plan import Planner
from agents.trainer.validate.job_file import LoadedJob, job_load
from controlplane.core.protocol.wire import StopCondition, StopKind, TrainingSpec
from tests.agents.trainer.local_jobs import membership_of, training_spec

BATCH_SIZE, EPOCHS = 11, 2


def spec(num_virtual_nodes: int = 3) -> TrainingSpec:
    stop = StopCondition(kind=StopKind.EPOCHS, limit=EPOCHS)
    values = {"global_batch_size": BATCH_SIZE, "seed": 4, "stop": stop}
    return training_spec(num_virtual_nodes=num_virtual_nodes, **values)


def trained_by_engine(work: BuiltJob) -> list[dict[str, float]]:
    """Run all epochs over virtual nodes; returns the logs of each."""
    virtual_nodes = tuple(range(work.data.spec.num_virtual_nodes))
    planner = Planner(work.data.spec, membership_of({0: virtual_nodes}), (0,), 0)
    functions = work.trace()
    logs: list[dict[str, float]] = []
    step = 0
    for epoch in range(EPOCHS):
        logs.append({})
        for activity, prefix in ((Activity.TRAIN, ""), (Activity.VALIDATE, "val_")):
            work.reset_metrics()
            start = Progress(step=step, epoch=epoch, activity=activity)
            order = work.data.order(start) if has_data(work, activity) else np.zeros(0)
            for batch in range(-(-len(order) // BATCH_SIZE)):
                place = replace(start, step=step, batch=batch, examples=batch * BATCH_SIZE)
                local = work.data.local_batch(planner, order, place)
                arguments = next(local.pieces).arguments
                assert local.num_pieces == 1
                if activity is Activity.TRAIN:
                    functions.train_step(*arguments)
                    step += 1
                else:
                    functions.count(functions.validate(*arguments)[0])
            if len(order):
                results = work.logs(training=activity is Activity.TRAIN)
                results.pop("learning_rate", None)
                logs[-1] |= {prefix + name: value for name, value in results.items()}
    work.model.optimizer.finalize_variable_values(work.model.trainable_variables)
    return logs


def has_data(work: BuiltJob, activity: Activity) -> bool:
    return activity is Activity.TRAIN or work.data.validation is not None


def fetched(source: ExampleSource, indices: np.ndarray) -> Any:
    """Fetch examples, text among them as tensors: `fit` refuses arrays of it."""
    parts = source.fetch(indices)
    return keras.tree.map_structure(lambda a: tf.constant(a) if a.dtype == object else a, parts)


def trained_by_keras(job: LoadedJob) -> list[dict[str, float]]:
    """Run `fit` over the same examples in the same order; returns the logs of each epoch."""
    batches = []
    for epoch in range(EPOCHS):
        order = job.train.order(spec().seed, epoch, spec().shuffle)
        cuts = range(0, len(order), BATCH_SIZE)
        batches.extend(fetched(job.train, order[low : low + BATCH_SIZE]) for low in cuts)
    validation = None
    if job.validation is not None:
        validation = fetched(job.validation, np.arange(len(job.validation)))
    history = job.model.fit(
        (batch for batch in batches),
        steps_per_epoch=len(batches) // EPOCHS,
        epochs=EPOCHS,
        validation_data=validation,
        validation_batch_size=BATCH_SIZE,
        verbose=0,
    ).history
    return [{name: values[epoch] for name, values in history.items()} for epoch in range(EPOCHS)]


def assert_same_as_keras(code: str, tmp_path: Path, num_virtual_nodes: int = 3) -> None:
    """Train over virtual nodes and with `fit`; weights and logs may differ by rounding only."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "job.py").write_text(code)
    work = workload_build(tmp_path, spec(num_virtual_nodes), ReportWriter(tmp_path, 0, 0))
    job = job_load(tmp_path / "code", "job.py", {}, spec().seed)
    if job.model.built:  # otherwise `fit` draws the same weights, by the job's seed
        job.model.set_weights(work.model.get_weights())
    start = work.model.get_weights()

    logs, expected_logs = trained_by_engine(work), trained_by_keras(job)

    is_half = any("16" in layer.compute_dtype for layer in [job.model, *job.model.layers])
    tolerance = 2e-2 if is_half else 2e-4
    weights, expected = work.model.get_weights(), job.model.get_weights()
    for ours, theirs in zip(weights, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance / 10)
    assert any(not np.array_equal(old, new) for old, new in zip(start, weights, strict=True))
    for ours_logs, theirs_logs in zip(logs, expected_logs, strict=True):
        assert set(ours_logs) == set(theirs_logs)
        for key, value in theirs_logs.items():
            assert ours_logs[key] == pytest.approx(value, rel=tolerance, abs=1e-5), key
