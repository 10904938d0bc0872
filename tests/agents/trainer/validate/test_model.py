"""Which models a validation accepts and refuses, tried with real Keras."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import keras
import numpy as np
import pytest
import tensorflow as tf

from agents.trainer.contract.user_errors import JobCodeError
from agents.trainer.model.keras_private import model_build, model_loss, trainability_changed
from agents.trainer.model.outputs import results_save
from agents.trainer.model.progress import Progress
from agents.trainer.model.state import ModelState
from agents.trainer.validate import run
from agents.trainer.validate.model_checks import built_model_check, model_check
from agents.trainer.validate.trial_steps import StepFacts
from tests.agents.trainer.trial_jobs import returning, validated, warnings_of
from tests.agents.trainer.validate.model_texts import ACCEPTED, REFUSED_MODELS
from tests.support.cases import some

#: Accepted ones that `test_same_as_keras` also trains: nightly.
TRAINED_TOO = {
    "dropout, batch normalisation and a step counter",
    "several outputs as a tuple with one array of weights",
    "clipping, decay, averages and a schedule",
    "clipvalue and accumulation",
    "mixed precision with a loss scale",
    "frozen layers and constraints",
    "a compute_loss of one's own",
    "class weights, AUC and weighted metrics",
    "several inputs and outputs as dicts",
}


@pytest.mark.parametrize("name", some(ACCEPTED, TRAINED_TOO))
def test_what_a_compiled_model_can_say_is_accepted(name: str, tmp_path: Path) -> None:
    report = validated(tmp_path, ACCEPTED[name])
    assert report.ok, f"{report.code}: {report.message}\n{report.traceback}"
    assert (report.code, report.field, report.message) == (None, None, "")
    unloadable = [each for each in warnings_of(report) if "without your code" in each]
    assert all("Could not locate class '" in each for each in unloadable)


@pytest.mark.parametrize("code", REFUSED_MODELS)
def test_what_cannot_be_split_is_refused_by_name(code: str, tmp_path: Path) -> None:
    report = validated(tmp_path, REFUSED_MODELS[code])
    assert (report.ok, report.code) == (False, code), report.message
    assert report.field == "code.build"
    assert len(report.message) > 40


#: One label of 24, which is no example of the first slices, is treated apart by the loss.
RARE_LABELS = {
    "nan": returning(
        "compiled(net(), loss=known)",
        "(X, np.where(np.arange(24)[:, None] == RARE, np.nan, Y))",
        """
        def known(y_true, y_pred):
            is_known = ops.isfinite(y_true)
            squares = ops.where(is_known, ops.where(is_known, y_true, 0.0) - y_pred, 0.0) ** 2
            return ops.mean(squares) + ops.max(ops.where(is_known, 0.0, 1.0))
        """,
    ),
}


@pytest.mark.parametrize("name", RARE_LABELS)
def test_a_label_that_a_batch_is_judged_by_is_seen_if_only_one_example_has_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "steps_try", lambda *_: StepFacts({}, []))
    report = validated(tmp_path, RARE_LABELS[name].replace("RARE", "20"), shuffle=False)
    assert (report.code, report.field) == ("loss_not_additive", "code.build"), report.message


EVALUATED = """
    class Own(keras.Sequential):
        def {name}(self, *args, **kwargs):
            return {{"loss": 0.0}}

    def build(settings):
        return compiled(Own([keras.Input((4,)), layers.Dense(1)])), (X, Y), {validation}
"""


@pytest.mark.usefixtures("no_trial_steps")
@pytest.mark.parametrize("name", ["evaluate", "make_test_function"])
def test_a_validation_of_its_own_is_refused_where_fit_would_call_it(
    name: str, tmp_path: Path
) -> None:
    report = validated(tmp_path, EVALUATED.format(name=name, validation="(X, Y)"))
    assert (report.code, report.field) == (f"custom_{name}", "code.build")
    assert f"its own {name}()" in report.message
    assert validated(tmp_path, EVALUATED.format(name=name, validation=None)).ok


TRAINED_AT_BUILD = """
    def build(settings):
        model = compiled(net(layers.Dense(3, name="hidden", trainable={first})))
        model.fit(X, Y, verbose=0)
        model.get_layer("hidden").trainable = {then}
        {more}
        return model, (X, Y), None
