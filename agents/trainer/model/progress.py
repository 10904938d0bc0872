"""The progress of a job through its data: the part of its state that is not in variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Any

from agents.trainer.model.history import EpochRow, logs_json, logs_read, metrics_nonfinite
from agents.trainer.model.nonfinite import LossTrack
from agents.trainer.model.recent_steps import StepsDone
from agents.trainer.selection.loss_sums import LossSums
from controlplane.core.protocol.codec import decode, encode
from controlplane.core.protocol.nonfinite import Nonfinite
from controlplane.core.protocol.selection import SelectionEnd
from controlplane.core.protocol.wire import StopKind
from controlplane.core.selection.guard import BreakEvenGuard
from controlplane.core.tuning.course import TuningCourse


class Activity(StrEnum):
    """Purpose of a batch."""

    TRAIN = "train"
    VALIDATE = "validate"
    SELECT = "select"  # in an epoch that trains on chosen examples: choosing among candidates


@dataclass(frozen=True)
class SelectionPasses:
    """Sums over selection passes: candidates, those whose loss was computed, and wall time."""

    candidates: int = 0
    analysed: int = 0
    seconds: float = field(default=0.0, compare=False)


NO_PASSES = SelectionPasses()
NO_LOSSES = LossSums()
NO_GUARD = BreakEvenGuard()


@dataclass(frozen=True)
class Progress:
    """The cursor of a job. It moves only forward, one batch at a time.

    Attributes:
        step: parameter updates done.
        epoch: epochs finished.
        activity: purpose of the next batch.
        batch: number of the next batch within the activity; selection passes and training steps
            count together.
        examples: examples of the activity that are done; batches of an epoch may differ in size.
            In an epoch that selects, those that were candidates.
        train_logs: the epoch's training logs, while its validation runs.
        activity_s: wall time of the activity's batches so far.
        train_s: wall time of the epoch's training, while its validation runs.
        train_examples_per_s: speed of the epoch's training, while its validation runs.
        history: one row per finished epoch.
        training_s: wall time of all steps so far.
        recent: the newest steps, in case the leader's reports of them are lost.
        ended_by: the condition that ended the job; None while it runs.
        losses: tracks whether the losses of its steps are finite.
        found: the non-finite loss or metric at which the job stops, possibly some steps later.
        is_failed: the job has stopped at `found`.
        queued: chosen examples that are not trained on yet.
        chosen, trained: examples of an epoch that selects, chosen and trained on so far.
        pass_losses: losses of the epoch's chosen and skipped examples so far.
        empty_epochs: epochs in a row, up to now, whose selection has chosen nothing.
        passed: candidates, computed losses and seconds of the selection passes since the last
            training step.
        guard: measured cost of selecting; of the leader's times, the same in every trainer.
        selection_end: the decision to train on everything again, if there was one.
        tuning: of a job that tunes itself, once it has begun.
        adopted: number of the newest adoption of a trial's state; 0: there was none.
        train_batch_size: examples of a training batch, if tuning has changed them.
    """

    step: int = 0
    epoch: int = 0
    activity: Activity = Activity.TRAIN
    batch: int = 0
    examples: int = 0
    train_logs: dict[str, float] = field(default_factory=dict)
    activity_s: float = field(default=0.0, compare=False)
    train_s: float = field(default=0.0, compare=False)
    train_examples_per_s: float = field(default=0.0, compare=False)
    history: tuple[EpochRow, ...] = ()
    training_s: float = 0.0
    ended_by: StopKind | None = None
    losses: LossTrack = field(default_factory=LossTrack)
    found: Nonfinite | None = None
    is_failed: bool = False
    recent: tuple[StepsDone, ...] = field(default=(), compare=False)
    queued: int = 0
    chosen: int = 0
    trained: int = 0
    pass_losses: LossSums = NO_LOSSES
    empty_epochs: int = 0
    passed: SelectionPasses = NO_PASSES
    guard: BreakEvenGuard = field(default=NO_GUARD, compare=False)
    selection_end: SelectionEnd | None = None
    tuning: TuningCourse | None = None
    adopted: int = 0
    train_batch_size: int | None = None

    @property
    def is_trying(self) -> bool:
        """True while a trial of a tuned job runs."""
        return self.tuning is not None and self.tuning.active is not None

    @property
    def parked(self) -> tuple[int, ...]:
        """Numbers of the branches beside the present state, ascending."""
        return () if self.tuning is None else self.tuning.parked

    @property
    def is_over(self) -> bool:
        """True once the job has failed, or has ended and its last epoch is closed."""
        is_closed = self.activity is not Activity.VALIDATE and self.batch == 0
        return self.is_failed or (self.ended_by is not None and is_closed)

    @property
    def nonfinite(self) -> tuple[Nonfinite, ...]:
        """Present non-finite values: the loss, and metrics of the newest epoch."""
        loss = self.losses.finding
        return ((loss,) if loss is not None else ()) + metrics_nonfinite(self.history)

    @property
    def place(self) -> tuple[int, int, Activity, int]:
        """Identity of the next batch."""
        return self.step, self.epoch, self.activity, self.batch

    @property
    def distance(self) -> tuple[int, int, int, int, int]:
        """Key that orders all points in the course of a job, to compare trainers.

        All trainers process a batch together and in one size, so its number is sufficient. A state
        is adopted between two batches.
        """
        is_validating = self.activity is Activity.VALIDATE
        return self.epoch, int(is_validating), self.batch, int(self.is_over), self.adopted

    def to_json(self) -> dict[str, Any]:
        """Convert to plain JSON values; floats are kept exactly, nan and infinity as text."""
        rows = [asdict(row) | {"logs": logs_json(row.logs)} for row in self.history]
        plain = replace(self, history=(), recent=(), guard=NO_GUARD, tuning=None)
        return asdict(plain) | {
            "train_logs": logs_json(self.train_logs),
            "history": rows,
            "guard": None if self.guard == NO_GUARD else encode(self.guard),
            "selection_end": encode(self.selection_end),
            "recent": [done.to_json() for done in self.recent],
            "tuning": encode(self.tuning),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Progress:
        """Parse the result of `to_json`."""
        parsers: dict[str, Callable[[Any], Any]] = {
            "activity": Activity,
            "train_logs": logs_read,
            "history": lambda rows: tuple(map(EpochRow.from_json, rows)),
            "losses": LossTrack.from_json,
            "recent": lambda rows: tuple(map(StepsDone.from_json, rows)),
            "pass_losses": lambda sums: LossSums(**sums),
            "passed": lambda sums: SelectionPasses(**sums),
        }
        given: dict[str, Callable[[Any], Any]] = {
            "ended_by": StopKind,
            "found": partial(decode, Nonfinite),
            "guard": partial(decode, BreakEvenGuard),
            "selection_end": partial(decode, SelectionEnd),
            "tuning": partial(decode, TuningCourse),
        }
        parsers |= {name: parse for name, parse in given.items() if value[name] is not None}
        parsed = {name: parse(value[name]) for name, parse in parsers.items()}
        return cls(**{**value, "guard": NO_GUARD, **parsed})
