"""The steps that a job did lately, as part of its progress: every trainer knows their losses.

The leader reports steps, and with it the newest reports may be lost. Whoever leads next tells them
again from here (`Membership.steps_known`). As part of the progress they also come with the state to
trainers that were not there. Their number is bounded: older neighbours become one, so that those
of a long silence are told as well, only more coarsely.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

#: Entries kept; of these the newer half are single steps.
RECENT_LIMIT = 256
#: Entries are told together up to so much wall time.
TOLD_TOGETHER_S = 0.5


class StepsDone(NamedTuple):
    """Consecutive steps in one membership; `loss` is their mean, `epoch` that of the last."""

    generation: int
    first_step: int
    last_step: int
    epoch: int
    examples: int
    seconds: float
    loss: float
    num_accelerators: int
    batch_size: int

    def to_json(self) -> list[Any]:
        """Give the fields as JSON has them; a loss that is not finite becomes text."""
        loss = self.loss if math.isfinite(self.loss) else str(self.loss)
        return [*self._replace(loss=0.0), loss]

    @classmethod
    def from_json(cls, row: Sequence[Any]) -> StepsDone:
        """Read what `to_json` gave."""
        *fields, loss = row
        return cls(*fields)._replace(loss=float(loss))

    def joined(self, other: StepsDone) -> StepsDone:
        """Give these steps and those right after them as one entry."""
        num_steps = self.last_step - self.first_step + 1
        num_others = other.last_step - other.first_step + 1
        losses = self.loss * num_steps + other.loss * num_others
        return other._replace(
            first_step=self.first_step,
            examples=self.examples + other.examples,
            seconds=self.seconds + other.seconds,
            loss=losses / (num_steps + num_others),
        )

    def after(self, step: int) -> StepsDone:
        """Leave the steps up to `step` out; what is only known of all together is shared out."""
        num_steps = self.last_step - self.first_step + 1
        share = min(1.0, (self.last_step - step) / num_steps)
        return self._replace(
            first_step=max(self.first_step, step + 1),
            examples=round(self.examples * share),
            seconds=self.seconds * share,
        )

    def report(self) -> dict[str, Any]:
        """Give what a `steps` report says of them."""
        return {
            "first_step": self.first_step,
            "last_step": self.last_step,
            "epoch": self.epoch,
            "examples": self.examples,
            "seconds": self.seconds,
            "loss": self.loss if math.isfinite(self.loss) else None,
            "num_accelerators": self.num_accelerators,
            "batch_size": self.batch_size,
            "learning_rate": None,
            "compute_s": {},
            "noise": None,
        }


def with_step(recent: tuple[StepsDone, ...], done: StepsDone) -> tuple[StepsDone, ...]:
    """Add a step; of too many entries the older half are joined in pairs."""
    if len(recent) < RECENT_LIMIT:
        return (*recent, done)
    half = RECENT_LIMIT // 2
    older = list(recent[:half])
    pairs: list[StepsDone] = []
    while older:
        entry = older.pop(0)
        if older and _is_one(entry, older[0]):
            entry = entry.joined(older.pop(0))
        pairs.append(entry)
    kept = (*pairs, *recent[half:])
    return (*kept[-(RECENT_LIMIT - 1) :], done)  # where hardly any could be joined


def steps_after(recent: tuple[StepsDone, ...], step: int) -> Iterator[StepsDone]:
    """Give what is known of the steps after `step`, in parts of about half a second."""
    together: StepsDone | None = None
    for entry in recent:
        if entry.last_step <= step:
            continue
        entry = entry.after(step)
        if together is not None and _is_one(together, entry) and together.seconds < TOLD_TOGETHER_S:
            together = together.joined(entry)
            continue
        if together is not None:
            yield together
        together = entry
    if together is not None:
        yield together


def _is_one(first: StepsDone, second: StepsDone) -> bool:
    """Say whether two entries follow each other in one membership."""
    is_next = second.first_step == first.last_step + 1
    return is_next and second.generation == first.generation