"""


@pytest.mark.parametrize("loss", ["'mse'", "['mse', 'mse']", "{'out': 'mse', 'hidden': 'mse'}"])
def test_labels_that_are_not_there_are_refused_where_a_loss_needs_them(
    loss: str, tmp_path: Path
) -> None:
    outputs, labels = "[out, hidden]", "[Y, None]"
    if loss.startswith("{"):
        outputs, labels = "{'out': out, 'hidden': hidden}", "{'out': Y, 'hidden': None}"
    code = f"""
        def build(settings):
            inputs = keras.Input((4,))
            hidden = layers.Dense(1)(inputs)
            out = layers.Dense(1)(hidden)
            model = keras.Model(inputs, {outputs})
            model.compile("sgd", {loss})
            return model, (X, {labels}), None
    """
    report = validated(tmp_path, code)
    place = "'hidden'" if loss.startswith("{") else "1"
    assert (report.code, report.field) == ("data_structure", f"data.train.y[{place}]")
    assert "None as the loss of this output" in report.message


def test_labels_under_another_name_than_the_loss_are_refused_by_both(tmp_path: Path) -> None:
    code = """
        def build(settings):
            inputs = keras.Input((4,))
            p, q = layers.Dense(1)(inputs), layers.Dense(1)(inputs)
            model = keras.Model(inputs, {"p": p, "q": q})
            model.compile("sgd", {"p": "mse", "q": "mse"})
            return model, (X, {"p": Y, "Q": Y}), None
    """
    report = validated(tmp_path, code)
    assert (report.code, report.field) == ("data_structure", "data.train.y")
    assert "The labels, 'p', 'Q', have none for 'q'" in report.message


def test_functions_that_run_eagerly_are_refused() -> None:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    tf.config.run_functions_eagerly(True)
    try:
        with pytest.raises(JobCodeError, match="leave it out: steps are always traced") as caught:
            model_check(model)
    finally:
        tf.config.run_functions_eagerly(False)
    assert caught.value.code == "run_eagerly"
    assert model_check(model) == []


def test_settings_of_fit_alone_are_named() -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=2)
    keras.config.set_max_epochs(1)
    try:
        names = [warning.partition(" have ")[0] for warning in model_check(model)]
    finally:
        keras.config.set_max_epochs(None)
    assert names[1:] == ["keras.config's max_epochs and max_steps_per_epoch"]
    assert len(model_check(model)) == 1


@pytest.mark.usefixtures("no_trial_steps")
def test_a_layer_frozen_after_a_first_fit_is_told_for_fit_would_train_it(tmp_path: Path) -> None:
    code = TRAINED_AT_BUILD.format(first=True, then=False, more="")
    (warning,) = warnings_of(validated(tmp_path, code))
    assert "hidden/kernel' was frozen after fit() in build and is not trained here" in warning
    compiled_again = TRAINED_AT_BUILD.format(first=True, then=False, more="compiled(model)")
    assert warnings_of(validated(tmp_path, compiled_again)) == []


def test_a_layer_unfrozen_after_a_first_fit_needs_another_compile(tmp_path: Path) -> None:
    code = TRAINED_AT_BUILD.format(first=False, then=True, more="")
    report = validated(tmp_path, code)
    assert (report.ok, report.code, report.field) == (False, "not_compiled", "code.build")
    assert "hidden/kernel' became trainable" in report.message
    assert "call model.compile() again" in report.message
    compiled_again = TRAINED_AT_BUILD.format(first=False, then=True, more="compiled(model)")
    assert validated(tmp_path, compiled_again).ok


def test_a_shape_error_shows_as_the_users_fault(tmp_path: Path) -> None:
    report = validated(tmp_path, returning("compiled(net(out=3))"))
    assert (report.ok, report.code) == (False, "user_code")
    assert "shape" in report.message


def test_a_missing_package_is_named_with_the_class_that_needs_it(tmp_path: Path) -> None:
    report = validated(tmp_path, returning("compiled(net(layers.TorchModuleWrapper(None)))"))
    assert (report.ok, report.code) == (False, "user_code")
    assert "no module 'torch'" in report.message
    assert "TorchModuleWrapper asks for it" in report.message


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


def test_a_model_without_a_configuration_leaves_its_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keras's own text goes on with twenty lines of advice, of which the warning has none."""

    class Distiller(keras.Model):  # type: ignore[misc]  # no types in Keras
        def __init__(self, student: keras.Model) -> None:
            super().__init__()
            self.student = student

        def call(self, inputs: Any) -> Any:
            return self.student(inputs)

    model = Distiller(keras.Sequential([keras.layers.Dense(1)]))
    model.compile("sgd", "mse")
    model(np.zeros((1, 2)))
    (warning,) = run._save_try(model)
    assert warning.startswith("Keras cannot save the model as model.keras, so the job will leave")
    assert warning.endswith("Please implement `get_config()`.)")
    saved = results_save(tmp_path, model, ModelState(model), Progress())
    assert saved["files"] == ["model.weights.h5", "history.csv", "metrics.json"]
    assert {path.name for path in tmp_path.iterdir()} == set(saved["files"]), "nothing partial"
    weights = model.get_weights()
    model.set_weights([value + 1 for value in weights])
    model.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(model.get_weights()[0], weights[0])
    with monkeypatch.context() as patched:
        patched.setattr(keras.Model, "save", Mock(side_effect=OSError("No space left on device")))
        with pytest.raises(OSError, match="No space left"):  # which is waited for
            results_save(tmp_path, model, ModelState(model), Progress())
    monkeypatch.setattr(keras.Model, "save_weights", Mock(side_effect=ValueError("none")))
    with pytest.raises(JobCodeError, match=r"^code\.build: neither the model nor its weights"):
        run._save_try(model)
    monkeypatch.undo()
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", keras.losses.MeanSquaredError)  # the class
    (warning,) = run._save_try(model)
    assert re.search(r"objects or functions, not classes .*'self'", warning)


