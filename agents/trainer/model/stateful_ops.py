"""Rejects operations whose result depends on the process that runs them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agents.trainer.contract.user_errors import JobCodeError

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
    }
)
#: Operations that call back into Python; their effects and order depend on the process.
PYTHON_OPERATIONS = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})


def refuse_process_operations(graph: Any, *, may_call_python: bool = False) -> None:
    """Search a traced function's graph and all functions it calls for such operations.

    Args:
        may_call_python: for predictions, whose examples depend on nothing but the example.

    Raises:
        JobCodeError: `python_function` or `process_random`; names the operation and the fix.
    """
    found = {node.op for node in graph_nodes(graph)}
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


def graph_nodes(graph: Any) -> Iterator[Any]:
    """Yield the nodes of a graph and of all functions that it calls."""
    definition = graph.as_graph_def()
    yield from definition.node
    for function in definition.library.function:
        yield from function.node_def
