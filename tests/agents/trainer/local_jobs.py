"""Specs and small jobs for the engine's tests."""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agents.trainer.local.local_cluster import LocalJob, Mapping
from agents.trainer.local.predictions import resume_at
from controlplane.core.protocol.fork import Adoption
from controlplane.core.protocol.wire import (
    Member,
    Membership,
    ReductionMode,
    ReportKind,
    SlotAddress,
    StopCondition,
    StopKind,
    TrainerReport,
    TrainingSpec,
)
from tests.support.steered_jobs import SteeredJob
from tests.support.warm_trainers import trainer_fork

TEMPLATES = Path(__file__).resolve().parents[3] / "jobs" / "job_templates"

#: A job that takes half as long to trace as the one below: dropout, and a rate that falls.
PLAIN_JOB = """
import keras
import numpy as np


def build(settings):
    generator = np.random.default_rng(5)
    x = generator.normal(size=(101, 6)).astype("float32")
    y = (x[:, :1] * x[:, 1:2] > 0).astype("float32")
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(16, activation="relu"),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(1),
        ]
    )
    rate = keras.optimizers.schedules.ExponentialDecay(0.01, 10, 0.9)
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Adam(rate), loss=loss, metrics=["accuracy"])
    return model, (x, y), (x[:33], y[:33])
"""

#: A job with all that a mapping could disturb: dropout, batch statistics, a stateful counter,
#: a regulariser, sample weights, validation data, and sizes that divide by nothing.
UNEVEN_JOB = '''
import keras
import numpy as np


@keras.saving.register_keras_serializable()
class CallCounter(keras.layers.Layer):
    """Counts its training calls in an integer variable."""

    def build(self, input_shape):
        self.calls = self.add_weight(
            shape=(), dtype="int32", initializer="zeros", trainable=False, name="calls"
        )

    def call(self, inputs, training=False):
        if training:
            self.calls.assign_add(1)
        return inputs


def build(settings):
    generator = np.random.default_rng(5)
    x = generator.normal(size=(101, 6)).astype("float32")
    y = (x[:, :1] * x[:, 1:2] > 0).astype("float32")
    weight = generator.uniform(0.5, 2.0, size=101).astype("float32")
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(16, kernel_regularizer=keras.regularizers.L2(1e-3)),
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
            CallCounter(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(1),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.AdamW(
            keras.optimizers.schedules.ExponentialDecay(0.01, 10, 0.9),
            global_clipnorm=1.0,
            use_ema=True,
        ),
        loss=keras.losses.BinaryCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model, (x, y, weight), (x[:33], y[:33])
'''


class FaultyJob(SteeredJob):
    """A local job whose trainers may be lost, redirected, or take over another state."""

    def redirect(self, slot: int, membership: Membership) -> None:
        """Assign a waiting joiner to another membership."""
        self._order(slot, membership, False)

    def adopt(self, number: int, checkpoint: Path) -> Membership:
        """Let all members go on with the state of a trial of the job, after a common step."""
        assert self.membership is not None
        members = self.membership.members
        sha256 = hashlib.sha256(checkpoint.read_bytes()).hexdigest()
        membership = self._membership(
            [member.slot for member in members],
            [member.virtual_nodes for member in members],
            source_slot=members[0].slot,
            adoption=Adoption(number=number, sha256=sha256),
        )
        for member in members:
            self._order(member.slot, membership, True, adopted_path=str(checkpoint))
        self.membership = membership
        self.wait_switched(membership)
        return membership

    def kill(self, slot: int) -> None:
        """Kill a trainer with SIGKILL and count it as lost."""
        self.lost.add(slot)
        process = self.trainers[slot].process
        process.kill()
        process.wait()

    def suspend(self, slot: int) -> None:
        """Suspend a trainer, to simulate a hung machine; from now on it counts as lost."""
        self.lost.add(slot)
        self.trainers[slot].process.send_signal(signal.SIGSTOP)

    def resume(self, slot: int) -> None:
        """Resume a suspended trainer; it still counts as lost."""
        self.trainers[slot].process.send_signal(signal.SIGCONT)

    def wait_lost(self, slot: int) -> None:
        """Wait until a trainer that is expected to die by itself is gone."""
        self.lost.add(slot)
        process = self.trainers[slot].process
        self.wait(lambda: process.poll() is not None, f"{slot} to die", 180.0)

    def recover(
        self,
        slots: Sequence[int],
        mapping: Mapping | None = None,
        parked: bool = False,
        checkpoint: Path | None = None,
    ) -> Membership:
        """Order the trainers in `slots`, members or ready joiners, to recover, without waiting.

        The first one is the leader.
        """
        membership = self._membership(
            slots,
            mapping,
            source_slot=None,
            restore=checkpoint is not None,
            recover=True,
            parked=parked,
            resume_at=resume_at(self.spec, self.folder),
            epochs_known=len(self.epochs()),
            steps_known=self.steps_known(),
        )
        self.checkpoint = checkpoint
        for slot in slots:
            self._order(slot, membership, True)
        self.checkpoint = None
        self.membership = membership
        return membership

    def steps_known(self) -> int:
        """Return the number of steps, from the first on, that were reported without a gap."""
        known = 0
        for report in sorted(self.step_reports(), key=lambda report: report.data["first_step"]):
            if report.data["first_step"] > known + 1:
                break
            known = max(known, report.data["last_step"])
        return known

    def epochs(self) -> list[int]:
        """List the numbers of the epochs that any trainer has reported, in order."""
        return sorted({report.data["epoch"] for report in self.told(ReportKind.EPOCH)})

    def told(self, kind: ReportKind) -> list[TrainerReport]:
        """List the reports of a kind that were read of all trainers, including lost ones."""
        reports = [report for trainer in self.trainers.values() for report in trainer.reports]
        return [report for report in reports if report.kind is kind]


