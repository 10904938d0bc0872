"""Dynamic checks of a model's loss: that of a batch must be the mean of its parts'.

In inference the outputs are scaled for each example, so that a model that was never trained shows
the difference. In training the model and `compute_loss` may do what they do nowhere else.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from agents.trainer.contract.error_sentences import reason_line
from agents.trainer.contract.user_errors import JobCodeError
from agents.trainer.model.keras_private import has_own, model_layers, step_counters
from agents.trainer.model.optimizers import optimizer_of
from agents.trainer.model.state import as_array
from agents.trainer.validate.model_checks import loss_reductions
from agents.trainer.validate.part_runner import (
    ABSOLUTE_TOLERANCE,
    TOLERANCE,
    PartRunner,
    length,
    rows,
)
from agents.trainer.validate.state_checks import slice_state, state_depends
from controlplane.core.values.explanations import percent

Batch = tuple[tuple[Any, ...], np.ndarray | None]
#: A batch, its slices, and the copies of each example that the batch's loss gets.
Trial = tuple[Batch, Sequence[Batch], int]
#: Examples of a batch that is compared with its pairs. Small parts differ more than large ones.
PAIRED_EXAMPLES = 16
#: Examples of a batch that is compared once more with batch normalisation frozen, which has to be
#: cheap: networks with it are large, and random numbers are drawn several times.
FROZEN_EXAMPLES = 4
#: Least and largest factor on the outputs of these examples. A model that was never trained gives
#: much the same for all, so that even a Dice of the whole batch is nearly the mean of its parts'.
OUTPUT_FACTORS = (0.25, 1.0)
#: Most copies of each example where each of them may run through networks.
RUN_COPIES = 8
#: Draws over which losses with random numbers are averaged.
DRAWS = 12
#: Difference of such averages, in standard errors, that is not chance: one in a million for
#: normally distributed losses.
STANDARD_ERRORS = 10.0
#: Margin for chance, relative to the loss, above which the report says that it was large.
LARGE_CHANCE = 0.01
#: Steps after which what a model brings in, or fades out, little by little, has mostly done so. It
#: is the last step of cycles of 100, 500 or 1,000, too.
LATE_STEPS = 99_999
#: Inputs that single precision holds to three digits after the point at most.
LARGE_INPUT = 1e4
SLICE_LOSS = (
    "the loss in training depends on which examples share a slice, as with batch normalisation, "
    "and so on the number of virtual nodes"
)
#: Layers of Keras that mix the examples of a batch in training and keep no state. The histogram of
#: Equalization, which AugMix and RandAugment contain, is one over all images of the batch, and
#: RandomElasticTransform, where their number is unknown, makes all of the first image.
MIXING_LAYERS = (
    keras.layers.MixUp,
    keras.layers.CutMix,
    keras.layers.Equalization,
    keras.layers.RandomElasticTransform,
)


def loss_check(
    runner: PartRunner, whole: tuple[Any, ...], parts: Sequence[Any], global_batch_size: int = 0
) -> list[str]:
    """Compare losses of batches with the engine's weighted means of their parts' losses.

    So are the terms of the loss, in which a difference may be small beside the others. In half
    precision terms near 0 are nothing but rounding. A loss that depends on the number of steps, as
    of a term that comes in little by little, is compared as after `LATE_STEPS`, too; one that
    depends on another number that a step changes, as after that has grown by 1 or halved.
    So is one of the same examples several times, up to the global batch, which shows a loss that
    takes a fixed number of them.

    Raises:
        JobCodeError: `loss_not_additive`.
    """
    warnings = _loss_check(runner, whole, parts, global_batch_size)
    late: list[tuple[Any, Any]] = [
        (counter, LATE_STEPS) for counter in step_counters(optimizer_of(runner.model))
    ]
    run = runner(whole)
    for variable, new in zip(runner.changed, run.state, strict=True):
        old = as_array(variable.value)
        if new.shape or new.itemsize < 4 or new == old:
            continue
        if new == old + 1:
            late.append((variable, LATE_STEPS))
        elif new.dtype.kind == "f":
            late.append((variable, old + 1 if new > old else old / 2))
    # A table of a value for each step may have too few.
    with _assigned(late), suppress(tf.errors.OpError):
        if runner(whole).losses[0] != run.losses[0]:
            _loss_check(runner, whole, parts, global_batch_size, ", after many steps")
    return warnings


@contextmanager
def _assigned(values: Sequence[tuple[Any, Any]]) -> Iterator[None]:
    """Let variables have other values inside the block."""
    before = [(variable, as_array(variable.value)) for variable, _ in values]
    try:
        for variable, value in values:
            variable.assign(value)
        yield
    finally:
        for variable, value in before:
            variable.assign(value)


def _loss_check(
    runner: PartRunner,
    whole: tuple[Any, ...],
    parts: Sequence[Any],
    global_batch_size: int,
    when: str = "",
) -> list[str]:
    expected = runner(whole).losses[0]
    if not np.isfinite(expected):
        return [f"the loss of the first examples is {expected}; look at the data and the loss"]
    _trial_check(runner, whole, ((whole, None), [(part, None) for part in parts], 1), when)
    if runner.is_random and not runner.draws_vary:
        chance = _exchange_check(runner, whole, when)
    else:
        few, *pairs = in_pairs(whole)
        chance = _trial_check(runner, whole, (few, pairs, 1), when)
    for trial in _copies(runner, whole, global_batch_size):
        _trial_check(runner, whole, trial, f"{when}, with several copies of each example")
    if chance <= LARGE_CHANCE:
        return []
    return [
        "the model draws random numbers in inference too, so whether its loss is the mean of its "
        f"examples' was tried to within {percent(chance)} only"
    ]


def _trial_check(runner: PartRunner, whole: tuple[Any, ...], trial: Trial, when: str) -> float:
    """Compare a batch with its slices; returns what may be chance, relative to the loss."""
    losses = _losses(runner, *trial)
    is_finite = np.isfinite(losses)
    if not is_finite[:, 0].all() or (runner.is_random and not is_finite.all()):
        return 0.0  # which draw overflows is left to chance
    chances = [
        _compare(runner, whole, *means, when=when, number=number)
        for number, means in _terms(losses, runner)
    ]
    return chances[0] / (abs(float(losses[:, 0, 0].mean())) + ABSOLUTE_TOLERANCE)


def _exchange_check(runner: PartRunner, whole: tuple[Any, ...], when: str) -> float:
    """Compare losses of batches that have examples in common and draw the same random numbers.

    Exchanging one half of a batch changes the loss by the same, whatever the other half is; and by
    as much as if each half were a batch of its own, if the first numbers that are drawn for a batch
    are those drawn for its half. If they are not, that holds on average.

    Returns:
        The largest difference of these averages that may be chance, relative to the loss.
    """
    largest = 0.0
    when += ", with the same random numbers"
    most = min(PAIRED_EXAMPLES, length(whole)) // 2
    for size in {1, (most - 1) | 1}:  # an odd one shows that a loss is over pairs
        losses = _exchanged(runner, whole, size)
        if not np.isfinite(losses).all():
            continue  # which draw overflows is left to chance
        for number, term in _terms(losses, runner):
            twice, mixed, swapped, others, alone, others_alone = term
            compare = partial(_compare, runner, whole, when=when, number=number)
            for drawn in zip(mixed + swapped, twice + others, strict=True):
                compare(*(total / 2 for total in drawn))
            chance = compare(mixed, others + alone - others_alone)
            if not number:
                largest = max(largest, chance / (abs(mixed.mean()) + ABSOLUTE_TOLERANCE))
    return largest


def _exchanged(runner: PartRunner, whole: tuple[Any, ...], size: int) -> np.ndarray:
    """Return losses of batches made of two examples, or halves of `size`: [draws, 6, n].

    These are the first half twice, both, the second and the first, the second twice, and each
    alone, weighted by its number of examples.
    """
    one, other = np.arange(2 * size).reshape(2, size)
    pairs = itertools.product((one, other), repeat=2)
    batches = [*(np.concatenate(pair) for pair in pairs), one, other]
    factors = np.linspace(*OUTPUT_FACTORS, 2 * size)
    found = []
    for draw, places in itertools.product(range(DRAWS), batches):
        examples = keras.tree.map_structure(lambda leaf, at=places: leaf[at], whole)
        share = len(places) / (2 * size)
        found.append(share * runner(examples, 1 / share, None, draw, factors[places]).losses)
    return np.reshape(found, (DRAWS, len(batches), -1))


def _terms(losses: np.ndarray, runner: PartRunner) -> list[tuple[int, np.ndarray]]:
    """Arrange losses as [runs, draws] by number: the loss, and terms of full precision."""
    terms = enumerate(losses.transpose(2, 1, 0))
    return [each for each in terms if not each[0] or runner.tolerances[each[0]] <= TOLERANCE]


def _copies(runner: PartRunner, whole: tuple[Any, ...], global_batch_size: int) -> list[Trial]:
    """Return trials of examples against copies of each, which fill the global batch if they can.

    The loss alone gets the copies, the whole model if its layers have losses.
    """
    copies = math.ceil(global_batch_size / length(whole))
    few = min(copies, RUN_COPIES)
    if has_own(runner.model, "compute_loss"):
        copies = few
    if copies < 2 or runner.is_training:
        return []
    first = rows(whole, 0, global_batch_size // copies)
    scaled = (first, np.linspace(*OUTPUT_FACTORS, length(first)))
    trials: list[Trial] = [(scaled, [scaled], copies)]
    if runner.adds_losses and not runner.is_random:
        many = keras.tree.map_structure(lambda leaf: np.repeat(leaf, few, axis=0), first)
        trials.append(((many, None), [(first, None)], 1))
    return trials


def training_loss_check(
    runner: PartRunner, whole: tuple[Any, ...], parts: Sequence[Any]
) -> list[str]:
    """Compare losses as the model trains, unless it may depend on who shares a slice.

    Batch normalisation may: virtual nodes normalise over their slices. So it is tried as if it were
    frozen, and with fewer examples. A model with other state that depends on the examples may, too;
    it gets a warning, and one for state that is not the mean of the parts', as of maxima.

    Raises:
        JobCodeError: `loss_not_additive`.
    """
    if any(isinstance(layer, MIXING_LAYERS) for layer in model_layers(runner.model)):
        return []
    if runner.changed:
        whole = rows(whole, 0, FROZEN_EXAMPLES)
        cut = max(1, length(whole) // 3)
        parts = (rows(whole, 0, cut), rows(whole, cut, length(whole)))
        with frozen_normalisation(runner.model):
            runner = PartRunner(runner.model, whole, training=True)
    if not state_depends(runner, *parts):
        loss_check(runner, whole, parts)
        return []
    warnings = slice_state(runner, whole, parts)
    try:
        loss_check(runner, whole, parts)
    except JobCodeError:
        warnings.append(SLICE_LOSS)
    return warnings


@contextmanager
def frozen_normalisation(model: keras.Model) -> Iterator[bool]:
    """Let batch normalisation behave as frozen inside the block; yields if any was not."""
    trained = [
        layer
        for layer in model_layers(model)
        if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable
    ]
    weights = [(weight, weight.trainable) for layer in trained for weight in layer.weights]
    for layer in trained:
        layer.trainable = False
    try:
        yield bool(trained)
    finally:
        for layer in trained:
            layer.trainable = True
        for weight, is_trainable in weights:  # the job may have frozen single ones
            weight.trainable = is_trainable


def in_pairs(examples: tuple[Any, ...]) -> list[tuple[tuple[Any, ...], np.ndarray]]:
    """Return the first `PAIRED_EXAMPLES` of a batch, then the pairs of them.

    Each with factors on its outputs. The last pair of an odd number is a single example.
    """
    size = min(PAIRED_EXAMPLES, length(examples))
    factors = np.linspace(*OUTPUT_FACTORS, size)
    bounds = [(0, size), *((low, min(low + 2, size)) for low in range(0, size, 2))]
    return [(rows(examples, low, high), factors[low:high]) for low, high in bounds]


def _losses(runner: PartRunner, batch: Batch, slices: Sequence[Batch], copies: int) -> np.ndarray:
    """Return a batch's losses and the weighted means of its slices': [draws, 2, n].

    Every slice draws random numbers of its own, as virtual nodes do; but the one that copies are
    compared with, which stands for all, draws the same.
    """
    size = length(batch[0])
    found = []
    for draw in range(DRAWS if runner.is_random else 1):
        losses = []
        for number, (examples, outputs) in enumerate([batch, *slices]):
            share = length(examples) / size
            seed = draw * (1 + len(slices)) + number * (copies == 1)
            try:
                run = runner(examples, 1.0 / share, None, seed, outputs, 1 if number else copies)
            except tf.errors.InvalidArgumentError as error:
                if not number:
                    raise
                raise _not_of_any_size(size, length(examples), error) from error
            losses.append(share * run.losses)
        found.append((losses[0], sum(losses[1:]) * size / sum(length(part) for part, _ in slices)))
    return np.array(found)


def _not_of_any_size(size: int, part: int, error: tf.errors.OpError) -> JobCodeError:
    reason = reason_line(str(error.message))
    return JobCodeError(
        "loss_not_additive",
        "code.build",
        f"the model and its loss take {size} examples, but not {part} of them ({reason:.200}). "
        "Slices of the batch, and the last batch of an epoch, have any number of examples: let "
        "loss and layers treat each example by itself. Examples that belong together, as pairs, "
        "can be one: an array of the shape [n, 2, ...], or two inputs",
    )


def _compare(
    runner: PartRunner,
    whole: tuple[Any, ...],
    expected: np.ndarray,
    combined: np.ndarray,
    *,
    when: str,
    number: int,
) -> float:
    """Raise if the means of draws differ more than by rounding and chance; returns the latter."""
    values = (float(np.mean(expected)), float(np.mean(combined)))
    rounding = ABSOLUTE_TOLERANCE + runner.tolerances[number] * abs(values[1])
    num_draws = np.size(expected)
    chance = 0.0
    if num_draws > 1:
        spread = np.std(expected - combined, ddof=1)
        chance = float(STANDARD_ERRORS * spread / np.sqrt(num_draws))
    if not (np.isfinite(values[1]) and abs(values[0] - values[1]) <= rounding + chance):
        raise _not_additive(runner, whole, values, when, is_term=number > 0)
    return chance


def _not_additive(
    runner: PartRunner,
    examples: tuple[Any, ...],
    values: tuple[float, float],
    when: str,
    *,
    is_term: bool,
) -> JobCodeError:
    expected, combined = values
    names = ", ".join(loss_reductions(runner.model)) or "those of add_loss() or compute_loss()"
    return JobCodeError(
        "loss_not_additive",
        "code.build",
        f"{'a term of ' * is_term}the loss of a batch ({expected:.6g}"
        f"{', in training' * runner.is_training}{when}) is not the mean over its parts "
        f"({combined:.6g}), so virtual nodes would train something else. The "
        f"losses are {names}. Causes: a loss or a layer that compares examples with each other, "
        "takes a fixed number of them, as the 64 with the largest losses, or adds them up before "
        "it divides (use one that is computed for each example, as Dice(axis=-1) is; to leave out "
        "padding or labels, a mask or ignore_class), a sum over the batch in add_loss() or "
        "train_step() (use a mean, or the array that is added up), random numbers drawn with a "
        "fixed number as seed (use a keras.random.SeedGenerator), or a mixture of examples drawn "
        "at random (keras.layers.MixUp and CutMix may mix those of a slice)"
        f"{_large_inputs(examples[0])}",
    )


def _large_inputs(inputs: Any) -> str:
    """Name inputs so large that their rounding may be the cause; empty if there are none."""
    floats = [a for a in map(np.asarray, keras.tree.flatten(inputs)) if a.dtype.kind == "f"]
    largest = max((float(np.nanmax(np.abs(a), initial=0.0)) for a in floats), default=0.0)
    if largest < LARGE_INPUT:
        return ""
    return f", or inputs up to {largest:.0e}, beside whose rounding nothing counts (scale them)"
