"""Custom `train_step` and `test_step` of a model, run on a slice without the optimizer's update.

A slice's gradients are those that `train_step` takes with its own `tf.GradientTape`; they are noted
where it hands them to the model's optimizer, which later gets their sum over all slices. They have
to arrive there as the tape returned them: what is done to a sum (clipping, noise) is something else
than the sum of what is done to its parts.
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
from agents.trainer.model.keras_private import attributes_set, has_own, loss_tracker, metric_results

Tensor = Any
#: Name of the loss in Keras's logs.
LOSS = "loss"
SEVERAL_OPTIMIZERS = (
    "updates weights with another optimizer than self.optimizer. Networks that are updated in "
    "turns, as in a GAN, cannot be trained here; if there is only this optimizer, hand it to "
    "super().compile(optimizer=...) and use it as self.optimizer"
)


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


#: Logs of custom steps, as last traced, by the model and whether the step trains.
_logs: WeakKeyDictionary[keras.Model, dict[bool, StepLogs]] = WeakKeyDictionary()


@dataclass(frozen=True)
class CustomStep:
    """A custom step that has been run on a slice.

    Attributes:
        loss: the number that `train_step` differentiates, without loss scale; 0 of a `test_step`.
        gradients: by each trainable weight, as handed to the optimizer, times the slice's share;
            None for a weight that is not trained by the step. None of a `test_step`.
    """

    loss: Tensor
    gradients: list[Tensor | None] | None


@dataclass
class _Notes:
    """Gradients and updates of a `train_step` so far.

    Attributes:
        gradients: by id, what tapes returned for weights: (gradient, weight, differentiated value).
        zeros: what stood for gradients by weights that were not taken.
        scaled: by id, what the optimizer has scaled: (scaled loss, loss).
        applied: (gradient, weight) of the update; None before.
    """

    gradients: dict[int, tuple[Tensor, Any, Any]] = field(default_factory=dict)
    zeros: list[Tensor] = field(default_factory=list)
    scaled: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    applied: list[tuple[Tensor | None, Any]] | None = None


def is_custom(model: keras.Model, training: bool) -> bool:
    """Return whether the model has a `train_step`, or `test_step`, of the job's own."""
    return has_own(model, "train_step" if training else "test_step")


def custom_step(
    model: keras.Model,
    batch: tuple[Any, Any, Any],
    training: bool,
    share: Tensor | None = None,
    on_applied: Callable[[], None] = lambda: None,
) -> CustomStep:
    """Run the model's own step on `(x, y, sample_weight)`; to be traced.

    Args:
        share: of the batch's examples, by which gradients are multiplied; None: gradients by
            weights are zeros, of which only the use is checked.
        on_applied: called where the optimizer would update the weights.

    Raises:
        JobCodeError: `custom_train_step`; the step does something else than compute losses, take
            their gradients and hand them to the model's optimizer once.
    """
    name = "train_step" if training else "test_step"
    # fit does not trace it as a function of its own either.
    inner = getattr(getattr(type(model), name), "python_function", None)
    run = getattr(model, name) if inner is None else partial(inner, model)
    notes = _Notes()
    with (
        _results_noted(model) as results,
        _training_noted(model, notes, on_applied, share),
    ):
        returned = run(keras.utils.pack_x_y_sample_weight(*batch))
    values = _flat(returned) if isinstance(returned, dict) else {}
    sources = {name: results[id(v)][:2] for name, v in values.items() if id(v) in results}
    step = CustomStep(tf.zeros([]), None)
    if training:
        losses, gradients = _losses_and_gradients(model, notes)
        tracker = loss_tracker(model)
        if tracker is not None and any(values.get(LOSS) is each for each in losses):
            num_examples = tf.shape(keras.tree.flatten(batch[0])[0])[0]
            tracker.update_state(values[LOSS], sample_weight=num_examples)
            sources[LOSS] = (tracker, None)
        loss = tf.add_n([tf.cast(tf.reduce_sum(each), tf.float32) for each in losses])
        step = CustomStep(loss, gradients)
    uses_gradients = any(each.consumers() for each in notes.zeros)
    logs = StepLogs(frozenset(values), sources, uses_gradients)
    _logs.setdefault(model, {})[training] = logs
    return step


