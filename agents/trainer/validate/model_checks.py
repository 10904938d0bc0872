"""Static checks of a compiled model: each refusal names the unsupported feature and a fix.

Virtual nodes run a model on slices of a batch and combine the results. The combination is exact for
models that pass these checks; refused features would silently change the result.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from agents.trainer.contract.user_errors import JobCodeError
from agents.trainer.model.compiled_losses import compiled_losses
from agents.trainer.model.custom_steps import logged_results
from agents.trainer.model.keras_private import (
    compiled_metrics,
    has_own,
    metric_variables,
    model_layers,
    trainability_changed,
)
from agents.trainer.model.optimizers import optimizer_of

#: Methods of a model that the engine's own step replaces; an override would not be called.
REPLACED_METHODS = ("fit", "make_train_function", "train_on_batch")
STEPS_INSTEAD = "Move what it does with a batch into train_step() or test_step()"
#: Methods of the same kind that `fit` calls only if there are validation data.
REPLACED_IN_VALIDATION = ("evaluate", "make_test_function")
TRAINABLE_LISTS = ("trainable_weights", "trainable_variables")
#: Methods of the same kind in a prediction job, whose step calls `predict_step` alone.
REPLACED_IN_PREDICTION = ("predict", "make_predict_function")
#: Loss reductions for which the mean (or sum) over virtual nodes equals that over the batch.
ACCEPTED_REDUCTIONS = frozenset({"sum_over_batch_size", "mean", "mean_with_sample_weight", "sum"})

#: Policies of layers that Keras runs only after calibration.
CALIBRATED_POLICIES = (keras.dtype_policies.GPTQDTypePolicy, keras.dtype_policies.AWQDTypePolicy)
SMALL_SLICES = (
    "batch normalisation over slices of one example learns nothing useful; use fewer virtual nodes "
    "or a larger global batch"
)


def model_check(model: keras.Model, has_validation: bool = True) -> list[str]:
    """Check a compiled model before it is built; returns warnings.

    Args:
        has_validation: `fit` would evaluate the model, too.

    Raises:
        JobCodeError: the model uses a feature that cannot be split over virtual nodes.
    """
    _refuse_replaced_methods(model, REPLACED_METHODS + REPLACED_IN_VALIDATION * has_validation)
    if model.run_eagerly:
        raise _refusal(
            "run_eagerly",
            "the model is compiled with run_eagerly=True; leave it out: steps are always traced",
        )
    if tf.config.functions_run_eagerly():
        raise _refusal(
            "run_eagerly",
            "the code calls tf.config.run_functions_eagerly(True); leave it out: steps are always "
            "traced",
        )
    if model.distribute_strategy is not tf.distribute.get_strategy():
        raise _refusal(
            "distribution_scope",
            "the model is made in the scope of a tf.distribute strategy; leave the scope out: the "
            "platform itself splits batches over accelerators",
        )
    if model.optimizer is None:
        raise _refusal("not_compiled", "the model has no optimizer; give one to model.compile()")
    for layer in model_layers(model):
        _layer_refuse(layer)
    warnings = []
    if model.steps_per_execution != 1:
        warnings.append("steps_per_execution has no effect here: each step is one execution")
    if keras.config.max_epochs() or keras.config.max_steps_per_epoch():
        warnings.append(
            "keras.config's max_epochs and max_steps_per_epoch have no effect on the job; its stop "
            "says how long it trains"
        )
    if has_own(model, "compute_metrics"):
        warnings.append("of compute_metrics only what metric objects hold is reported")
    return warnings


def predicting_check(model: keras.Model) -> None:
    """Check a model that is to predict.

    Raises:
        JobCodeError: Keras's `predict` would give something else than the job.
    """
    instead = "Move it into call() or predict_step(), or give the method another name"
    _refuse_replaced_methods(model, REPLACED_IN_PREDICTION, instead)
    for layer in model_layers(model):
        _stateful_refuse(layer)


def labels_check(model: keras.Model, examples: tuple[Any, ...]) -> None:
    """Raise if there are no labels for an output that has a loss."""
    losses, labels = model.loss, examples[1] if len(examples) > 1 else None
    if isinstance(losses, dict) and isinstance(labels, dict) and losses.keys() & labels.keys():
        for name in losses:
            if losses[name] is not None and name not in labels:
                raise JobCodeError(
                    "data_structure",
                    "data.train.y",
                    f"the labels, {', '.join(map(repr, labels))}, have none for {name!r}, to which "
                    "compile() gives a loss; use the same names in both",
                )
    for path, leaf in keras.tree.flatten_with_path(examples[1:2]):
        if leaf.shape[1:] != (0,):
            continue
        loss = model.loss
        for key in path[1:]:
            if isinstance(loss, dict):
                loss = loss.get(key)
            elif isinstance(loss, (list, tuple)) and isinstance(key, int) and key < len(loss):
                loss = loss[key]
        if loss is not None:
            raise JobCodeError(
                "data_structure",
                f"data.train.y{''.join(f'[{key!r}]' for key in path[1:])}",
                "there are no labels (None) for this output, but compile() gives it a loss; give "
                "labels, or None as the loss of this output",
            )


def built_model_check(model: keras.Model, smallest_slice: int) -> list[str]:
    """Check a built model; returns warnings.

    Args:
        model: compiled, with model, loss and optimizer built.
        smallest_slice: examples in the smallest virtual node of a full batch.

    Raises:
        JobCodeError: the model uses a feature that cannot be split over virtual nodes.
    """
    if not model.trainable_variables:
        raise _refusal(
            "nothing_to_train",
            "the model has no trainable weights; set trainable = True on a layer before compile",
        )
    _refuse_replaced_lists(model)
    _refuse_reductions(model)
    _refuse_vectors(model)
    warnings = _trainability_check(model)
    for layer in model_layers(model):
        _layer_refuse(layer)  # a subclassed model has layers only after it is built
        if isinstance(layer, keras.layers.BatchNormalization) and smallest_slice < 2:
            warnings.append(SMALL_SLICES)
    if scales := [v.path for v in model.trainable_variables if v.overwrite_with_gradient]:
        warnings.append(
            f"{scales[0]!r} and the other {len(scales) - 1} scales of float8 follow the largest "
            "numbers of each slice, averaged over slices, so they depend on the number of virtual "
            "nodes"
        )
    return list(dict.fromkeys(warnings))


def variables_check(model: keras.Model) -> None:
    """Check the types of a built model's variables.

    Raises:
        JobCodeError: a variable holds what cannot be added up as real numbers.
    """
    for variable in (*model.variables, *optimizer_of(model).variables, *metric_variables(model)):
        if "string" in str(variable.dtype):
            raise _refusal(
                "string_variable", f"the variable {variable.path} holds text; keep numbers only"
            )
        if "complex" in str(variable.dtype):
            raise _refusal(
                "complex_variable",
                f"the variable {variable.path} holds complex numbers, and gradients are added as "
                "real ones; keep its real and its imaginary part as two weights",
            )


def metric_names(model: keras.Model, training: bool = True) -> list[str]:
    """List the names in a built model's logs of training, or of validation without "val_"."""
    return [str(name) for name in logged_results(model, training)]


