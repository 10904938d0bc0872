"""Uses of Keras's private interfaces: building, calling and updating as in its own `fit`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import keras
import tensorflow as tf
from keras.src import backend
from keras.src.random.seed_generator import global_seed_generator

from agents.trainer.contract.user_errors import JobCodeError
from agents.trainer.model.optimizers import optimizer_of, optimizers_build

Tensor = Any
_OF_CLASS = object()  # stands for an attribute that the object itself does not have


def batch_of(sample: tuple[Any, ...], leaves: Sequence[Any]) -> tuple[Any, Any | None, Any | None]:
    """Pack flat arrays as `(x, y, sample_weight)`, in which no numbers are None, as for `fit`."""
    x, *others = keras.tree.pack_sequence_as(sample, list(leaves))
    given: list[Any] = keras.tree.map_structure(_none_for_no_numbers, others)
    y, weight = [*given, None, None][:2]
    return x, y, weight


def _none_for_no_numbers(leaf: Any) -> Any:
    return None if tuple(leaf.shape[1:]) == (0,) else leaf


def model_build(
    model: keras.Model, batch: tuple[Any, ...], steps: Sequence[Callable[..., Any]] = ()
) -> None:
    """Create every variable of model, loss, metrics and optimizers, as `fit` does at its start.

    Args:
        steps: custom steps of the model, of `(x, y, sample_weight)`; they create what they use.
    """
    given = batch_of(batch, keras.tree.flatten(batch))
    leaves = keras.tree.map_structure(_symbolic, given)
    for step in steps:
        backend.compute_output_spec(step, *leaves)
    try:
        if has_own(model, "call") or not steps:
            _called_build(model, leaves, len(batch))
    except Exception:
        if not steps or not all(layer.built for layer in model_layers(model)):
            raise
        # Its steps may give call() something else than x.
    model.built = True
    optimizers_build(model)
    model.reset_metrics()


def _called_build(model: keras.Model, leaves: tuple[Any, ...], num_given: int) -> None:
    """Create the variables that calling a model creates, and those of its compiled losses."""
    if not all(layer.built for layer in model_layers(model)):
        # Variables come with the first step in `fit`, also of layers that training, or
        # compute_loss, alone calls.
        backend.compute_output_spec(partial(model_call, model, training=True), leaves[0])
    if has_own(model, "compute_loss") and not all(layer.built for layer in model_layers(model)):
        backend.compute_output_spec(partial(_training_loss, model), *leaves)
    model._symbolic_build(data_batch=leaves[:num_given])  # noqa: SLF001


def has_own(model: keras.Model, name: str) -> bool:
    """Return whether a method of a model is not Keras's, but one of its classes or its own."""
    method = getattr(model, name)
    return getattr(method, "__func__", method) is not getattr(keras.Model, name)


def _training_loss(model: keras.Model, *batch: Any) -> Tensor:
    predictions = model_call(model, batch[0], training=True)
    return model_loss(model, (batch[0], batch[1], batch[2]), predictions, training=True)


def _symbolic(leaf: Any) -> keras.KerasTensor | None:
    if leaf is None:
        return None
    is_text = leaf.dtype == object  # NumPy has no type of its own for it
    dtype = "string" if is_text else backend.standardize_dtype(leaf.dtype)
    return keras.KerasTensor(leaf.shape, dtype)


def model_call(model: keras.Model, inputs: Any, training: bool) -> Any:
    """Call the model, passing `training` only if its `call` takes the argument."""
    if model._call_has_training_arg:  # noqa: SLF001
        return model(inputs, training=training)
    return model(inputs)


def model_loss(
    model: keras.Model, batch: tuple[Any, Any, Any], predictions: Any, training: bool
) -> Tensor:
    """Return the loss of `(x, y, sample_weight)`: compiled losses, `add_loss`, regularisers.

    Raises:
        JobCodeError: a `compute_loss` or loss of the job's own gives several numbers.
    """
    inputs, targets, sample_weight = batch
    loss = model._compute_loss(  # noqa: SLF001
        x=inputs, y=targets, y_pred=predictions, sample_weight=sample_weight, training=training
    )
    shape = tf.TensorShape(getattr(loss, "shape", ()))
    if shape.rank and shape.num_elements() != 1:
        raise JobCodeError(
            "loss_reduction",
            "code.build",
            f"the loss has the shape {tuple(shape)}, and is not one number; let compute_loss(), or "
            "__call__() of a loss, return the mean over the examples, and the sum of several terms",
        )
    return loss


