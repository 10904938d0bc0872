"""Whole runs whose loss or metric becomes nan or infinite: they stop or go on, and say so."""

from __future__ import annotations

import csv
import json
import math
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agents.trainer.__main__ import main
from agents.trainer.local import cli, local_cluster
from agents.trainer.local.local_cluster import LocalJob, NonfiniteJobError
from agents.trainer.local.validation import job_validate
from agents.trainer.model.nonfinite import SKIPPED_LIMIT
from controlplane.core.protocol.nonfinite import nonfinite_read
from controlplane.core.protocol.wire import (
    Membership,
    OnNonfinite,
    ReductionMode,
    ReportKind,
    StopCondition,
    StopKind,
    TrainingSpec,
)
from tests.agents.trainer.dying_trainer import Ending, dying_program
from tests.agents.trainer.local_jobs import FaultyJob, local_job, prepared, training_spec
from tests.agents.trainer.scheduled_trainer import scheduled_program
from tests.agents.trainer.streaming_trainer import streaming_program
from tests.support.warm_trainers import trainer_fork

#: The target of one example makes the loss of its step nan, or infinite without a gradient.
JOB = """
import keras
import numpy as np
from keras import ops


def loss(y, predictions):
    odd = y > 1e6
    error = ops.square(predictions - ops.where(odd, 0.0, y))
    return ops.mean(ops.where(odd, np.inf, error), axis=-1)


def build(settings):
    generator = np.random.default_rng(5)
    x = generator.normal(size=(settings["examples"], 6)).astype("float32")
    y = x[:, :1] * x[:, 1:2]
    checked = x[:30], y[:30].copy()
    y[settings["bad"]] = settings.get("value", np.nan)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.001), loss, metrics=["mae"])
    return model, (x, y), checked
"""

#: The validation metric is 0 / 0 from the beginning; the loss is fine.
METRIC_JOB = """
import keras
import numpy as np
from keras import ops


class Share(keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="share")
        self.hits = self.add_weight(name="hits", initializer="zeros")
        self.count = self.add_weight(name="count", initializer="zeros")

    def update_state(self, y, predictions, sample_weight=None):
        self.hits.assign_add(ops.sum(ops.cast(y > 0.5, "float32")))
        self.count.assign_add(ops.sum(ops.cast(y > 0.5, "float32")))

    def result(self):
        return self.hits / self.count


def build(settings):
    generator = np.random.default_rng(5)
    x = generator.normal(size=(100, 6)).astype("float32")
    y = np.ones((100, 1), "float32")
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=[Share()])
    return model, (x, y), (x[:30], np.zeros((30, 1), "float32"))
"""

#: An example that overflows half precision in the forward pass; its step is skipped.
HALF_JOB = """
import keras
import numpy as np


def build(settings):
    keras.mixed_precision.set_global_policy("mixed_float16")
    generator = np.random.default_rng(5)
    x = generator.normal(size=(100, 6)).astype("float32")
    y = x[:, :1] * x[:, 1:2]
    x[settings["first"] : settings["end"]] = 6e4
    layers = [
        keras.Input((6,)),
        keras.layers.Dense(16, kernel_initializer="ones"),
        keras.layers.Dense(1, dtype="float32"),
    ]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.Adam(0.001), "mse", metrics=["mae"])
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    return model, (x, y), None
"""
#: 20 examples a step: the one that is bad is in step 33 (of epoch 1 with 1000 examples).
BAD_STEP = 33
#: Choices as parameters; all but `stop` are nightly.
CHOICES = [
    pytest.param(choice, marks=() if choice is OnNonfinite.STOP else pytest.mark.nightly)
    for choice in OnNonfinite
]
SETTINGS: dict[str, Any] = {"examples": 1000, "bad": 20 * (BAD_STEP - 1) + 3}


def spec_of(choice: OnNonfinite, limit: int = 100, **changes: Any) -> TrainingSpec:
    stop = StopCondition(kind=StopKind.STEPS, limit=limit)
    values = {"settings": SETTINGS, "stop": stop, "shuffle": False, "on_nonfinite": choice}
    return training_spec(**values | changes)


