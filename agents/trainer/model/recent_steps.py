"""The recent steps of a job, as part of its progress on every trainer.

Only the leader reports steps; if it is lost, so may be its newest reports. The next leader repeats
them from this record (`Membership.steps_known`). Joiners receive the record with the state. Its
length is bounded: older neighbours are merged, so that a long gap is reported more coarsely.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

#: Most entries kept; the newer half are single steps.
RECENT_LIMIT = 256
#: Wall time from which on entries are not merged further into one report.
TOLD_TOGETHER_S = 0.5


class StepsDone(NamedTuple):
    """Consecutive steps in one membership, of one batch size.

    `loss` is the mean, `epoch` the last step's epoch.

    `candidates`, `analysed` and `pass_s` (a part of `seconds`) are those of the selection passes
    before the steps.
    """

    generation: int
    first_step: int
    last_step: int
    epoch: int
    examples: int
    seconds: float
    loss: float
    num_accelerators: int
    batch_size: int
    candidates: int = 0
    analysed: int = 0
    pass_s: float = 0.0

    def to_json(self) -> list[Any]:
        """Convert to plain JSON values; a loss that is not finite becomes text."""
        loss = self.loss if math.isfinite(self.loss) else str(self.loss)
        return [*self._replace(loss=0.0), loss]

    @classmethod
    def from_json(cls, row: Sequence[Any]) -> StepsDone:
        """Parse the result of `to_json`."""
        *fields, loss = row
        return cls(*fields)._replace(loss=float(loss))

    def joined(self, other: StepsDone) -> StepsDone:
        """Merge this entry with `other`, the steps right after, into one."""
        num_steps = self.last_step - self.first_step + 1
        num_others = other.last_step - other.first_step + 1
        losses = self.loss * num_steps + other.loss * num_others
        return other._replace(
            first_step=self.first_step,
            examples=self.examples + other.examples,
            seconds=self.seconds + other.seconds,
            candidates=self.candidates + other.candidates,
            analysed=self.analysed + other.analysed,
            pass_s=self.pass_s + other.pass_s,
            loss=losses / (num_steps + num_others),
        )

    def after(self, step: int) -> StepsDone:
        """Drop the steps up to `step`; totals over all steps are reduced proportionally."""
        num_steps = self.last_step - self.first_step + 1
        share = min(1.0, (self.last_step - step) / num_steps)
        return self._replace(
            first_step=max(self.first_step, step + 1),
            examples=round(self.examples * share),
            seconds=self.seconds * share,
            candidates=round(self.candidates * share),
            analysed=round(self.analysed * share),
            pass_s=self.pass_s * share,
        )

    def report(self) -> dict[str, Any]:
        """Return the data of a STEPS report."""
        data = self._asdict() | {"learning_rate": None, "compute_s": {}, "noise": None}
        data["loss"] = self.loss if math.isfinite(self.loss) else None
        del data["generation"]
        return data


def with_step(recent: tuple[StepsDone, ...], done: StepsDone) -> tuple[StepsDone, ...]:
    """Add a step; at the limit, entries of the older half are merged in pairs."""
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
    return (*kept[-(RECENT_LIMIT - 1) :], done)  # the cut applies if few entries could be merged


def steps_after(recent: tuple[StepsDone, ...], step: int) -> Iterator[StepsDone]:
    """Yield the recorded steps after `step`, merged to entries of about half a second."""
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
    """Return whether two entries follow each other in one membership, with one batch size."""
    is_next = second.first_step == first.last_step + 1
    is_same = (second.generation, second.batch_size) == (first.generation, first.batch_size)
    return is_next and is_same
