"""Gradients of a batch that are compared with those of its slices."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import keras
import pytest
import tensorflow as tf

from agents.trainer.contract.user_errors import JobCodeError
from agents.trainer.step.functions import StepFunctions
from agents.trainer.step.gradient_layout import FieldKind, LayoutField
from agents.trainer.validate.gradient_trial import gradients_check

PIECES = [
    LayoutField(FieldKind.GRADIENT, 0, (2,), 2),
    LayoutField(FieldKind.SQUARE, 0, (2,), 2),
    LayoutField(FieldKind.LOSS, 0, (), 1),
]
WHOLE, SLICES = ([slices, 0, 0, tf.zeros([slices])] for slices in (1, 2))


@pytest.mark.parametrize(
    ("length", "loss", "scale", "is_refused"),
    [(1.0, 1.0, 1, True), (4e-6, 0.4, 1, False), (0.1, 1e4, 1, False), (4e-3, 0.4, 1024, False)],
)
def test_gradients_that_cancel_are_rounding(
    length: float, loss: float, scale: int, is_refused: bool
) -> None:
    """Gradients of normalised outputs cancel; only the differences of rounding are left."""
    vectors = {
        slices: tf.constant([length, share * length, length**2, 1.0, loss])
        for slices, share in ((1, 0.7), (2, 0.0))
    }
    model = keras.Sequential([])
    model.compile(keras.optimizers.SGD(loss_scale_factor=scale), "mse")
    fake = SimpleNamespace(
        model=model,
        train_pieces=PIECES,
        train=lambda slices, *_: [vectors[slices]],
        loss_of=lambda vector: float(vector[-1]),
        dtype=tf.float32,
    )
    functions = cast("StepFunctions", fake)
    if not is_refused:
        gradients_check(functions, WHOLE, SLICES)
        return
    with pytest.raises(JobCodeError) as caught:
        gradients_check(functions, WHOLE, SLICES)
    assert caught.value.code == "loss_not_additive"
