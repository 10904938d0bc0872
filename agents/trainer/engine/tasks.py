"""What a job's steps are for: to train a model, or to predict with it.

The trainer's life (joining, switching, recovering, leaving) is the same for both and lies in
`engine`; here is what differs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from agents.trainer.collectives.groups import Group
from agents.trainer.collectives.runtime import CollectiveRuntime
from agents.trainer.contract.user_errors import user_code
from agents.trainer.engine.workload import Workload
from agents.trainer.model.outputs import failure_save, results_save
from agents.trainer.model.progress import Progress
from agents.trainer.predict.functions import PredictFunctions
from agents.trainer.predict.part_files import PartWriter, summary_save
from agents.trainer.predict.stepper import PredictOutcome, PredictStepper
from agents.trainer.step.batch_plan import Planner
from agents.trainer.step.stepper import StepOutcome, Stepper, step_failures
from controlplane.core.protocol.wire import OnNonfinite, Task, TrainingSpec


class TaskRunner(Protocol):
    """The part of a trainer that knows what its job is for.

    Attributes:
        phase: what is reported while it does steps.
        stepper: does them, a `Stepper` or one like it.
        work: the job, its data cut as the stepper takes it.
    """

    phase: str
    stepper: Any
    work: Workload

    def warm_up(self, planner: Planner, is_wanted: Callable[[], bool]) -> None:
        """Run everything once on the first examples and put the state back.

        It stops early, between two functions, when it is no longer wanted.
        """

    def take(self, progress: Progress, outcome: StepOutcome) -> None:
        """Keep, as the leader, what the step at `progress` gave beyond the state."""

    def close(self) -> None:
        """Write, as the leader, what others would have to make again."""

    def finish(self) -> None:
        """Give the last values their final form, unless the job has failed."""

    def results_save(self, folder: Path, progress: Progress) -> dict[str, Any]:
        """Write, as the leader, the results; returns what `finished` or `failed` says of them."""


class Training:
    """Steps that update the variables: everything that counts is in the state."""

    phase = "training"

    def __init__(
        self,
        work: Workload,
        spec: TrainingSpec,
        runtime: CollectiveRuntime,
        group: Group,
        memory_bytes: int,
    ) -> None:
        self._functions = work.trace()
        self.work = work.in_passes(self._functions, memory_bytes)
        is_stopped = spec.on_nonfinite is OnNonfinite.STOP
        self.stepper = Stepper(
            self._functions, spec.reduction, runtime, group, stops_at_nonfinite=is_stopped
        )

    def warm_up(self, planner: Planner, is_wanted: Callable[[], bool]) -> None:
        self.work.warm_up(self._functions, planner, is_wanted)

    def take(self, progress: Progress, outcome: StepOutcome) -> None:
        pass

    def close(self) -> None:
        pass

    def finish(self) -> None:
        model = self.work.model
        model.optimizer.finalize_variable_values(model.trainable_variables)

    def results_save(self, folder: Path, progress: Progress) -> dict[str, Any]:
        if progress.is_failed:
            return failure_save(folder, self.work.state, progress)
        return results_save(folder, self.work.model, self.work.state, progress)


class Predicting:
    """Steps that change nothing: what counts are the predictions, and how far they are safe."""

    phase = "predicting"

    def __init__(
        self,
        work: Workload,
        runtime: CollectiveRuntime,
        group: Group,
        parts: PartWriter,
    ) -> None:
        self.work = work
        self._parts = parts
        with user_code(work.code_dir, "code", "tracing a prediction"):
            self._functions = PredictFunctions(work.model, work.state, work.sample)
        self.stepper = PredictStepper(self._functions, runtime, group)

    def warm_up(self, planner: Planner, is_wanted: Callable[[], bool]) -> None:
        del is_wanted  # there is but one function
        batch = self.work.first_batch(planner, Progress())
        with step_failures():
            self._functions.predict(next(batch.pieces))

    def take(self, progress: Progress, outcome: StepOutcome) -> None:
        assert isinstance(outcome, PredictOutcome)
        first, end = self.work.data.course.bounds(progress)
        self._parts.add(first, self._functions.layout.unpack(outcome.rows), end - first)

    def close(self) -> None:
        self._parts.close()

    def finish(self) -> None:
        pass

    def results_save(self, folder: Path, progress: Progress) -> dict[str, Any]:
        num_examples = self.work.data.course.num_train
        return summary_save(folder, self.work.state, self._functions.layout, num_examples, progress)


def task_runner_of(
    work: Workload,
    spec: TrainingSpec,
    runtime: CollectiveRuntime,
    group: Group,
    parts: PartWriter,
    memory_bytes: int,
) -> TaskRunner:
    """Trace what a job is for, on an accelerator of so much memory (0: not known)."""
    if spec.task is Task.PREDICT:
        return Predicting(work, runtime, group, parts)
    return Training(work, spec, runtime, group, memory_bytes)
