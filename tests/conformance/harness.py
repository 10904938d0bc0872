"""The same small model trained three ways: by the engine, by `fit`, by a loop over slices.

All in one process, without trainers: what trainers exchange is put together here by the engine's
own addition. One traced `StepFunctions` serves every number of virtual nodes and of trainers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework import config as framework_config

from agents.trainer.collectives.tree_reduction import TreeReduction
from agents.trainer.data.arrays import ArraySource
from agents.trainer.model.custom_steps import building_steps
from agents.trainer.model.keras_private import model_build
from agents.trainer.model.optimizers import optimizer_of
from agents.trainer.model.progress import Progress
from agents.trainer.model.schedule import TrainingSchedule
from agents.trainer.model.state import ModelState
from agents.trainer.step.batch_plan import TRAINING_STREAM, Planner, step_seeds
from agents.trainer.step.functions import StepFunctions, TurnFunctions
from agents.trainer.step.prefetch import JobData
from agents.trainer.step.stepper import local_rows
from controlplane.core.protocol.wire import ReductionMode, StopCondition, StopKind, TrainingSpec
from tests.agents.trainer.local_jobs import membership_of, training_spec

Tensor = Any
Arrays = tuple[Any, ...]
Logs = list[dict[str, float]]
SEED = 11
#: Slot -> virtual nodes. The shares of three trainers are neither equal nor contiguous.
ONE_NODE = {0: (0,)}
ONE_TRAINER = {0: (0, 1, 2, 3)}
THREE_TRAINERS = {0: (0, 3), 1: (1,), 2: (2,)}


@dataclass(frozen=True)
class Schedule:
    """Batches of `batch_size` in the order of the data; the last one of an epoch may be short."""

    batch_size: int = 10
    epochs: int = 4


@dataclass(frozen=True)
class Trained:
    """The variables and logs after training.

    Attributes:
        variables: name -> value, as `variables_read` gives them.
        logs: of each epoch.
    """

    variables: dict[str, np.ndarray]
    logs: Logs


def process_prepare() -> None:
    """Refuse operations whose order is left to chance, as trainers do."""
    keras.utils.set_random_seed(0)
    tf.config.experimental.enable_op_determinism()


def process_restore() -> None:
    """Let other tests draw without a seed again; TensorFlow has no public call for that."""
    framework_config.disable_op_determinism()


class Engine:
    """A model traced by the engine, to be trained from the same start any number of times."""

    def __init__(self, model: keras.Model, arrays: Arrays, schedule: Schedule) -> None:
        """Trace a training step; `model` is compiled and built."""
        self.model = model
        self.source = ArraySource(arrays, "data.train")
        self.schedule = schedule
        self.state = ModelState(model)
        sample = self.source.fetch(np.arange(2))
        self.functions = StepFunctions(model, self.state, sample, has_validation=False)
        self.start = [np.array(value) for value in self.state.capture()]

    def train(self, shares: Mapping[int, Sequence[int]]) -> Trained:
        """Train with slot -> virtual nodes, from the start."""
        self.state.put(self.start)
        spec = training_spec(
            num_virtual_nodes=sum(len(share) for share in shares.values()),
            global_batch_size=self.schedule.batch_size,
            shuffle=False,
            seed=SEED,
        )
        stop = StopCondition(kind=StopKind.EPOCHS, limit=self.schedule.epochs)
        schedule = TrainingSchedule(len(self.source), 0, self.schedule.batch_size, stop)
        specs = tuple(self.functions.example_specs)
        data = JobData(spec, schedule, self.source, None, specs, len(self.state.seeds))
        planners = _planners(spec, shares)
        progress = Progress()
        logs: Logs = []
        while not progress.is_over:
            for turn in self.functions.turns:
                turn.apply(self._sum(turn, data, planners, progress))
            progress = data.schedule.after_batch(progress, 0.0)
            if data.schedule.is_activity_over(progress):
                logs.append(logs_read(self.model))
                progress = data.schedule.after_activity(progress, logs[-1])
                self.model.reset_metrics()
        if self.model.optimizer.built:
            self.model.optimizer.finalize_variable_values(self.model.trainable_variables)
        return Trained(variables_read(self.model), logs)

    def _sum(
        self, turn: TurnFunctions, data: JobData, planners: Sequence[Planner], progress: Progress
    ) -> Tensor:
        """Run every trainer's part of a batch and add as their exchange would."""
        order = data.order(progress)
        batches = [data.local_batch(planner, order, progress) for planner in planners]
        rows = [local_rows(turn.train, batch) for batch in batches]
        if len(planners) == 1:
            return rows[0][0]
        plan = batches[0].plan
        padded = [tf.pad(row, [[0, plan.rows_per_worker - row.shape[0]], [0, 0]]) for row in rows]
        by_rank = tf.stack([tf.reshape(row, [-1]) for row in padded])
        add = _addition(self.functions.dtype)
        width = tf.constant(self.functions.train_width)
        return add(by_rank, tf.constant(plan.rows_per_worker), width, batches[0].program)


