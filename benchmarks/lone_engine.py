"""Engine of one job in the benchmark's own process, on one emulated accelerator.

It runs the loop of a trainer without peers and without orders, so each step's loss and processor
time are known.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from agents.trainer.collectives.devices import configure_devices
from agents.trainer.collectives.groups import lone_group
from agents.trainer.collectives.runtime import CollectiveRuntime
from agents.trainer.contract.run_dir import ReportWriter
from agents.trainer.engine.session import MembershipSession
from agents.trainer.engine.workload import BuiltJob, workload_build
from agents.trainer.model.progress import Progress
from agents.trainer.step.stepper import Stepper
from controlplane.core.protocol.selection import PASS_BATCHES
from controlplane.core.protocol.wire import (
    AcceleratorInfo,
    Member,
    Membership,
    OnNonfinite,
    TrainingSpec,
)

ACCELERATOR = AcceleratorInfo(index=0, kind="cpu", name="benchmark", memory_bytes=0, threads=1)


@dataclass(frozen=True)
class LoneEngine:
    """A job that is built and traced; no step is done.

    Attributes:
        folder: deleted with the engine.
    """

    spec: TrainingSpec
    work: BuiltJob
    stepper: Stepper
    reports: ReportWriter
    folder: Path

    @contextmanager
    def session(self, progress: Progress) -> Iterator[MembershipSession]:
        """Open a session from `progress` on; one may be open at a time."""
        session = lone_session(self.work, self.spec, self.reports, progress)
        try:
            yield session
        finally:
            session.close()


def lone_session(
    work: BuiltJob, spec: TrainingSpec, reports: ReportWriter, progress: Progress
) -> MembershipSession:
    """Open a session of a job whose only trainer is in slot 0."""
    virtual_nodes = tuple(range(spec.num_virtual_nodes))
    member = Member(slot=0, node_id=0, accelerator_index=0, virtual_nodes=virtual_nodes)
    membership = Membership(
        generation=1, members=(member,), leader_slot=0, source_slot=None, cluster_addresses=()
    )
    return MembershipSession(work, spec, 0, reports, "training", membership, progress)


@contextmanager
def lone_engine(spec: TrainingSpec, code: Path) -> Iterator[LoneEngine]:
    """Build and trace the job whose code is one file; TensorFlow must not have run before."""
    with tempfile.TemporaryDirectory(prefix="engine-") as name:
        folder = Path(name)
        (folder / "code").mkdir()
        shutil.copy(code, folder / "code" / spec.entry_file)
        reports = ReportWriter(folder, 0, 0)
        configure_devices(ACCELERATOR)
        work = workload_build(folder, spec, reports)
        stepper = Stepper(
            work.trace(),
            spec.reduction,
            CollectiveRuntime(0, ACCELERATOR),
            lone_group(0),
            stops_at_nonfinite=spec.on_nonfinite is OnNonfinite.STOP,
            pass_size=PASS_BATCHES * spec.global_batch_size,
        )
        yield LoneEngine(spec, work, stepper, reports, folder)
