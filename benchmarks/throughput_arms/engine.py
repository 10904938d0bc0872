"""The engine alone on its accelerator: what `Trainer` does from step to step, in this process.

The arm's name is the number of virtual nodes, with "-fast" behind it where they run together. Arms
of one mode run the same traced functions; the session and the stepper are those of a trainer in
production.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import sys
import tempfile
import time
from pathlib import Path

from agents.trainer.collectives.devices import configure_devices
from agents.trainer.collectives.groups import lone_group
from agents.trainer.collectives.runtime import CollectiveRuntime
from agents.trainer.contract.run_dir import ReportWriter
from agents.trainer.engine.workload import BuiltJob, workload_build
from agents.trainer.model.progress import Progress
from agents.trainer.step.functions import StepFunctions
from agents.trainer.step.stepper import Stepper
from benchmarks.lone_engine import lone_session
from benchmarks.specs import spec_make
from benchmarks.throughput_arms.job import NETWORKS
from benchmarks.throughput_arms.serve import NUM_THREADS, Run, Stamps, serve
from controlplane.core.protocol.wire import AcceleratorInfo, ReductionMode, TrainingSpec

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
        """Open a session with an arm's virtual nodes."""
        number, _, mode = arm.partition("-")
        reduction, batch_size = ReductionMode(mode or ReductionMode.EXACT), NETWORKS[network][2]
        spec = spec_make({"network": network}, batch_size, int(number), reduction=reduction)
        work, functions = self._build(network, spec)
        reports, progress = ReportWriter(self._folder, 0, 0), Progress()
        work = dataclasses.replace(work, data=dataclasses.replace(work.data, spec=spec))
        session = lone_session(work, spec, reports, progress)
        stepper = Stepper(functions, spec.reduction, self._runtime, lone_group(0))

        def run(steps: int) -> Stamps:
            nonlocal progress
            stamps = [time.perf_counter()]
            # A session prints a line at the end of each epoch.
            with contextlib.redirect_stdout(sys.stderr):
                for _ in range(steps):
                    batch = session.batch(progress)
                    outcome = stepper.step(batch, holds_next=lambda: False)
                    seconds = time.perf_counter() - stamps[-1]
                    progress = session.advance(progress, batch.plan.num_examples, outcome, seconds)
                    assert not progress.is_failed, outcome.loss
                    stamps.append(time.perf_counter())
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