def training_spec(**changes: Any) -> TrainingSpec:
    """Make a small spec; name what matters to the test."""
    values: dict[str, Any] = {
        "job_id": 0,
        "name": "small",
        "entry_file": "job.py",
        "code_sha256": "0" * 64,
        "settings": {},
        "global_batch_size": 20,
        "num_virtual_nodes": 5,
        "seed": 11,
        "reduction": ReductionMode.EXACT,
        "stop": StopCondition(kind=StopKind.STEPS, limit=10),
    }
    return TrainingSpec(**(values | changes))


def membership_of(shares: dict[int, tuple[int, ...]], **changes: Any) -> Membership:
    """Make a membership from slot -> virtual nodes."""
    slots = tuple(shares)
    values: dict[str, Any] = {
        "generation": 1,
        "members": tuple(
            Member(slot=slot, node_id=1, accelerator_index=0, virtual_nodes=share)
            for slot, share in shares.items()
        ),
        "leader_slot": slots[0] if slots else None,
        "source_slot": None,
        "cluster_addresses": tuple(
            SlotAddress(slot=slot, address=f"127.0.0.1:{40_000 + slot}") for slot in slots
        ),
    }
    return Membership(**(values | changes))


def local_job(
    folder: Path,
    spec: TrainingSpec,
    code: str | Path = PLAIN_JOB,
    forked: bool = True,
    **options: Any,
) -> FaultyJob:
    """Lay out a local job whose code is text or a file.

    Args:
        forked: fork the trainers from a process that has imported TensorFlow.
    """
    if isinstance(code, str):
        path = folder / spec.entry_file
        path.write_text(code)
    else:
        path = code
    job = FaultyJob(spec, path, folder / "trainers", **options)
    if forked:
        job.spawn = trainer_fork
    return job


def undisturbed(
    folder: Path, spec: TrainingSpec, code: str = PLAIN_JOB, **options: Any
) -> dict[str, Any]:
    """Run a job on one accelerator from start to end; give its result."""
    folder.mkdir()
    with local_job(folder, spec, code, **options) as job:
        job.resize(1)
        return job.wait_finished()


def prepared(job: LocalJob, memberships: Sequence[Membership]) -> None:
    """Start all trainers of some memberships before the first one trains, and wait for them.

    A job that trains while others start costs processor seconds, and may end too early.
    """
    for membership in memberships:
        job.prepare(membership)
    for membership in memberships:
        job.wait_ready(membership)


def bereft_and_restored(job: FaultyJob) -> dict[str, Any]:
    """Let three lose a follower and then their leader, stop the last one, and restore two."""
    job.resize(3, mapping=[[0, 3], [1], [2, 4]])
    job.wait_lost(1)
    job.recover([0, 2], [[0, 1, 4], [2, 3]])
    job.wait_lost(0)
    last = job.recover([2])
    job.wait_switched(last)
    checkpoint = job.preempt()
    assert job.finished() is None, "the job ended before it was preempted: give it more epochs"
    job.restore(2, checkpoint)
    return job.wait_finished()


def resized(job: LocalJob, sizes: list[int], every: int) -> dict[str, Any]:
    """Start everything first, then go from size to size as steps are reported."""
    memberships = [job.plan(sizes[0], None)]
    for size in sizes[1:]:
        memberships.append(job.plan(size, memberships[-1]))
    prepared(job, memberships)
    for number, membership in enumerate(memberships):
        job.wait_step(number * every)
        job.go(membership)
        job.wait_switched(membership)
        assert job.finished() is None, "the job ended before all resizes: give it more steps"
    return job.wait_finished()
