"""Real trainer processes that are tuned while they train: the bits do not depend on the mapping."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controlplane.core.protocol.selection import SelectionMethod, SelectionSpec
from controlplane.core.protocol.tuning import TunableRange, TuningSpec
from controlplane.core.protocol.wire import ReportKind, StopCondition, StopKind, TrainingSpec
from tests.agents.trainer.dying_trainer import Ending, dying_program
from tests.agents.trainer.local_jobs import (
    UNEVEN_JOB,
    FaultyJob,
    bereft_and_restored,
    local_job,
    resized,
    training_spec,
)
from tests.agents.trainer.scheduled_trainer import scheduled_program

#: Its losses fall more steadily, so that trials converge.
CODE = (
    UNEVEN_JOB.replace("(x[:, :1] * x[:, 1:2] > 0)", "(x[:, :1] > 0)")
    .replace("Dropout(0.3)", "Dropout(0.02)")
    .replace("ExponentialDecay(0.01, 10, 0.9)", "ExponentialDecay(0.02, 50, 0.9)")
)
TUNING = TuningSpec(
    space={
        "learning_rate_scale": TunableRange(low=0.01, high=100.0, log=True),
        "weight_decay": TunableRange(low=0.0, high=0.1),
    },
    max_trials=6,
    max_share=0.5,
    max_branches=3,
)
#: Each trial has a batch size of its own, none of which divides the data.
BATCH_TUNING = replace(
    TUNING,
    space={
        "batch_size": TunableRange(low=15.0, high=50.0),
        "learning_rate_scale": TunableRange(low=0.01, high=100.0, log=True),
    },
    max_share=0.9,
)
#: Each trial has a selection of its own.
BETA_TUNING = replace(
    TUNING, space={"selection_beta": TunableRange(low=0.2, high=5.0, log=True)}, max_share=0.9
)
SELECTION = SelectionSpec(
    method=SelectionMethod.STALE_SELECTIVE_BACKPROP, stale_every=2, guard=False, history=64
)
EITHER = pytest.mark.parametrize(
    "tuning", [TUNING, BATCH_TUNING, BETA_TUNING], ids=["rates", "batch sizes", "beta"]
)
#: Trials that differ in batch size differ in their rates, too.
EITHER_NIGHTLY = pytest.mark.parametrize(
    "tuning",
    [
        pytest.param(TUNING, marks=pytest.mark.nightly),
        BATCH_TUNING,
        pytest.param(BETA_TUNING, marks=pytest.mark.nightly),
    ],
    ids=["rates", "batch sizes", "beta"],
)


def tuned_spec(num_epochs: int = 100, **more: Any) -> TrainingSpec:
    """Make a spec with 2 steps an epoch, half of which trials may take."""
    stop = StopCondition(kind=StopKind.EPOCHS, limit=num_epochs)
    values = {"tuning": TUNING, "stop": stop, "global_batch_size": 51}
    if more.get("tuning") is BETA_TUNING:  # enough passes for a trial in an epoch
        values |= {"selection": SELECTION, "global_batch_size": 20}
    return training_spec(**(values | more))


def undisturbed(folder: Path, spec: TrainingSpec) -> tuple[dict[str, Any], dict[int, Any]]:
    """Run a job on one accelerator from start to end."""
    folder.mkdir()
    with local_job(folder, spec, CODE) as job:
        job.resize(1)
        result, trials = job.wait_finished(), trials_of(job)
        (trainer,) = job.trainers.values()
        rows = [row.data for row in trainer.reports if row.kind is ReportKind.STEPS]
    if spec.selection is None:
        assert sum(row["examples"] for row in rows) == 101 * spec.stop.limit
    own = spec.global_batch_size
    sizes = [trial["values"].get("batch_size", own) for trial in trials.values()]
    assert {row["batch_size"] for row in rows} == set(sizes), "the steps tell their batch sizes"
    for row in rows:
        most = (row["last_step"] - row["first_step"] + 1) * row["batch_size"]
        assert row["examples"] <= most, "its steps have one batch size"
    return result, trials


def trials_of(job: FaultyJob) -> dict[int, Any]:
    """Return the last report of each trial, without the steps of the job after which it came."""
    trials = [dict(report.data) for report in job.told(ReportKind.TRIAL)]
    trials.sort(key=lambda trial: trial.pop("step"))
    return {trial["number"]: trial for trial in trials}


def check_same(result: dict[str, Any], expected: dict[str, Any]) -> None:
    assert result["digest"] == expected["digest"]
    assert result["metrics"] == expected["metrics"]
    assert result["step"] == expected["step"]


@pytest.mark.nightly
def test_a_job_that_tunes_and_selects_resized_in_mid_trial_ends_with_the_undisturbed_bits(
    tmp_path: Path,
) -> None:
    """Its second search begins between epochs that select, with chosen examples in the queue."""
    selection = SelectionSpec(
        method=SelectionMethod.STALE_SELECTIVE_BACKPROP, start=2, stale_every=2, guard=False
    )
    # The rate never rises: a plateau, four epochs after the first one in which nothing was tried.
    tuning = replace(TUNING, objective="learning_rate", higher_is_better=True, max_trials=3)
    spec = tuned_spec(60, tuning=tuning, selection=selection)
    with local_job(tmp_path, spec, CODE) as job:
        job.resize(1)
        expected, trials = job.wait_finished(), trials_of(job)
        found = job.told(ReportKind.TRIAL)
        rows = [row.data for row in job.told(ReportKind.EPOCH)]
    begun = min(report.data["step"] for report in found if report.data["search"] == 2)
    ended = max(report.data["step"] for report in found if report.data["search"] == 2)
    before = [row for row in rows if row["step"] <= begun and "selected_share" in row["logs"]]
    assert len(before) == 5, "they are not those between the searches"
    assert round(sum(101 * row["logs"]["selected_share"] for row in before)) % 51, "empty queue"
    assert not any("selected_share" in row["logs"] for row in rows if begun < row["step"] <= ended)
    assert "selected_share" in rows[-1]["logs"]
    assert begun + 6 < ended
    (tmp_path / "resized").mkdir()
    with local_job(tmp_path / "resized", spec, CODE, num_slots=6) as job:
        job.program = scheduled_program({1: begun + 1, 2: begun + 3, 3: begun + 6})
        check_same(resized(job, [1, 3, 2, 4], every=0), expected)
    assert trials_of(job) == trials


@EITHER_NIGHTLY
@pytest.mark.parametrize(
    ("sizes", "num_epochs"),
    [
        pytest.param([1, 2, 1], 50, id="1-2-1"),
        pytest.param([1, 3, 2, 4], 100, id="1-3-2-4", marks=pytest.mark.nightly),
    ],
)
def test_a_tuned_job_resized_in_mid_trial_ends_with_the_undisturbed_bits(
    sizes: list[int], num_epochs: int, tuning: TuningSpec, tmp_path: Path
) -> None:
    spec = tuned_spec(num_epochs, tuning=tuning)
    expected, trials = undisturbed(tmp_path / "one", spec)
    with local_job(tmp_path, spec, CODE, num_slots=6) as job:
        job.program = scheduled_program(dict(zip(range(1, len(sizes)), [13, 18, 37], strict=False)))
        check_same(resized(job, sizes, every=0), expected)
    assert trials_of(job) == trials
    # How many there are depends on the machine: its kernels decide when the first one converges.
    assert len(trials) >= 2, "nothing was tuned"
    if tuning is not TUNING:
        (name,) = {"batch_size", "selection_beta"} & tuning.space.keys()
        assert len({trial["values"][name] for trial in trials.values()}) >= 2


@pytest.mark.nightly
@EITHER
def test_killed_in_mid_trial_preempted_and_restored(tuning: TuningSpec, tmp_path: Path) -> None:
    """One of three is lost in a trial, then the leader, each before and inside of a step."""
    spec = tuned_spec(tuning=tuning)
    expected, trials = undisturbed(tmp_path / "one", spec)
    step = "agents.trainer.step.stepper:Stepper.step"
    turn = "agents.trainer.tuning.tuner:Tuner.after_step"
    endings = [
        Ending(slot=1, place=step, call=14, activity="train"),
        Ending(slot=0, place=turn, generation=2, call=15),
    ]
    with local_job(tmp_path, spec, CODE) as job:
        job.program = dying_program(endings)
        result = bereft_and_restored(job)
    check_same(result, expected)
    assert trials_of(job) == trials


#: Several inputs and outputs, a loss that sums, weights of one output that are 0, a loss scale, and
#: an optimizer with two decays.
OUTPUTS_JOB = """
import keras
import numpy as np
from keras import layers


