"""How a trainer ends early: one coded report, exit status 3, no half-written file."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest
import tensorflow as tf

from agents.trainer.contract.failures import EXIT_FAILED, TrainerError
from agents.trainer.local.local_cluster import LocalJob
from agents.trainer.step.stepper import step_failures
from controlplane.core.protocol.wire import ReportKind, StopCondition, StopKind, TrainerReport
from tests.agents.trainer.local_jobs import UNEVEN_JOB, local_job, training_spec

LONG = StopCondition(kind=StopKind.STEPS, limit=1_000_000)


def failure_of(job: LocalJob) -> TrainerReport:
    """Wait for the failure of the first trainer and its end."""
    trainer = job.trainers[0]
    assert trainer.process.wait(timeout=120.0) == EXIT_FAILED
    trainer.read()
    report = trainer.last(ReportKind.FAILED)
    assert report is not None
    return report


def test_code_that_fails_is_reported_with_its_own_traceback(tmp_path: Path) -> None:
    code = UNEVEN_JOB.replace("return model, (x, y", "undefined_helper(x)\n    return model, (x, y")
    with local_job(tmp_path, training_spec(), code) as job:
        job.prepare(job.plan(1, None))
        report = failure_of(job)
    assert report.data["code"] == "user_code"
    assert "NameError" in report.data["message"]
    assert "undefined_helper(x)" in report.data["traceback"]
    assert "site-packages" not in report.data["traceback"]


def test_a_label_that_the_loss_cannot_take_is_the_users_fault(tmp_path: Path) -> None:
    code = UNEVEN_JOB.replace("(x, y, weight)", '(x, np.full((101, 1), "a"), weight)')
    with local_job(tmp_path, training_spec(), code) as job:
        job.prepare(job.plan(1, None))
        assert failure_of(job).data["code"] == "user_code"


#: Asks for a row that a table does not have, in the last of the data: once steps were done.
OUT_OF_TABLE_JOB = """
import keras
import numpy as np


class Lookup(keras.layers.Layer):
    def build(self, shape):
        self.table = self.add_weight(shape=(7, 3))

    def call(self, rows):
        return keras.ops.take(self.table, rows, axis=0)


def build(settings):
    rows = np.arange(60, dtype="int32") % 7
    rows[-1] = 4711
    model = keras.Sequential([keras.Input((), dtype="int32"), Lookup()])
    model.compile(optimizer="sgd", loss="mse")
    return model, (rows, np.zeros((60, 3), "float32")), None
"""


def test_a_model_that_fails_in_a_step_is_reported_with_its_own_frames(tmp_path: Path) -> None:
    with local_job(tmp_path, training_spec(shuffle=False), OUT_OF_TABLE_JOB) as job:
        membership = job.plan(1, None)
        job.prepare(membership)
        job.wait_ready(membership)
        job.go(membership)
        report = failure_of(job)
    assert report.data["code"] == "user_code"
    assert report.data["message"] == (
        "A number in the data is out of range: lookup takes 0 to 6, the data have 4711"
    )
    below = report.data["traceback"]
    assert below.startswith("job.py, line 11, in call\n")
    assert 'File "job.py", line 11, in call' in below
    assert "4711 is not in [0, 7)" in below
    assert "site-packages" not in below


def test_a_taken_port_is_said_so(tmp_path: Path) -> None:
    with local_job(tmp_path, training_spec()) as job:
        membership = job.plan(1, None)
        port = int(job.cluster_addresses[0].address.rpartition(":")[2])
        job.free_port(0)
        with socket.socket() as squatter:
            squatter.bind(("", port))
            squatter.listen()
            job.prepare(membership)
            report = failure_of(job)
    assert report.data["code"] == "port_in_use"
    assert str(port) in report.data["message"]


def test_a_terminated_trainer_leaves_nothing_half(tmp_path: Path) -> None:
    with local_job(tmp_path, training_spec(stop=LONG)) as job:
        job.resize(1)
        job.wait_step(20)
        process = job.trainers[0].process
        process.terminate()
        assert process.wait(timeout=10.0) == -signal.SIGTERM
        assert not list((job.trainers[0].run_dir).glob("**/*partial*"))


def test_a_trainer_ends_with_its_launcher(tmp_path: Path) -> None:
    """Orders are watched by a thread that also looks whether the parent still is the parent."""
    with local_job(tmp_path, training_spec(stop=LONG)) as job:
        job.parent_pid = os.getppid()  # not this process: as if the launcher had gone
        job.prepare(job.plan(1, None))
        assert job.trainers[0].process.wait(timeout=60.0) == EXIT_FAILED


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (tf.errors.ResourceExhaustedError, "out_of_memory"),
        (tf.errors.InternalError, "internal"),
        (tf.errors.UnknownError, "internal"),
        (tf.errors.UnavailableError, "internal"),
        (tf.errors.DataLossError, "internal"),
        (tf.errors.InvalidArgumentError, "user_code"),
        (tf.errors.FailedPreconditionError, "user_code"),
        (tf.errors.NotFoundError, "user_code"),
        (tf.errors.OutOfRangeError, "user_code"),
        (tf.errors.UnimplementedError, "user_code"),
    ],
)
def test_what_a_step_raises_is_laid_to_the_code_or_to_the_device(
    error: type[tf.errors.OpError], code: str
) -> None:
    with pytest.raises(TrainerError) as caught, step_failures():
        raise error(None, None, "CUDA_ERROR_ECC_UNCORRECTABLE or so")
    assert caught.value.code == code
    assert "CUDA_ERROR_ECC_UNCORRECTABLE or so" in caught.value.message
    assert (error.__name__ in caught.value.traceback) is (code != "out_of_memory")


def test_a_python_function_of_the_model_is_its_code() -> None:
    def fail(value: object) -> object:
        raise KeyError(value)

    with pytest.raises(TrainerError) as caught, step_failures():
        tf.function(lambda: tf.py_function(fail, [tf.constant(3.0)], tf.float32))()
    assert caught.value.code == "user_code"
    assert "KeyError" in caught.value.message