def _planners(spec: TrainingSpec, shares: Mapping[int, Sequence[int]]) -> list[Planner]:
    membership = membership_of({slot: tuple(share) for slot, share in shares.items()})
    return [Planner(spec, membership, tuple(shares), slot) for slot in shares]


@cache
def _addition(dtype: tf.DType) -> Any:
    """Give the engine's addition of all trainers' rows, traced once for every width."""
    reduction = TreeReduction(dtype, ReductionMode.EXACT, "auto")
    number = tf.TensorSpec([], tf.int32)
    signature = [tf.TensorSpec([None, None], dtype), number, number]
    signature.append(tf.TensorSpec([None, 2], tf.int32))
    return tf.function(reduction._tree_sum, input_signature=signature, autograph=False)


class _SeedsOfTheStep(keras.callbacks.Callback):
    """Gives the model's random generators the states of the engine's virtual node 0."""

    def __init__(self, seeds: Sequence[Any]) -> None:
        super().__init__()
        self.seeds = seeds
        self.step = 0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        seeds_assign(self.seeds, self.step, 0, 1)
        self.step += 1


def seeds_assign(seeds: Sequence[Any], step: int, virtual_node: int, count: int) -> None:
    """Set states of random generators to those of one of `count` virtual nodes in a step."""
    drawn = step_seeds(SEED, TRAINING_STREAM, step, [virtual_node], count, len(seeds))
    for variable, value in zip(seeds, drawn[0], strict=True):
        variable.assign(value)


def train_by_fit(
    model: keras.Model, arrays: Arrays, schedule: Schedule, is_dense: bool = False
) -> Trained:
    """Train a built model with Keras's `fit` in the order of the data.

    Args:
        is_dense: gradients of repeated rows are added before the optimizer sees them.
    """
    if is_dense:
        apply = model.optimizer.apply
        object.__setattr__(
            model.optimizer,
            "apply",
            lambda grads, variables: apply([_dense(gradient) for gradient in grads], variables),
        )
    inputs, targets, weight = (*arrays, None, None)[:3]
    inputs = keras.tree.map_structure(_fed_to_fit, inputs)
    seeds = ModelState(model).seeds
    history = model.fit(
        inputs,
        targets,
        sample_weight=weight,
        batch_size=schedule.batch_size,
        epochs=schedule.epochs,
        shuffle=False,
        verbose=0,
        callbacks=[_SeedsOfTheStep(seeds)],
    ).history
    epochs = range(schedule.epochs)
    logs = [{name: values[epoch] for name, values in history.items()} for epoch in epochs]
    return Trained(variables_read(model), logs)


def _fed_to_fit(array: Any) -> Any:
    """Give text as a tensor: `fit` refuses arrays of it."""
    return tf.constant(array) if array.dtype == object else array