def _losses_and_gradients(
    model: keras.Model, notes: _Notes
) -> tuple[list[Tensor], list[Tensor | None]]:
    """Return the losses whose gradients were applied, and the gradients by the trained weights."""
    gradients = {id(weight): each for each, weight in notes.applied or [] if each is not None}
    if not gradients:
        _refuse(
            model,
            "does not hand gradients to self.optimizer; call super().compile(optimizer=...) and, "
            "in each step once, self.optimizer.apply(gradients, weights)",
        )
    applied = {id(each) for each in gradients.values()}
    targets = {id(t): t for key, (_, _, t) in notes.gradients.items() if key in applied}
    losses = [
        notes.scaled.get(id(loss), (loss, loss))[1]
        for target in targets.values()
        for loss in tf.nest.flatten(target)
    ]
    return losses, [gradients.get(id(weight)) for weight in model.trainable_variables]


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
    model: keras.Model, notes: _Notes, on_applied: Callable[[], None], share: Tensor | None
) -> Iterator[None]:
    """Note the gradients that are taken and applied in the block, without an update."""
    optimizer = model.optimizer
    graph = tf.compat.v1.get_default_graph()
    take, scale = tf.GradientTape.gradient, optimizer.scale_loss

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
        if share is None:
            found = [tf.zeros(weight.shape, weight.dtype) for weight in weights]
            notes.zeros += found
        else:
            given = target if output_gradients is None else output_gradients
            factors = [
                (tf.ones_like(each) if output_gradients is None else each)
                * tf.cast(share, each.dtype)
                for each in tf.nest.flatten(given)
            ]
            found = tf.nest.flatten(take(tape, target, weights, factors, *args, **more))
        notes.gradients |= {
            id(each): (each, weight, target)
            for each, weight in zip(found, weights, strict=True)
            if each is not None
        }
        return tf.nest.pack_sequence_as(sources, found)

    def scale_loss(loss: Any) -> Any:
        scaled = scale(loss)
        notes.scaled[id(scaled)] = (scaled, loss)
        return scaled

    def apply(gradients: Sequence[Any], trainable_variables: Any = None) -> None:
        weights = list(trainable_variables or model.trainable_variables)
        pairs = list(zip(list(gradients), weights, strict=True))
        if notes.applied is not None:
            _refuse(
                model,
                "updates weights several times; hand the gradients by all weights to one call of "
                "self.optimizer.apply()",
            )
        if tf.compat.v1.get_default_graph() is not graph:
            _refuse(
                model,
                "calls self.optimizer.apply() inside a tf.function, a loop or a branch; leave "
                "@tf.function out, and update in every step",
            )
        for each, weight in pairs:
            if each is not None and notes.gradients.get(id(each), (None, None))[1] is not weight:
                _refuse(
                    model,
                    f"changes the gradient of {weight.path!r} between tape.gradient() and "
                    "self.optimizer.apply(), or adds up those of several steps. Gradients of "
                    "slices are added up first; give clipnorm, clipvalue, global_clipnorm or "
                    "gradient_accumulation_steps to the optimizer",
                )
        notes.applied = pairs
        on_applied()

    def refuse(*_: Any, **__: Any) -> None:
        _refuse(model, SEVERAL_OPTIMIZERS)

    others = {id(each): each for each in vars(model).values() if _is_optimizer(each)}
    others.pop(id(optimizer), None)
    settings = [(optimizer, "apply", apply), (optimizer, "scale_loss", scale_loss)]
    settings += [(other, "apply", refuse) for other in others.values()]
    with attributes_set(settings):
        tf.GradientTape.gradient = gradient
        try:
            yield
        finally:
            tf.GradientTape.gradient = take


def _is_optimizer(value: Any) -> bool:
    return isinstance(value, keras.optimizers.Optimizer)


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


def _refuse(model: keras.Model, what: str) -> NoReturn:
    raise JobCodeError(
        "custom_train_step", "code.build", f"train_step() of {type(model).__name__} {what}"
    )
