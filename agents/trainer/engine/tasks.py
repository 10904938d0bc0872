"""The task-specific part of a trainer: training a model, or predicting with it.

Joining, switching, recovering and leaving are the same for both tasks; see `trainer`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from agents.trainer.collectives.groups import TrainerGroup
from agents.trainer.collectives.runtime import CollectiveRuntime
from agents.trainer.contract.user_errors import user_code
from agents.trainer.engine.workload import BuiltJob
from agents.trainer.model.outputs import failure_save, results_save
from agents.trainer.model.progress import Progress
from agents.trainer.predict.functions import PredictFunctions
from agents.trainer.predict.part_files import PartWriter, summary_save
from agents.trainer.predict.stepper import PredictOutcome, PredictStepper
from agents.trainer.step.batch_plan import Planner
from agents.trainer.step.outcomes import StepOutcome
from agents.trainer.step.stepper import Stepper, step_failures
from controlplane.core.protocol.selection import PASS_BATCHES
from controlplane.core.protocol.wire import OnNonfinite, TrainingSpec


class TaskRunner:
    """The part of a trainer that depends on the job's task.

    Attributes:
        phase: the phase name reported while steps run.
        stepper: runs the steps; a `Stepper` or an object with the same interface.
        work: the job, with its data cut as the stepper takes it.
        results_save: writes, as the leader, the results to a folder; returns their part of a
            FINISHED or FAILED report.
    """

    phase: str
    stepper: Any
    work: BuiltJob
    results_save: Callable[[Path, Progress], dict[str, Any]]

    def warm_up(self, planner: Planner, is_wanted: Callable[[], bool]) -> None:
        """Run each function once on the first examples and restore the state.

        Stops between two functions once `is_wanted` returns False.
        """

    def take(self, progress: Progress, outcome: StepOutcome) -> None:
        """Keep, as the leader, the results of the step at `progress` that are not state."""

    def close(self) -> None:
        """Write, as the leader, results that the other members would have to recompute."""

    def finish(self) -> None:
        """Finalize the variables' values; not called for a failed job."""


class Training(TaskRunner):
    """Task whose steps update the variables; all results are in the state."""

    phase = "training"

    def __init__(
        self,
        work: BuiltJob,
        spec: TrainingSpec,
        runtime: CollectiveRuntime,
        group: TrainerGroup,
        memory_bytes: int,
    ) -> None:
        """Trace the job; `memory_bytes` of the accelerator, 0: not known."""
        self._functions = work.trace()
        self.work = work.in_passes(self._functions, memory_bytes)
        is_stopped = spec.on_nonfinite is OnNonfinite.STOP
        self.stepper = Stepper(
            self._functions,
            spec.reduction,
            runtime,
            group,
            stops_at_nonfinite=is_stopped,
            pass_size=PASS_BATCHES * spec.global_batch_size,
        )

    def warm_up(self, planner: Planner, is_wanted: Callable[[], bool]) -> None:
        self.work.warm_up(self._functions, planner, is_wanted)

    def finish(self) -> None:
        model = self.work.model
        if model.optimizer.built:  # by fit alone, not by a step that uses other optimizers
            model.optimizer.finalize_variable_values(model.trainable_variables)

    def results_save(self, folder: Path, progress: Progress) -> dict[str, Any]:
        if progress.is_failed:
            return failure_save(folder, self.work.state, progress)
        return results_save(folder, self.work.model, self.work.state, progress)


class Predicting(TaskRunner):
    """Task whose steps leave the state alone; the predictions written to disk are the result."""

    phase = "predicting"

    def __init__(
        self,
        work: BuiltJob,
        runtime: CollectiveRuntime,
        group: TrainerGroup,
        parts: PartWriter,
    ) -> None:
        self.work = work
        self._parts = parts
        with user_code(work.code_dir, "code", "tracing a prediction"):
            self._functions = PredictFunctions(work.model, work.state, work.sample)
        self.stepper = PredictStepper(self._functions, runtime, group)

    def warm_up(self, planner: Planner, is_wanted: Callable[[], bool]) -> None:
        del is_wanted  # there is only one function
        batch = self.work.first_batch(planner, Progress())
        with step_failures():
            self._functions.predict(next(batch.pieces))

    def take(self, progress: Progress, outcome: StepOutcome) -> None:
        assert isinstance(outcome, PredictOutcome)
        first, end = self.work.data.schedule.bounds(progress)
        self._parts.add(first, self._functions.layout.unpack(outcome.rows), end - first)

    def close(self) -> None:
        self._parts.close()

    def results_save(self, folder: Path, progress: Progress) -> dict[str, Any]:
        num_examples = self.work.data.schedule.num_train
        return summary_save(folder, self.work.state, self._functions.layout, num_examples, progress)
