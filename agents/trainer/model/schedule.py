"""The schedule of a job: which batch follows which, and where the job ends."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from agents.trainer.model.history import EpochRow
from agents.trainer.model.progress import (
    NO_LOSSES,
    NO_PASSES,
    Activity,
    Progress,
    SelectionPasses,
)
from agents.trainer.selection.loss_sums import LossSums
from controlplane.core.protocol.selection import PASS_BATCHES, SelectionSpec
from controlplane.core.protocol.wire import StopCondition, StopKind
from controlplane.core.tuning.course import TuningCourse


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
        schedule = replace(self, stop=stop)
        while not progress.is_over:
            yield progress
            progress = schedule.after_batch(progress, seconds=0.0)
            if schedule.is_activity_over(progress):
                progress = schedule.after_activity(progress, {})

    def _is_metric_stop(self) -> bool:
        return self.stop.kind is StopKind.METRIC

    def _after_epoch(self, progress: Progress, logs: dict[str, float]) -> Progress:
        has_trials = progress.tuning is not None and progress.tuning.has_tried
        row = EpochRow(
            progress.epoch,
            progress.step,
            logs,
            has_odd_loss=has_trials or progress.losses.odd_epoch == progress.epoch,
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
