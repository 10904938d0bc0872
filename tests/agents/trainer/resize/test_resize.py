"""Real trainer processes: whatever happens to the mapping, the bits at the end are the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from agents.trainer.local.local_cluster import LocalJob
from controlplane.core.protocol.wire import (
    ReductionMode,
    ReportKind,
    StopCondition,
    StopKind,
    TrainerReport,
)
from tests.agents.trainer.local_jobs import (
    TEMPLATES,
    UNEVEN_JOB,
    FaultyJob,
    local_job,
    prepared,
    resized,
    training_spec,
    undisturbed,
)
from tests.agents.trainer.scheduled_trainer import scheduled_program
from tests.agents.trainer.streaming_trainer import streaming_program
from tests.support.present import present

#: The loss of the uneven job falls to it at the end of epoch 4: 101 examples in batches of 20.
METRIC_STOP = StopCondition(
    kind=StopKind.METRIC, limit=50, metric="loss", target=0.83, higher_is_better=False
)
NUM_EPOCHS, NUM_STEPS = 5, 30


def steps(limit: int) -> StopCondition:
    return StopCondition(kind=StopKind.STEPS, limit=limit)


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], list[TrainerReport]]:
    """Train the uneven job on one accelerator; return its result and all reports."""
    spec = training_spec(stop=METRIC_STOP)
    with local_job(tmp_path_factory.mktemp("one"), spec, UNEVEN_JOB) as job:
        job.resize(1)
        result = job.wait_finished()
        job.wait(lambda: job.trainers[0].process.poll() == 0, "the process to end", 30.0)
        return result, job.trainers[0].reports


def digests(job: FaultyJob) -> dict[int, set[str]]:
    """Collect the digests that were reported at each switch, by generation."""
    found: dict[int, set[str]] = {}
    for report in job.told(ReportKind.DIGEST):
        found.setdefault(report.generation, set()).add(report.data["sha256"])
    return found


def switched_at(job: LocalJob, slot: int, generation: int) -> int:
    """Give the first step that a trainer did with the mapping of a generation."""
    report = present(job.trainers[slot].last(ReportKind.SWITCHED, generation))
    return int(report.data["step"])


TEMPLATE_JOBS = {
    "digits_cnn": {"filters": 8, "hidden_units": 16},
    "residual": {"filters": 8},
    "tabular": {},
    "char_transformer": {"width": 16, "num_blocks": 1, "context": 16, "num_characters": 20_000},
}


#: Those whose joiners listen until they have the state, for longer than an epoch of two batches.
STREAMED_JOBS = {"residual", "char_transformer"}
HEARD_STEPS = 12


@pytest.mark.nightly  # the uneven job below is in every run
@pytest.mark.parametrize("name", TEMPLATE_JOBS)
def test_a_template_resized_1_3_2_4_ends_with_the_bits_of_the_undisturbed_run(
    name: str, tmp_path: Path
) -> None:
    spec = training_spec(
        entry_file=f"{name}.py",
        settings=TEMPLATE_JOBS[name],
        num_virtual_nodes=8,
        global_batch_size=30,
        stop=steps(300 if name in STREAMED_JOBS else 60),
    )
    code = TEMPLATES / f"{name}.py"
    expected = undisturbed(tmp_path / "one", spec, code)
    with local_job(tmp_path, spec, code, num_slots=5) as job:
        if name in STREAMED_JOBS:
            job.program = streaming_program(HEARD_STEPS)
            result = resized(job, [1, 3, 2, 4], every=30)
        else:
            job.program = scheduled_program({1: 10, 2: 20, 3: 30})
            result = resized(job, [1, 3, 2, 4], every=0)
        job.wait(lambda: set(digests(job)) == {1, 2, 3, 4}, "digests", 30.0)
        if name in STREAMED_JOBS:
            assert switched_at(job, 1, 2) >= switched_at(job, 0, 2) + HEARD_STEPS // 2
    assert result["digest"] == expected["digest"]
    assert result["metrics"] == expected["metrics"]
    assert all(len(found) == 1 for found in digests(job).values()), digests(job)


#: Text in batches that two virtual nodes cut into 11 and 10, and a short last one.
TEXT_JOB = """
import keras
import numpy as np


def build(settings):
    generator = np.random.default_rng(5)
    x = generator.choice(["a", "bb", "ccc"], size=(101, 3))
    y = (x[:, :1] == "a").astype("float32")
    inputs = keras.Input((3,), dtype="string")
    numbers = keras.layers.StringLookup(vocabulary=["a", "bb"])(inputs)
    words = keras.layers.Flatten()(keras.layers.Embedding(4, 2)(numbers))
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Dropout(0.3)(words)))
    model.compile("adam", "mse")
    return model, (x, y), (x[:33], y[:33])