def ready(job: LocalJob, *sizes: int) -> list[Membership]:
    """Get everybody ready for memberships of these sizes."""
    memberships: list[Membership] = []
    for size in sizes:
        memberships.append(job.plan(size, memberships[-1] if memberships else None))
    prepared(job, memberships)
    return memberships


def stopped(job: LocalJob) -> tuple[dict[str, Any], Path]:
    """Wait for a job to stop at something that is not finite; its report, its files."""
    with pytest.raises(NonfiniteJobError) as raised:
        job.wait_finished()
    return raised.value.data, raised.value.outputs


def kinds_of(job: LocalJob) -> list[ReportKind]:
    """List what all trainers have said, once every one of them has ended."""
    for trainer in job.trainers.values():
        if trainer.slot not in job.lost:
            assert trainer.process.wait(60.0) in (0, 3)
            trainer.read()
    return [report.kind for trainer in job.trainers.values() for report in trainer.reports]


def told(job: FaultyJob, kind: ReportKind) -> list[dict[str, Any]]:
    """Give the data of all reports of a kind, with JSON's own numbers only."""
    found = [report.data for report in job.told(kind)]
    json.dumps(found, allow_nan=False)
    return found


@pytest.mark.nightly
@pytest.mark.parametrize("reduction", [ReductionMode.EXACT, ReductionMode.FAST])
def test_three_trainers_that_were_one_stop_before_the_same_step(
    tmp_path: Path, reduction: ReductionMode
) -> None:
    bad = 60
    settings = {"examples": 20 * 100, "bad": 20 * (bad - 1)}
    spec = spec_of(OnNonfinite.STOP, limit=200, reduction=reduction, settings=settings)
    with local_job(tmp_path, spec, JOB, num_slots=4) as job:
        job.program = scheduled_program({1: 20})
        for membership in ready(job, 1, 3):
            job.go(membership)
            job.wait_switched(membership)
        data, outputs = stopped(job)
        kinds = kinds_of(job)
        losses = told(job, ReportKind.STEPS)
    found = nonfinite_read(data["nonfinite"])
    assert (data["code"], data["step"], data["epoch"]) == ("nonfinite_loss", bad - 1, 0)
    assert (found.step, found.value, found.last_finite_step) == (bad, "nan", bad - 1)
    assert data["message"] == found.failure_text
    assert found.last_finite is not None
    assert kinds.count(ReportKind.FAILED) == 1
    assert ReportKind.STALLED not in kinds
    assert max(row["last_step"] for row in losses) == bad - 1
    assert all(row["loss"] is not None and row["nonfinite"] is None for row in losses)
    assert sorted(data["files"]) == ["checkpoint.npz", "history.csv", "metrics.json"]
    assert all((outputs / name).is_file() for name in data["files"])


def test_a_lost_leader_changes_nothing_and_the_checkpoint_can_be_gone_on_from(
    tmp_path: Path,
) -> None:
    """The leader is lost when it is about to write; the other writes and reports the same."""
    with local_job(tmp_path, spec_of(OnNonfinite.STOP), JOB, num_slots=4) as job:
        ending = Ending(slot=0, place="agents.trainer.engine.tasks:failure_save")
        job.program = dying_program([ending])
        job.resize(2)
        job.wait_lost(0)
        job.recover([1])
        data, outputs = stopped(job)
        kinds_of(job)
    assert outputs.parent.name == "0-1"
    assert data["step"] == BAD_STEP - 1
    assert nonfinite_read(data["nonfinite"]).step == BAD_STEP
    with np.load(outputs / "checkpoint.npz") as archive:
        progress = json.loads(archive["meta"].tobytes())["progress"]
        numbers = [
            np.frombuffer(archive[f"v{place}"].tobytes(), dtype)
            for place, (_, dtype, _) in enumerate(
                json.loads(archive["meta"].tobytes())["variables"]
            )
        ]
    assert (progress["step"], progress["found"]) == (BAD_STEP - 1, None)
    assert not progress["is_failed"]
    assert all(np.isfinite(values).all() for values in numbers), "the bad step was applied"
    (tmp_path / "on").mkdir()
    going_on = spec_of(OnNonfinite.CONTINUE, limit=BAD_STEP + 5)
    with local_job(tmp_path / "on", going_on, JOB) as job:
        job.restore(1, outputs / "checkpoint.npz")
        result = job.wait_finished()
    assert result["step"] == BAD_STEP + 5