def loss_reductions(model: keras.Model) -> dict[str, str | None]:
    """Return the reduction of each compiled loss of a built model, by the loss's name and class."""
    return {
        f"{name!r} ({type(loss).__name__}, number {number})": getattr(
            loss, "reduction", "sum_over_batch_size"
        )
        for number, (name, loss) in enumerate(compiled_losses(model), 1)
    }


def _layer_refuse(layer: Any) -> None:
    """Raise if a layer needs more than a slice of the batch, or the order of the rows."""
    _stateful_refuse(layer)
    name = _layer_name(layer)
    if isinstance(layer.dtype_policy, CALIBRATED_POLICIES):
        raise _refusal(
            "calibrated_policy",
            f"{name} has the policy {type(layer.dtype_policy).__name__}: its weights come from "
            "calibrating a trained model, and cannot be trained. Use a policy of floats such as "
            "mixed_bfloat16, and quantise the model when it is trained",
        )
    if isinstance(layer, keras.layers.BatchNormalization) and layer.synchronized:
        raise _refusal(
            "synchronized_normalization",
            f"{name} normalises over all replicas (synchronized=True); here it "
            "normalises over a virtual node's slice. Leave synchronized out",
        )


def _stateful_refuse(layer: Any) -> None:
    if getattr(layer, "stateful", False) is True:
        raise _refusal(
            "stateful_layer",
            f"{_layer_name(layer)} is stateful: it keeps a state for each row of the batch, "
            "and rows move between virtual nodes. Use stateful=False with longer sequences",
        )


