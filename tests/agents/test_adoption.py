"""An agent that is gone and one that comes after it: nothing is lost, nothing is left."""

from __future__ import annotations

import dataclasses
import os
import signal
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest

from agents.supervision.isolation import Isolation
from controlplane.core.protocol.node_messages import EnrolReply
from controlplane.core.protocol.wire import AcceleratorInfo, ReportKind, TrainerOrders
from tests.agents.builders import membership, run_directory, training_spec, wanted_trainer
from tests.agents.conftest import Drive, Spawn, trainers_below, wait_until
from tests.agents.control_plane import AGENT_TOKEN, ENROLMENT_TOKEN, ControlPlane
from tests.support.cases import pairs


def left_behind(
    plane: ControlPlane, drive: Drive, state_dir: Path, reported: ReportKind = ReportKind.READY
) -> psutil.Process:
    """Start a trainer, end its agent once the trainer has reported so far; return the trainer."""
    first = drive()
    plane.want(wanted_trainer(plane))
    first.until(lambda: reported in plane.kinds(1, 0))
    first.vanish()
    (trainer,) = trainers_below(state_dir)
    return trainer


def assert_all_there(plane: ControlPlane, slot: int = 0) -> None:
    """Every sequence number of the trainer came, up to the newest."""
    own = [item.sequence for item in plane.reports(1, slot) if item.sequence < 1_000_000]
    assert own == list(range(len(own)))


def test_a_killed_agents_trainer_goes_on_and_is_adopted(
    plane: ControlPlane, spawn: Spawn, state_dir: Path
) -> None:
    killed = spawn(VIRTUALFLOW_ENROLMENT_TOKEN=ENROLMENT_TOKEN)
    plane.want(wanted_trainer(plane))
    wait_until(lambda: ReportKind.SWITCHED in plane.kinds(1, 0))
    killed.send(signal.SIGKILL)
    killed.ended()
    (trainer,) = trainers_below(state_dir)
    steps = plane.kinds(1, 0).count(ReportKind.STEPS)

    spawn()
    wait_until(lambda: plane.kinds(1, 0).count(ReportKind.STEPS) > steps + 5)
    assert trainers_below(state_dir) == [trainer]
    assert plane.owned()[0].pid == trainer.pid
    assert_all_there(plane)

    plane.want(wanted_trainer(plane, generation=membership(2, source=0)))
    wait_until(lambda: ReportKind.EXITED in plane.kinds(1, 0))
    assert plane.uploads == {(1, "checkpoint.npz"): b"all variables"}
    exited = plane.told(1, 0, ReportKind.EXITED)
    assert exited.data["exit_code"] == 0
    assert_all_there(plane)


def test_agents_killed_at_odd_moments_lose_nothing_and_start_nothing_twice(
    plane: ControlPlane, spawn: Spawn, state_dir: Path
) -> None:
    agent = spawn(VIRTUALFLOW_ENROLMENT_TOKEN=ENROLMENT_TOKEN)
    stories = [
        (membership(1, 0), [0]),
        (membership(2, 0, 1, source=0), [0, 1]),
        (membership(3, 1, source=0), [0, 1]),
        (membership(4, 1, 2, source=1), [1, 2]),
        (membership(5, source=2), [1, 2]),
    ]
    wait_until(lambda: plane.batches)
    for batches_before_kill, (generation, slots) in enumerate(stories):
        answered = len(plane.batches)
        plane.want(*(wanted_trainer(plane, slot, generation=generation) for slot in slots))
        wait_until(partial(has_taken, plane, answered + batches_before_kill))
        agent.send(signal.SIGKILL)
        agent.ended()
        agent = spawn()
        for slot in [member.slot for member in generation.members]:
            wait_until(partial(switched, plane, slot, generation.generation))
    for slot in (0, 1, 2):
        wait_until(partial(plane.report, 1, slot, ReportKind.EXITED))
        assert_all_there(plane, slot=slot)
        assert plane.kinds(1, slot).count(ReportKind.PHASE) == 1
        assert plane.kinds(1, slot)[-1] is ReportKind.EXITED
    assert plane.uploads == {(1, "checkpoint.npz"): b"all variables"}
    assert not trainers_below(state_dir)


