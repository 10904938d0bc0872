"""Custom `train_step` and `test_step` of a model, run on a slice without updates.

A slice's gradients are those that `train_step` takes with its own `tf.GradientTape`; they are noted
where it hands them to an optimizer, which later gets their sum over all slices. They have to arrive
there as the tape returned them: what is done to a sum (clipping, noise) is something else than the
sum of what is done to its parts.

A step whose later gradients depend on weights that it has updated before, as that of a GAN, takes
several turns: it runs once for each of them, on weights that the turns before have updated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

import keras
import tensorflow as tf

from agents.trainer.contract.user_errors import JobCodeError
from agents.trainer.model.compiled_losses import is_summed
from agents.trainer.model.divisors import Divisor, Divisors
from agents.trainer.model.keras_private import (
    attributes_set,
    built_for,
    has_own,
    loss_tracker,
    mean_metrics,
    metric_results,
    model_layers,
    own_variable,
)
from agents.trainer.model.optimizers import optimizer_note
from agents.trainer.model.training_scope import TrainingScope

Tensor = Any
#: Name of the loss in Keras's logs.
LOSS = "loss"


@dataclass(frozen=True)
class StepLogs:
    """Values that a custom step returns for the logs.

    Attributes:
        names: of all values.
        sources: by name, the metric whose result a value is, and its key in one that is a dict.
        uses_gradients: the step computes something else with them than the optimizer does.
    """

    names: frozenset[str]
    sources: dict[str, tuple[keras.metrics.Metric, str | None]]
    uses_gradients: bool

    @property
    def unlogged(self) -> list[str]:
        """Names of values that are no metric's, and so known of one slice only."""
        return sorted(self.names - self.sources.keys())