@pytest.mark.nightly  # one trainer that goes on: below
def test_one_that_goes_on_remembers_across_resizes_and_checkpoints(tmp_path: Path) -> None:
    spec = spec_of(OnNonfinite.CONTINUE, limit=3000)
    with local_job(tmp_path, spec, JOB, num_slots=8) as job:
        for membership in ready(job, 1, 3, 2):
            job.go(membership)
            job.wait_switched(membership)
        job.wait_step(BAD_STEP + 20)
        assert job.finished() is None, "the job ended before it was stopped: give it more steps"
        checkpoint = job.preempt()
        job.restore(1, checkpoint)
        result = job.wait_finished()
        kinds_of(job)
        states = [row["nonfinite"] for row in told(job, ReportKind.STEPS) if row["nonfinite"]]
        epochs = told(job, ReportKind.EPOCH)
    assert len({json.dumps(state) for state in states}) == 1
    found = nonfinite_read(states[0])
    assert (found.step, found.last_finite_step, found.until_step) == (BAD_STEP, BAD_STEP - 1, None)
    assert result["reason"] == "steps"
    assert result["metrics"]["loss"] is None
    assert result["not_finite"]["loss"] == "nan"
    told_in_the_end = [nonfinite_read(state).metric for state in result["nonfinite"]]
    assert told_in_the_end == [None, "val_loss", "val_mae"]
    assert epochs[0]["logs"]["val_mae"] is None
    assert {state["metric"] for state in epochs[0]["nonfinite"]} == {"val_loss", "val_mae"}


def test_a_loss_may_be_finite_again(tmp_path: Path) -> None:
    """The infinite example has no gradient: the step after it is as if nothing had been."""
    spec = spec_of(OnNonfinite.CONTINUE, settings=SETTINGS | {"value": 1e9}, limit=60)
    with local_job(tmp_path, spec, JOB) as job:
        job.resize(1)
        result = job.wait_finished()
        kinds_of(job)
        states = [row["nonfinite"] for row in told(job, ReportKind.STEPS) if row["nonfinite"]]
        first, last = told(job, ReportKind.EPOCH)
    # A report may fall between the two steps: then one says that it is, the next that it was.
    *open_ones, ended = (nonfinite_read(state) for state in states)
    assert (ended.value, ended.step, ended.until_step) == ("inf", BAD_STEP, BAD_STEP + 1)
    assert open_ones in ([], [replace(ended, until_step=None)])
    assert first["logs"]["loss"] is None
    assert first["nonfinite"] == []
    assert math.isfinite(last["logs"]["loss"])
    assert result["nonfinite"] == []


@pytest.mark.parametrize("choice", CHOICES)
def test_a_metric_alone_that_is_not_finite(tmp_path: Path, choice: OnNonfinite) -> None:
    stop = StopCondition(kind=StopKind.EPOCHS, limit=3)
    spec = spec_of(choice, stop=stop, settings={})
    with local_job(tmp_path, spec, METRIC_JOB) as job:
        job.resize(2)
        if choice is OnNonfinite.CONTINUE:
            result = job.wait_finished()
            assert [nonfinite_read(state).metric for state in result["nonfinite"]] == ["val_share"]
            return
        data, outputs = stopped(job)
        kinds = kinds_of(job)
    assert (data["code"], data["step"], data["epoch"]) == ("nonfinite_metric", 5, 1)
    assert data["message"].startswith(
        "The metric val_share became nan at the end of epoch 1 (step 5); it was never finite."
    )
    assert ReportKind.STALLED not in kinds
    with (outputs / "history.csv").open() as stream:
        (row,) = csv.DictReader(stream)
    assert row["val_share"] == "nan"
    assert float(row["share"]) == 1.0
    summary = json.loads((outputs / "metrics.json").read_text(), parse_constant=pytest.fail)
    assert summary["metrics"]["val_share"] is None
    assert summary["not_finite"] == {"val_share": "nan"}
    assert summary["ended_by"] == "nonfinite_metric"


