"""A built job in a trainer: model, state, data, and the tracing of its step functions."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from agents.trainer.contract.run_dir import ReportWriter
from agents.trainer.contract.user_errors import JobCodeError, user_code
from agents.trainer.data.fingerprint import data_fingerprint
from agents.trainer.model.batch_scaling import BatchScaling
from agents.trainer.model.constants import tables_fingerprint
from agents.trainer.model.custom_steps import building_steps, logged_results, loss_trackers
from agents.trainer.model.keras_private import model_build, model_call, model_layers
from agents.trainer.model.optimizers import optimizer_of
from agents.trainer.model.progress import Activity, Progress
from agents.trainer.model.schedule import TrainingSchedule
from agents.trainer.model.state import ModelState
from agents.trainer.model.tunables import tunables_of
from agents.trainer.predict.job import SOURCE_FILE
from agents.trainer.selection.previews import PreviewReports
from agents.trainer.selection.state import selection_of
from agents.trainer.step.batch_plan import Planner
from agents.trainer.step.functions import StepFunctions, example_specs
from agents.trainer.step.merging import pass_examples, why_not_merged
from agents.trainer.step.prefetch import JobData, LocalBatch
from agents.trainer.step.stepper import step_failures
from agents.trainer.tuning.proposals import Proposals
from agents.trainer.tuning.tuner import Tuner
from agents.trainer.validate.job_file import LoadedJob, job_load
from controlplane.core.protocol.selection import SelectionSpec
from controlplane.core.protocol.wire import Task, TrainingSpec

#: Examples used to learn structure, dtypes and shapes.
SAMPLE_SIZE = 2


@dataclass(frozen=True)
class BuiltJob:
    """A built job; `tuner` of one that tunes itself, `previews` of one that selects."""

    model: keras.Model
    state: ModelState
    data: JobData
    sample: tuple[Any, ...]
    code_dir: Path
    build_s: float
    is_trained: bool = True
    tuner: Tuner | None = None
    previews: PreviewReports = field(default_factory=PreviewReports)

    def trace(self) -> StepFunctions:
        """Trace training and validation steps.

        Raises:
            JobCodeError: the model cannot be traced.
        """
        with user_code(self.code_dir, "code", "tracing a training step", self.sample):
            has_validation = bool(self.data.schedule.num_validation)
            is_merged = self.data.spec.merges and not why_not_merged(self.data.spec)
            return StepFunctions(self.model, self.state, self.sample, has_validation, is_merged)

    def in_passes(self, functions: StepFunctions, memory_bytes: int) -> BuiltJob:
        """Return the job with its data cut into passes that fit an accelerator's memory."""
        if functions.bytes_per_example is None:
            return self
        most = pass_examples(functions.bytes_per_example, memory_bytes)
        return replace(self, data=replace(self.data, pass_examples=most))

    def warm_up(
        self,
        functions: StepFunctions,
        planner: Planner,
        is_wanted: Callable[[], bool],
    ) -> None:
        """Run each function once on the first examples and restore the state.

        Stops between two functions once `is_wanted` returns False.
        """
        before = self.state.capture()
        has_validation = bool(self.data.schedule.num_validation)
        activities = [Activity.TRAIN] + [Activity.VALIDATE] * has_validation
        for activity in activities:
            batch = self.first_batch(planner, Progress(activity=activity))
            calls = [(functions.validate, functions.count)]
            if activity is Activity.TRAIN:
                calls = [(turn.train, turn.apply) for turn in functions.turns]
            with step_failures():
                arguments = next(batch.pieces).arguments  # all pieces run the same functions
                for compute, put in calls if is_wanted() else ():
                    rows = compute(*arguments)
                    if is_wanted():
                        put(tf.reduce_sum(rows, 0))
        self.state.put(before)
        selection = self.data.selection
        if selection is not None and functions.losses is not None and is_wanted():
            first_pass = Progress(activity=Activity.SELECT, epoch=selection.spec.start)
            arguments = next(self.first_batch(planner, first_pass).pieces).arguments
            if arguments[0].shape[0]:
                with step_failures():
                    functions.losses(*arguments)  # changes no state

    def first_batch(self, planner: Planner, position: Progress) -> LocalBatch:
        """Return this trainer's part of the first batch of an activity, unshuffled."""
        order = np.arange(self.data.schedule.bounds(position)[1], dtype=np.int64)
        return self.data.local_batch(planner, order, position)

    def logs(self, training: bool) -> dict[str, float]:
        """Return metric values under their names in Keras's logs of training, or of validation.

        With those of training comes the next learning rate, unless a metric has this name.
        """
        results = {}
        if self.is_trained:
            results = logged_results(self.model, training)
        if training and self.is_trained:
            results.setdefault("learning_rate", self.learning_rate())
        return {name: float(np.asarray(value)) for name, value in results.items()}

    def reset_metrics(self) -> None:
        """Begin the metrics anew, as at the begin of an epoch."""
        self.model.reset_metrics()
        for tracker in loss_trackers(self.model):
            tracker.reset_state()

    def learning_rate(self) -> float | None:
        """Return the learning rate of the next step; None for a job that does not train."""
        if not self.is_trained:
            return None
        scaling, tunables = self.state.scaling, self.state.tunables
        rate = float(np.asarray(optimizer_of(self.model).learning_rate))
        if tunables is not None:
            rate *= tunables.learning_rate_scale
        return rate if scaling is None else rate * scaling.factor


