"""The progress of a job through its data: the part of its state that is not in variables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from agents.trainer.model.history import EpochRow, logs_json, logs_read, metrics_nonfinite
from agents.trainer.model.nonfinite import LossTrack
from agents.trainer.model.recent_steps import StepsDone
from agents.trainer.selection.loss_sums import LossSums
from controlplane.core.protocol.codec import decode, encode
from controlplane.core.protocol.nonfinite import Nonfinite
from controlplane.core.protocol.selection import PASS_BATCHES, SelectionEnd, SelectionSpec
from controlplane.core.protocol.wire import StopCondition, StopKind
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
    def from_json(cls, value: Mapping[str, Any], batch_size: int = 0) -> Progress:
        """Parse the result of `to_json`; `batch_size` is for checkpoints without `examples`."""
        ended_by, found = value["ended_by"], value.get("found")
        selection_end, tuning = value.get("selection_end"), value.get("tuning")
        guard = value.get("guard")
        return cls(
            step=value["step"],
            epoch=value["epoch"],
            activity=Activity(value["activity"]),
            batch=value["batch"],
            examples=value.get("examples", value["batch"] * batch_size),
            train_logs=logs_read(value["train_logs"]),
            activity_s=value.get("activity_s", 0.0),
            train_s=value.get("train_s", 0.0),
            train_examples_per_s=value.get("train_examples_per_s", 0.0),
            history=tuple(EpochRow.from_json(row) for row in value["history"]),
            training_s=value["training_s"],
            ended_by=None if ended_by is None else StopKind(ended_by),
            losses=LossTrack.from_json(value["losses"]) if "losses" in value else LossTrack(),
            found=None if found is None else decode(Nonfinite, found),
            is_failed=value.get("is_failed", False),
            recent=tuple(StepsDone.from_json(row) for row in value.get("recent", ())),
            queued=value.get("queued", 0),
            chosen=value.get("chosen", 0),
            trained=value.get("trained", 0),
            pass_losses=LossSums(**value.get("pass_losses", {})),
            empty_epochs=value.get("empty_epochs", 0),
            passed=SelectionPasses(**value.get("passed", {})),
            guard=NO_GUARD if guard is None else decode(BreakEvenGuard, guard),
            selection_end=None if selection_end is None else decode(SelectionEnd, selection_end),
            tuning=None if tuning is None else decode(TuningCourse, tuning),
            adopted=value.get("adopted", 0),
            train_batch_size=value.get("train_batch_size"),
        )


@dataclass(frozen=True)
class TrainingSchedule:
    """The fixed schedule of a job: numbers of examples, batch sizes and stop condition.

    Attributes:
        num_validation: examples for validation, 0 for none.
        batch_size: examples per batch.
        train_batch_size: examples per training batch, if it differs.
        selection: selects the training examples of some epochs; None: all are trained on.
        tunes_selection: trials of the job differ in their selection, so epochs with trials select.
    """

    num_train: int
    num_validation: int
    batch_size: int
    stop: StopCondition
    train_batch_size: int | None = None
    selection: SelectionSpec | None = None
    tunes_selection: bool = False

    def __post_init__(self) -> None:
        if self.num_train < 1:
            raise ValueError("the training data must hold at least one example")
        if self.batch_size < 1:
            raise ValueError(f"global_batch_size must be at least 1, got {self.batch_size}")
        if self.stop.limit < 1:
            raise ValueError(f"stop.limit must be at least 1, got {self.stop.limit}")

    def num_batches(self, activity: Activity) -> int:
        """Return the number of batches of an epoch's activity; the last may be smaller."""
        return math.ceil(self._num_examples(activity) / self.batch_size_of(activity))

    def batch_size_of(self, activity: Activity) -> int:
        """Return the number of examples of a full batch, unless the job tunes it.

        A selection pass takes several batches, unless its mean loss tells trials apart: that is
        wanted after each batch.
        """
        if activity is Activity.SELECT:
            return self.batch_size * (1 if self.tunes_selection else PASS_BATCHES)
        is_train = activity is Activity.TRAIN
        return (self.train_batch_size if is_train else None) or self.batch_size

    def batch_size_at(self, progress: Progress) -> int:
        """Return the number of examples of a full batch at the cursor."""
        tuned = progress.train_batch_size if progress.activity is Activity.TRAIN else None
        return tuned or self.batch_size_of(progress.activity)

    @property
    def num_planned_steps(self) -> int:
        """Training steps of the whole job, if its selection chooses the expected share."""
        limit = self.stop.limit
        if self.stop.kind is StopKind.STEPS:
            return limit
        steps = limit * self.num_batches(Activity.TRAIN)
        if self.selection is None:
            return steps
        skipped = self.selection.num_selecting(range(limit)) * (1.0 - self.selection.expected_share)
        return math.floor(steps - skipped * self.num_batches(Activity.TRAIN))

    def selects(self, progress: Progress) -> bool:
        """Return whether the epoch at the cursor trains on chosen examples alone.

        One with trials that are told by the losses of their steps does not: these would depend on
        what is chosen.
        """
        is_searching = progress.tuning is not None and progress.tuning.is_searching
        if is_searching and not self.tunes_selection:
            return False
        end = progress.selection_end
        if self.selection is None or (end is not None and progress.epoch >= end.epoch):
            return False
        return self.selection.selects(progress.epoch)

    def computes_losses(self, progress: Progress) -> bool:
        """Return whether the selection passes of the epoch at the cursor compute losses.

        Those of an epoch with trials do, which are told by them.
        """
        if self.selection is None:
            return False
        is_tried = progress.tuning is None or progress.tuning.is_searching
        return (self.tunes_selection and is_tried) or self.selection.forwards(progress.epoch)

    def is_empty(self, progress: Progress) -> bool:
        """Return whether the epoch at the cursor, at its end, has selected nothing."""
        return self.selects(progress) and not progress.chosen

    def takes_queued(self, progress: Progress) -> bool:
        """Return whether the batch at the cursor consists of chosen examples."""
        return progress.activity is Activity.TRAIN and self.selects(progress)

    def bounds(self, progress: Progress) -> tuple[int, int]:
        """Return the range of the next batch in the epoch's order, as (first, last excluded).

        Of a batch of chosen examples the range in the queue. It is short only if the batch size
        has grown since the queue was long enough.
        """
        if self.takes_queued(progress):
            return 0, min(self.batch_size_of(Activity.TRAIN), progress.queued)
        low = progress.examples
        size = self.batch_size_at(progress)
        return low, min(low + size, self._num_examples(progress.activity))

    def _num_examples(self, activity: Activity) -> int:
        return self.num_validation if activity is Activity.VALIDATE else self.num_train

    def after_pass(
        self, progress: Progress, chosen: int, seconds: float, losses: LossSums = NO_LOSSES
    ) -> Progress:
        """Move past a selection pass that has chosen some of its candidates."""
        assert self.selection is not None, "only a job with selection has passes"
        low, high = self.bounds(progress)
        analysed = high - low if self.computes_losses(progress) else 0
        passed = progress.passed
        return self._turned(
            replace(
                progress,
                batch=progress.batch + 1,
                examples=high,
                queued=progress.queued + chosen,
                chosen=progress.chosen + chosen,
                pass_losses=progress.pass_losses.with_pass(losses),
                passed=SelectionPasses(
                    passed.candidates + high - low,
                    passed.analysed + analysed,
                    passed.seconds + seconds,
                ),
                activity_s=progress.activity_s + seconds,
                training_s=progress.training_s + seconds,
            )
        )

    def with_queue(self, progress: Progress, queued: int) -> Progress:
        """Take the length of the present branch's queue, in a job that tunes its selection."""
        progress = replace(progress, queued=queued)
        is_moved = progress.activity is not Activity.VALIDATE and self.selects(progress)
        return self._turned(progress) if is_moved else progress

    def _turned(self, progress: Progress) -> Progress:
        """Train next, within an epoch that selects, if a batch is queued; otherwise select."""
        is_ready = progress.queued >= self.batch_size_of(Activity.TRAIN)
        return replace(progress, activity=Activity.TRAIN if is_ready else Activity.SELECT)

    def after_batch(self, progress: Progress, seconds: float) -> Progress:
        """Move past the batch at the cursor, within its activity; see `after_pass` for passes."""
        is_train = progress.activity is Activity.TRAIN
        takes_queued = self.takes_queued(progress)
        high = self.bounds(progress)[1]
        moved = replace(
            progress,
            batch=progress.batch + 1,
            examples=progress.examples if takes_queued else high,
            step=progress.step + is_train,
            activity_s=progress.activity_s + seconds,
            training_s=progress.training_s + seconds,
        )
        if is_train and self.selection is not None:
            moved = replace(moved, passed=NO_PASSES)
        if takes_queued:
            trained, queued = progress.trained + high, progress.queued - high
            moved = self._turned(replace(moved, trained=trained, queued=queued))
        if is_train and self.stop.kind is StopKind.STEPS and moved.step >= self.stop.limit:
            return replace(moved, ended_by=StopKind.STEPS)
        return moved

    def is_activity_over(self, progress: Progress) -> bool:
        """Return whether the activity's last batch is done; a step limit ends training early."""
        if progress.activity is not Activity.VALIDATE and progress.ended_by is not None:
            return True
        is_all_seen = progress.examples >= self._num_examples(progress.activity)
        return is_all_seen and not self.takes_queued(progress)

    def after_activity(self, progress: Progress, logs: dict[str, float]) -> Progress:
        """Move from the end of an activity to validation (if any), the next epoch, or the end."""
        if progress.activity is Activity.VALIDATE:
            validation = {f"val_{name}": value for name, value in logs.items()}
            return self._after_epoch(progress, progress.train_logs | validation)
        trained = replace(
            progress,
            activity_s=0.0,
            train_s=progress.activity_s,
            train_examples_per_s=self._num_trained(progress) / max(progress.activity_s, 1e-9),
        )
        if self.num_validation:
            return replace(
                trained, activity=Activity.VALIDATE, batch=0, examples=0, train_logs=logs
            )
        return self._after_epoch(trained, logs)

    def training_logs(self, progress: Progress, logs: dict[str, float]) -> dict[str, float]:
        """Return an epoch's training metrics: without a step, which says nothing, the last ones."""
        if self._num_trained(progress) or not progress.history:
            return logs
        last = progress.history[-1].logs
        return {name: last.get(name, value) for name, value in logs.items()}

    def _num_trained(self, progress: Progress) -> int:
        """Return the number of examples of the epoch's training steps so far."""
        return progress.trained if self.selects(progress) else progress.examples

    def resumed(self, progress: Progress, num_examples: int) -> Progress:
        """Move, forward or back, to the point where `num_examples` of a single epoch are done.

        Used by prediction jobs: only this many predictions are stored durably.
        """
        is_over = num_examples >= self.num_train
        batch = self.num_batches(Activity.TRAIN) if is_over else num_examples // self.batch_size
        resumed = Progress(
            step=batch,
            batch=batch,
            examples=min(batch * self.batch_size, self.num_train),
            training_s=progress.training_s,
        )
        return self.after_activity(resumed, {}) if is_over else resumed

    def predicted_next(self, progress: Progress) -> Progress | None:
        """Return the cursor after the next batch, without logs.

        None if it depends on a metric, or on losses of a selection pass.
        """
        if self.selection is not None:
            return None
        moved = self.after_batch(progress, seconds=0.0)
        if not self.is_activity_over(moved):
            return moved
        return None if self._is_metric_stop() else self.after_activity(moved, {})

    def following(self, progress: Progress) -> Progress | None:
        """Return the cursor of the next batch in the epoch's order, in a job that selects.

        After a selection pass it has the next candidates; steps of chosen examples may come first.
        None at the activity's end.
        """
        if progress.activity is Activity.SELECT:
            moved = replace(progress, examples=self.bounds(progress)[1])
        else:
            moved = self.after_batch(progress, seconds=0.0)
        return None if self.is_activity_over(moved) else moved

    def positions(self, progress: Progress) -> Iterator[Progress]:
        """Yield the cursor of each coming batch.

        A stop at a metric cannot be predicted; the positions then continue to its epoch limit.
        """
        stop = replace(self.stop, kind=StopKind.EPOCHS) if self._is_metric_stop() else self.stop
        course = replace(self, stop=stop)
        while not progress.is_over:
            yield progress
            progress = course.after_batch(progress, seconds=0.0)
            if course.is_activity_over(progress):
                progress = course.after_activity(progress, {})

    def _is_metric_stop(self) -> bool:
        return self.stop.kind is StopKind.METRIC

    def _after_epoch(self, progress: Progress, logs: dict[str, float]) -> Progress:
        row = EpochRow(
            progress.epoch,
            progress.step,
            logs,
            has_odd_loss=progress.losses.odd_epoch == progress.epoch,
            seconds=progress.train_s + progress.activity_s,
            examples_per_s=progress.train_examples_per_s,
        )
        moved = replace(
            progress,
            epoch=progress.epoch + 1,
            activity=Activity.TRAIN,
            batch=0,
            examples=0,
            train_logs={},
            activity_s=0.0,
            train_s=0.0,
            train_examples_per_s=0.0,
            history=(*progress.history, row),
            chosen=0,
            trained=0,
            pass_losses=NO_LOSSES,
            empty_epochs=progress.empty_epochs + 1 if self.is_empty(progress) else 0,
        )
        moved = self.with_tuning(moved, moved.tuning)
        return moved if moved.ended_by else replace(moved, ended_by=self._end(moved, logs))

    def with_tuning(self, progress: Progress, tuning: TuningCourse | None) -> Progress:
        """Take the tuning with which the epoch at the cursor begins, and its first activity."""
        progress = replace(progress, tuning=tuning)
        selects = self.selects(progress)
        return replace(progress, activity=Activity.SELECT if selects else Activity.TRAIN)

    def _end(self, progress: Progress, logs: dict[str, float]) -> StopKind | None:
        """Return the condition that ends the job after an epoch with these logs, if any.

        Raises:
            KeyError: the metric to stop at is not in the logs.
        """
        stop = self.stop
        if stop.kind is StopKind.STEPS:
            return None
        if stop.kind is StopKind.METRIC:
            assert stop.metric is not None
            assert stop.target is not None
            value = logs[stop.metric]
            reached = value >= stop.target if stop.higher_is_better else value <= stop.target
            if reached and math.isfinite(value):
                return StopKind.METRIC
        return StopKind.EPOCHS if progress.epoch >= stop.limit else None
