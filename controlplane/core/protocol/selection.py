"""Example selection of a training job: which examples of an epoch it trains on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

BETA_RANGE = (0.1, 10.0)
HISTORY_RANGE = (16, 65_536)
STALE_RANGE = (2, 100)
LOSS_CAP_RANGE = (0.0, 90.0)
CONTROL_RANGE = (3, 1000)
EPOCH_LIMIT = 100_000_000
#: Batches of candidates in a selection pass. Without a backward pass two need no more memory than
#: a training step of one.
PASS_BATCHES = 2
#: Examples that are reported as chosen most often.
MOST_CHOSEN_LIMIT = 20
#: Longest label and side of the picture, in pixels, of their previews.
LABEL_LENGTH = 60
PICTURE_SIDE = 32


class SelectionMethod(StrEnum):
    """Rule by which the examples of a training step are chosen."""

    NONE = "none"
    SELECTIVE_BACKPROP = "selective_backprop"
    STALE_SELECTIVE_BACKPROP = "stale_selective_backprop"
    RANDOM = "random"

    @property
    def needs_losses(self) -> bool:
        """Return whether examples are chosen by their losses."""
        return self in (self.SELECTIVE_BACKPROP, self.STALE_SELECTIVE_BACKPROP)


class EndReason(StrEnum):
    """Why a job stops selecting before the end that its submission gives."""

    GUARD = "guard"  # an epoch that selects costs about as much as a plain one
    CONTROL = "control"  # random selection lowers the validation loss faster


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionEnd:
    """The decision to train on everything again.

    It depends on measured times, so it is a fact of one run: another run with the same `end` in its
    submission has the same bits.

    Attributes:
        epoch: first epoch that trains on everything.
        step: step after which all trainers made the decision.
        ratio: `GUARD`: time of an epoch that selects over that of a plain one; `CONTROL`: fall of
            the validation loss per second with selection, over that with random selection, both
            on the same accelerators.
    """

    epoch: int
    step: int
    reason: EndReason
    ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionSpec:
    """Selection of examples by their losses (Selective-Backprop, arXiv 1910.00762).

    Attributes:
        beta: exponent of the chance; `RANDOM` chooses the same share, whatever the losses.
        history: number of newest losses among which a loss is ranked.
        stale_every: with the stale method, epochs from one forward pass to the next.
        start: first epoch that selects, at least 1: the first epoch trains on everything.
        end: first epoch that trains on everything again; None: no such epoch.
        loss_cap: percentage of the largest losses that are left out.
        guard: stop selecting when measured times say that it does not pay.
        control_every: every how many epochs one selects at random, to compare with; None: none.
    """

    method: SelectionMethod
    beta: float = 1.0
    history: int = 1024
    stale_every: int = 3
    start: int = 1
    end: int | None = None
    loss_cap: float = 0.0
    guard: bool = True
    control_every: int | None = None

    def __post_init__(self) -> None:
        end = self.start + 1 if self.end is None else self.end
        for name, value, (low, high) in (
            ("beta", self.beta, BETA_RANGE),
            ("history", self.history, HISTORY_RANGE),
            ("stale_every", self.stale_every, STALE_RANGE),
            ("start", self.start, (1, EPOCH_LIMIT)),
            ("end", end, (self.start + 1, EPOCH_LIMIT)),
            ("loss_cap", self.loss_cap, LOSS_CAP_RANGE),
            ("control_every", self.control_every or CONTROL_RANGE[0], CONTROL_RANGE),
        ):
            if not low <= value <= high:
                raise ValueError(f"selection.{name} must be from {low:g} to {high:g}, got {value}")

    def selects(self, epoch: int) -> bool:
        """Return whether an epoch trains on chosen examples alone."""
        is_begun = self.method is not SelectionMethod.NONE and epoch >= self.start
        return is_begun and (self.end is None or epoch < self.end)

    def num_selecting(self, epochs: range) -> int:
        """Count the epochs of a range (of step 1) that train on chosen examples alone."""
        last = epochs.stop if self.end is None else min(self.end, epochs.stop)
        return max(last - max(self.start, epochs.start), 0) if self.selects(self.start) else 0

    @property
    def needs_losses(self) -> bool:
        """Return whether examples are chosen by their losses."""
        return self.method.needs_losses

    def forwards(self, epoch: int) -> bool:
        """Return whether an epoch that selects computes the losses of its candidates."""
        if self.is_control(epoch):
            return False
        if self.method is SelectionMethod.STALE_SELECTIVE_BACKPROP:
            number = epoch - self.start
            if self.control_every is not None:
                number -= number // self.control_every  # control epochs do not count
            return number % self.stale_every == 0
        return self.method is SelectionMethod.SELECTIVE_BACKPROP

    def is_control(self, epoch: int) -> bool:
        """Return whether an epoch that selects does so at random, to compare with."""
        if self.control_every is None or not self.needs_losses:
            return False
        return (epoch - self.start) % self.control_every == self.control_every - 1

    @property
    def expected_share(self) -> float:
        """Share of the candidates that is chosen on average if losses are distinct."""
        return math.pow(1.0 - self.loss_cap / 100.0, self.beta + 1.0) / (self.beta + 1.0)