def build(settings):
    generator = np.random.default_rng(5)
    a = generator.normal(size=(101, 5)).astype("float32")
    b = generator.integers(0, 9, (101, 3))
    x = {"a": keras.Input((5,), name="a"), "b": keras.Input((3,), name="b", dtype="int32")}
    read = [layers.Dense(8)(x["a"]), layers.Flatten()(layers.Embedding(9, 2)(x["b"]))]
    hidden = layers.Dropout(0.1)(layers.Concatenate()(read))
    outputs = {
        "number": layers.Dense(1, name="number")(hidden),
        "kind": layers.Dense(3, activation="softmax", name="kind")(hidden),
        "series": layers.Reshape((4, 2), name="series")(layers.Dense(8)(hidden)),
    }
    model = keras.Model(x, outputs)
    losses = {
        "number": keras.losses.CosineSimilarity(),
        "kind": "sparse_categorical_crossentropy",
        "series": keras.losses.MeanSquaredError(reduction="sum"),
    }
    model.compile(
        keras.optimizers.LossScaleOptimizer(keras.optimizers.Muon(0.01)),
        losses,
        loss_weights={"number": 2.0, "kind": 0.5, "series": 0.01},
        metrics={"kind": ["accuracy"]},
        weighted_metrics={"number": ["mae"]},
    )
    y = {"number": a[:, :1], "kind": b[:, 0] % 3, "series": np.stack([a[:, :2]] * 4, axis=1)}
    weight = {
        "number": generator.uniform(0.0, 2.0, size=101).astype("float32"),
        "kind": (generator.uniform(size=101) > 0.4).astype("float32"),
        "series": None,
    }
    return model, ({"a": a, "b": b}, y, weight), None
