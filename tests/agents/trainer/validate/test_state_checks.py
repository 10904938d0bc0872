"""State of layers that is compared between batches of several sizes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import keras
import numpy as np
import pytest

from agents.trainer.contract.user_errors import JobCodeError
from agents.trainer.validate.part_runner import PartRunner
from agents.trainer.validate.state_checks import state_check


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
