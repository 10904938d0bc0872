"""Trial of merged virtual nodes: compares the sums of a real step, merged and one by one."""

from __future__ import annotations

from typing import Any

import numpy as np

from agents.trainer.step.functions import StepFunctions
from agents.trainer.step.gradient_layout import FieldKind, message_read

#: Differences attributed to rounding, relative to the largest number of a kind.
TOLERANCE = 1e-3
HALF_TOLERANCE = 5e-2


def merging_try(functions: StepFunctions, arguments: list[Any]) -> dict[str, Any]:
    """Determine whether a model's virtual nodes can be merged, and why not.

    Args:
        functions: functions that run virtual nodes one after another.
        arguments: arguments of a training step over slices of one size.

    Returns:
        The facts `is_merged` and `not_merged_because` (empty if merged).
    """
    merged = StepFunctions(
        functions.model, functions.state, functions.sample, has_validation=False, is_merged=True
    )
    reason = merged.not_merged_because
    if not reason and (different := _differences(functions, merged, arguments)):
        reason = f"run together they give another {different}"
    return {"is_merged": not reason, "not_merged_because": reason}


def _differences(apart: StepFunctions, merged: StepFunctions, arguments: list[Any]) -> str:
    """Return the kinds of sums that differ by more than rounding, as text; empty if none."""
    tolerance = HALF_TOLERANCE if "16" in str(apart.model.compute_dtype) else TOLERANCE
    pieces = apart.turns[0].pieces
    if merged.turns[0].pieces != pieces:
        return "set of sums"
    expected = message_read(pieces, apart.turns[0].train(*arguments)[0])
    found = message_read(pieces, merged.turns[0].train(*arguments)[0])
    largest: dict[FieldKind, float] = {}
    furthest: dict[FieldKind, float] = {}
    for (piece, theirs), (_, mine) in zip(expected, found, strict=True):
        if piece.kind in (FieldKind.SQUARE, FieldKind.MESSAGES):  # depend on the passes
            continue
        wanted = np.asarray(theirs, np.float64)
        distance = np.abs(np.asarray(mine, np.float64) - wanted)
        largest[piece.kind] = max(largest.get(piece.kind, 0.0), np.abs(wanted).max(initial=0.0))
        furthest[piece.kind] = max(furthest.get(piece.kind, 0.0), distance.max(initial=0.0))
    return ", ".join(
        kind.value
        for kind, distance in furthest.items()
        if np.isfinite(largest[kind]) and not distance <= tolerance * max(largest[kind], 1e-6)
    )
