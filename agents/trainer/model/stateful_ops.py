"""Rejects operations whose result or effect belongs to the process that runs them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from tensorflow.python.framework.auto_control_deps_utils import get_read_write_resource_inputs

from agents.trainer.contract.user_errors import JobCodeError
from agents.trainer.model.keras_private import dataset_graphs
from agents.trainer.model.training_scope import TrainingScope

#: Random operations that keep their state in the process, outside the job's state.
HIDDEN_STATE_OPERATIONS = frozenset(
    {
        "RandomUniform",
        "RandomUniformInt",
        "RandomStandardNormal",
        "TruncatedNormal",
        "ParameterizedTruncatedNormal",
        "RandomGamma",
        "RandomPoisson",
        "RandomPoissonV2",
        "RandomShuffle",
        "Multinomial",
        "StatefulUniform",
        "StatefulUniformInt",
        "StatefulUniformFullInt",
        "StatefulStandardNormalV2",
        "StatefulTruncatedNormal",
        "StatefulRandomBinomial",
        "RngReadAndSkip",
        "NonDeterministicInts",
        "RandomCrop",
        "SampleDistortedBoundingBox",
        "SampleDistortedBoundingBoxV2",
        "AllCandidateSampler",  # of tf.nn.sampled_softmax_loss, nce_loss and the like
        "FixedUnigramCandidateSampler",
        "LearnedUnigramCandidateSampler",
        "LogUniformCandidateSampler",
        "ThreadUnsafeUnigramCandidateSampler",
        "UniformCandidateSampler",
    }
)
#: Operations that call back into Python; their effects and order depend on the process.
PYTHON_OPERATIONS = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})
#: Beginnings of the names of operations that write to a variable or a table. What Keras knows as
#: the model's state is not written in a virtual node, but returned by it.
WRITING_OPERATIONS = (
    "Assign",
    "ResourceScatter",
    "ResourceStridedSliceAssign",
    "LookupTableInsert",
    "LookupTableRemove",
    "LookupTableImport",
)
#: Beginnings of the names of operations that take the next item and so move on in a data set or
#: queue, and the operation of an iterator that starts anew in each virtual node.
NEXT_OPERATIONS = ("IteratorGetNext", "QueueDequeue")
ITERATOR_START = "MakeIterator"
KEPT_STATE = (
    "which is no part of the state that the job keeps, so other accelerators would not have it. "
)


def refuse_process_operations(graph: Any, *, may_call_python: bool = False) -> None:
    """Search a traced function's graph and all functions it calls for such operations.

    Args:
        may_call_python: for predictions, whose examples depend on nothing but the example.

    Raises:
        JobCodeError: `python_function`, `process_random` or `untracked_state`; names the operation
            and the fix.
    """
    nodes = list(graph_nodes(graph))
    found = {node.op for node in nodes}
    if (python := sorted(found & PYTHON_OPERATIONS)) and not may_call_python:
        raise JobCodeError(
            "python_function",
            "code.build",
            f"the model calls back into Python ({', '.join(python)}: tf.py_function or "
            "tf.numpy_function); its results would belong to one process. Write it with keras.ops, "
            "or do it to the data in build",
        )
    if random := sorted(found & HIDDEN_STATE_OPERATIONS):
        raise JobCodeError(
            "process_random",
            "code.build",
            f"the model draws random numbers with {', '.join(random)}, whose state belongs to a "
            "process and not to the job; use keras.random with a keras.random.SeedGenerator",
        )
    if (reads := sorted(o for o in found if o.startswith(NEXT_OPERATIONS))) and (
        ITERATOR_START not in found
    ):
        raise JobCodeError(
            "untracked_state",
            "code.build",
            f"the model takes the next item of a tf.data iterator or a queue ({', '.join(reads)}) "
            f"and moves its place, {KEPT_STATE}Put such values into the data, as a part of x",
        )
    if writes := sorted({node.name for node in nodes if node.op.startswith(WRITING_OPERATIONS)}):
        raise JobCodeError(
            "untracked_state",
            "code.build",
            f"the model writes to a variable or table of TensorFlow ({', '.join(writes[:3])}), "
            f"{KEPT_STATE}Use add_weight(trainable=False) of the layer, or add_variable() of the "
            "metric, instead of tf.Variable",
        )


def random_operations(dataset: Any) -> set[str]:
    """Return the operations by which the functions of a `tf.data.Dataset` draw random numbers.

    With a seed of the process they draw the same ones in each pass.
    """
    nodes = (node.op for graph in dataset_graphs(dataset) for node in graph_nodes(graph))
    return {*HIDDEN_STATE_OPERATIONS.intersection(nodes)}


def refuse_untracked_variables(variables: Iterable[Any]) -> None:
    """Raise if a step has assigned Keras variables that the model does not list.

    Raises:
        JobCodeError: `untracked_state`; names the variables and the fix.
    """
    if names := sorted({repr(variable.path) for variable in variables}):
        raise JobCodeError(
            "untracked_state",
            "code.build",
            f"a step changes {', '.join(names[:3])}, {KEPT_STATE}Keep it, or its SeedGenerator, as "
            "an attribute of the layer or metric; for a loss, of the model: model.noise = noise",
        )


@contextmanager
def enclosed_state_refused(scope: TrainingScope) -> Iterator[None]:
    """Refuse state that only an inner function of the model knows, whatever it led to inside.

    Raises:
        JobCodeError: `enclosed_state`; names the variables and the fix.
    """
    try:
        yield
    finally:
        if names := sorted({repr(variable.path) for variable in scope.enclosed}):
            raise JobCodeError(
                "enclosed_state",
                "code.build",
                f"the model's own code changes {', '.join(names[:3])} inside a tf.function, a loop "
                "or a branch, out of which a step cannot take the new value. Leave @tf.function "
                "out, for steps are traced as a whole; keep layers with state and random numbers "
                "outside of ops.scan, ops.while_loop and ops.cond",
            )


@contextmanager
def recomputed_state_refused() -> Iterator[None]:
    """Refuse state that a part of the model changes when it runs again for the gradient.

    It would start there from the new state, so a dropout would drop others than in the loss.

    Raises:
        JobCodeError: `enclosed_state`; names the variables and the fix.
    """
    with TrainingScope(()) as scope:
        yield
    if names := sorted({repr(variable.path) for variable in scope.untracked}):
        raise JobCodeError(
            "enclosed_state",
            "code.build",
            f"tf.recompute_grad or keras.remat runs a part of the model again for the gradient, "
            f"which changes {', '.join(names[:3])} a second time and so computes something else "
            "than the loss did, in fit too. Keep dropout, other random layers and layers with "
            "state, such as batch normalisation, outside of what is recomputed",
        )


def refuse_untracked_writes(graph: Any, variables: Iterable[Any]) -> None:
    """Raise if the traced update by the optimizer writes to others than `variables`.

    Raises:
        JobCodeError: `untracked_state`; names the operation and the fix.
    """
    known = {id(variable.value.handle) for variable in variables}
    outside = {id(inner): outer for outer, inner in graph.captures if id(outer) not in known}
    for operation in graph.get_operations():
        _, written = get_read_write_resource_inputs(operation)
        if any(_is_variable(outside.get(id(handle))) for handle in written):
            raise JobCodeError(
                "untracked_state",
                "code.build",
                f"the optimizer or its learning rate schedule writes to a variable "
                f"({operation.name}), {KEPT_STATE}Use add_variable() in the optimizer's build(), "
                "and compute a schedule from its step alone",
            )


def _is_variable(handle: Any) -> bool:
    """Return whether a handle, if any, is that of a variable, and not of a table."""
    data = getattr(handle, "_handle_data", None)
    return data is not None and bool(data.is_set)


def graph_nodes(graph: Any) -> Iterator[Any]:
    """Yield the nodes of a graph and of all functions that it calls."""
    definition = graph.as_graph_def()
    yield from definition.node
    for function in definition.library.function:
        yield from function.node_def
