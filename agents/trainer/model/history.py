"""The epochs that a job has finished, and which of their metrics are not finite."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from controlplane.core.protocol.nonfinite import Nonfinite

_VALIDATION = "val_"


@dataclass(frozen=True)
class EpochRow:
    """One finished epoch.

    Attributes:
        epoch: number, from 0.
        step: steps done until its end.
        has_odd_loss: one of its steps had a loss that is not finite, or trials ran in it.
        seconds: wall time of its batches, validation included.
        examples_per_s: speed of its training.
    """

    epoch: int
    step: int
    logs: dict[str, float]
    has_odd_loss: bool = False
    seconds: float = field(default=0.0, compare=False)
    examples_per_s: float = field(default=0.0, compare=False)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> EpochRow:
        """Parse a row of `Progress.to_json`."""
        return cls(**{**value, "logs": logs_read(value["logs"])})


def logs_json(logs: Mapping[str, float]) -> dict[str, float | str]:
    """Encode logs exactly for JSON, which has no nan and no infinity: they become text."""
    return {name: value if math.isfinite(value) else str(value) for name, value in logs.items()}


def logs_read(logs: Mapping[str, float | str]) -> dict[str, float]:
    """Decode logs of `logs_json`."""
    return {name: float(value) for name, value in logs.items()}


def metrics_nonfinite(history: Sequence[EpochRow]) -> tuple[Nonfinite, ...]:
    """List the metrics of the newest epoch that are not finite, each with its first such epoch.

    Training metrics count only if the losses of all its steps were finite: otherwise the loss is
    the finding, or the loss scale has skipped the step that made the metric non-finite. Those of
    trials that diverge may overflow in sums, which says nothing about the state that is kept.
    """
    if not history:
        return ()
    newest = history[-1]
    return tuple(
        _metric_since(name, history)
        for name, value in newest.logs.items()
        if not math.isfinite(value) and (name.startswith(_VALIDATION) or not newest.has_odd_loss)
    )


def _metric_since(name: str, history: Sequence[EpochRow]) -> Nonfinite:
    first, last = history[-1], None
    for row in reversed(history):
        if name not in row.logs or math.isfinite(row.logs[name]):
            last = row if name in row.logs else None
            break
        first = row
    return Nonfinite(
        metric=name,
        value=str(first.logs[name]),
        step=first.step,
        epoch=first.epoch,
        last_finite=None if last is None else last.logs[name],
        last_finite_step=None if last is None else last.step,
    )
