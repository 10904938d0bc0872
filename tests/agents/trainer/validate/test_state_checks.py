"""State of layers that is compared between batches of several sizes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import keras
import numpy as np
import pytest
from keras import ops

from agents.trainer.contract.user_errors import JobCodeError
from agents.trainer.validate.loss_checks import SLICE_LOSS
from agents.trainer.validate.part_runner import PartRunner
from agents.trainer.validate.split_checks import splitting_check
from agents.trainer.validate.state_checks import state_check
from tests.agents.trainer.validate.split_models import OwnState, model_with_state
from tests.support.cases import some


class Named(keras.layers.BatchNormalization):
    """Has other defaults alone, as many networks have it."""

    def __init__(self) -> None:
        super().__init__(momentum=0.9, epsilon=1e-5)


class Own(keras.layers.BatchNormalization):
    """May average in a way of its own."""

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        return super().call(inputs, training, mask)


class Growing(SimpleNamespace):
    """A runner after which the state is what rounding makes of the number of examples."""

    def __call__(self, examples: tuple[Any, ...], **_: Any) -> SimpleNamespace:
        return SimpleNamespace(state=[np.full(4, 0.01 * len(examples[0]), "float32")])


@pytest.mark.parametrize("layer", [keras.layers.BatchNormalization, Named, Own])
def test_batch_normalisation_of_keras_is_known_to_average(layer: Any) -> None:
    """A deep stack of it over few places, as of small images, multiplies rounding at will."""
    model = keras.Sequential([keras.Input((4,)), layer()])
    runner = Growing(
        model=model,
        changed=[model.layers[0].moving_mean],
        trainable=[],
        metrics=[],
        is_random=False,
    )
    examples = (np.zeros((12, 4)),)
    batches = (examples, (examples[0][:4],), (examples[0][4:],))
    if layer is not Own:
        state_check(cast("PartRunner", runner), *batches)
        return
    with pytest.raises(JobCodeError, match="grows with the number"):
        state_check(cast("PartRunner", runner), *batches)


def length_of(inputs: Any) -> Any:
    return ops.cast(ops.shape(inputs)[0], "float32")


def unbiased_variance(old: Any, inputs: Any) -> Any:
    number = length_of(inputs)
    return 0.9 * old + 0.1 * ops.var(inputs, 0) * number / (number - 1)


NO_AVERAGES = {
    "examples": (lambda old, x: old + length_of(x), "grows with the number"),
    "sum": (lambda old, x: old + ops.sum(x, 0), "grows with the number"),
    "average of sums": (lambda old, x: 0.9 * old + 0.1 * ops.sum(x, 0), "grows with the number"),
    "last example": (lambda old, x: 0.0 * old + x[-1], "depends on the order"),
    "maximum": (lambda old, x: ops.maximum(old, ops.max(x, 0)), "is an extreme"),
    "minimum": (lambda old, x: ops.minimum(old, ops.min(x, 0)), "is an extreme"),
    "largest length": (
        lambda old, x: ops.maximum(old, ops.max(ops.norm(x, axis=-1))),
        "is an extreme",
    ),
    "seen": (
        lambda old, x: ops.maximum(old, ops.cast(ops.any(x > 1.8, 0), "float32")),
        "is an extreme",
    ),
}
AVERAGES = {
    "steps": lambda old, x: old + 1.0,
    "mean": lambda old, x: 0.9 * old + 0.1 * ops.mean(x, 0),
    "variance": unbiased_variance,
    "average of maxima": lambda old, x: 0.9 * old + 0.1 * ops.max(x, 0),
    "length": lambda old, x: 0.9 * old + 0.1 * ops.mean(ops.norm(x, axis=-1)),
    "slow mean": lambda old, x: 0.9999 * old + 0.0001 * ops.mean(x, 0),
    "flag": lambda old, x: ops.maximum(old, 1.0),
}


@pytest.mark.parametrize("name", some(NO_AVERAGES, {"sum", "minimum", "largest length"}))
def test_float_state_that_is_no_average_is_refused(name: str) -> None:
    after, reason = NO_AVERAGES[name]
    with pytest.raises(JobCodeError, match=reason) as caught:
        splitting_check(*model_with_state(OwnState(after)))
    assert caught.value.code == "state_not_combinable"


def test_a_queue_of_examples_is_refused() -> None:
    queue = OwnState(lambda old, x: ops.concatenate([x, old])[:16], (16, 4))
    with pytest.raises(JobCodeError, match="depends on the order") as caught:
        splitting_check(*model_with_state(queue))
    assert caught.value.code == "state_not_combinable"


def test_float_state_that_is_an_average_is_accepted() -> None:
    """Each state is checked by itself; only the two that depend on the slices are warned of."""
    layers = {name: OwnState(after) for name, after in AVERAGES.items()}
    (warning,) = splitting_check(*model_with_state(*layers.values()))
    named = [repr(layers[name].state.path) for name in ("variance", "average of maxima")]
    assert warning.startswith(f"the state {', '.join(named)} is computed for each slice")


class Centred(OwnState):
    """Subtracts its state in training."""

    def call(self, inputs: Any, training: bool = False) -> Any:
        given = super().call(inputs, training)
        return given - self.state if training else given


def test_a_loss_that_depends_on_the_slice_by_own_state_gets_a_warning() -> None:
    centred = Centred(lambda old, x: 0.0 * old + ops.mean(x, 0))
    assert splitting_check(*model_with_state(centred)) == [SLICE_LOSS]


@pytest.mark.parametrize(
    "start", some(["nan", "inf", "-inf", "1e9", "3e38"], {"inf", "-inf", "3e38"})
)
def test_state_that_no_change_leads_away_from_is_refused(start: str) -> None:
    def after(old: Any, inputs: Any) -> Any:
        is_first = ops.logical_or(ops.isnan(old), ops.abs(old) > 1e8)
        mean = ops.mean(inputs, 0)
        return ops.where(is_first, mean, 0.9 * ops.where(is_first, 0.0, old) + 0.1 * mean)

    with pytest.raises(JobCodeError, match="start from 0") as caught:
        splitting_check(*model_with_state(OwnState(after, start=float(start))))
    assert caught.value.code == "state_not_combinable"


def test_state_that_keeps_its_value_may_be_any_number() -> None:
    layers = [OwnState(lambda old, _: old, start=start) for start in (np.nan, 1e9, 3e38)]
    assert splitting_check(*model_with_state(*layers)) == []


class InInferenceToo(OwnState):
    """Changes its state whether the model trains or not."""

    def call(self, inputs: Any, training: bool = False) -> Any:
        del training
        return super().call(inputs, training=True)


def test_state_that_inference_changes_is_warned_of() -> None:
    (warning,) = splitting_check(*model_with_state(InInferenceToo(AVERAGES["mean"])))
    assert "leave all state as it is" in warning


def test_checks_leave_the_state_as_it_was() -> None:
    model, examples = model_with_state(OwnState(AVERAGES["mean"]))
    splitting_check(model, examples)
    assert not np.any(model.layers[0].state.numpy())


@pytest.mark.parametrize("dtype", some(["float32", "mixed_float16", "float64"], ["float64"]))
def test_batch_normalisation_is_an_average(dtype: str) -> None:
    normalised = keras.layers.BatchNormalization(renorm=True, dtype=dtype)
    dropped = keras.layers.BatchNormalization(momentum=0.5, dtype=dtype)
    layers = [normalised, keras.layers.Dropout(0.5, seed=3), dropped]
    assert splitting_check(*model_with_state(*layers)) == []