def metrics_update(
    model: keras.Model, batch: tuple[Any, Any, Any], predictions: Any, loss: Tensor, count: Tensor
) -> None:
    """Update the loss tracker, weighted by the number of examples, and the compiled metrics."""
    inputs, targets, sample_weight = batch
    tracker = model._loss_tracker  # noqa: SLF001
    if tracker is not None:
        tracker.update_state(loss, sample_weight=count)
    model.compute_metrics(inputs, targets, predictions, sample_weight=sample_weight)


def loss_tracker(model: keras.Model) -> keras.metrics.Metric | None:
    """Return Keras's tracker of the loss if it is among the model's metrics, else None."""
    tracker = model._loss_tracker  # noqa: SLF001
    return tracker if any(metric is tracker for metric in model.metrics) else None


def model_layers(model: keras.Model) -> list[Any]:
    """List all layers of a model, nested ones included."""
    return list(model._flatten_layers(include_self=False))  # noqa: SLF001


def global_random_state() -> Any:
    """Return the state of the global generator, used by layers without one of their own."""
    return global_seed_generator().state


def compiled_metrics(model: keras.Model) -> list[keras.metrics.Metric]:
    """List the metrics that a built model was compiled with."""
    compiled = model._compile_metrics  # noqa: SLF001
    return [] if compiled is None else list(compiled.metrics)


def metric_results(model: keras.Model) -> dict[str, Any]:
    """Return the metrics' values by their names in the logs; one that is a dict has several.

    Raises:
        JobCodeError: the model's own `get_metrics_result` gives no dict.
    """
    given = model.get_metrics_result()
    if not isinstance(given, dict):
        raise JobCodeError(
            "metric_not_a_number",
            "code.build",
            f"get_metrics_result() of {type(model).__name__} gives a {type(given).__name__}; "
            "return a dict of names and numbers",
        )
    results: dict[str, Any] = {}
    for name, value in given.items():
        results |= value if isinstance(value, dict) else {name: value}
    return results


def own_metrics(model: keras.Model) -> list[keras.metrics.Metric]:
    """List the metrics that a built model or its layers update in their own code."""
    compiled = model._compile_metrics  # noqa: SLF001
    left_out = {id(model._loss_tracker), id(compiled)}  # noqa: SLF001
    losses = {id(variable) for variable in unweighted_trackers(model)}
    return [
        metric
        for metric in model.metrics
        if id(metric) not in left_out and not losses & {id(v) for v in metric.variables}
    ]


def unweighted_trackers(model: keras.Model) -> list[Any]:
    """List the variables of trackers that Keras updates once per batch with weight 1.

    They track the single losses of a model with several outputs.
    """
    compiled = model._compile_loss  # noqa: SLF001
    return [] if compiled is None else list(compiled.variables)


def metric_variables(model: keras.Model) -> list[Any]:
    """List the variables of all metrics, also of those that a job's own `metrics` leaves out."""
    of_keras: list[keras.metrics.Metric] = keras.Model.metrics.fget(model)
    return [variable for metric in [*model.metrics, *of_keras] for variable in metric.variables]


def trainability_changed(model: keras.Model) -> tuple[list[Any], list[Any]]:
    """List the weights of a built model that its optimizer was not built for, and vice versa.

    Nothing is known of an optimizer with a `build` of its own.
    """
    now, then = model.trainable_variables, built_for(optimizer_of(model))
    if not then:
        return [], []
    known, trained = ({id(variable) for variable in each} for each in (then, now))
    return [v for v in now if id(v) not in known], [v for v in then if id(v) not in trained]


def built_for(optimizer: keras.optimizers.Optimizer) -> list[Any]:
    """List the weights that an optimizer was built for; of one with its own `build` maybe none."""
    plain = _part_optimizers(optimizer)
    return [v for each in plain for v in each._trainable_variables]  # noqa: SLF001


def own_variable(variable: Any) -> tf.Variable:
    """Return TensorFlow's variable of a Keras variable, whatever its value in a scope is."""
    return variable._value  # noqa: SLF001


