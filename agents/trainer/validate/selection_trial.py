"""Tries a selection pass: whether a model has a loss for each single example."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from agents.trainer.contract.user_errors import JobCodeError
from agents.trainer.model.keras_private import NoExampleLossError
from agents.trainer.model.state import ModelState
from agents.trainer.step.virtual_node import VirtualNode


def selection_try(model: keras.Model, examples: tuple[Any, ...]) -> None:
    """Compute the loss of each example, as a selection pass does; changes no state.

    Raises:
        JobCodeError: a loss of the model gives no value per example.
    """
    state = ModelState(model)
    node = VirtualNode(model, state, examples)
    losses = tf.function(node.losses, autograph=False)
    try:
        losses(
            [tf.convert_to_tensor(variable.value) for variable in state.trainable],
            [tf.convert_to_tensor(variable.value) for variable in state.fixed],
            [tf.convert_to_tensor(array) for array in keras.tree.flatten(examples)],
            tf.zeros([len(state.seeds), 2], tf.int64),
        )
    except NoExampleLossError as error:
        raise JobCodeError(
            "no_example_loss",
            "selection.method",
            f"examples cannot be selected by their losses: {error}. Or train without selection",
        ) from error