"""


def test_a_job_with_text_resized_in_the_middle_ends_with_the_same_bits(tmp_path: Path) -> None:
    spec = training_spec(num_virtual_nodes=2, global_batch_size=21, stop=steps(30))
    expected = undisturbed(tmp_path / "one", spec, TEXT_JOB)
    with local_job(tmp_path, spec, TEXT_JOB, num_slots=5) as job:
        job.program = scheduled_program({1: 10, 2: 20})
        result = resized(job, [1, 2, 1], every=0)
    assert result["digest"] == expected["digest"]
    assert result["metrics"] == expected["metrics"]


def test_uneven_mappings_a_leaving_leader_and_a_checkpoint_change_nothing(
    uneven: tuple[dict[str, Any], list[TrainerReport]], tmp_path: Path
) -> None:
    """Five virtual nodes, mapped crosswise; the leader goes; all stop; two come back."""
    expected, _ = uneven
    spec = training_spec(stop=METRIC_STOP)
    with local_job(tmp_path, spec, UNEVEN_JOB, num_slots=8) as job:
        job.program = scheduled_program({1: 8, 2: 20})
        first = job.plan(2, None, mapping=[[0, 2, 3], [1, 4]])
        moved = job.plan(2, first, mapping=[[4], [0, 1, 2, 3]], keep=[1])
        prepared(job, [first, moved])
        job.go(first)
        job.wait_switched(first)
        job.go(moved)
        job.wait_switched(moved)
        job.wait(
            lambda: job.trainers[0].last(ReportKind.LEFT, moved.generation) is not None,
            "the leader to leave",
            30.0,
        )
        assert moved.leader_slot == 1
        checkpoint = job.preempt()
        assert job.finished() is None, "the job ended before it was preempted: give it more steps"
        saved = present(job.trainers[1].last(ReportKind.CHECKPOINTED))
        assert checkpoint.stat().st_size == saved.data["bytes"]
        job.restore(2, checkpoint)
        result = job.wait_finished()
        back = present(job.trainers[3].last(ReportKind.SWITCHED))
        assert back.data["step"] == saved.data["step"]
        outputs = job.output_folder()
        check_outputs(outputs, result)
    assert result["digest"] == expected["digest"]
    assert result["metrics"] == expected["metrics"]


def check_outputs(outputs: Path, result: dict[str, Any]) -> None:
    """See that plain Keras loads the model and that the files agree with the report."""
    keras.utils.get_custom_objects().pop("Custom>CallCounter", None)
    namespace: dict[str, Any] = {}
    exec((outputs.parent / "code" / "job.py").read_text(), namespace)  # registers the layer
    model = keras.models.load_model(outputs / "model.keras")
    _, (x, y, _), _ = namespace["build"]({})
    assert np.isfinite(model.evaluate(x, y, verbose=0)[0])
    summary = json.loads((outputs / "metrics.json").read_text())
    assert summary["digest"] == result["digest"]
    assert summary["steps"] == result["step"] == NUM_STEPS
    rows = (outputs / "history.csv").read_text().splitlines()
    assert rows[0].startswith("epoch,step,accuracy,learning_rate,loss,val_accuracy")
    assert len(rows) == 1 + NUM_EPOCHS


@pytest.mark.nightly  # tests/jobs/lifecycle has the orders for this
def test_a_joiner_can_be_turned_to_another_membership_while_it_waits(tmp_path: Path) -> None:
    """Generation 2 is given up before its go; its joiner comes in with generation 3."""
    spec = training_spec(stop=steps(400))
    expected = undisturbed(tmp_path / "one", spec, UNEVEN_JOB)
    with local_job(tmp_path, spec, UNEVEN_JOB) as job:
        first = job.plan(1, None)
        given_up = job.plan(2, first)
        taken = job.plan(2, first, mapping=[[3, 4], [0, 1, 2]], keep=[0, 1])
        job.prepare(first)
        job.prepare(given_up)
        job.wait_ready(given_up)
        job.go(first)
        job.wait_step(20)
        job.redirect(1, taken)
        job.wait(
            lambda: job.trainers[1].last(ReportKind.READY, taken.generation) is not None,
            "the joiner to be ready for the other membership",
            30.0,
        )
        job.go(taken)
        job.wait_switched(taken)
        assert job.trainers[1].last(ReportKind.SWITCHED, given_up.generation) is None
        result = job.wait_finished()
    assert result["digest"] == expected["digest"]


@pytest.mark.nightly  # test_gradient_noise.py compares the sums of one step
def test_the_fast_mode_sums_the_same_up_to_rounding(tmp_path: Path) -> None:
    spec = training_spec(stop=steps(30), reduction=ReductionMode.FAST)
    exact = undisturbed(tmp_path / "one", training_spec(stop=steps(30)), UNEVEN_JOB)
    with local_job(tmp_path, spec, UNEVEN_JOB) as job:
        job.resize(2)
        fast = job.wait_finished()
    assert fast["metrics"]["val_loss"] == pytest.approx(exact["metrics"]["val_loss"], rel=1e-3)


def test_reports_tell_the_whole_course_up_to_the_metric_that_ends_it(
    uneven: tuple[dict[str, Any], list[TrainerReport]],
) -> None:
    result, reports = uneven
    assert [report.sequence for report in reports] == list(range(len(reports)))
    assert result["reason"] == "metric"
    assert result["step"] == NUM_STEPS
    assert result["files"] == ["model.keras", "history.csv", "metrics.json"]
    done = [report.data for report in reports if report.kind is ReportKind.STEPS]
    assert done[0]["first_step"] == 1
    assert [entry["first_step"] for entry in done[1:]] == [e["last_step"] + 1 for e in done[:-1]]
    assert done[-1]["last_step"] == NUM_STEPS
    assert sum(entry["examples"] for entry in done) == NUM_EPOCHS * 101
    epochs = [report.data for report in reports if report.kind is ReportKind.EPOCH]
    ends = [(epoch, 6 * (epoch + 1)) for epoch in range(NUM_EPOCHS)]
    assert [(entry["epoch"], entry["step"]) for entry in epochs] == ends
    assert epochs[-1]["logs"] == result["metrics"]
    *before, last = (entry["logs"]["loss"] for entry in epochs)
    assert last <= METRIC_STOP.target < min(before)
    ready = next(report.data for report in reports if report.kind is ReportKind.READY)
    assert {"boot_s", "build_s", "trace_s"} == set(ready)
    phases = [report.data["phase"] for report in reports if report.kind is ReportKind.PHASE]
    assert phases[:4] == ["booting", "building", "tracing", "training"]
    assert phases[-1] == "saving"