@pytest.mark.nightly  # three trainers without a listener: above
def test_all_stop_together_once_a_listener_has_caught_up(tmp_path: Path) -> None:
    """The bad step comes while a joiner listens, which cannot foresee an end."""
    bad = 1000
    settings = {"examples": 20 * 4000, "bad": 20 * (bad - 1)}
    spec = spec_of(OnNonfinite.STOP, limit=10_000, settings=settings)
    with local_job(tmp_path, spec, JOB, num_slots=4) as job:
        job.program = streaming_program(hear=1100)
        first, grown = ready(job, 1, 2)
        job.go(first)
        job.wait_switched(first)
        job.go(grown)
        data, _ = stopped(job)
        kinds = kinds_of(job)
    assert nonfinite_read(data["nonfinite"]).step == bad
    assert data["step"] > bad, "it was to be found beside a listener"
    assert kinds.count(ReportKind.FAILED) == 1
    assert ReportKind.STALLED not in kinds


def test_an_overflow_that_the_loss_scale_skips_is_no_failure(tmp_path: Path) -> None:
    """One step in five overflows half precision; all others train."""
    spec = spec_of(OnNonfinite.STOP, settings={"first": 45, "end": 46}, limit=15)
    with local_job(tmp_path, spec, HALF_JOB) as job:
        job.resize(1)
        result = job.wait_finished()
        kinds_of(job)
        epochs = told(job, ReportKind.EPOCH)
        losses = told(job, ReportKind.STEPS)
    assert result["reason"] == "steps"
    assert any(row["loss"] is None for row in losses), "nothing overflowed"
    assert [row["logs"]["loss"] for row in epochs] == [None] * 3
    assert [row["nonfinite"] for row in epochs] == [[]] * 3


@pytest.mark.nightly  # tests/agents/trainer/model/test_nonfinite.py counts skipped steps
def test_overflows_without_end_are_one(tmp_path: Path) -> None:
    spec = spec_of(OnNonfinite.STOP, settings={"first": 0, "end": 100})
    with local_job(tmp_path, spec, HALF_JOB) as job:
        job.resize(1)
        data, _ = stopped(job)
        kinds_of(job)
    found = nonfinite_read(data["nonfinite"])
    assert (data["step"], found.step, found.num_skipped) == (SKIPPED_LIMIT, 1, SKIPPED_LIMIT)
    assert "all skipped by the loss scale; it was never finite" in data["message"]


#: A validation that accepts the job at once; test_cli.py has one that is carried out.
ACCEPTING = """
import json, pathlib, sys
report = {"attempt": 0, "ok": True, "code": None, "field": None, "message": "", "traceback": ""}
text = json.dumps({**report, "facts": {"warnings": ["accepted"]}})
pathlib.Path(sys.argv[2], "validation.json").write_text(text)
"""


@pytest.mark.parametrize("choice", CHOICES)
def test_the_command_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    choice: OnNonfinite,
) -> None:
    monkeypatch.setattr(local_cluster, "trainer_spawn", trainer_fork)
    accepting = partial(job_validate, program=(sys.executable, "-c", ACCEPTING))
    monkeypatch.setattr(cli, "job_validate", accepting)
    job = tmp_path / "job.py"
    job.write_text(JOB)
    arguments = [str(job), "--virtual-nodes", "4", "--steps", "60", "--batch-size", "20"]
    arguments += ["--settings", "examples=1000", "--settings", "bad=643"]
    arguments += ["--output", str(tmp_path / "out")]
    if choice is OnNonfinite.CONTINUE:
        arguments += ["--on-nonfinite", "continue"]
    status = main(arguments)
    out, error = capsys.readouterr()
    assert "warning: accepted" in out
    if choice is OnNonfinite.CONTINUE:
        assert status == 0
        assert "loss nan" in out
        assert "warning: The loss is not finite since step" in out
        assert (tmp_path / "out" / "model.keras").is_file()
        return
    assert status == 1
    assert error.startswith("error: The loss became nan at step ")
    assert "its last finite value was" in error
    assert "Traceback" not in error
    assert (tmp_path / "out" / "checkpoint.npz").is_file()