def _layer_name(layer: Any) -> str:
    return f"the layer {layer.name!r} ({type(layer).__name__})"


def _refuse_replaced_methods(
    model: keras.Model, names: tuple[str, ...], instead: str = STEPS_INSTEAD
) -> None:
    for name in names:
        if has_own(model, name):
            raise _refusal(
                f"custom_{name}",
                f"{type(model).__name__} has its own {name}(), which would not be called: the "
                f"platform itself goes over the batches. {instead}",
            )


def _refuse_replaced_lists(model: keras.Model) -> None:
    """Raise if a model's own lists of what to train are not those by the weights' `trainable`.

    Keras's `fit` trains by one of the two lists, the optimizer is built by the other. A layer's own
    `weights` or `variables` change one of them.
    """
    flagged = keras.layers.Layer.trainable_variables.fget(model)
    for name in TRAINABLE_LISTS:
        listed, known = ({id(v): v for v in each} for each in (getattr(model, name), flagged))
        apart = [(known | listed)[key] for key in listed.keys() ^ known.keys()]
        if apart:
            paths = sorted(str(getattr(variable, "path", variable)) for variable in apart)
            is_own = getattr(type(model), name) is not getattr(keras.Model, name)
            owner = type(model).__name__ if is_own else "a layer"
            own = name if is_own else "weights or variables"
            raise _refusal(
                f"custom_{name}",
                f"{owner} has its own {own}, which differ from Keras's in "
                f"{', '.join(paths[:3])}; leave them out, and set trainable = False on the layers "
                "that are not to train before you compile",
            )


def _trainability_check(model: keras.Model) -> list[str]:
    """Warn of weights that were frozen after `fit` in build; raise if others were unfrozen."""
    unfrozen, frozen = trainability_changed(model)
    if unfrozen:
        raise _refusal(
            "not_compiled",
            f"the weight {unfrozen[0].path!r} became trainable after the optimizer was built for "
            "the others, so it has no state there; call model.compile() again with a new optimizer",
        )
    if frozen and model.train_function is not None:
        return [
            f"the weight {frozen[0].path!r} was frozen after fit() in build and is not trained "
            "here; Keras's next fit() trains it as before unless compile() is called in between"
        ]
    return []


def _refuse_vectors(model: keras.Model) -> None:
    vectors = [metric for metric in compiled_metrics(model) if np.size(metric.result()) != 1]
    kinds = ", ".join(sorted({type(metric).__name__ for metric in vectors}))
    results = [logged_results(model, training) for training in (True, False)]
    for name, value in (item for each in results for item in each.items()):
        if np.asarray(value).dtype.kind in "OUS":
            raise _refusal(
                "metric_not_a_number",
                f"the metric {name!r} gives a {type(value).__name__}, not a number; let "
                "result() return a number, or a dict of names and numbers",
            )
        if np.size(value) != 1:
            raise _refusal(
                "metric_not_a_number",
                f"the metric {name!r} ({kinds or 'of compute_metrics'}) gives "
                f"{np.size(value)} numbers; logs hold one number per name. Use an average "
                "(F1Score(average='macro')) or one metric per class",
            )


def _refuse_reductions(model: keras.Model) -> None:
    for name, reduction in loss_reductions(model).items():
        if reduction not in ACCEPTED_REDUCTIONS:
            raise _refusal(
                "loss_reduction",
                f"the loss {name} has reduction={reduction!r}, which is not the mean "
                "or sum over the examples of a batch; use 'sum_over_batch_size' or 'sum'",
            )


def _refusal(code: str, message: str) -> JobCodeError:
    return JobCodeError(code, "code.build", message)
