"""What a validation accepts and refuses, tried with real Keras models."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import keras
import pytest

from agents.trainer.job_file import job_load
from agents.trainer.orders import ReportWriter
from agents.trainer.validation import job_validate, validation_run
from agents.trainer.validation_data import data_fingerprint
from agents.trainer.workload import workload_build
from controlplane.core.wire import (
    ReductionMode,
    StopCondition,
    StopKind,
    TrainingSpec,
    ValidationReport,
    decode,
    encode,
)
from tests.agents.trainer.job_texts import SMALL_NETWORK

HEAD = (
    SMALL_NETWORK
    + """
random = np.random.default_rng(5)
X = random.normal(size=(24, 4)).astype("float32")
Y = (X[:, :1] > 0).astype("float32")
"""
)


def spec_of(**changes: Any) -> TrainingSpec:
    plain: dict[str, Any] = {
        "job_id": 3,
        "name": "trial",
        "entry_file": "job.py",
        "code_sha256": "",
        "settings": {},
        "global_batch_size": 9,
        "num_virtual_nodes": 2,
        "seed": 11,
        "reduction": ReductionMode.EXACT,
        "stop": StopCondition(kind=StopKind.EPOCHS, limit=2),
    }
    return TrainingSpec(**plain | changes)


def validated(folder: Path, code: str, **changes: Any) -> ValidationReport:
    (folder / "job.py").write_text(HEAD + textwrap.dedent(code))
    return job_validate(spec_of(**changes), folder)


def returning(model: str, data: str = "(X, Y)", before: str = "") -> str:
    return f"{textwrap.dedent(before)}\n\ndef build(settings):\n    return {model}, {data}, None\n"


# Accepted

ACCEPTED = {
    "dropout and batch normalisation": returning(
        "compiled(net(layers.Dense(6), layers.BatchNormalization(), layers.Dropout(0.5)))"
    ),
    "several inputs and outputs as dicts": """
        def build(settings):
            a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b")
            joined = layers.Concatenate()([a, b])
            outputs = {"p": layers.Dense(1)(joined), "q": layers.Dense(2)(joined)}
            model = keras.Model({"a": a, "b": b}, outputs)
            model.compile(
                "adam",
                {"p": "mse", "q": keras.losses.MeanAbsoluteError(reduction="sum")},
                loss_weights={"p": 0.3, "q": 2.0},
                metrics={"p": ["mae"]},
                weighted_metrics={"q": ["mse"]},
            )
            weights = {"p": np.arange(24.0), "q": np.ones(24)}
            return model, ({"a": X, "b": X}, {"p": Y, "q": X[:, :2]}, weights), None
    """,
    "several outputs as a tuple with one array of weights": """
        def build(settings):
            inputs = keras.Input((4,))
            model = keras.Model(inputs, (layers.Dense(1)(inputs), layers.Dense(2)(inputs)))
            model.compile("sgd", ["mse", "mae"], metrics=[["mae"], []])
            return model, (X, (Y, X[:, :2]), np.linspace(0, 2, 24)), None
    """,
    "add_loss and regularisers": """
        @keras.saving.register_keras_serializable("test")
        class Penalised(layers.Layer):
            def call(self, inputs):
                self.add_loss(0.1 * ops.mean(ops.square(inputs)))
                return inputs

        def build(settings):
            dense = layers.Dense(
                5, kernel_regularizer="l2", activity_regularizer=keras.regularizers.L1(0.01)
            )
            return compiled(net(dense, Penalised())), (X, Y), None
    """,
    "a loss from add_loss alone": """
        class Copier(keras.Model):
            def __init__(self):
                super().__init__()
                self.dense = layers.Dense(4)

            def call(self, inputs):
                outputs = self.dense(inputs)
                self.add_loss(ops.mean(ops.square(outputs - inputs)))
                return outputs

        def build(settings):
            return compiled(Copier(), loss=None), X, None
    """,
    "class weights, AUC and weighted metrics": """
        def build(settings):
            model = compiled(
                net(), metrics=["accuracy", keras.metrics.AUC(num_thresholds=11)],
                weighted_metrics=["accuracy"],
            )
            return model, (X, Y), (X, Y), {"class_weight": {1: 3.0}}
    """,
    "clipping, decay, averages and a schedule": returning(
        """compiled(net(), keras.optimizers.AdamW(
            keras.optimizers.schedules.CosineDecay(0.01, 100),
            weight_decay=0.1, global_clipnorm=1.0, use_ema=True, ema_overwrite_frequency=3))"""
    ),
    "clipvalue and accumulation": returning(
        "compiled(net(), keras.optimizers.SGD(0.1, clipvalue=0.5, gradient_accumulation_steps=2))"
    ),
    "mixed precision with a loss scale": """
        def build(settings):
            keras.config.set_dtype_policy("mixed_float16")
            try:
                head = layers.Dense(1, activation="sigmoid", dtype="float32")
                model = keras.Sequential([keras.Input((4,)), layers.Dense(8), head])
                return compiled(model, "adam", metrics=["mae"]), (X, Y), None
            finally:
                keras.config.set_dtype_policy("float32")
    """,
    "frozen layers and constraints": returning(
        "compiled(net(layers.Dense(3, trainable=False), layers.Dense(3, kernel_constraint="
        "keras.constraints.UnitNorm())))"
    ),
    "a step counter": returning(
        "compiled(net(StepCounter()))",
        before="""
        class StepCounter(layers.Layer):
            def build(self, shape):
                self.steps = self.add_weight(shape=(), dtype="int32", trainable=False, name="n",
                                             initializer="zeros")

            def call(self, inputs, training=False):
                if training:
                    self.steps.assign_add(1)
                return inputs
        """,
    ),
    "a compute_loss of one's own": returning(
        "compiled(Own(*ends()), loss=None, metrics=['mae'])",
        before="""
        class Own(keras.Model):
            def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
                return ops.mean(ops.square(y - y_pred))

        def ends():
            inputs = keras.Input((4,))
            return inputs, layers.Dense(1)(inputs)
        """,
    ),
    "noise from Keras's own generator": returning(
        "compiled(net(Noise()))",
        before="""
        @keras.saving.register_keras_serializable("test")
        class Noise(layers.Layer):
            def call(self, inputs):
                return inputs + keras.random.normal(ops.shape(inputs))
        """,
    ),
    "a model that is built by its first data": returning(
        "compiled(keras.Sequential([layers.Dense(1)]), loss='mse')"
    ),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_a_compiled_model_can_say_is_accepted(name: str, tmp_path: Path) -> None:
    report = validated(tmp_path, ACCEPTED[name])
    assert report.ok, f"{report.code}: {report.message}\n{report.traceback}"
    assert (report.code, report.field, report.message) == (None, None, "")


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


# Refused: the model

REFUSED_MODELS = {
    "custom_train_step": returning(
        "compiled(Own(*ends()))",
        before="""
        class Own(keras.Model):
            def train_step(self, data):
                return {"loss": 0.0}

        def ends():
            inputs = keras.Input((4,))
            return inputs, layers.Dense(1)(inputs)
        """,
    ),
    "custom_test_step": """
        def build(settings):
            model = compiled(net())
            model.test_step = lambda data: {"loss": 0.0}
            return model, (X, Y), None
    """,
    "run_eagerly": returning("compiled(net(), run_eagerly=True)"),
    "not_compiled": returning("net()"),
    "nothing_to_train": returning(
        "compiled(keras.Sequential([keras.Input((4,)), layers.ReLU()]), loss='mse')", "(X, X)"
    ),
    "loss_reduction": returning(
        "compiled(net(), loss=keras.losses.BinaryCrossentropy(reduction='mean_with_sample_weight'))"
    ),
    "stateful_layer": """
        def build(settings):
            model = keras.Sequential(
                [keras.Input((4, 1), batch_size=5), layers.LSTM(2, stateful=True), layers.Dense(1)]
            )
            return compiled(model), (X[..., None], Y), None
    """,
    "synchronized_normalization": returning(
        "compiled(net(layers.BatchNormalization(synchronized=True)))"
    ),
    "process_random": returning(
        "compiled(net(Noise()))",
        before="""
        import tensorflow as tf

        class Noise(layers.Layer):
            def call(self, inputs, training=False):
                return inputs + tf.random.normal(tf.shape(inputs)) if training else inputs
        """,
    ),
    "python_function": returning(
        "compiled(net(Python()))",
        before="""
        import tensorflow as tf

        class Python(layers.Layer):
            def call(self, inputs):
                return tf.ensure_shape(tf.py_function(lambda v: v, [inputs], tf.float32), (None, 4))
        """,
    ),
    "metric_not_additive": returning(
        "compiled(net(), metrics=[Largest()])",
        before="""
        class Largest(keras.metrics.Metric):
            def __init__(self):
                super().__init__(name="largest")
                self.value = self.add_weight(name="value", initializer="zeros")

            def update_state(self, y_true, y_pred, sample_weight=None):
                self.value.assign(ops.maximum(self.value, ops.max(y_pred)))

            def result(self):
                return self.value
        """,
    ),
    "metric_not_a_number": returning(
        "compiled(net(out=3), loss='mse', metrics=[keras.metrics.F1Score()])", "(X, Y * [1, 0, 1])"
    ),
    "loss_not_additive": returning(
        "compiled(net(), loss=compare)",
        before="""
        def compare(y_true, y_pred):
            return ops.square(y_true - y_pred + ops.mean(y_pred))
        """,
    ),
    "state_not_combinable": returning(
        "compiled(net(RowCounter()))",
        before="""
        class RowCounter(layers.Layer):
            def build(self, shape):
                self.rows = self.add_weight(shape=(), dtype="int32", trainable=False, name="n",
                                            initializer="zeros")

            def call(self, inputs, training=False):
                if training:
                    self.rows.assign_add(ops.shape(inputs)[0])
                return inputs
        """,
    ),
}


@pytest.mark.parametrize("code", REFUSED_MODELS)
def test_what_cannot_be_split_is_refused_by_name(code: str, tmp_path: Path) -> None:
    report = validated(tmp_path, REFUSED_MODELS[code])
    assert (report.ok, report.code) == (False, code), report.message
    assert report.field == "code.build"
    assert len(report.message) > 40


def test_a_masked_loss_is_refused_and_the_mask_is_named(tmp_path: Path) -> None:
    code = """
        def build(settings):
            model = keras.Sequential([
                keras.Input((6,)), layers.Embedding(5, 3, mask_zero=True), layers.Dense(5)
            ])
            model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
            words = random.integers(0, 5, size=(24, 6)) * (np.arange(6) < np.arange(24)[:, None])
            return model, (words, words), None
    """
    report = validated(tmp_path, code)
    assert report.code == "masked_loss", report.message
    assert "mask_zero" in report.message


# Refused: the user's code and data


def test_a_shape_error_shows_as_the_users_fault(tmp_path: Path) -> None:
    report = validated(tmp_path, returning("compiled(net(out=3))"))
    assert (report.ok, report.code) == (False, "user_code")
    assert "shape" in report.message


def test_an_error_in_a_layer_shows_the_users_line(tmp_path: Path) -> None:
    code = returning(
        "compiled(keras.Sequential([Broken(), layers.Dense(1)]))",
        before="""
        class Broken(layers.Layer):
            def call(self, inputs):
                return inputs @ ops.ones((3, 3))
        """,
    )
    report = validated(tmp_path, code)
    assert report.code == "user_code"
    assert "inputs @ ops.ones((3, 3))" in report.traceback
    assert "site-packages" not in report.traceback


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


def test_validation_data_must_look_like_training_data(tmp_path: Path) -> None:
    code = "def build(settings):\n    return compiled(net()), (X, Y), (X[:, :3], Y)\n"
    report = validated(tmp_path, code)
    assert (report.code, report.field) == ("data_structure", "data.validation")


def test_data_that_changes_from_reading_to_reading_is_refused(tmp_path: Path) -> None:
    code = returning(
        "compiled(net())",
        "Augmented()",
        before="""
        class Augmented:
            def __len__(self):
                return 24

            def __getitem__(self, index):
                return X[index] + np.random.normal(), Y[index]
        """,
    )
    report = validated(tmp_path, code)
    assert (report.code, report.field) == ("nondeterministic_data", "data.train")


# Warnings


def test_values_that_are_not_finite_are_warned_about(tmp_path: Path) -> None:
    report = validated(tmp_path, returning("compiled(net())", "(X * [1, 1, 1, np.nan], Y)"))
    assert report.ok
    assert any("data.train.x holds values that are not finite" in w for w in warnings_of(report))


def test_batch_normalisation_of_single_examples_is_warned_about(tmp_path: Path) -> None:
    report = validated(
        tmp_path,
        returning("compiled(net(layers.BatchNormalization()))"),
        global_batch_size=3,
        num_virtual_nodes=3,
    )
    assert report.ok
    assert any("slices of one example" in warning for warning in warnings_of(report))


def warnings_of(report: ValidationReport) -> list[str]:
    found: list[str] = report.facts["warnings"]
    return found


def test_one_virtual_node_and_one_example_work(tmp_path: Path) -> None:
    report = validated(
        tmp_path,
        returning("compiled(net())", "(X[:1], Y[:1])"),
        global_batch_size=1,
        num_virtual_nodes=1,
    )
    assert report.ok, report.message


# The data's fingerprint


def fingerprint(folder: Path, code: str) -> str:
    (folder / "job.py").write_text(HEAD + textwrap.dedent(code))
    job = job_load(folder, "job.py", {})
    return data_fingerprint(job.train, job.validation)


def test_the_fingerprint_follows_the_data(tmp_path: Path) -> None:
    same = [fingerprint(tmp_path, returning("compiled(net())")) for _ in range(2)]
    other = fingerprint(tmp_path, returning("compiled(net())", "(X + 1, Y)"))
    shorter = fingerprint(tmp_path, returning("compiled(net())", "(X[:-1], Y[:-1])"))
    assert same[0] == same[1]
    assert len({same[0], other, shorter}) == 3


def test_the_fingerprint_sees_data_that_depends_on_the_process(tmp_path: Path) -> None:
    unseeded = "(np.random.default_rng().permutation(X), Y)"
    codes = [returning("compiled(net())", unseeded)] * 2
    assert fingerprint(tmp_path, codes[0]) != fingerprint(tmp_path, codes[1])


@pytest.mark.parametrize(
    ("generator", "num_digests"), [("default_rng(6)", 1), ("default_rng()", 2)]
)
def test_trainers_with_other_data_are_told_apart_when_they_meet(
    generator: str, num_digests: int, tmp_path: Path
) -> None:
    (tmp_path / "code").mkdir()
    code = returning("compiled(net())", f"(np.random.{generator}.permutation(X), Y)")
    (tmp_path / "code" / "job.py").write_text(HEAD + code)
    digests = set()
    for slot in range(2):
        keras.utils.clear_session()  # layers are named as in a new process
        work = workload_build(tmp_path, spec_of(), ReportWriter(tmp_path, 0, slot))
        digests.add(work.state.layout_digest())
    assert len(digests) == num_digests


# The process


def test_a_validation_in_a_process_of_its_own_writes_its_report(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "job.py").write_text(HEAD + returning("compiled(net())"))
    (tmp_path / "orders.json").write_text(json.dumps(encode(spec_of())))
    program = (
        "import sys; from pathlib import Path; from agents.trainer.validation import "
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
    assert (report.job_id, report.ok, report.message) == (3, True, "")
    assert report.facts["num_examples"] == 24
    assert {path.name for path in tmp_path.iterdir()} == {"code", "orders.json", "validation.json"}


def test_orders_that_make_no_sense_are_an_error_of_the_caller(tmp_path: Path) -> None:
    (tmp_path / "orders.json").write_text("{}")
    with pytest.raises(ValueError, match="job_id is missing"):
        validation_run(tmp_path)
