"""Trial of the gradients of a real step: an example's share must not depend on the others.

It may where that of the loss does not: a function with a gradient of its own, or a value that
counts in the gradient alone, may look at the whole batch.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from contextlib import suppress

import numpy as np
import tensorflow as tf

from agents.trainer.contract.user_errors import JobCodeError
from agents.trainer.model.keras_private import model_layers
from agents.trainer.model.optimizers import optimizer_of
from agents.trainer.model.state import ModelState
from agents.trainer.step.batch_plan import TRAINING_STREAM, step_seeds
from agents.trainer.step.functions import StepFunctions, TurnFunctions
from agents.trainer.step.gradient_layout import FieldKind, message_width
from agents.trainer.validate.loss_checks import MIXING_LAYERS, frozen_normalisation
from agents.trainer.validate.part_runner import OWN_CASTS, PartRunner, single_precision

Leaves = list[np.ndarray]
#: Difference attributed to rounding, relative to the length of a batch's gradient.
TOLERANCE = 1e-2
#: The same in half precision.
HALF_TOLERANCE = 1e-1
#: The same, where gradients cancel and only rounding is left, relative to the loss, or to 1.
NOISE = 1e-4
#: Difference of losses attributed to rounding, relative to the loss, or to 1.
ROUNDING = 1e-5
#: Share of the difference of losses by other random numbers that losses do not come near by chance.
CHANCE = 1e-3
#: Pieces of a step with which gradients depend on who shares a slice, or are rounded to 8 bits.
STATE_PIECES = frozenset({FieldKind.CHANGE, FieldKind.WEIGHT, FieldKind.VALUE})


def gradients_check(functions: StepFunctions, leaves: Leaves) -> None:
    """Compare gradients of slices that have examples in common and draw the same random numbers.

    Exchanging one half of the examples changes the gradient by the same, whatever the other half
    is, and by as much as if each half were a slice of its own. Random numbers of the first examples
    of two slices are the same if they are drawn example by example; the loss tells if they are.

    Layers of mixed precision compute in single precision, and batch normalisation is frozen. Left
    out are models with other state that depends on the examples, with layers that mix them, or that
    draw as many numbers as the examples decide.

    Args:
        leaves: arrays of an even number of examples.

    Raises:
        JobCodeError: `loss_not_additive`.
    """
    model = functions.model
    layers = [model, *model_layers(model)]
    if any(isinstance(layer, MIXING_LAYERS) for layer in layers):
        return
    with (
        suppress(*OWN_CASTS),
        single_precision(model) as is_mixed,
        frozen_normalisation(model) as is_frozen,
    ):
        if is_frozen and not model.trainable_variables:
            return
        if is_mixed or is_frozen:
            state = ModelState(model)
            functions = StepFunctions(model, state, functions.sample, has_validation=False)
        is_half = any("16" in str(layer.compute_dtype) for layer in layers)
        for turn in functions.turns:
            _compare(functions, turn, leaves, HALF_TOLERANCE if is_half else TOLERANCE)


def _compare(
    functions: StepFunctions, turn: TurnFunctions, leaves: Leaves, tolerance: float
) -> None:
    size = len(leaves[0])
    one, other = [leaf[: size // 2] for leaf in leaves], [leaf[size // 2 :] for leaf in leaves]
    num_seeds = len(functions.seeds)

    def run(*parts: Leaves, seed: int = 0) -> np.ndarray:
        seeds = step_seeds(seed, TRAINING_STREAM, 0, [0], 1, num_seeds)
        arrays = [np.concatenate(each) for each in zip(*parts, strict=True)]
        num = len(arrays[0])
        program, weights = np.array([[0, num, 0, 1]], np.int32), np.array([num / size], np.float32)
        fixed = (program, weights, np.int32(1), seeds)
        arguments = [tf.convert_to_tensor(value) for value in (*fixed, *arrays)]
        vector: np.ndarray = turn.train(*arguments)[0].numpy()
        return vector[: message_width(turn.pieces)]

    # Few vectors at a time, for models that fill the memory.
    apart, second = run(one), run(other)
    loss = max(abs(apart[-1] + second[-1]), 1.0)
    (square,), (more,) = (_pieces(turn, each, {FieldKind.SQUARE}) for each in (apart, second))
    length = math.sqrt(square[0] + more[0])
    apart -= second
    if any(piece.any() for piece in _pieces(turn, apart, STATE_PIECES)):
        return
    exchanged = run(one, other) - run(other, other)
    apart -= exchanged
    exchanged -= run(one, one)
    exchanged += run(other, one)
    distance = _gradient_length(turn, exchanged)
    scale = float(optimizer_of(functions.model).scale_loss(tf.ones([])))
    limit = tolerance * length + NOISE * scale * loss
    if distance <= limit < _gradient_length(turn, apart) and abs(apart[-1]) <= ROUNDING * loss:
        # The same numbers were drawn, unless the loss hardly depends on which.
        redrawn = run(one) - run(one, seed=1)
        least = max(ROUNDING * loss, abs(apart[-1]) / CHANCE)
        if abs(redrawn[-1]) > least or not _gradient_length(turn, redrawn):
            distance = math.inf
    if distance > limit:
        if PartRunner(functions.model, functions.sample, training=True).draws_vary:
            return
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


def _pieces(
    turn: TurnFunctions, vector: np.ndarray, kinds: Collection[FieldKind]
) -> Iterator[np.ndarray]:
    low = 0
    for piece in turn.pieces:
        if piece.kind in kinds:
            yield vector[low : low + piece.size]
        low += piece.size


def _gradient_length(turn: TurnFunctions, vector: np.ndarray) -> float:
    squares = (piece @ piece for piece in _pieces(turn, vector, {FieldKind.GRADIENT}))
    return math.sqrt(sum(squares))
