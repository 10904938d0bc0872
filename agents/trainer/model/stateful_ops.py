"""Rejects random operations whose state belongs to a process instead of the job."""

from __future__ import annotations

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


def refuse_hidden_state(function: Any) -> None:
    """Search a traced function and all functions it calls for such operations.

    Raises:
        JobCodeError: one was found; names the operation and the fix.
    """
    definition = function.graph.as_graph_def()
    nodes = [*definition.node]
    for inner in definition.library.function:
        nodes.extend(inner.node_def)
    found = sorted({node.op for node in nodes} & HIDDEN_STATE_OPERATIONS)
    if found:
        raise JobCodeError(
            "hidden_random_state",
            "code",
            f"the model draws random numbers with {', '.join(found)}, whose state belongs to a "
            "process and not to the job; use keras.random with a keras.random.SeedGenerator",
        )