def has_taken(plane: ControlPlane, num_batches: int) -> bool:
    """Say whether the control plane has got so many batches."""
    return len(plane.batches) >= num_batches


def switched(plane: ControlPlane, slot: int, generation: int) -> bool:
    """Say whether the trainer in `slot` told that it does steps in `generation`."""
    return any(
        report.kind is ReportKind.SWITCHED and report.generation == generation
        for report in plane.reports(1, slot)
    )


def test_an_orphan_that_is_not_wanted_any_more_is_ended(
    plane: ControlPlane, drive: Drive, state_dir: Path
) -> None:
    first = drive()
    plane.want(wanted_trainer(plane, 0, play="parent"), wanted_trainer(plane, 1, job_id=2))
    first.until(lambda: ReportKind.READY in plane.kinds(1, 0))
    first.until(lambda: ReportKind.READY in plane.kinds(2, 1))
    first.vanish()
    plane.want(wanted_trainer(plane, 1, job_id=2))

    second = drive()
    second.until(lambda: ReportKind.EXITED in plane.kinds(1, 0))
    assert len(trainers_below(state_dir)) == 1
    assert ReportKind.EXITED not in plane.kinds(2, 1)


def test_a_trainer_that_died_while_no_agent_ran_is_reported_with_all_it_wrote(
    plane: ControlPlane, drive: Drive, state_dir: Path
) -> None:
    trainer = left_behind(plane, drive, state_dir, ReportKind.SWITCHED)
    trainer.kill()
    psutil.wait_procs([trainer], timeout=5)

    second = drive()
    second.until(lambda: ReportKind.EXITED in plane.kinds(1, 0))
    exited = plane.reports(1, 0)[-1]
    assert exited.data == {"exit_code": None, "accelerator_index": 0}
    assert_all_there(plane)