class Accumulation:
    """A plain loop of gradient accumulation, in Keras's public calls only.

    Losses are weighted by the share of examples, by that of the unmasked `places` of which each
    example has a number, or added up where `is_sum` says that the loss is a sum. State without
    gradient starts equal for all slices of a batch and is averaged by the share of examples, as are
    the values that float8 gives in place of gradients; of whole numbers the first slice decides.
    """

    def __init__(
        self,
        model: keras.Model,
        arrays: Arrays,
        is_sum: bool = False,
        places: np.ndarray | None = None,
    ) -> None:
        self.model = model
        self.arrays = arrays
        self.is_sum = is_sum
        self.places = np.ones(len(keras.tree.flatten(arrays)[0])) if places is None else places
        self.seeds = ModelState(model).seeds
        seeds = {id(variable) for variable in self.seeds}
        self.state = [v for v in model.non_trainable_variables if id(v) not in seeds]
        sample = _rows(arrays, 0, 1)
        specs = keras.tree.map_structure(
            lambda leaf: tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype), sample
        )
        number = tf.TensorSpec([], tf.float32)
        self.slice = tf.function(
            self._slice, input_signature=[specs, number, number], autograph=False
        )

    def train(self, schedule: Schedule, count: int = 4) -> Trained:
        """Train with `count` slices of each batch."""
        num_examples = len(keras.tree.flatten(self.arrays)[0])
        optimizer, variables = self.model.optimizer, self.model.trainable_variables
        logs: Logs = []
        step = 0
        for _ in range(schedule.epochs):
            self.model.reset_metrics()
            for low in range(0, num_examples, schedule.batch_size):
                high = min(low + schedule.batch_size, num_examples)
                gradients = self._gradients(low, high, step, count)
                optimizer.apply_gradients(zip(gradients, variables, strict=True))
                step += 1
            logs.append(logs_read(self.model))
        optimizer.finalize_variable_values(variables)
        return Trained(variables_read(self.model), logs)

    def _gradients(self, low: int, high: int, step: int, count: int) -> list[Tensor | None]:
        size = high - low
        cuts = [low + number * size // count for number in range(count + 1)]
        start = [np.array(variable) for variable in self.state]
        ends: list[tuple[float, list[np.ndarray]]] = []
        total: list[Tensor | None] = [None] * len(self.model.trainable_variables)
        for number in range(count):
            if cuts[number] == cuts[number + 1]:
                continue
            share = (cuts[number + 1] - cuts[number]) / size
            _assign(self.state, start)
            seeds_assign(self.seeds, step, number, count)
            batch = _rows(self.arrays, cuts[number], cuts[number + 1])
            places = self.places[cuts[number] : cuts[number + 1]].sum()
            weight = tf.constant(places / self.places[low:high].sum(), tf.float32)
            gradients = self.slice(batch, weight, tf.constant(float(size)))
            total = [_added(a, b) for a, b in zip(total, gradients, strict=True)]
            ends.append((share, [np.array(variable) for variable in self.state]))
        _assign(self.state, _averaged(ends))
        return total

    def _slice(self, batch: Arrays, share: Tensor, size: Tensor) -> list[Tensor | None]:
        """Give the weighted gradients of a slice of a batch; updates metrics and state."""
        model = self.model
        inputs, targets, weight = (*batch, None, None)[:3]
        with tf.GradientTape() as tape:
            predictions = model(inputs, training=True)
            loss = model.compute_loss(inputs, targets, predictions, weight, training=True)
            weighted = loss if self.is_sum else loss * tf.cast(share, loss.dtype)
            objective = model.optimizer.scale_loss(weighted)
        reported = loss / tf.cast(share, loss.dtype) if self.is_sum else loss
        model.metrics[0].update_state(reported, sample_weight=share * size)
        model.compute_metrics(inputs, targets, predictions, sample_weight=weight)
        values = [variable.value for variable in model.trainable_variables]
        gradients = [_dense(gradient) for gradient in tape.gradient(objective, values)]
        return [
            gradient * share if variable.overwrite_with_gradient else gradient
            for variable, gradient in zip(model.trainable_variables, gradients, strict=True)
        ]


def _dense(gradient: Tensor | None) -> Tensor | None:
    """Add up the gradients of repeated rows."""
    return None if gradient is None else tf.convert_to_tensor(gradient)


def _added(total: Tensor | None, gradient: Tensor | None) -> Tensor | None:
    if gradient is None:
        return total
    return gradient if total is None else total + gradient


def _assign(variables: Sequence[Any], values: Sequence[np.ndarray]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def _averaged(ends: Sequence[tuple[float, list[np.ndarray]]]) -> list[np.ndarray]:
    averages = []
    for values in zip(*(state for _, state in ends), strict=True):
        if not tf.as_dtype(values[0].dtype).is_floating:
            averages.append(values[0])
            continue
        weighted = [share * v.astype("float64") for (share, _), v in zip(ends, values, strict=True)]
        averages.append(np.sum(weighted, axis=0).astype(values[0].dtype))
    return averages


def _rows(arrays: Arrays, low: int, high: int) -> Arrays:
    """Give a slice as tensors, floats in Keras's `floatx`, as `fit` feeds them."""

    def taken(array: Any) -> Tensor:
        part = array[low:high]
        is_float = np.issubdtype(part.dtype, np.floating)
        return tf.convert_to_tensor(part.astype(keras.config.floatx()) if is_float else part)

    rows: Arrays = keras.tree.map_structure(taken, arrays)
    return rows


def built(model: keras.Model, arrays: Arrays) -> keras.Model:
    """Create all variables of a compiled model, as `fit` does at its start."""
    sample = ArraySource(arrays, "data.train").fetch(np.arange(2))
    model_build(model, sample, building_steps(model, has_validation=False))
    return model


def variables_of(model: keras.Model) -> list[Any]:
    """List what training changes: variables of model and optimizers."""
    return [*model.variables, *optimizer_of(model).variables]


def variables_read(model: keras.Model) -> dict[str, np.ndarray]:
    """Copy a model's variables; those of random generators are left out.

    Each is named by its kind ("model", or what the optimizer keeps it for), its place and its path.
    """
    seeds = {id(variable) for variable in ModelState(model).seeds}
    of_model = len(model.variables)
    read = {}
    for number, variable in enumerate(variables_of(model)):
        kind = "model" if number < of_model else variable.path.rpartition("_")[2]
        if id(variable) not in seeds:
            read[f"{kind} {number}:{variable.path}"] = np.array(variable)
    return read


def logs_read(model: keras.Model) -> dict[str, float]:
    """Read the metrics as numbers."""
    results = model.get_metrics_result()
    return {str(name): float(np.asarray(value)) for name, value in results.items()}
