"""The session of a trainer in one membership: batch plan, prefetch and step statistics."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from agents.trainer.collectives.groups import training_group
from agents.trainer.contract.failures import TrainerError
from agents.trainer.contract.full_disk import log_file
from agents.trainer.contract.run_dir import ReportWriter
from agents.trainer.engine.break_even import BreakEven
from agents.trainer.engine.step_reports import PhaseReports, StepReports, epoch_line
from agents.trainer.engine.workload import BuiltJob
from agents.trainer.model.history import EpochRow, metrics_nonfinite
from agents.trainer.model.outputs import json_numbers
from agents.trainer.model.progress import Activity, Progress, SelectionPasses
from agents.trainer.model.recent_steps import StepsDone, steps_after, with_step
from agents.trainer.resize.catch_up import interim_membership, working_slots
from agents.trainer.resize.switch_header import CatchUpPlan
from agents.trainer.step.batch_plan import Planner
from agents.trainer.step.outcomes import StepOutcome
from agents.trainer.step.prefetch import Feeder, LocalBatch, SelectingFeeder
from controlplane.core.protocol.codec import encode
from controlplane.core.protocol.selection import MOST_CHOSEN_LIMIT, SelectionEnd
from controlplane.core.protocol.wire import (
    REPORT_EVERY_S,
    Membership,
    OnNonfinite,
    ReportKind,
    TrainingSpec,
)
from controlplane.core.selection.cost import ExampleTimes
from controlplane.core.selection.guard import NOT_MEASURED, GuardVerdict
from controlplane.core.tuning.course import course_epoch, course_stop, trials_turned
from controlplane.core.tuning.search import Trial
from controlplane.core.tuning.trial_report import trial_report

#: Epochs in a row that may choose no example; a job that stops after steps would never end.
EMPTY_EPOCHS_LIMIT = 10


class MembershipSession:
    """Per-membership session; one is open at a time, closed before the next one opens.

    Attributes:
        group: the trainers that take part in its steps.
        is_interim: some members are learners; another session of this membership follows when
            all have caught up.
        data: the job's data, cut into this membership's batches.
    """

    def __init__(
        self,
        work: BuiltJob,
        spec: TrainingSpec,
        slot: int,
        reports: ReportWriter,
        phase: str,
        membership: Membership,
        progress: Progress,
        note: CatchUpPlan | None = None,
        report_every_s: Callable[[], float] = lambda: REPORT_EVERY_S,
    ) -> None:
        """Begin to fetch the examples from `progress` on.

        Args:
            phase: the phase name reported while steps run.
            note: the interim mapping while learners catch up; None: there are none.
            report_every_s: returns the present time between two reports of steps.
        """
        self.is_interim = note is not None
        mapped = membership if note is None else interim_membership(membership, note)
        working = working_slots(mapped)
        is_lone = self.is_interim and len(working) == 1
        self.group = replace(
            training_group(membership),
            phase=int(self.is_interim),
            sole_worker=working[0] if is_lone else None,
        )
        planner = Planner(spec, mapped, self.group.slots, slot)
        self.data = work.data.within(membership)
        self._work = work
        self._reports = reports
        self._num_working = len(working)
        self._phase = phase
        self._is_leader = membership.leader_slot == slot
        self._planner = planner
        self._fed_size = progress.train_batch_size
        self._feeder: Feeder | SelectingFeeder
        if work.data.selection is None:
            self._feeder = Feeder(self.data, planner, progress)
        else:
            self._feeder = SelectingFeeder(self.data, planner)
        self._step_reports = StepReports(reports, work.learning_rate, report_every_s)
        self._phase_reports = PhaseReports(reports, phase, report_every_s)
        # How far such jobs are in an epoch is read off the reports of its steps.
        self._is_epoch_apart = bool(spec.selection or spec.tuning or spec.batch_size_max)
        self._generation = membership.generation
        self._steps_known = membership.steps_known
        self._epochs_known = membership.epochs_known
        selection = self.data.schedule.selection
        self._break_even: BreakEven | None = None
        if selection is not None and selection.needs_losses:
            self._break_even = BreakEven(
                selection,
                membership.generation,
                is_leader=self._is_leader,
                tunes_selection=self.data.schedule.tunes_selection,
            )
        self._goes_on = spec.on_nonfinite is OnNonfinite.CONTINUE or not work.is_trained

    def batch(self, progress: Progress) -> LocalBatch:
        """Return this trainer's part of the batch at `progress`.

        After a change of the batch size by tuning, what was fetched ahead is fetched anew.
        """
        if progress.train_batch_size != self._fed_size:
            assert isinstance(self._feeder, Feeder), "a job that selects has one batch size"
            self._feeder.stop(limit_s=None)  # the job's data are read by one thread at a time
            self._feeder = Feeder(self.data, self._planner, progress)
            self._fed_size = progress.train_batch_size
        return self._feeder.next(progress)

    @property
    def times(self) -> ExampleTimes:
        """Times per example, measured by the leader, to be sent with the next exchange."""
        return NOT_MEASURED if self._break_even is None else self._break_even.times

    def _end_selection(self, progress: Progress, verdict: GuardVerdict) -> Progress:
        """Train on everything from the next epoch on; every trainer does so after the same step."""
        if progress.selection_end is not None or self.data.selection is None:
            return progress
        end = SelectionEnd(
            epoch=progress.epoch + 1,
            step=progress.step + 1,
            reason=verdict.reason,
            ratio=verdict.ratio,
        )
        spec_end = self.data.selection.spec.end
        if spec_end is not None and spec_end <= end.epoch:
            return progress  # it ends by itself
        self.data.selection.end(end.epoch)
        return replace(progress, selection_end=end)

    def advance(
        self, progress: Progress, num_examples: int, outcome: StepOutcome, seconds: float
    ) -> Progress:
        """Move the cursor past a batch; at an activity's end, collect and reset its metrics.

        A refused step does not count: the job ends before it.

        Raises:
            TrainerError: `user_code`, the metric of the stop condition does not exist.
        """
        schedule = self.data.schedule
        is_train, epoch = progress.activity is Activity.TRAIN, progress.epoch
        batch_size = schedule.batch_size_at(progress)
        if is_train and self._work.is_trained and not progress.is_trying:
            losses = progress.losses.after(
                outcome.loss, progress.step + 1, epoch, is_skipped=outcome.is_skipped
            )
            progress = replace(progress, losses=losses)
        if outcome.is_refused and not progress.is_trying:
            return self.judged(progress)
        if schedule.takes_queued(progress) and self.data.selection is not None:
            self.data.selection.dequeue(num_examples)  # before its branch may be parked
        if is_train and self._work.tuner is not None:
            before = progress.tuning
            progress = self._work.tuner.after_step(
                progress, outcome.loss, num_examples, outcome.proposal
            )
            self._report_trials(progress, trials_turned(before, progress.tuning))
        passed = progress.passed
        if self._break_even is not None:
            progress = self._break_even.after_batch(progress, outcome.times, num_examples, seconds)
            if schedule.takes_queued(progress) and (found := self._break_even.verdict(progress)):
                progress = self._end_selection(progress, found)
                self._report_selection_end(progress)
        progress = schedule.after_batch(progress, seconds)
        if is_train and self._work.tuner is not None:
            progress = replace(progress, train_batch_size=self._work.tuner.batch_size)
            progress = self._with_queue(progress)
        if is_train:
            seconds += passed.seconds
            done = self._step_done(progress, num_examples, seconds, outcome, batch_size, passed)
            progress = replace(progress, recent=with_step(progress.recent, done))
            if self._is_leader:
                self._step_reports.add(done, outcome, progress.losses.finding)
        return self._after_activity(progress, epoch, is_train)

    def select(
        self, progress: Progress, batch: LocalBatch, outcome: StepOutcome, seconds: float
    ) -> Progress:
        """Choose among the candidates of a selection pass, and move the cursor past it.

        Raises:
            TrainerError: `user_code`, several epochs in a row have chosen nothing.
        """
        selection, schedule = self.data.selection, self.data.schedule
        assert selection is not None, "only a job with selection has passes"
        tunables, epoch = self._work.state.tunables, progress.epoch
        beta = None if tunables is None else tunables.selection_beta
        choice = selection.choose(epoch, batch.indices, outcome.losses, beta)
        if self._break_even is not None and outcome.losses is not None:
            progress = self._break_even.after_batch(
                progress, outcome.times, len(batch.indices), seconds, choice.num
            )
        progress = schedule.after_pass(progress, choice.num, seconds, choice.losses)
        if schedule.tunes_selection and self._work.tuner is not None:
            before = progress.tuning
            progress = self._work.tuner.after_pass(
                progress, outcome.losses, len(batch.indices), outcome.proposal
            )
            self._report_trials(progress, trials_turned(before, progress.tuning))
            progress = self._with_queue(progress)
        is_empty = schedule.is_activity_over(progress) and schedule.is_empty(progress)
        if is_empty and progress.empty_epochs + 1 >= EMPTY_EPOCHS_LIMIT:
            raise TrainerError(
                "user_code",
                f"selection has chosen no example in {EMPTY_EPOCHS_LIMIT} epochs in a row; use a "
                "smaller selection.beta or selection.loss_cap, or train without selection",
            )
        return self._after_activity(progress, epoch, is_train=True)

    def _with_queue(self, progress: Progress) -> Progress:
        """Take the queue of the present branch, if branches differ in theirs."""
        schedule, selection = self.data.schedule, self.data.selection
        if not schedule.tunes_selection or selection is None:
            return progress
        return schedule.with_queue(progress, selection.num_queued)

    def _after_activity(self, progress: Progress, epoch: int, is_train: bool) -> Progress:
        """If the activity's last batch is done, collect and reset its metrics and move on."""
        schedule = self.data.schedule
        if self._is_leader:
            self._phase_reports.settle()
        if not schedule.is_activity_over(progress):
            return self.judged(progress)
        logs = self._work.logs(training=is_train)
        if is_train:
            logs = schedule.training_logs(progress, logs)
        if is_train and schedule.selects(progress) and progress.examples:
            logs["selected_share"] = progress.chosen / progress.examples
            logs |= progress.pass_losses.logs()
        self._work.reset_metrics()
        try:
            progress = self._tuned(schedule.after_activity(progress, logs), epoch)
        except KeyError as error:
            known = ", ".join(sorted(logs))
            raise TrainerError(
                "user_code", f"stop.metric {error} is not in the epoch's logs ({known})"
            ) from error
        if self._is_leader:
            if self._is_epoch_apart:
                self._step_reports.flush()
            self._report_activity(progress, epoch)
        return self.judged(progress, has_new_epoch=progress.epoch > epoch)

    def _tuned(self, progress: Progress, epoch: int) -> Progress:
        """Take, in a job that is tuned, the logs of an epoch that has ended, and the job's end."""
        tuner, tuning = self._work.tuner, progress.tuning
        if tuner is None or tuning is None or progress.epoch == epoch:
            return progress
        tuning = course_epoch(tuning, tuner.spec, progress.history[-1].logs)
        if progress.is_over and tuning.active is not None:
            trials = tuning.active.open_trials
            tuning = course_stop(tuning)
            tuner.end()
            self._report_trials(replace(progress, tuning=tuning), trials)
        return self.data.schedule.with_tuning(progress, tuning)

    def search_begin(self, progress: Progress) -> Progress:
        """Begin a search, in a job that is tuned, before the step at the cursor if one is due."""
        assert self._work.tuner is not None, "the job is tuned"
        begun = self._work.tuner.begin(progress)
        if begun is not progress and begun.tuning is not None and begun.tuning.active is not None:
            self._report_trials(begun, begun.tuning.active.trials)
        return begun

    def judged(self, progress: Progress, *, has_new_epoch: bool = False) -> Progress:
        """Mark the job as failed if it stops at non-finite values and a loss or metric is one.

        Learners cannot foresee that end: a finding is kept until they have caught up.
        """
        if self._goes_on or progress.is_trying:
            return progress
        found = progress.found or progress.losses.finding
        if found is None and has_new_epoch:
            found = next(iter(metrics_nonfinite(progress.history)), None)
        can_end = not self.is_interim or progress.is_over
        return replace(progress, found=found, is_failed=found is not None and can_end)

    def report_missed(self, progress: Progress) -> None:
        """Report, as the new leader, steps and epochs that the control plane has not received."""
        if not self._is_leader:
            return
        if self._steps_known is not None:
            known = max(self._steps_known, self._reports.last_step)
            for done in steps_after(progress.recent, known):
                self._reports.write(ReportKind.STEPS, done.report(), done.generation)
                self._reports.last_step = done.last_step
        self._report_selection_end(progress)
        if progress.tuning is not None and progress.tuning.search is not None:
            self._report_trials(progress, progress.tuning.search.trials)
        for end, row in enumerate(progress.history, start=1):
            if self._epochs_known is not None and row.epoch >= self._epochs_known:
                self._report_epoch(progress.history[:end])

    def _report_selection_end(self, progress: Progress) -> None:
        """Report, as the leader, why the job stops selecting, if it does; repeats are harmless."""
        if self._is_leader and progress.selection_end is not None:
            self._reports.write(ReportKind.SELECTION_ENDED, encode(progress.selection_end))

    def _report_trials(self, progress: Progress, trials: Sequence[Trial]) -> None:
        """Report, as the leader, trials of the newest search; repeats are harmless."""
        tuning = progress.tuning
        if not self._is_leader or tuning is None or tuning.search is None:
            return
        for trial in trials:
            data = encode(trial_report(tuning, trial, progress.step))
            self._reports.write(ReportKind.TRIAL, data)

    def _step_done(
        self,
        progress: Progress,
        num_examples: int,
        seconds: float,
        outcome: StepOutcome,
        batch_size: int,
        passed: SelectionPasses,
    ) -> StepsDone:
        return StepsDone(
            generation=self._generation,
            first_step=progress.step,
            last_step=progress.step,
            epoch=progress.epoch,
            examples=num_examples,
            seconds=seconds,
            loss=outcome.loss,
            num_accelerators=self._num_working,
            batch_size=batch_size,
            candidates=passed.candidates,
            analysed=passed.analysed,
            pass_s=passed.seconds,
        )

    def close(self) -> None:
        """Stop the prefetch and report the remaining steps."""
        self._feeder.stop()
        if self._is_leader:
            self._step_reports.flush()

    def _report_activity(self, progress: Progress, epoch: int) -> None:
        """Report the end of an activity that began in `epoch`: a new phase or the epoch."""
        if progress.epoch == epoch:
            self._phase_reports.begin("evaluating")
            return
        self._report_epoch(progress.history)
        if self._work.data.schedule.num_validation and not progress.is_over:
            self._phase_reports.begin(self._phase)

    def _report_epoch(self, history: Sequence[EpochRow]) -> None:
        """Report the last of these epochs, and write its line into the log."""
        row = history[-1]
        now = datetime.datetime.now(datetime.UTC)
        line = epoch_line(row, self.data.schedule.stop, self._num_working, now)
        with suppress(OSError):  # user code has closed its output
            log_file().write(f"{line}\n".encode())
        self._reports.write(
            ReportKind.EPOCH,
            {
                "epoch": row.epoch,
                "step": row.step,
                "logs": json_numbers(row.logs),
                "nonfinite": encode(metrics_nonfinite(history)),
                **self._most_chosen(),
            },
        )

    def _most_chosen(self) -> dict[str, Any]:
        """Return what an epoch's report says of the examples that a selection chooses most."""
        selection = self.data.selection
        if selection is None:
            return {}
        assert isinstance(self._feeder, SelectingFeeder), "a job that selects has such a feeder"
        most_chosen = selection.most_chosen(MOST_CHOSEN_LIMIT)
        places = [place for place, _ in most_chosen]
        previews = self._work.previews.new(places, self._feeder.examples)
        return {"most_chosen": most_chosen, "previews": previews}