def test_a_trainer_is_found_though_its_process_was_never_noted(
    plane: ControlPlane, drive: Drive, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its peers are reached again as soon as their names have addresses."""
    trainer = left_behind(plane, drive, state_dir)
    (state_dir / "trainers" / "1-0.agent" / "process.json").unlink()
    tries: list[bool] = []

    def reach(*_arguments: object) -> None:
        tries.append(True)
        if len(tries) == 1:
            raise OSError("no address is known of node-7")

    monkeypatch.setattr(Isolation, "reach", reach)
    before = len(plane.batches)
    second = drive()
    second.until(lambda: len(plane.batches) > before + 1)
    assert [state.pid for state in plane.owned()] == [trainer.pid]
    second.until(lambda: len(tries) > 1)


@pytest.mark.parametrize(
    ("step_s", "is_set_between"), pairs([-36_000.0, -3.0, 3.0, 36_000.0], [True, False])
)
def test_a_trainer_stays_whatever_the_clock_is_set_to(
    plane: ControlPlane,
    drive: Drive,
    state_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_set_between: bool,
    step_s: float,
) -> None:
    """The time at which the machine started, as the kernel tells it, moves with the clock."""
    booted_at = psutil.boot_time() + step_s

    def set_clock() -> None:
        monkeypatch.setattr("psutil._pslinux.boot_time", lambda: booted_at)

    trainer = left_behind(plane, drive, state_dir, ReportKind.SWITCHED)
    if is_set_between:
        set_clock()
    second = drive()
    second.until(lambda: plane.owned())
    if not is_set_between:
        set_clock()
    steps = plane.kinds(1, 0).count(ReportKind.STEPS)
    second.until(lambda: plane.kinds(1, 0).count(ReportKind.STEPS) > steps + 5)
    assert [state.pid for state in plane.owned()] == [trainer.pid]
    assert ReportKind.EXITED not in plane.kinds(1, 0)
    plane.want()
    second.until(lambda: ReportKind.EXITED in plane.kinds(1, 0))
    assert not trainers_below(state_dir)


def test_a_process_id_that_somebody_else_has_now_is_left_alone(
    plane: ControlPlane, drive: Drive, state_dir: Path
) -> None:
    trainer = left_behind(plane, drive, state_dir)
    trainer.kill()
    psutil.wait_procs([trainer], timeout=5)
    noted = state_dir / "trainers" / "1-0.agent" / "process.json"
    noted.write_text(f'{{"pid": {os.getpid()}, "started_at": 1.0}}')
    plane.want()

    second = drive()
    second.until(lambda: ReportKind.EXITED in plane.kinds(1, 0))


def test_a_folder_without_a_start_is_fetched_anew(
    plane: ControlPlane, drive: Drive, state_dir: Path
) -> None:
    leftover = state_dir / "trainers" / "1-0" / "code"
    leftover.mkdir(parents=True)
    (leftover / "half_written.py").touch()
    plane.want(wanted_trainer(plane))
    driven = drive()
    booted = driven.told(1, 0, ReportKind.PHASE)
    assert booted.data["code"] == ["job.py"]


def test_a_trainer_that_the_killed_agent_had_not_quite_started_is_started(
    plane: ControlPlane, drive: Drive, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        """Goes through everything, as an end of the process would."""

    def killed(*_: object, **__: object) -> None:
        raise Killed

    plane.want(wanted_trainer(plane))
    first = drive()
    monkeypatch.setattr("agents.supervision.processes.subprocess.Popen", killed)
    with pytest.raises(Killed):
        first.until(lambda: False)
    monkeypatch.undo()
    first.vanish()
    folder = state_dir / "trainers" / "1-0"
    assert {"log.txt", "orders.json"} < {path.name for path in folder.iterdir()}

    second = drive()
    second.until(lambda: ReportKind.SWITCHED in plane.kinds(1, 0))
    assert ReportKind.EXITED not in plane.kinds(1, 0)


def test_told_and_accepted_work_is_not_told_again(plane: ControlPlane, drive: Drive) -> None:
    first = drive()
    plane.want(wanted_trainer(plane, play="finish"))
    first.until(lambda: ReportKind.EXITED in plane.kinds(1, 0))
    first.until(lambda: first.agent.is_all_acknowledged)
    first.vanish()
    before = len(plane.batches)

    second = drive()
    second.until(lambda: len(plane.batches) >= before + 3)
    assert not [report for batch in plane.batches[before:] for report in batch.reports]
    assert len([call for call in plane.calls if call[0] == "PUT"]) == 2
    assert plane.kinds(1, 0).count(ReportKind.PHASE) == 1


def test_a_new_enrolment_ends_and_forgets_the_work_of_the_former_node(
    plane: ControlPlane, drive: Drive, state_dir: Path
) -> None:
    first = drive()
    plane.want(wanted_trainer(plane, play="parent"))
    first.until(lambda: ReportKind.READY in plane.kinds(1, 0))
    first.vanish()
    old = {process.pid for process in trainers_below(state_dir)}
    assert len(old) == 3
    (state_dir / "credentials.json").unlink()
    plane.reply = EnrolReply(node_id=8, agent_token=AGENT_TOKEN, heartbeat_s=0.3, lease_s=0.4)
    before = len(plane.batches)
    plane.want(wanted_trainer(plane))  # job 1, slot 0 means another trainer from now on

    second = drive()
    second.until(lambda: any(s.pid and s.pid not in old for s in plane.owned()))
    told = {state.pid for batch in plane.batches[before:] for state in batch.trainers}
    assert not told & old
    # A process that starts just now does not show its environment yet.
    second.until(lambda: [item.pid for item in trainers_below(state_dir)] == [plane.owned()[0].pid])


def test_an_agent_knows_no_orders_that_the_trainer_does_not_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent writes orders that it knows once only, so the trainer must have them first."""
    directory = run_directory(tmp_path)
    orders = TrainerOrders(
        spec=training_spec("0" * 64),
        slot=2,
        accelerator=AcceleratorInfo(index=0, kind="cpu", name="one", memory_bytes=0, threads=1),
        membership=membership(1, 2),
        go=True,
    )
    directory.write_orders(orders)
    full = Mock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr("agents.supervision.run_directory.plain_file_write", full)
    with pytest.raises(OSError, match="No space"):
        directory.write_orders(dataclasses.replace(orders, membership=membership(2, 2)))
    assert directory.read_orders() == orders