def workload_build(run_dir: Path, spec: TrainingSpec, reports: ReportWriter) -> BuiltJob:
    """Import and build the job in `run_dir/code`.

    Raises:
        JobCodeError: the job's own code or data is at fault.
    """
    started_at = time.monotonic()
    reports.phase("building")
    code_dir = run_dir / "code"
    is_trained = spec.task is Task.TRAIN
    source = None if spec.model_sha256 is None else run_dir / SOURCE_FILE
    settings = dict(spec.settings)
    job = job_load(code_dir, spec.entry_file, settings, spec.seed, spec.task, source)
    selection = selection_of(spec, len(job.train)) if is_trained else None
    schedule = _schedule(job, spec, None if selection is None else selection.spec)
    sample = job.train.fetch(np.arange(min(SAMPLE_SIZE, len(job.train)), dtype=np.int64))
    with user_code(code_dir, "code.build", "building the model on the first examples", sample):
        if is_trained:
            model_build(job.model, sample, building_steps(job.model, job.validation is not None))
        else:
            model_call(job.model, sample[0], training=False)  # creates the variables
    scaling = None
    if spec.batch_size_min is not None:
        scaling = BatchScaling(optimizer_of(job.model), spec.global_batch_size)
    tunables = tunables_of(job.model, spec)
    state = ModelState(job.model, is_trained, scaling, selection, tunables)
    state.data_fingerprint = data_fingerprint(job.train, job.validation)
    state.constants.append(tables_fingerprint(model_layers(job.model)))
    data = JobData(
        spec=spec,
        schedule=schedule,
        train=job.train,
        validation=job.validation,
        example_specs=tuple(example_specs(sample)),
        num_seeds=len(state.seeds),
        selection=selection,
    )
    tuner = None
    if spec.tuning is not None and tunables is not None and not spec.tuning.parallel:
        proposals = Proposals(spec.tuning, spec.seed, spec.num_virtual_nodes)
        tuner = Tuner(spec.tuning, proposals, state, schedule)
    return BuiltJob(
        model=job.model,
        state=state,
        data=data,
        sample=sample,
        code_dir=code_dir,
        build_s=time.monotonic() - started_at,
        is_trained=is_trained,
        tuner=tuner,
    )


def _schedule(
    job: LoadedJob, spec: TrainingSpec, selection: SelectionSpec | None
) -> TrainingSchedule:
    num_validation = 0 if job.validation is None else len(job.validation)
    try:
        return TrainingSchedule(
            len(job.train),
            num_validation,
            spec.global_batch_size,
            spec.stop,
            selection=selection,
            tunes_selection=spec.tuning is not None and spec.tuning.tunes_selection,
        )
    except ValueError as error:
        raise JobCodeError("spec", "spec", str(error)) from error