"""


@pytest.mark.nightly
def test_several_outputs_tuned_and_selected_with_a_killed_leader(tmp_path: Path) -> None:
    tuning = replace(
        BETA_TUNING,
        space=BETA_TUNING.space | {"weight_decay": TunableRange(low=0.0, high=0.1)},
        objective="loss",
    )
    spec = tuned_spec(40, tuning=tuning, selection=SELECTION, global_batch_size=20)
    (tmp_path / "one").mkdir()
    with local_job(tmp_path / "one", spec, OUTPUTS_JOB) as job:
        job.resize(1)
        expected, trials = job.wait_finished(), trials_of(job)
    with local_job(tmp_path, spec, OUTPUTS_JOB) as job:
        job.program = dying_program(
            [Ending(slot=0, place="agents.trainer.step.stepper:Stepper.step", call=14)]
        )
        job.resize(3, mapping=[[0, 3], [1], [2, 4]])
        job.wait_lost(0)
        job.recover([2, 1], [[0, 1, 4], [2, 3]])
        check_same(job.wait_finished(), expected)
    assert trials_of(job) == trials
    assert len(trials) >= 2


@pytest.mark.nightly
def test_a_trial_without_finite_losses_ends_without_ending_the_job(tmp_path: Path) -> None:
    """The job's own rate is absurd: its second loss overflows."""
    start = CODE.index("keras.optimizers.AdamW(")
    end = CODE.index("loss=keras.losses")
    code = CODE[:start] + "keras.optimizers.SGD(1e30),\n        " + CODE[end:]
    span = TunableRange(low=1e-31, high=5e-31, log=True)
    tuning = TuningSpec(space={"learning_rate_scale": span}, max_trials=3, max_share=0.5)
    spec = tuned_spec(tuning=tuning)
    with local_job(tmp_path, spec, code) as job:
        job.resize(2)
        result = job.wait_finished()
    first, *others = trials_of(job).values()
    assert (first["end"], first["steps"]) == ("diverged", 2)
    assert "kept" in [trial["end"] for trial in others]
    assert not result["not_finite"]