#: Means of the losses that custom steps return as plain numbers, by their names.
_trackers: WeakKeyDictionary[keras.Model, dict[str, keras.metrics.Metric]] = WeakKeyDictionary()
#: Logs of custom steps, as last traced, by the model and whether the step trains.
_logs: WeakKeyDictionary[keras.Model, dict[bool, StepLogs]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Update:
    """An update of weights by an optimizer.

    Attributes:
        pairs: (gradient, weight).
        turn: of the step, in which the gradients can be computed.
    """

    optimizer: Any
    pairs: list[tuple[Tensor | None, Any]]
    turn: int


@dataclass(frozen=True)
class CustomStep:
    """A custom step that has been run on a slice.

    Attributes:
        loss: sum of the numbers that `train_step` differentiates in its turn, without loss scale,
            of arrays divided by the slice's share; 0 of a `test_step`.
        gradients: by each trainable weight, as handed to the optimizer, of means times the slice's
            share; None for a weight that is not trained in this turn. None of a `test_step`.
        updates: those of the turn, in their order.
        num_turns: of the step.
        has_sums: an array is differentiated in the turn, which a tape adds up.
        divisor: of all losses of the turn, by whose share gradients are multiplied, too; of a
            `test_step` that of its metrics.
    """

    loss: Tensor
    gradients: list[Tensor | None] | None
    updates: list[Update] = field(default_factory=list)
    num_turns: int = 1
    has_sums: bool = False
    divisor: Divisor | None = None


@dataclass
class _Notes:
    """Gradients and updates of a `train_step` so far.

    Attributes:
        gradients: by id, what tapes returned for weights: (gradient, weight, differentiated value).
        zeros: what stood for gradients by weights that were not taken.
        scaled: by id, what the optimizer has scaled: (scaled loss, loss).
        updates: what the optimizers were handed.
    """

    gradients: dict[int, tuple[Tensor, Any, Any]] = field(default_factory=dict)
    zeros: list[Tensor] = field(default_factory=list)
    scaled: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    updates: list[Update] = field(default_factory=list)


def is_custom(model: keras.Model, training: bool) -> bool:
    """Return whether the model has a `train_step`, or `test_step`, of the job's own."""
    return has_own(model, "train_step" if training else "test_step")


def custom_step(
    model: keras.Model,
    batch: tuple[Any, Any, Any],
    training: bool,
    share: Tensor | float = 1.0,
    scope: TrainingScope | None = None,
    turn: int = 0,
) -> CustomStep:
    """Run the model's own step on `(x, y, sample_weight)`; to be traced.

    Args:
        share: of the batch's examples, by which gradients of means are multiplied.
        scope: that of the slice; None: gradients by weights are zeros, of which only the use is
            checked.
        turn: whose gradients are returned.

    Raises:
        JobCodeError: `custom_train_step`; the step does something else than compute losses, take
            their gradients and hand them to optimizers.
    """
    name = "train_step" if training else "test_step"
    # fit does not trace it as a function of its own either.
    inner = getattr(getattr(type(model), name), "python_function", None)
    run = getattr(model, name) if inner is None else partial(inner, model)
    notes = _Notes()
    with (
        _results_noted(model) as results,
        _training_noted(model, notes, scope, share),
    ):
        returned = run(keras.utils.pack_x_y_sample_weight(*batch))
    values = _flat(returned) if isinstance(returned, dict) else {}
    sources = {name: results[id(v)][:2] for name, v in values.items() if id(v) in results}
    divisors = Divisors([each for each in keras.tree.flatten(batch) if each is not None])
    if not training:
        totals = [metric.total.value for metric in mean_metrics(model)]
        step = CustomStep(tf.zeros([]), None, divisor=divisors.only(totals))
    else:
        if all(each is None for update in notes.updates for each, _ in update.pairs):
            _refuse(
                model,
                "does not hand gradients to self.optimizer; call super().compile(optimizer=...) "
                "and, in each step once, self.optimizer.apply(gradients, weights)",
            )
        losses = {id(each): each for each in _differentiated(notes, notes.updates)}
        num_examples = tf.shape(keras.tree.flatten(batch[0])[0])[0]
        for name, value in values.items():
            if id(value) in losses and name not in sources:
                tracker = _tracker(model, name)
                count = None if is_summed(value) else num_examples
                tracker.update_state(value, sample_weight=count)
                sources[name] = (tracker, None)
        step = _turn_of(model, notes, turn, share, divisors, is_checked=scope is not None)
        for update in notes.updates:
            optimizer_note(model, update.optimizer, [weight for _, weight in update.pairs])
    uses_gradients = any(each.consumers() for each in notes.zeros)
    logs = StepLogs(frozenset(values), sources, uses_gradients)
    _logs.setdefault(model, {})[training] = logs
    return step


def _tracker(model: keras.Model, name: str) -> keras.metrics.Metric:
    """Return the mean over the epoch of a loss that a step returns; made when it is built."""
    if name == LOSS and (own := loss_tracker(model)) is not None:
        return own
    trackers = _trackers.setdefault(model, {})
    if name not in trackers:
        trackers[name] = keras.metrics.Mean(name)
    return trackers[name]


def loss_trackers(model: keras.Model) -> list[keras.metrics.Metric]:
    """List the means of losses that a custom step returns, which are no metrics of the model."""
    return list(_trackers.get(model, {}).values())


def _turn_of(
    model: keras.Model,
    notes: _Notes,
    turn: int,
    share: Tensor | float,
    divisors: Divisors,
    is_checked: bool,
) -> CustomStep:
    updates = [update for update in notes.updates if update.turn == turn]
    pairs = [pair for update in updates for pair in update.pairs if pair[0] is not None]
    gradients = {id(weight): each for each, weight in pairs}
    if is_checked and len(gradients) < len(pairs):
        _refuse(
            model,
            "updates a weight several times with gradients taken before; add the losses up, or "
            "take the second gradient after the first update",
        )
    differentiated = _differentiated(notes, updates)
    divisor = divisors.common(differentiated)
    given = [gradients.get(id(weight)) for weight in model.trainable_variables]
    losses = [
        tf.cast(tf.reduce_sum(each), tf.float32) / (share if is_summed(each) else 1.0)
        for each in differentiated
    ]
    return CustomStep(
        tf.add_n(losses) if losses else tf.zeros([]),
        given if divisor is None else [divisor.weighted(each) for each in given],
        updates,
        1 + max(update.turn for update in notes.updates),
        any(map(is_summed, differentiated)),
        divisor,
    )


def _differentiated(notes: _Notes, updates: Sequence[Update]) -> list[Tensor]:
    """Return the losses whose gradients these updates got, without loss scale."""
    applied = {id(each) for update in updates for each, _ in update.pairs}
    targets = {id(t): t for key, (_, _, t) in notes.gradients.items() if key in applied}
    return [
        notes.scaled.get(id(loss), (loss, loss))[1]
        for target in targets.values()
        for loss in tf.nest.flatten(target)
    ]


def building_steps(model: keras.Model, has_validation: bool) -> list[Callable[..., Tensor]]:
    """List the model's own steps as functions of `(x, y, sample_weight)` for `model_build`."""

    def run(training: bool, *batch: Any) -> Tensor:
        return custom_step(model, (batch[0], batch[1], batch[2]), training).loss

    kinds = [True, False][: 1 + has_validation]
    return [partial(run, training) for training in kinds if is_custom(model, training)]


def logged_results(model: keras.Model, training: bool) -> dict[str, Any]:
    """Return the values of metrics by their names in the logs of training, or of validation.

    Of a custom step these are the names under which it returns them.

    Raises:
        JobCodeError: the model's own `get_metrics_result` gives no dict.
    """
    logs = _logs.get(model, {}).get(training)
    if logs is None:
        return metric_results(model)
    results = {}
    for name, (metric, key) in logs.sources.items():
        result = metric.result()
        results[name] = result if key is None else result[key]
    return results


def logs_warnings(model: keras.Model) -> list[str]:
    """Warn of values that a step returns and the logs do not show, or show as those of slices."""
    warnings = []
    for training, logs in _logs.get(model, {}).items():
        if logs.uses_gradients:
            warnings.append(
                "train_step() computes values of the gradients, which are those of a slice, so "
                "such values depend on the number of virtual nodes"
            )
        if logs.unlogged:
            name = "train_step" if training else "test_step"
            shown = ", ".join(map(repr, logs.unlogged[:5]))
            warnings.append(
                f"{name}() returns {shown} as a plain number, which is that of one slice, and is "
                "not logged; update a keras.metrics.Mean with it, kept as an attribute of the "
                "model, and return its result()"
            )
    return warnings


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    """Flatten a dict of values for the logs, in which the results of a metric may be a dict."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value) if isinstance(value, dict) else {str(name): value}
    return flat


@contextmanager
def _results_noted(model: keras.Model) -> Iterator[dict[int, tuple[Any, str | None, Tensor]]]:
    """Yield, by id, the results of metrics in the block: (metric, key in its dict, value)."""
    noted: dict[int, tuple[Any, str | None, Tensor]] = {}
    metrics = {id(each): each for each in [*model.metrics, *keras.Model.metrics.fget(model)]}

    def result_of(metric: Any, result: Callable[[], Any]) -> Any:
        given = result()
        keyed = given.items() if isinstance(given, dict) else [(None, given)]
        noted.update({id(value): (metric, key, value) for key, value in keyed})
        return given

    settings = [
        (each, "result", partial(result_of, each, each.result)) for each in metrics.values()
    ]
    with attributes_set(settings):
        yield noted


@contextmanager
def _training_noted(
    model: keras.Model,
    notes: _Notes,
    scope: TrainingScope | None,
    share: Tensor | float,
) -> Iterator[None]:
    """Note the gradients that are taken and applied in the block, without an update."""
    graph = tf.compat.v1.get_default_graph()
    take = tf.GradientTape.gradient

    def gradient(
        tape: Any, target: Any, sources: Any, output_gradients: Any = None, *args: Any, **more: Any
    ) -> Any:
        weights = tf.nest.flatten(sources)
        kinds = {isinstance(each, keras.Variable) for each in weights}
        if True not in kinds:
            return take(tape, target, sources, output_gradients, *args, **more)
        if False in kinds:
            _refuse(
                model,
                "takes the gradient by weights and by other tensors in one call; use "
                "tf.GradientTape(persistent=True) and two calls",
            )
        if scope is None:
            found = [tf.zeros(weight.shape, weight.dtype) for weight in weights]
            notes.zeros += found
        else:
            _refuse_assigned(model, scope, weights)
            factors = _shares(target, output_gradients, share)
            variables = [own_variable(weight) for weight in weights]
            found = tf.nest.flatten(take(tape, target, variables, factors, *args, **more))
        notes.gradients |= {
            id(each): (each, weight, target)
            for each, weight in zip(found, weights, strict=True)
            if each is not None
        }
        return tf.nest.pack_sequence_as(sources, found)

    def scale_loss(scale: Callable[[Any], Any], loss: Any) -> Any:
        scaled = scale(loss)
        notes.scaled[id(scaled)] = (scaled, loss)
        return scaled

    def apply(optimizer: Any, gradients: Sequence[Any], trainable_variables: Any = None) -> None:
        weights = list(trainable_variables or built_for(optimizer) or model.trainable_variables)
        pairs = list(zip(list(gradients), weights, strict=True))
        if tf.compat.v1.get_default_graph() is not graph:
            _refuse(
                model,
                "calls the optimizer's apply() inside a tf.function, a loop or a branch; leave "
                "@tf.function out, and update in every step",
            )
        for each, weight in pairs:
            if each is not None and notes.gradients.get(id(each), (None, None))[1] is not weight:
                _refuse(
                    model,
                    f"changes the gradient of {weight.path!r} between tape.gradient() and the "
                    "optimizer's apply(), or adds up those of several steps. Gradients of "
                    "slices are added up first; give clipnorm, clipvalue, global_clipnorm or "
                    "gradient_accumulation_steps to the optimizer",
                )
        given = [each for each, _ in pairs if each is not None]
        turn = 0 if scope is None else scope.weights_applied(weights, given)
        notes.updates.append(Update(optimizer, pairs, turn))

    settings: list[tuple[Any, str, Any]] = []
    for each in _held_optimizers(model):
        settings.append((each, "apply", partial(apply, each)))
        settings.append((each, "scale_loss", partial(scale_loss, each.scale_loss)))
    with attributes_set(settings):
        tf.GradientTape.gradient = gradient
        try:
            yield
        finally:
            tf.GradientTape.gradient = take


def _refuse_assigned(model: keras.Model, scope: TrainingScope, weights: Sequence[Any]) -> None:
    for weight in weights:
        if scope.is_assigned(weight):
            _refuse(
                model,
                f"assigns to {weight.path!r} before it takes the gradient by it; do it after the "
                "update, or with a constraint of the weight",
            )


def _shares(target: Any, output_gradients: Any, share: Tensor | float) -> list[Tensor]:
    """Return output gradients, ones if there are none; of means times a slice's share."""
    losses = tf.nest.flatten(target)
    if output_gradients is None:
        output_gradients = [tf.ones_like(each) for each in losses]
    given = tf.nest.flatten(output_gradients)
    return [
        each if is_summed(loss) else each * tf.cast(share, each.dtype)
        for loss, each in zip(losses, given, strict=True)
    ]


def _held_optimizers(model: keras.Model) -> list[Any]:
    """List the optimizers that a model and its layers hold as attributes, or in lists or dicts."""
    held = [model.optimizer]
    for value in (value for each in [model, *model_layers(model)] for value in vars(each).values()):
        inner = list(value.values()) if isinstance(value, dict) else value
        held += inner if isinstance(inner, (list, tuple)) else [inner]
    found = {id(each): each for each in held if isinstance(each, keras.optimizers.Optimizer)}
    return list(found.values())


def unsettled_refuse(model: keras.Model, variables: Sequence[Any]) -> None:
    """Raise if a `train_step` computes variables from updated weights on each slice anew."""
    if variables:
        names = ", ".join(sorted({repr(variable.path) for variable in variables})[:3])
        _refuse(
            model,
            f"computes {names} on each slice from weights that it reads after "
            "self.optimizer.apply(). Slices do not have these yet: the update follows when the "
            "gradients of all slices are added up. Compute it before apply(), with the weights of "
            "the step before",
        )


def outdated_refuse(model: keras.Model, variables: Sequence[Any]) -> None:
    """Raise if values of a turn depend on weights as they were before the updates of another."""
    if variables:
        names = ", ".join(sorted({repr(variable.path) for variable in variables})[:3])
        _refuse(
            model,
            "computes something of weights from before and after an update together, or goes on "
            f"after an update with what it computed before from {names}. Compute it again after "
            "the update, and track losses of several networks in metrics of their own",
        )


def _refuse(model: keras.Model, what: str) -> NoReturn:
    raise JobCodeError(
        "custom_train_step", "code.build", f"train_step() of {type(model).__name__} {what}"
    )
