"""Trial of the gradients of a real step: those of a batch must be the sum of its slices'.

They may not be where the loss is: a function with a gradient of its own, or a value that counts in
the gradient alone, may look at the whole batch.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import keras
import tensorflow as tf

from agents.trainer.contract.user_errors import JobCodeError
from agents.trainer.model.keras_private import model_layers
from agents.trainer.model.state import ModelState
from agents.trainer.step.functions import StepFunctions
from agents.trainer.step.gradient_layout import FieldKind
from agents.trainer.validate.loss_checks import frozen_normalisation
from agents.trainer.validate.part_runner import OWN_CASTS, attributes_set, single_precision

#: Difference attributed to rounding, relative to the length of the slices' gradients.
TOLERANCE = 1e-2
#: The same, where gradients cancel and only rounding is left, relative to the loss, or to 1.
NOISE = 1e-4
#: Pieces of a step with which gradients depend on who shares a slice, or are rounded to 8 bits.
STATE_PIECES = frozenset({FieldKind.CHANGE, FieldKind.WEIGHT, FieldKind.VALUE})
#: Public settings by which layers draw random numbers in training.
RANDOM_SETTINGS = {
    keras.layers.Dropout: ("rate",),
    keras.layers.AlphaDropout: ("rate",),
    keras.layers.GaussianDropout: ("rate",),
    keras.layers.GaussianNoise: ("stddev",),
    keras.layers.Attention: ("dropout",),
    keras.layers.SimpleRNNCell: ("dropout", "recurrent_dropout"),
    keras.layers.GRUCell: ("dropout", "recurrent_dropout"),
    keras.layers.LSTMCell: ("dropout", "recurrent_dropout"),
}


def gradients_check(functions: StepFunctions, whole: list[Any], slices: list[Any]) -> None:
    """Compare gradients of one slice with the sum of those of two with the same examples.

    Layers of mixed precision compute in single precision, batch normalisation is frozen, and layers
    of dropout drop nothing. Left out are models that compute in half precision or draw random
    numbers even so, as variational autoencoders do, or have such state.

    Args:
        whole: arguments of a training step over one slice.
        slices: those over two slices.

    Raises:
        JobCodeError: `loss_not_additive`.
    """
    model = functions.model
    layers = [model, *model_layers(model)]
    random = [
        (layer, name, 0.0)
        for kind, names in RANDOM_SETTINGS.items()
        for layer in layers
        for name in names
        if isinstance(layer, kind) and getattr(layer, name)
    ]
    with (
        suppress(*OWN_CASTS),
        single_precision(model) as is_mixed,
        attributes_set(random) as is_random,
        frozen_normalisation(model) as is_frozen,
    ):
        if is_frozen and not model.trainable_variables:
            return
        if is_mixed or is_random or is_frozen:
            state = ModelState(model)
            functions = StepFunctions(model, state, functions.sample, has_validation=False)
        if STATE_PIECES & {piece.kind for piece in functions.train_pieces}:
            return
        if not any("16" in str(layer.compute_dtype) for layer in layers):
            _compare(functions, whole, slices)


def _compare(functions: StepFunctions, whole: list[Any], slices: list[Any]) -> None:
    others_seeds = [*whole[:3], slices[3][1:], *whole[4:]]
    expected = functions.train(*whole)[0]
    if not tf.reduce_all(tf.equal(expected, functions.train(*others_seeds)[0])):
        return
    found = functions.train(*slices)[0]
    length = distance = tf.zeros([], functions.dtype)
    low = 0
    for piece in functions.train_pieces:  # one after the other, for models that fill the memory
        wanted, value = (vector[low : low + piece.size] for vector in (expected, found))
        low += piece.size
        if piece.kind is FieldKind.GRADIENT:
            distance += tf.reduce_sum(tf.square(wanted - value))
        elif piece.kind is FieldKind.SQUARE:
            length = value[0]
    scale = float(functions.model.optimizer.scale_loss(tf.ones([])))
    noise = NOISE * scale * max(abs(functions.loss_of(found)), 1.0)
    if tf.sqrt(distance) > TOLERANCE * tf.sqrt(length) + noise:
        raise JobCodeError(
            "loss_not_additive",
            "code.build",
            "the gradient of a batch is not the mean of its parts' gradients, so virtual nodes "
            "would train something else. Causes: a layer that mixes the examples of a batch in "
            "training, though random numbers hide that in the loss; a tf.custom_gradient, or what "
            "stop_gradient leaves of a value, that divides by a norm or a mean over the batch, or "
            "multiplies by its size. Let it treat each example by itself, or use clipnorm of the "
            "optimizer",
        )
