"""Real trainers that start from another job's state: what goes on, and from where."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agents.trainer.model.progress import Activity
from controlplane.core.protocol.fork import ForkSpec
from controlplane.core.protocol.wire import ReportKind, StopCondition, StopKind, TrainingSpec
from tests.agents.trainer.local_jobs import PLAIN_JOB, local_job, training_spec
from tests.agents.trainer.scheduled_trainer import scheduled_program

CODE = PLAIN_JOB.replace("Adam(rate)", "Adam(rate, use_ema=True)")
#: An epoch of the job has six steps of 20 of its 101 examples.
STEPS_PER_EPOCH = 6
KEPT = {"keeps_order": True, "keeps_rate": True, "keeps_seed": True}


def epochs(limit: int) -> StopCondition:
    return StopCondition(kind=StopKind.EPOCHS, limit=limit)


def meta_of(path: Path) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as archive:
        meta: dict[str, Any] = json.loads(archive["meta"].tobytes())
    return meta


def forked(spec: TrainingSpec, path: Path, **kept: bool) -> TrainingSpec:
    """Give the spec of a job that starts from a checkpoint file."""
    step = meta_of(path)["progress"]["step"]
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    fork = ForkSpec(sha256=sha256, step=step, **(KEPT | kept))
    return dataclasses.replace(spec, fork=fork, job_id=1)


def run_fork(folder: Path, spec: TrainingSpec, path: Path, sizes: tuple[int, ...]) -> Any:
    """Start a fork on some trainers, resize it, and give its result and first report of steps."""
    folder.mkdir()
    with local_job(folder, spec, CODE) as job:
        job.program = scheduled_program({1: STEPS_PER_EPOCH * 3}) if len(sizes) > 1 else job.program
        job.restore(sizes[0], path)
        for size in sizes[1:]:
            job.resize(size)
        result = job.wait_finished()
        first = min(job.step_reports(), key=lambda report: report.data["first_step"])
        return result, first.data


def saved_at(folder: Path, spec: TrainingSpec, step: int) -> Path:
    """Train on one accelerator up to a step, and give the checkpoint of the preempted job."""
    folder.mkdir()
    with local_job(folder, spec, CODE) as job:
        job.program = scheduled_program({1: step})
        job.resize(1)
        return job.preempt()


def undisturbed(folder: Path, limit: int) -> tuple[dict[str, Any], Path]:
    """Train on one accelerator to the end; give the result and the file of the last state."""
    folder.mkdir()
    with local_job(folder, training_spec(stop=epochs(limit)), CODE) as job:
        job.resize(1)
        result = job.wait_finished()
        saved = job.trainers[0].last(ReportKind.CHECKPOINTED)
        assert saved is not None
        assert (saved.data["step"], saved.data["epoch"]) == (limit * STEPS_PER_EPOCH, limit)
        return result, job.trainers[0].run_dir / "outputs" / saved.data["file"]


def test_an_unchanged_fork_is_its_parent_going_on(tmp_path: Path) -> None:
    """From the middle of an epoch, on two accelerators instead of one."""
    expected, _ = undisturbed(tmp_path / "whole", 2)
    spec = training_spec(stop=epochs(2))
    middle = saved_at(tmp_path / "parent", spec, STEPS_PER_EPOCH + 2)
    result, first = run_fork(tmp_path / "fork", forked(spec, middle), middle, (2,))
    assert first["first_step"] == STEPS_PER_EPOCH + 3
    assert (result["digest"], result["metrics"]) == (expected["digest"], expected["metrics"])


@pytest.mark.nightly
def test_a_fork_of_an_ended_job_is_the_longer_job(tmp_path: Path) -> None:
    """The state is kept before the averages of the weights replace them; 3 → 2 accelerators."""
    expected, _ = undisturbed(tmp_path / "whole", 4)
    _, end = undisturbed(tmp_path / "short", 2)
    longer = forked(training_spec(stop=epochs(4)), end)
    result, first = run_fork(tmp_path / "after", longer, end, (3, 2))
    assert first["first_step"] == 2 * STEPS_PER_EPOCH + 1
    assert (result["digest"], result["metrics"]) == (expected["digest"], expected["metrics"])


@pytest.mark.nightly
def test_a_changed_batch_begins_the_epoch_anew_with_the_rate_that_was_asked_for(
    tmp_path: Path,
) -> None:
    code = PLAIN_JOB.replace("Adam(rate)", 'Adam(settings["rate"])')
    assert code != PLAIN_JOB
    parent = training_spec(stop=epochs(3), settings={"rate": 0.01})
    (tmp_path / "parent").mkdir()
    with local_job(tmp_path / "parent", parent, code) as job:
        job.program = scheduled_program({1: STEPS_PER_EPOCH + 2})
        job.resize(1)
        path = job.preempt()
    assert meta_of(path)["progress"]["activity"] == Activity.TRAIN
    child = dataclasses.replace(parent, settings={"rate": 0.5}, global_batch_size=50)
    child = forked(child, path, keeps_order=False, keeps_rate=False)
    (tmp_path / "fork").mkdir()
    with local_job(tmp_path / "fork", child, code) as job:
        job.restore(2, path)
        result = job.wait_finished()
        steps = sorted(job.step_reports(), key=lambda report: report.data["first_step"])
    # 101 examples are three steps of 50; the epochs 1 and 2 are done from their begin.
    assert result["step"] == STEPS_PER_EPOCH + 2 + 2 * 3
    assert sum(report.data["examples"] for report in steps) == 2 * 101
    assert steps[0].data["learning_rate"] == pytest.approx(0.5)