def mean_metrics(model: keras.Model) -> list[keras.metrics.Mean]:
    """List the metrics of a built model that are means, those of its layers included."""
    found = {id(metric): metric for metric in [*model.metrics, *compiled_metrics(model)]}
    return [metric for metric in found.values() if isinstance(metric, keras.metrics.Mean)]


def plain_optimizers(optimizer: keras.optimizers.Optimizer) -> list[keras.optimizers.Optimizer]:
    """List the optimizers that update variables, inside loss-scale and composite optimizers.

    An optimizer of the job's own that holds another one may update some itself: both are listed.
    """
    found = []
    for each in _part_optimizers(optimizer):
        held = [v for v in vars(each).values() if isinstance(v, keras.optimizers.Optimizer)]
        found += [each, *(plain for inner in held for plain in plain_optimizers(inner))]
    return found


def _part_optimizers(optimizer: keras.optimizers.Optimizer) -> list[keras.optimizers.Optimizer]:
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return _part_optimizers(optimizer.inner_optimizer)
    parts = getattr(optimizer, "optimizers", None)
    if parts is None:
        return [optimizer]
    return [plain for part in parts for plain in _part_optimizers(part)]


def optimizer_variables(optimizer: keras.optimizers.Optimizer) -> list[Any]:
    """List an optimizer's variables, including variables that Keras leaves out of its own list.

    Keras leaves out variables held as plain attributes: Nadam's product of momenta is not in the
    list of a LossScaleOptimizer around it, and no list has the states of random generators.
    """
    listed = list(optimizer.variables)
    held = [
        value.state if isinstance(value, keras.random.SeedGenerator) else value
        for plain in plain_optimizers(optimizer)
        for value in vars(plain).values()
    ]
    known = {id(variable) for variable in listed}
    return listed + [v for v in held if isinstance(v, keras.Variable) and id(v) not in known]


def step_counters(optimizer: keras.optimizers.Optimizer) -> list[Any]:
    """List the variables in which an optimizer counts its updates."""
    counted = [optimizer, *plain_optimizers(optimizer)]
    return [each._iterations for each in counted if hasattr(each, "_iterations")]  # noqa: SLF001


@contextmanager
def learning_rates_scaled(optimizer: keras.optimizers.Optimizer, factor: Tensor) -> Iterator[None]:
    """Multiply the rates that the optimizer uses inside the block by `factor`.

    Weight decay, which is proportional to the rate, is scaled too.

    Raises:
        JobCodeError: an optimizer of the job's own assigns its rate inside the block.
    """
    settings = []
    for each in plain_optimizers(optimizer):
        rate = tf.convert_to_tensor(each.learning_rate)
        scaled = rate * tf.cast(factor, rate.dtype)
        settings.append((each, "_learning_rate", lambda scaled=scaled: scaled))
    with attributes_set(settings):
        try:
            yield
        except AttributeError as error:
            if error.name != "assign":
                raise
            raise JobCodeError(
                "not_tunable",
                "code.build",
                f"the update of {type(optimizer).__name__} assigns its learning rate, which is "
                "scaled from outside where it is tuned or the batch size may change; give the "
                "optimizer a schedule, or leave learning_rate_scale and batch_size_min out",
            ) from error


@contextmanager
def attributes_set(settings: Sequence[tuple[Any, str, Any]]) -> Iterator[None]:
    """Set attributes of optimizers or metrics (object, name, value) inside the block.

    Bypasses Keras's tracking of attributes, because the values are temporary.
    """
    originals = [(owner, name, vars(owner).get(name, _OF_CLASS)) for owner, name, _ in settings]
    for owner, name, value in settings:
        object.__setattr__(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in originals:
            if value is _OF_CLASS:
                object.__delattr__(owner, name)
            else:
                object.__setattr__(owner, name, value)


def dataset_graphs(dataset: Any) -> list[Any]:
    """Return the graphs of the functions of a `tf.data.Dataset` and of what it is made of."""
    graphs = [function.function.graph for function in dataset._functions()]  # noqa: SLF001
    inputs = dataset._inputs()  # noqa: SLF001
    return graphs + [graph for one in inputs for graph in dataset_graphs(one)]
