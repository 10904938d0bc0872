"""What a validation says about a submission as a whole, and the process it runs in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agents.trainer.validate.run import validation_run
from controlplane.core.protocol.node_messages import ValidationReport
from controlplane.core.protocol.selection import SelectionMethod, SelectionSpec
from controlplane.core.protocol.tuning import TunableRange, TuningSpec
from controlplane.core.protocol.wire import StopCondition, StopKind, decode, encode
from tests.agents.trainer.trial_jobs import HEAD, returning, spec_of, validated, warnings_of


def test_facts_of_a_small_network(tmp_path: Path) -> None:
    code = """
        def build(settings):
            model = compiled(net(layers.Dense(3)), "adam", metrics=["accuracy"])
            return model, (X, Y), (X[:7], Y[:7])
    """
    facts = validated(tmp_path, code).facts
    # Dense(3) on 4 inputs and Dense(1) on 3: 4*3 + 3 + 3*1 + 1.
    assert facts["num_parameters"] == facts["num_trainable_parameters"] == 19
    assert (facts["num_examples"], facts["num_validation_examples"]) == (24, 7)
    assert facts["steps_per_epoch"] == 3
    # Weights and two Adam slots each, iteration (8 bytes), learning rate, the global random
    # generator (2 words), and total and count of the loss and of the accuracy.
    assert facts["state_bytes"] >= 3 * 19 * 4 + 8 + 4 + 4 * 4
    assert facts["metrics"] == ["accuracy", "loss"] or facts["metrics"] == ["loss", "accuracy"]
    assert facts["slice_examples"] == 5
    assert 0 < facts["slice_s"] < 60
    assert "Dense" in facts["summary"]
    assert len(facts["data_fingerprint"]) == 64
    json.dumps(facts)


@pytest.mark.usefixtures("no_trial_steps")
@pytest.mark.parametrize(
    ("changes", "code", "field"),
    [
        ({"global_batch_size": 25}, "batch_too_large", "global_batch_size"),
        ({"num_virtual_nodes": 10}, "too_many_virtual_nodes", "num_virtual_nodes"),
        ({"entry_file": "other.py"}, "no_entry_file", "entry_file"),
    ],
)
def test_a_submission_that_does_not_fit_is_refused_by_field(
    changes: dict[str, Any], code: str, field: str, tmp_path: Path
) -> None:
    report = validated(tmp_path, returning("compiled(net())"), **changes)
    assert (report.ok, report.code, report.field) == (False, code, field)


def test_rows_in_plain_lists_are_said_to_be_inputs(tmp_path: Path) -> None:
    rows = "({'a': Y.tolist()}, Y.tolist())"
    report = validated(tmp_path, returning("compiled(net())", rows))
    assert report.code == "batch_too_large"
    assert "(1 example); use at most 1. They come as 24 inputs: a list of" in report.message


@pytest.mark.usefixtures("no_trial_steps")
@pytest.mark.parametrize(
    ("metric", "is_known"),
    [("mae", True), ("val_loss", False), ("accuracy", False)],
)
def test_the_metric_to_stop_at_must_be_in_the_logs(
    metric: str, is_known: bool, tmp_path: Path
) -> None:
    stop = StopCondition(kind=StopKind.METRIC, limit=5, metric=metric, target=0.1)
    report = validated(tmp_path, returning("compiled(net(), metrics=['mae'])"), stop=stop)
    assert report.ok is is_known
    assert (report.code, report.field) == (
        (None, None) if is_known else ("unknown_metric", "stop.metric")
    )
    assert is_known or "loss" in report.message


SIZES = TuningSpec(space={"batch_size": TunableRange(low=9.0, high=18.0)}, objective="loss")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({}, None),
        ({"batch_size_min": 4, "batch_size_max": 18}, "batch_size_min"),
        ({"tuning": SIZES}, "tuning.space"),
    ],
)
def test_a_loss_that_is_a_sum_needs_one_batch_size(
    changes: dict[str, Any], field: str | None, tmp_path: Path
) -> None:
    model = "compiled(net(), loss=keras.losses.MeanSquaredError(reduction='sum'))"
    report = validated(tmp_path, returning(model), **changes)
    assert (report.code, report.field) == ("loss_reduction" if field else None, field)


@pytest.mark.usefixtures("no_trial_steps")
@pytest.mark.parametrize(
    ("name", "optimizer", "objective", "refused"),
    [
        ("momentum", "keras.optimizers.SGD(0.1, momentum=0.9)", "loss", None),
        ("weight_decay", "'adam'", "loss", None),
        ("momentum", "'sgd'", "loss", ("not_tunable", "tuning.space", "compiled with a momentum")),
        ("momentum", "'rmsprop'", "loss", ("not_tunable", "tuning.space", "for RMSprop; leave it")),
        ("weight_decay", "'adam'", "val_loss", ("unknown_metric", "tuning.objective", "need vali")),
        ("momentum", "'adam'", "learning_rate", ("unknown_metric", "tuning.objective", ": loss")),
    ],
)
def test_what_is_tuned_must_be_there(
    name: str,
    optimizer: str,
    objective: str,
    refused: tuple[str, str, str] | None,
    tmp_path: Path,
) -> None:
    tuning = TuningSpec(space={name: TunableRange(low=0.1, high=0.5)}, objective=objective)
    report = validated(tmp_path, returning(f"compiled(net(), {optimizer})"), tuning=tuning)
    assert report.ok is (refused is None), report
    if refused is not None:
        assert (report.code, report.field) == refused[:2]
        assert refused[2] in report.message


SELECTIVE = SelectionSpec(method=SelectionMethod.SELECTIVE_BACKPROP, start=4)


@pytest.mark.usefixtures("no_trial_steps")
@pytest.mark.parametrize(
    ("name", "high", "stop", "enough"),
    [
        ("weight_decay", 0.5, StopKind.STEPS, 40),
        ("weight_decay", 0.5, StopKind.EPOCHS, 14),  # of 3 steps
        ("batch_size", 18.0, StopKind.EPOCHS, 28),  # shortest trials of 20 batches of 9
        ("selection_beta", 5.0, StopKind.EPOCHS, 28),  # a third of the epochs after the first 4
    ],
)
def test_too_few_steps_for_two_trials_are_warned_about(
    name: str, high: float, stop: StopKind, enough: int, tmp_path: Path
) -> None:
    space = {name: TunableRange(low=0.2 if high < 9 else 9.0, high=high)}
    for limit in (enough - 1, enough):
        report = validated(
            tmp_path,
            returning("compiled(net(), 'adam')"),
            tuning=TuningSpec(space=space, objective="loss", max_share=0.5),
            selection=SELECTIVE if name == "selection_beta" else None,
            stop=StopCondition(kind=stop, limit=limit),
        )
        assert report.ok, report
        found = [warning for warning in warnings_of(report) if "tuning.max_share" in warning]
        assert len(found) == (limit < enough), limit


@pytest.mark.usefixtures("no_trial_steps")
@pytest.mark.parametrize(
    ("stop", "enough"),
    [(StopKind.STEPS, 13), (StopKind.EPOCHS, 5)],  # of 3 steps
)
def test_a_selection_that_begins_after_the_end_is_warned_about(
    stop: StopKind, enough: int, tmp_path: Path
) -> None:
    for limit in (enough - 1, enough):
        report = validated(
            tmp_path,
            returning("compiled(net(), 'adam')"),
            selection=SELECTIVE,
            stop=StopCondition(kind=stop, limit=limit),
        )
        assert report.ok, report
        found = [warning for warning in warnings_of(report) if "selection.start" in warning]
        assert len(found) == (limit < enough), limit


@pytest.mark.usefixtures("no_trial_steps")
@pytest.mark.parametrize("method", SelectionMethod)
def test_a_tuned_exponent_needs_a_selection_by_losses(
    method: SelectionMethod, tmp_path: Path
) -> None:
    span = TunableRange(low=0.2, high=5.0)
    report = validated(
        tmp_path,
        returning("compiled(net(), 'sgd')"),
        tuning=TuningSpec(space={"selection_beta": span}, objective="loss"),
        selection=SelectionSpec(method=method),
        stop=StopCondition(kind=StopKind.EPOCHS, limit=3),
    )
    assert report.ok is method.needs_losses, report
    if not report.ok:
        assert (report.code, report.field) == ("not_tunable", "tuning.space")
        assert "give selection.method selective_backprop" in report.message


@pytest.mark.usefixtures("no_trial_steps")
@pytest.mark.parametrize(
    ("high", "stop", "refused"),
    [
        (24, StopKind.EPOCHS, None),
        (25, StopKind.EPOCHS, ("batch_too_large", "high is 25, more than the 24 examples")),
        (24, StopKind.STEPS, ("not_tunable", "stop after epochs or at a metric")),
    ],
)
def test_a_tuned_batch_size_must_fit_the_data_and_the_job(
    high: int, stop: StopKind, refused: tuple[str, str] | None, tmp_path: Path
) -> None:
    tuning = TuningSpec(space={"batch_size": TunableRange(low=8, high=high)}, objective="loss")
    report = validated(
        tmp_path,
        returning("compiled(net(), 'sgd')"),
        tuning=tuning,
        stop=StopCondition(kind=stop, limit=3),
    )
    assert report.ok is (refused is None), report
    if refused is not None:
        assert (report.code, report.field) == (refused[0], "tuning.space")
        assert refused[1] in report.message


def test_settings_that_no_file_of_the_code_names_are_warned_about(tmp_path: Path) -> None:
    (tmp_path / "rates.py").write_text("def of(settings):\n    return settings['rate']\n")
    code = "import rates\n" + returning("compiled(net(), keras.optimizers.SGD(rates.of(settings)))")
    settings = {"rate": 0.1, "rat": 0.2, "num-units": 3}
    (warning,) = warnings_of(validated(tmp_path, code, settings=settings))
    assert "names the settings rat, num-units;" in warning


def test_small_slices_other_batches_and_random_data_are_warned_about(tmp_path: Path) -> None:
    noise = "lambda x, y: (x + tf.random.normal([4]), y)"
    data = f"tf.data.Dataset.from_tensor_slices((X, Y)).map({noise}).batch(4)"
    report = validated(
        tmp_path,
        "import tensorflow as tf\n" + returning("compiled(net(layers.BatchNormalization()))", data),
        global_batch_size=3,
        num_virtual_nodes=3,
    )
    assert report.ok
    assert any("slices of one example" in warning for warning in warnings_of(report))
    assert any("have batches of 4, and fit" in warning for warning in warnings_of(report))
    assert any("numbers (RandomStandardNormal)" in warning for warning in warnings_of(report))


def test_one_virtual_node_and_one_example_work(tmp_path: Path) -> None:
    report = validated(
        tmp_path,
        returning("compiled(net())", "(X[:1], Y[:1])"),
        global_batch_size=1,
        num_virtual_nodes=1,
    )
    assert report.ok, report.message


@pytest.mark.nightly  # test_memory.py reads what such a process measures
def test_a_validation_in_a_process_of_its_own_writes_its_report(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "job.py").write_text(HEAD + returning("compiled(net())"))
    (tmp_path / "orders.json").write_text(json.dumps(encode(spec_of())))
    program = (
        "import sys; from pathlib import Path; from agents.trainer.validate.run import "
        "validation_run; sys.exit(validation_run(Path(sys.argv[1])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    report = decode(ValidationReport, json.loads((tmp_path / "validation.json").read_text()))
    assert (report.ok, report.message) == (True, "")
    assert report.facts["num_examples"] == 24
    assert {path.name for path in tmp_path.iterdir()} == {"code", "orders.json", "validation.json"}


def test_orders_that_make_no_sense_are_an_error_of_the_caller(tmp_path: Path) -> None:
    (tmp_path / "orders.json").write_text("{}")
    with pytest.raises(ValueError, match="job_id is missing"):
        validation_run(tmp_path)
