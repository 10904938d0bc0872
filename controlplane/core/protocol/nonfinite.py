"""Losses and metrics that are nan or infinite: their record, and its texts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.core.protocol.codec import decode

#: Codes of the two failures.
NONFINITE_LOSS = "nonfinite_loss"
NONFINITE_METRIC = "nonfinite_metric"
NONFINITE_CODES = frozenset({NONFINITE_LOSS, NONFINITE_METRIC})

NAME_LIMIT = 100
_COUNT_LIMIT = 2**63
_VALUES = frozenset({"nan", "inf", "-inf"})
_ADVICE = (
    "Lower the learning rate, clip gradients or look at the data; "
    "set on_nonfinite to continue to train on."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Nonfinite:
    """A period in which a loss or a metric is nan or infinite.

    Attributes:
        metric: name in the logs of an epoch; None for the loss of the steps.
        value: "nan", "inf" or "-inf", as it was first.
        step: from 1; for the loss the step that produced it, for a metric the last of its epoch.
        epoch: from 0.
        last_finite, last_finite_step: the last value before; None where there was none.
        num_skipped: consecutive steps skipped by the loss scale before it gave up; else 0.
        until_step: first step with a finite value again; None until then.
    """

    metric: str | None
    value: str
    step: int
    epoch: int
    last_finite: float | None
    last_finite_step: int | None
    num_skipped: int = 0
    until_step: int | None = None

    @property
    def name(self) -> str:
        """The key under which a job stores the period; distinguishes a metric called "loss"."""
        return "loss" if self.metric is None else f"metric:{self.metric}"

    @property
    def code(self) -> str:
        """The failure code of a job that stops because of it."""
        return NONFINITE_LOSS if self.metric is None else NONFINITE_METRIC

    @property
    def became_text(self) -> str:
        """Text on when it became nonfinite and the last finite value, without a full stop."""
        at = f"step {self.step} (epoch {self.epoch + 1})"
        if self.metric is not None:
            at = f"the end of epoch {self.epoch + 1} (step {self.step})"
        text = f"{self._subject} became {self.value} at {at}"
        if self.num_skipped:
            text += f" and stayed so for {self.num_skipped} steps, all skipped by the loss scale"
        if self.last_finite is None:
            return f"{text}; it was never finite"
        last = f"{self.last_finite:.6g} at step {self.last_finite_step}"
        return f"{text}; its last finite value was {last}"

    @property
    def failure_text(self) -> str:
        """Text on why a job stopped because of it, and how to go on."""
        return f"{self.became_text}. {_ADVICE}"

    @property
    def state_text(self) -> str:
        """Text on since when the value is nonfinite, or from when to when it was."""
        if self.until_step is None:
            return f"{self._subject} is not finite since step {self.step}."
        return (
            f"{self._subject} was not finite from step {self.step} to step {self.until_step - 1}."
        )

    @property
    def again_text(self) -> str:
        """Text on the value being finite again, without a full stop."""
        return f"{self._subject} is finite again since step {self.until_step}"

    @property
    def _subject(self) -> str:
        return "The loss" if self.metric is None else f"The metric {self.metric}"


def nonfinite_read(value: Mapping[str, Any]) -> Nonfinite:
    """Read untrusted values that `encode` is to have written.

    Raises:
        ValueError: the values are not a valid `Nonfinite`.
    """
    read = decode(Nonfinite, value)
    counts = (read.step, read.epoch, read.num_skipped, read.last_finite_step, read.until_step)
    if read.value not in _VALUES or len(read.metric or "") > NAME_LIMIT:
        raise ValueError(f"{read.name!r:.120} cannot be {read.value!r:.20}")
    if not all(count is None or 0 <= count < _COUNT_LIMIT for count in counts):
        raise ValueError(f"{read.name!r:.120} has a count out of range")
    if (read.last_finite is None) != (read.last_finite_step is None):
        raise ValueError(f"{read.name!r:.120} needs both last_finite and last_finite_step")
    if not math.isfinite(read.last_finite or 0.0):
        raise ValueError(f"the last finite value of {read.name!r:.120} is not finite")
    return read
