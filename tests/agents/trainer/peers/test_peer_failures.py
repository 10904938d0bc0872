"""Trainers lost anywhere: the others go on in memory and end with the undisturbed run's bits.

Real processes. Each story packs several losses into one job, because processes take seconds to
start; `dying_trainer` loses a trainer at an exact place.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from agents.trainer.contract.failures import EXIT_FAILED, STATE_LOST
from controlplane.core.protocol.wire import (
    Membership,
    ReportKind,
    StopCondition,
    StopKind,
    TrainerReport,
)
from tests.agents.trainer.dying_trainer import Ending, dying_program
from tests.agents.trainer.local_jobs import FaultyJob, local_job, prepared, training_spec
from tests.agents.trainer.streaming_trainer import streaming_program

NUM_EXAMPLES = 61
NUM_STEPS = 180
#: Seconds that loading an example takes where trainers are lost, 60 ms a step and more: without
#: them a job would need many more steps in order not to end before the losses.
PAUSE_S = 0.01
EXCHANGE = "agents.trainer.collectives.tree_reduction:Exchange"

#: Convolution, batch statistics, dropout, Adam and averaged weights; two metrics know which
#: examples were seen.
CODE = f'''
import time

import keras
import numpy as np
from keras import ops


@keras.saving.register_keras_serializable()
class Seen(keras.metrics.Metric):
    """Sums the powers of the numbers of all examples that were seen."""

    def __init__(self, power=1, name=None, **options):
        super().__init__(name=name or f"seen_{{power}}", **options)
        self.power = power
        self.total = self.add_variable(shape=(), initializer="zeros", name="total")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(ops.sum(y_true[:, 1] ** self.power))

    def result(self):
        return self.total

    def get_config(self):
        return {{**super().get_config(), "power": self.power}}


@keras.saving.register_keras_serializable()
def label_loss(y_true, y_pred):
    return keras.losses.binary_crossentropy(y_true[:, :1], y_pred, from_logits=True)


class Paced:
    def __init__(self, x, y, pause_s):
        self.x, self.y, self.pause_s = x, y, pause_s

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        time.sleep(self.pause_s)
        return self.x[index], self.y[index]


def build(settings):
    generator = np.random.default_rng(3)
    x = generator.normal(size=({NUM_EXAMPLES}, 6, 6, 1)).astype("float32")
    label = (x.mean((1, 2, 3)) > 0).astype("float32")
    y = np.stack([label, np.arange({NUM_EXAMPLES}, dtype="float32")], axis=1)
    model = keras.Sequential(
        [
            keras.Input((6, 6, 1)),
            keras.layers.Conv2D(4, 3),
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(1),
        ]
    )
    optimizer = keras.optimizers.Adam(1e-3, use_ema=True)
    model.compile(optimizer=optimizer, loss=label_loss, metrics=[Seen(1), Seen(2)])
    return model, Paced(x, y, settings["pause_s"]), (x[:23], y[:23])
'''
#: What an epoch's metrics are when each example was seen exactly once.
SEEN = {
    "seen_1": sum(range(NUM_EXAMPLES)),
    "seen_2": sum(number**2 for number in range(NUM_EXAMPLES)),
    "val_seen_1": sum(range(23)),
    "val_seen_2": sum(number**2 for number in range(23)),
}
UNEVEN = [[0, 3], [1], [2, 4]]


def spec_of(**changes: Any) -> Any:
    values: dict[str, Any] = {
        "settings": {"pause_s": PAUSE_S},
        "global_batch_size": 12,
        "stop": StopCondition(kind=StopKind.STEPS, limit=NUM_STEPS),
    }
    return training_spec(**(values | changes))


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run the job once with nothing lost, on one accelerator."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with local_job(folder, spec_of(settings={"pause_s": 0.0}), CODE) as job:
        job.resize(1)
        result = job.wait_finished()
        check_epochs(job.output_folder())
        return result


def check_epochs(outputs: Path) -> None:
    """See in the history that every epoch saw every example once; the last one is cut short."""
    with (outputs / "history.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == NUM_STEPS // 6
    for row in rows:
        assert {name: float(row[name]) for name in SEEN} == SEEN


def check_end(job: FaultyJob, expected: dict[str, Any], writer: int) -> None:
    result = job.wait_finished(120.0)
    assert result["digest"] == expected["digest"]
    assert result["metrics"] == expected["metrics"]
    assert job.output_folder() == job.trainers[writer].run_dir / "outputs"
    check_epochs(job.output_folder())
    assert job.epochs() == [*range(NUM_STEPS // 6)]


def start(job: FaultyJob, shares: list[list[int]], *more: int) -> list[Membership]:
    """Get the first membership and joiners of later ones ready, and start the first one."""
    memberships = [job.plan(len(shares), None, shares)]
    for size in more:
        memberships.append(job.plan(size, memberships[0], keep=range(size - 1)))
    prepared(job, memberships)
    job.go(memberships[0])
    job.wait_switched(memberships[0])
    return memberships


def steps_go_on(job: FaultyJob, num_steps: int = 15) -> None:
    """See that the newest generation does steps."""
    assert job.membership is not None
    generation = job.membership.generation
    leader = job.trainers[job.membership.members[0].slot]
    job.wait_switched(job.membership)

    def is_going() -> bool:
        report = leader.last(ReportKind.STEPS, generation)
        return report is not None and bool(report.data["last_step"] >= first + num_steps)

    switched = leader.last(ReportKind.SWITCHED, generation)
    assert switched is not None, "the job ended before all that was to happen: give it more steps"
    first = switched.data["step"]
    job.wait(is_going, f"{num_steps} steps of generation {generation}", 30.0)
    assert job.finished() is None, "the job ended before all that was to happen: give it more steps"


def switched_of(job: FaultyJob, slot: int, membership: Membership) -> dict[str, Any]:
    report = job.trainers[slot].last(ReportKind.SWITCHED, membership.generation)
    assert report is not None
    return report.data


def reports_of(job: FaultyJob, slot: int, kind: ReportKind) -> list[TrainerReport]:
    return [report for report in job.trainers[slot].reports if report.kind is kind]


def join(job: FaultyJob, slots: list[int]) -> Membership:
    """Order the members and ready joiners in `slots` to go on together, as after a resize."""
    membership = job.plan(len(slots), job.membership, keep=slots)
    job.go(membership)
    return membership


def test_killed_while_computing_joining_giving_state_and_writing_results(
    tmp_path: Path, expected: dict[str, Any]
) -> None:
    endings = [
        Ending(
            slot=3, place="agents.trainer.resize.membership_change:meeting_receive"
        ),  # before the rehearsal
        Ending(
            slot=1, place="agents.trainer.resize.transfer:transfer_group", generation=7
        ),  # a source
        Ending(slot=0, place="agents.trainer.model.outputs:history_csv"),  # the model is there
    ]
    with local_job(tmp_path, spec_of(), CODE) as job:
        job.program = dying_program(endings)
        start(job, UNEVEN, 4, 4)
        job.wait_step(20)
        job.kill(2)
        job.wait(lambda: bool(reports_of(job, 0, ReportKind.STALLED)), "a stall", 10.0)
        stalled = reports_of(job, 0, ReportKind.STALLED)[0].data
        assert stalled["unreachable"] in ([2], [])  # its port may outlive it by a moment
        assert stalled["message"].startswith("a peer is gone: ")
        job.recover([1, 0], [[4, 0], [1, 2, 3]])
        steps_go_on(job)
        join(job, [1, 0, 3])
        job.wait_lost(3)
        job.recover([1, 0])
        steps_go_on(job)
        join(job, [1, 0, 4])
        job.wait_lost(1)
        both = job.recover([0, 4], [[0, 2, 4], [1, 3]])
        steps_go_on(job)
        assert switched_of(job, 0, both)["joined"] is False
        assert switched_of(job, 4, both)["joined"] is True
        assert switched_of(job, 4, both)["bytes_moved"] > 0
        job.wait_lost(0)
        assert job.finished() is None
        job.recover([4])
        check_end(job, expected, writer=4)


@pytest.mark.nightly  # `make test` kills in other phases of a step
def test_killed_while_listening_and_while_one_listens(
    tmp_path: Path, expected: dict[str, Any]
) -> None:
    """Six steps and two of validation are an epoch: joiners hear more than one."""
    endings = [
        Ending(slot=2, place="agents.trainer.resize.catch_up:StepLog.add", call=3),
        Ending(
            slot=0, place="agents.trainer.engine.trainer:Trainer._end_interim", generation=6, call=5
        ),
    ]
    with local_job(tmp_path, spec_of(), CODE) as job:
        job.program = streaming_program(12, endings)
        start(job, [[0, 3], [1, 2, 4]], 3, 3)
        job.wait_step(20)
        join(job, [0, 1, 2])
        job.wait_lost(2)
        job.recover([0, 1])
        steps_go_on(job)
        grown = join(job, [0, 1, 3])
        job.wait_lost(0)
        both = job.recover([1, 3])
        steps_go_on(job)
        assert job.trainers[3].last(ReportKind.SWITCHED, grown.generation) is None
        assert switched_of(job, 3, both)["joined"] is True
        check_end(job, expected, writer=1)


@pytest.mark.nightly  # `make test` kills in other phases of a step
def test_hangs_steps_not_done_by_all_evaluation_holding_and_saving(
    tmp_path: Path, expected: dict[str, Any]
) -> None:
    validating = "agents.trainer.step.stepper:Stepper.step"
    endings = [
        Ending(
            slot=1,
            place=f"{EXCHANGE}.__call__",
            call=40,
            survives=True,
        ),
        Ending(slot=0, place=validating, generation=4, activity="validate", call=12),
        Ending(slot=1, place="agents.trainer.engine.trainer:state_save"),
    ]
    with local_job(tmp_path, spec_of(), CODE) as job:
        job.program = dying_program(endings)
        start(job, UNEVEN, 4)
        # Slot 1 has step s summed but not applied; the others apply it and wait for slot 1.
        job.wait(lambda: bool(reports_of(job, 1, ReportKind.STALLED)), "one to stall", 20.0)
        behind = reports_of(job, 1, ReportKind.STALLED)[0].data
        everybody = job.recover([0, 1, 2], UNEVEN)
        steps_go_on(job)
        assert switched_of(job, 1, everybody)["bytes_moved"] > 0
        assert switched_of(job, 1, everybody)["joined"] is False
        assert switched_of(job, 2, everybody)["bytes_moved"] == 0
        assert behind["unreachable"] == []
        # Slot 2 hangs: nobody gets an error, the orders free the others.
        job.suspend(2)
        with_joiner = job.recover([0, 1], [[0, 1], [2, 3, 4]])
        steps_go_on(job, 3)
        job.resume(2)
        job.wait_lost(0)
        held = job.recover([1], parked=True)
        job.wait_switched(held)
        held_at = switched_of(job, 1, held)["step"]
        grown = join(job, [1, 3])
        steps_go_on(job)
        assert switched_of(job, 3, grown)["step"] == held_at
        assert not [
            r for r in reports_of(job, 1, ReportKind.STEPS) if r.generation == held.generation
        ]
        # The one that saves is lost over it; the other keeps the state, saves it and leaves.
        job.go(job.plan(0, job.membership))
        job.wait_lost(1)
        job.wait_switched(job.recover([3], parked=True))
        checkpoint = job.preempt()
        assert reports_of(job, 3, ReportKind.CHECKPOINTED)[-1].data["is_last"] is True
        job.program = dying_program([])
        restored = job.restore(1, checkpoint)
        check_end(job, expected, writer=restored.members[0].slot)
        late = [report.kind for report in job.trainers[2].reports]
        assert ReportKind.FINISHED not in late
        assert not [r for r in job.trainers[2].reports if r.generation >= with_joiner.generation]


@pytest.mark.nightly  # tests/jobs/failures has the orders for these
def test_two_at_once_a_loss_in_a_recovery_and_the_loss_of_all(
    tmp_path: Path, expected: dict[str, Any]
) -> None:
    endings = [
        Ending(slot=3, place=f"{EXCHANGE}.__call__", call=30),  # reducing
        Ending(slot=2, place="agents.trainer.resize.membership_change:gather_progress"),
    ]
    spec = spec_of(checkpoint_every_s=0.2)
    with local_job(tmp_path, spec, CODE) as job:
        job.program = dying_program(endings)
        start(job, [[0], [1], [2], [3, 4]])
        job.wait_lost(3)
        job.kill(0)
        job.recover([2, 1])
        job.wait_lost(2)
        job.recover([1])
        steps_go_on(job)
        saved = lambda: reports_of(job, 1, ReportKind.CHECKPOINTED)  # noqa: E731
        job.wait(lambda: len(saved()) >= 4, "checkpoints beside the training", 20.0)
        job.kill(1)
        assert job.finished() is None
        outputs = job.trainers[1].run_dir / "outputs"
        kept = {path.name for path in outputs.glob("checkpoint-*.npz")}
        assert {report.data["file"] for report in saved()[-2:]} <= kept
        assert len(kept) <= 3
        newest = saved()[-1].data
        assert (newest["is_last"], newest["file"]) == (False, f"checkpoint-{newest['step']}.npz")
        job.membership = None
        job.program = dying_program([])
        restored = job.restore(2, outputs / newest["file"])
        assert switched_of(job, restored.members[0].slot, restored)["step"] == newest["step"]
        check_end(job, expected, writer=restored.members[0].slot)


@pytest.mark.nightly  # `make test` kills in other phases of a step
def test_a_lone_worker_and_who_listens_to_it_killed(
    tmp_path: Path, expected: dict[str, Any]
) -> None:
    """The worker goes on from memory; who listens has nothing, and the job begins anew.

    That they die where a lone worker tells its sums, and where they are heard, shows that there is
    one. `test_streaming` lets a job end while somebody listens to it.
    """
    endings = [
        Ending(
            slot=1,
            place=f"{EXCHANGE}.result_receive",
            call=4,
        ),
        # It has told five steps, and has done one more than anybody can have heard.
        Ending(
            slot=0,
            place=f"{EXCHANGE}.result_send",
            generation=6,
            call=6,
        ),
    ]
    with local_job(tmp_path, spec_of(checkpoint_every_s=0.1), CODE) as job:
        job.program = streaming_program(12, endings)
        start(job, [[0, 1, 2, 3, 4]], 2, 2)
        job.wait_step(20)
        grown = join(job, [0, 1])
        job.wait_lost(1)
        alone = job.recover([0])
        steps_go_on(job)
        assert switched_of(job, 0, alone)["joined"] is False
        assert switched_of(job, 0, alone)["bytes_moved"] == 0
        # Three were heard, of which two may have been of validation.
        assert switched_of(job, 0, alone)["step"] > switched_of(job, 0, grown)["step"]
        saved = lambda: reports_of(job, 0, ReportKind.CHECKPOINTED)  # noqa: E731
        job.wait(lambda: bool(saved()), "a checkpoint beside the training", 20.0)
        again = join(job, [0, 2])
        job.wait_lost(0)
        job.wait(lambda: bool(reports_of(job, 2, ReportKind.STALLED)), "a stall", 20.0)
        told = switched_of(job, 0, again)["step"]
        assert reports_of(job, 2, ReportKind.STALLED)[0].data["step"] == told
        assert not reports_of(job, 2, ReportKind.SWITCHED)
        job.recover([2])
        job.wait_lost(2)
        assert job.trainers[2].process.returncode == EXIT_FAILED
        assert reports_of(job, 2, ReportKind.FAILED)[0].data["code"] == STATE_LOST
        assert job.finished() is None
        job.membership = None
        newest = saved()[-1].data
        restored = job.restore(1, job.trainers[0].run_dir / "outputs" / newest["file"])
        assert switched_of(job, 3, restored)["step"] == newest["step"] <= told + 6
        check_end(job, expected, writer=3)