def test_an_optimizer_may_build_another_one_for_variables_of_its_own() -> None:
    class Projected(keras.optimizers.SGD):  # type: ignore[misc]
        def build(self, variables: list[Any]) -> None:
            self.inner = keras.optimizers.SGD()
            self.inner.build([keras.Variable(variable) for variable in variables])
            self.built = True

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(Projected(), "mse")
    model.optimizer.build(model.trainable_variables)
    assert trainability_changed(model) == ([], [])


@pytest.mark.parametrize("name", ["trainable_weights", "trainable_variables"])
def test_a_list_of_what_to_train_of_the_models_own_is_refused(name: str) -> None:
    class Partly(keras.Sequential):  # type: ignore[misc]
        number = 2

    setattr(Partly, name, property(lambda self: list(reversed(self.weights))[: self.number]))
    model = Partly([keras.Input((2,)), keras.layers.Dense(1, name="end")])
    model.compile("sgd", "mse")
    model_build(model, (np.zeros((2, 2)), np.zeros((2, 1))))
    assert built_model_check(model, 2) == []
    Partly.number = 1
    with pytest.raises(JobCodeError, match=rf"own {name}, .* in \w+/end/kernel;"):
        built_model_check(model, 2)


class Hiding(keras.layers.Dense):  # type: ignore[misc]
    """Has a bias that `fit` does not train, for it is not among the layer's weights."""

    weights = property(lambda self: [self.kernel])


def test_a_layer_that_hides_a_weight_is_refused() -> None:
    model = keras.Sequential([keras.Input((2,)), Hiding(1, name="end")])
    model.compile("sgd", "mse")
    model_build(model, (np.zeros((2, 2)), np.zeros((2, 1))))
    with pytest.raises(JobCodeError, match=r"a layer has its own weights .*end/bias;") as caught:
        built_model_check(model, 2)
    assert caught.value.code == "custom_trainable_weights"


@pytest.mark.parametrize("size", [2, None])
def test_a_loss_of_several_numbers_is_refused(size: int | None) -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compute_loss = lambda *_, **__: keras.KerasTensor((size,))
    with pytest.raises(JobCodeError, match=rf"loss has the shape \({size},\), and") as caught:
        model_loss(model, (None, None, None), None, training=True)
    assert caught.value.code == "loss_reduction"


class InADict(keras.metrics.Mean):  # type: ignore[misc]
    """Gives a dict in a dict."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        super().update_state(y_pred)

    def result(self) -> Any:
        return {"a": {"b": super().result()}}


def test_a_metric_of_dicts_in_a_dict_is_refused() -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=[InADict(name="in_a_dict")])
    model_build(model, (np.zeros((2, 2)), np.zeros((2, 1))))
    with pytest.raises(JobCodeError, match=r"'a' gives a dict, .*; let result\(\) return"):
        built_model_check(model, 2)
    model.get_metrics_result = list
    with pytest.raises(JobCodeError, match="of Sequential gives a list; return a dict of names"):
        built_model_check(model, 2)
