"""The engine alone on its accelerator: what `Trainer` does from step to step, in this process.

The arm's name is the number of virtual nodes, with "-fast" behind it where they run together. Arms
of one mode run the same traced functions; feeder, sums, noise, update and reports are those of a
trainer in production.
"""

from __future__ import annotations

import dataclasses
import math
import shutil
import tempfile
from pathlib import Path

from agents.trainer.collectives.devices import configure_devices
from agents.trainer.collectives.groups import lone_group
from agents.trainer.collectives.runtime import CollectiveRuntime
from agents.trainer.contract.run_dir import ReportWriter
from agents.trainer.engine.step_reports import StepReports
from agents.trainer.engine.workload import BuiltJob, workload_build
from agents.trainer.model.progress import Progress
from agents.trainer.model.recent_steps import StepsDone
from agents.trainer.step.batch_plan import Planner
from agents.trainer.step.functions import StepFunctions
from agents.trainer.step.prefetch import Feeder
from agents.trainer.step.stepper import Stepper
from benchmarks.throughput_arms.described import job_spec
from benchmarks.throughput_arms.serve import NUM_THREADS, Run, Stamps, serve, stamp
from controlplane.core.protocol.wire import (
    AcceleratorInfo,
    Member,
    Membership,
    ReductionMode,
    TrainingSpec,
)

ACCELERATOR = AcceleratorInfo(
    index=0, kind="cpu", name="benchmark", memory_bytes=0, threads=NUM_THREADS
)


class Arms:
    """Builds each network once and runs it with any number of virtual nodes."""

    def __init__(self, folder: Path) -> None:
        configure_devices(ACCELERATOR)
        self._folder = folder
        self._runtime = CollectiveRuntime(0, ACCELERATOR)
        self._built: dict[tuple[str, ReductionMode], tuple[BuiltJob, StepFunctions]] = {}

    def make(self, network: str, arm: str) -> Run:
        """Start a feeder over an arm's virtual nodes."""
        number, _, mode = arm.partition("-")
        spec = job_spec(network, int(number), ReductionMode(mode or ReductionMode.EXACT))
        work, functions = self._build(network, spec)
        member = Member(
            slot=0,
            node_id=0,
            accelerator_index=0,
            virtual_nodes=tuple(range(spec.num_virtual_nodes)),
        )
        membership = Membership(
            generation=1, members=(member,), leader_slot=0, source_slot=None, cluster_addresses=()
        )
        planner = Planner(spec, membership, (0,), 0)
        data = dataclasses.replace(work.data, spec=spec)
        stepper = Stepper(functions, spec.reduction, self._runtime, lone_group(0))
        reports = StepReports(ReportWriter(self._folder, 0, 0), work.learning_rate)
        progress = Progress()
        feeder = Feeder(data, planner, progress)

        def run(steps: int) -> Stamps:
            nonlocal progress
            stamps = [stamp()]
            for _ in range(steps):
                batch = feeder.next(progress)
                outcome = stepper.step(batch, holds_next=lambda: False)
                seconds = stamp()[0] - stamps[-1][0]
                progress = data.course.after_batch(progress, seconds)
                step, num_examples = progress.step, batch.plan.num_examples
                done = (1, step, step, progress.epoch, num_examples, seconds, outcome.loss, 1)
                reports.add(StepsDone(*done, spec.global_batch_size), outcome)
                if data.course.is_activity_over(progress):
                    logs = work.logs(with_learning_rate=True)
                    assert all(math.isfinite(value) for value in logs.values()), logs
                    work.model.reset_metrics()
                    progress = data.course.after_activity(progress, logs)
                stamps.append(stamp())
            return stamps[1:]

        return run

    def _build(self, network: str, spec: TrainingSpec) -> tuple[BuiltJob, StepFunctions]:
        key = (network, spec.reduction)
        if key not in self._built:
            run_dir = self._folder / f"{network}-{spec.reduction}"
            (run_dir / "code").mkdir(parents=True)
            shutil.copy(Path(__file__).with_name("job.py"), run_dir / "code" / spec.entry_file)
            work = workload_build(run_dir, spec, ReportWriter(run_dir, 0, 0))
            functions = work.trace()
            self._built[key] = work.in_passes(functions, memory_bytes=0), functions
        return self._built[key]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="virtualflow-throughput-") as directory:
        serve(Arms(Path(directory)).make)
