"""A trainer's way through the agent: started, told, resized, ended, reported."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agents.supervision import oom_kills, run_directory, trainer_handle
from agents.supervision.cache import FileCache
from agents.supervision.isolation import Isolation
from agents.supervision.run_directory import AGENT_SEQUENCE, RunDirectory
from agents.supervision.trainer_handle import Stage
from controlplane.core.protocol.fork import Adoption
from controlplane.core.protocol.wire import ReportKind, TrainerOrders, TrainerState, decode
from tests.agents.builders import membership, wanted_trainer
from tests.agents.conftest import Drive, trainers_below
from tests.agents.control_plane import ControlPlane


def orders_of(state_dir: Path, name: str = "1-0") -> TrainerOrders:
    text = (state_dir / "trainers" / name / "orders.json").read_text()
    return decode(TrainerOrders, json.loads(text))


def test_enrols_once_and_says_hello_at_every_start(plane: ControlPlane, drive: Drive) -> None:
    first = drive()
    first.until(lambda: plane.batches)
    first.vanish()
    second = drive(enrolment_token="")
    second.until(lambda: len(plane.hellos) == 2)

    assert len(plane.enrolments) == 1
    assert plane.enrolments[0].name == "node-a"
    assert [item.index for item in plane.enrolments[0].accelerators] == [0, 1]
    assert plane.hellos[0].boot_id == plane.hellos[1].boot_id == plane.batches[0].boot_id


def test_agent_token_is_for_the_owner_alone(
    plane: ControlPlane, drive: Drive, state_dir: Path
) -> None:
    drive().until(lambda: plane.batches)
    assert (state_dir / "credentials.json").stat().st_mode & 0o777 == 0o600
    assert state_dir.stat().st_mode & 0o777 == 0o700


def test_starts_a_trainer_that_waits_for_go(
    plane: ControlPlane, drive: Drive, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driven = drive()
    monkeypatch.setattr(Isolation, "is_paused", True)  # a firewall that does not answer
    plane.want(wanted_trainer(plane, slot=1, go=False))
    driven.until(lambda: (state_dir / "trainers" / "1-1" / "code" / "job.py").exists())
    rounds = iter(range(5))
    driven.until(lambda: next(rounds) == 4)
    assert not trainers_below(state_dir)
    assert not plane.kinds(1, 1)
    monkeypatch.setattr(Isolation, "is_paused", False)
    driven.until(lambda: ReportKind.READY in plane.kinds(1, 1))
    driven.until(lambda: plane.owned() and plane.owned()[0].pid)

    (state,) = plane.owned()
    (process,) = trainers_below(state_dir)
    assert state == TrainerState(
        job_id=1, slot=1, generation=1, accelerator_index=1, pid=process.pid
    )
    booted = plane.told(1, 1, ReportKind.PHASE)
    assert booted.data["accelerator"]["index"] == 1
    assert booted.data["code"] == ["job.py"]
    assert ReportKind.SWITCHED not in plane.kinds(1, 1)

    plane.want(wanted_trainer(plane, slot=1, go=True))
    driven.until(lambda: ReportKind.SWITCHED in plane.kinds(1, 1))
    assert trainers_below(state_dir) == [process]


def test_a_resize_reaches_the_orders_and_a_leaver_is_reported_gone(
    plane: ControlPlane, drive: Drive, state_dir: Path
) -> None:
    driven = drive()
    plane.want(wanted_trainer(plane, 0, generation=membership(1, 0)))
    driven.until(lambda: ReportKind.SWITCHED in plane.kinds(1, 0))

    both = membership(2, 0, 1, source=0)
    plane.want(*(wanted_trainer(plane, slot, generation=both) for slot in (0, 1)))
    driven.until(lambda: ReportKind.SWITCHED in plane.kinds(1, 1))
    assert orders_of(state_dir).membership == both

    only = membership(3, 1, source=1)
    plane.want(*(wanted_trainer(plane, slot, generation=only) for slot in (0, 1)))
    driven.until(lambda: ReportKind.EXITED in plane.kinds(1, 0))

    reports = plane.reports(1, 0)
    assert [report.kind for report in reports[-2:]] == [ReportKind.LEFT, ReportKind.EXITED]
    assert reports[-1].sequence == AGENT_SEQUENCE
    assert reports[-1].generation == 3
    assert reports[-1].data == {"exit_code": 0, "accelerator_index": 0}
    driven.until(lambda: [state.slot for state in plane.owned()] == [1])
    # A slot is never used twice: still wanted for a moment, it is not started again.
    driven.until(plane.sees(3))
    assert plane.kinds(1, 0).count(ReportKind.READY) == 1


@pytest.mark.parametrize(("asked_s", "told_s"), [(4.0, 4.0), (0.0, 0.5), (1e9, 60.0)])
def test_a_trainer_is_told_how_often_the_control_plane_wants_reports(
    plane: ControlPlane, drive: Drive, state_dir: Path, asked_s: float, told_s: float
) -> None:
    driven = drive()
    plane.report_every_s = 2.0
    plane.want(wanted_trainer(plane))
    driven.until(lambda: ReportKind.SWITCHED in plane.kinds(1, 0))
    driven.until(lambda: orders_of(state_dir).report_every_s == 2.0)
    plane.report_every_s = asked_s
    driven.until(lambda: orders_of(state_dir).report_every_s == told_s)


def test_a_state_to_adopt_is_fetched_before_the_trainer_is_told_where_it_is(
    plane: ControlPlane, drive: Drive, state_dir: Path
) -> None:
    driven = drive()
    plane.want(wanted_trainer(plane, 0))
    driven.until(lambda: ReportKind.SWITCHED in plane.kinds(1, 0))
    for number, content in ((1, b"a trial's variables"), (2, b"those of a later one")):
        plane.refuse_with["jobs/1/adopted/"] = 503
        plane.files["jobs/1/adopted/"] = content
        adoption = Adoption(number=number, sha256=hashlib.sha256(content).hexdigest())
        later = membership(1 + number, 0, source=0)
        plane.want(replace(wanted_trainer(plane, 0, generation=later), adoption=adoption))
        driven.until(lambda wanted=later: orders_of(state_dir).membership == wanted)
        assert plane.owned()[0].adoption == number - 1
        assert orders_of(state_dir).adopted_path is None
        plane.refuse_with.clear()
        driven.until(lambda: orders_of(state_dir).adopted_path is not None)
        path = Path(orders_of(state_dir).adopted_path or "")
        assert path.read_bytes() == content
        assert [one.name for one in path.parent.glob("adopted*")] == [f"adopted-{number}.npz"]
        driven.until(lambda number=number: plane.owned()[0].adoption == number)


@pytest.mark.parametrize(
    ("play", "kind", "files"),
    [
        ("finish", ReportKind.FINISHED, {"model.keras": b"weights", "metrics.json": b"{}"}),
        ("nonfinite", ReportKind.FAILED, {"history.csv": b"epoch"}),
    ],
)
def test_files_arrive_before_the_report_that_names_them(
    plane: ControlPlane, drive: Drive, play: str, kind: ReportKind, files: dict[str, bytes]
) -> None:
    driven = drive()
    plane.refuse_with["jobs/1/files/"] = 503
    plane.want(wanted_trainer(plane, play=play))
    driven.until(lambda: ReportKind.SWITCHED in plane.kinds(1, 0))
    driven.until(plane.sees(4))
    assert not {kind, ReportKind.EXITED} & {*plane.kinds(1, 0)}

    plane.refuse_with.clear()
    driven.until(lambda: ReportKind.EXITED in plane.kinds(1, 0))
    last = plane.told(1, 0, kind)
    assert plane.uploads == {(1, name): content for name, content in files.items()}
    assert list(last.data["upload_errors"]) == ["secrets.txt"]
    uploaded = max(index for index, call in enumerate(plane.calls) if call[0] == "PUT")
    batch = next(b for b in plane.batches if last in b.reports)
    told = [i for i, call in enumerate(plane.calls) if call[1] == "reports/"]
    assert uploaded < told[plane.batches.index(batch)]


@pytest.mark.parametrize("status", [400, 404, 409, 413])
def test_a_file_refused_for_good_does_not_hold_up_the_report(
    plane: ControlPlane, drive: Drive, status: int
) -> None:
    driven = drive()
    plane.refuse_with["jobs/1/files/"] = status
    plane.want(wanted_trainer(plane, play="finish"))
    driven.until(lambda: ReportKind.EXITED in plane.kinds(1, 0))
    finished = plane.told(1, 0, ReportKind.FINISHED)
    is_named = "model.keras" in finished.data["upload_errors"]
    assert is_named == (status != 409)  # stale: nobody wants the file, nothing is wrong with it


def test_preemption_saves_a_checkpoint_that_a_later_trainer_starts_from(
    plane: ControlPlane, drive: Drive
) -> None:
    driven = drive()
    plane.want(wanted_trainer(plane, 0))
    driven.until(lambda: ReportKind.SWITCHED in plane.kinds(1, 0))
    plane.want(wanted_trainer(plane, 0, generation=membership(2, source=0)))
    driven.until(lambda: ReportKind.EXITED in plane.kinds(1, 0))
    assert plane.uploads == {(1, "checkpoint.npz"): b"all variables"}

    sha256 = plane.add_checkpoint(1, plane.uploads[1, "checkpoint.npz"])
    plane.want(wanted_trainer(plane, 2, generation=membership(3, 2), checkpoint_sha256=sha256))
    booted = driven.told(1, 2, ReportKind.PHASE)
    assert booted.data["restored"] == "all variables"


def test_an_unwanted_trainer_is_ended_and_its_folder_kept_only_for_a_while(
    plane: ControlPlane, drive: Drive, state_dir: Path
) -> None:
    driven = drive(kept_run_directories=1)
    for slot in (0, 2, 4):
        plane.want(wanted_trainer(plane, slot, generation=membership(1, slot)))
        driven.until(partial(plane.report, 1, slot, ReportKind.SWITCHED))
        plane.want()
        driven.until(partial(plane.report, 1, slot, ReportKind.EXITED))
    folder = state_dir / "trainers"
    kept = {"1-4", "1-4.agent"}
    driven.until(lambda: {entry.name for entry in folder.iterdir()} == kept)
    exited = plane.told(1, 0, ReportKind.EXITED)
    assert exited.data["exit_code"] == -15
    assert not trainers_below(state_dir)


def test_a_trainer_that_ignores_sigterm_is_killed(plane: ControlPlane, drive: Drive) -> None:
    driven = drive(grace_s=0.2)
    plane.want(wanted_trainer(plane, play="stubborn"))
    driven.until(lambda: ReportKind.READY in plane.kinds(1, 0))
    plane.want()
    exited = driven.told(1, 0, ReportKind.EXITED)
    assert exited.data["exit_code"] == -9


def test_children_go_with_their_trainer_also_from_other_sessions(
    plane: ControlPlane, drive: Drive, state_dir: Path
) -> None:
    driven = drive()
    plane.want(wanted_trainer(plane, play="parent"))
    driven.until(lambda: ReportKind.READY in plane.kinds(1, 0))
    assert len(trainers_below(state_dir)) == 3
    plane.want()
    driven.until(lambda: ReportKind.EXITED in plane.kinds(1, 0))
    assert not trainers_below(state_dir)


def test_a_crash_is_reported_and_not_repeated(plane: ControlPlane, drive: Drive) -> None:
    driven = drive()
    plane.want(wanted_trainer(plane, play="crash"))
    exited = driven.told(1, 0, ReportKind.EXITED)
    assert exited.data["exit_code"] == 7


@pytest.mark.parametrize("has_restarted", [False, True])
def test_an_exit_is_told_again_while_the_trainer_is_still_wanted(
    plane: ControlPlane, drive: Drive, has_restarted: bool
) -> None:
    """As after a restored backup: the control plane has forgotten that the trainer is gone."""
    driven = drive(exit_again_s=0.2)
    plane.want(wanted_trainer(plane, play="crash"))
    driven.until(lambda: ReportKind.EXITED in plane.kinds(1, 0))
    if has_restarted:
        driven.vanish()
        driven = drive(exit_again_s=0.2)
    driven.until(lambda: plane.kinds(1, 0).count(ReportKind.EXITED) >= 3)
    exits = [report for report in plane.reports(1, 0) if report.kind is ReportKind.EXITED]
    assert [report.sequence for report in exits[:3]] == [AGENT_SEQUENCE + n for n in range(3)]
    assert {report.data["exit_code"] for report in exits} == {7}
    plane.want()
    driven.until(lambda: not driven.agent.trainers)


@pytest.mark.parametrize("has_kernel_counted", [True, False])
def test_a_kill_by_the_kernel_for_memory_is_told_from_others(
    has_kernel_counted: bool,
    plane: ControlPlane,
    drive: Drive,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    counter = tmp_path / "memory.events"
    counter.write_text("oom 4\noom_kill 4\n")
    monkeypatch.setattr(oom_kills, "COUNTERS", (tmp_path / "none", counter))
    driven = drive()
    plane.want(wanted_trainer(plane))
    driven.until(lambda: ReportKind.READY in plane.kinds(1, 0))
    driven.until(lambda: plane.batches[-1].trainers and plane.batches[-1].trainers[0].pid)
    if has_kernel_counted:
        counter.write_text("oom 5\noom_kill 5\n")
    os.kill(plane.batches[-1].trainers[0].pid, signal.SIGKILL)
    driven.until(lambda: ReportKind.EXITED in plane.kinds(1, 0))
    failed = plane.report(1, 0, ReportKind.FAILED)
    assert (failed is not None) is has_kernel_counted
    assert failed is None or failed.data["code"] == "memory_kill"


def test_the_next_trainer_waits_until_the_accelerator_is_free(
    plane: ControlPlane, drive: Drive
) -> None:
    driven = drive(grace_s=1.0)
    plane.want(wanted_trainer(plane, 0, play="stubborn"))
    driven.until(lambda: ReportKind.READY in plane.kinds(1, 0))
    plane.want(wanted_trainer(plane, 2, generation=membership(2, 2)))  # accelerator 0 as well
    driven.until(lambda: ReportKind.READY in plane.kinds(1, 2))
    driven.until(lambda: ReportKind.EXITED in plane.kinds(1, 0))
    exited, booted = plane.report(1, 0, ReportKind.EXITED), plane.report(1, 2, ReportKind.PHASE)
    assert exited is not None
    assert booted is not None
    assert exited.at <= booted.at


def test_a_stale_trainer_is_ended_but_not_one_with_newer_orders(
    plane: ControlPlane, drive: Drive, state_dir: Path
) -> None:
    driven = drive()
    now = membership(5, 0, 1)
    plane.want(*(wanted_trainer(plane, slot, generation=now) for slot in (0, 1)))
    driven.until(lambda: {s.generation for s in plane.owned() if s.pid} == {5})
    driven.until(lambda: ReportKind.READY in plane.kinds(1, 1))
    old, new = (
        TrainerState(job_id=1, slot=slot, generation=generation, accelerator_index=slot, pid=1)
        for slot, generation in ((0, 4), (1, 5))
    )
    plane.stale = (old, new)
    driven.until(lambda: ReportKind.EXITED in plane.kinds(1, 1))
    assert ReportKind.EXITED not in plane.kinds(1, 0)
    assert len(trainers_below(state_dir)) == 1


def test_code_that_is_not_what_was_announced_fails_the_trainer(
    plane: ControlPlane, drive: Drive, state_dir: Path
) -> None:
    driven = drive()
    wanted = wanted_trainer(plane)
    plane.files["jobs/1/code/"] = b"import something_else\n"
    plane.want(wanted)
    driven.until(lambda: ReportKind.EXITED in plane.kinds(1, 0))
    failed, exited = plane.reports(1, 0)
    assert (failed.kind, failed.data["code"]) == (ReportKind.FAILED, "internal")
    assert "SHA-256" in failed.data["message"]
    assert exited.data["exit_code"] is None
    assert not list((state_dir / "cache").iterdir())


def test_an_accelerator_that_is_not_there_fails_the_trainer(
    plane: ControlPlane, drive: Drive
) -> None:
    driven = drive(emulated=1)
    plane.want(wanted_trainer(plane, slot=1))
    driven.until(lambda: ReportKind.EXITED in plane.kinds(1, 1))
    failed = plane.told(1, 1, ReportKind.FAILED)
    assert failed.data["message"] == "this node has no accelerator 1"


def test_trainers_see_little_of_the_agents_environment(
    plane: ControlPlane, drive: Drive, monkeypatch: pytest.MonkeyPatch, state_dir: Path
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://secret")
    monkeypatch.setenv("VIRTUALFLOW_ENROLMENT_TOKEN", "secret")
    monkeypatch.setenv("DATA_HOME", "/data")
    driven = drive(kept_environment=("DATA_HOME",), threads=3)
    plane.want(wanted_trainer(plane))
    booted = driven.told(1, 0, ReportKind.PHASE)
    environment = booted.data["environment"]
    assert "secret" not in json.dumps(environment)
    assert environment["DATA_HOME"] == "/data"
    assert environment["OMP_NUM_THREADS"] == "3"
    assert environment["CUDA_VISIBLE_DEVICES"] == "-1"
    assert environment["VIRTUALFLOW_RUN_DIR"] == str(state_dir / "trainers" / "1-0")
    assert (state_dir / "trainers" / "1-0" / "alive").exists()


def test_a_number_that_is_not_finite_travels_as_null(plane: ControlPlane, drive: Drive) -> None:
    driven = drive()
    plane.want(wanted_trainer(plane, play="diverge"))
    steps = driven.told(1, 0, ReportKind.STEPS)
    assert steps.data["loss"] is None


def test_log_text_arrives_whole_and_of_an_endless_log_its_end(
    plane: ControlPlane, drive: Drive
) -> None:
    driven = drive(log_beginning_bytes=150_000)
    plane.want(
        wanted_trainer(plane, 0, play="noisy", characters=50_000),
        wanted_trainer(plane, 1, job_id=2, play="noisy", characters=500_000),
    )
    driven.until(lambda: len(plane.log(1, 0)) >= 50_000)
    driven.until(lambda: plane.log_end(2, 1) > 150_000)
    assert plane.log(1, 0) == "ä" * 50_000
    plane.want()
    driven.until(lambda: plane.log_end(2, 1) == 1_000_000)


def test_the_batch_says_which_wanted_state_it_was_made_under(
    plane: ControlPlane, drive: Drive
) -> None:
    driven = drive()
    version = plane.want(wanted_trainer(plane))
    driven.until(lambda: plane.batches and plane.batches[-1].wanted_version == version)
    assert [state.slot for state in plane.batches[-1].trainers] == [0]


def test_checkpoints_beside_the_training_arrive_while_it_goes_on(
    plane: ControlPlane, drive: Drive
) -> None:
    driven = drive()
    plane.want(wanted_trainer(plane, play="save", saves=1))
    driven.until(lambda: ReportKind.CHECKPOINTED in plane.kinds(1, 0))
    assert plane.uploads == {(1, "checkpoint.npz"): b"step 1"}
    saved = plane.told(1, 0, ReportKind.CHECKPOINTED)
    assert saved.data == {
        "step": 1, "epoch": 0, "file": "checkpoint-1.npz", "is_last": False
    }  # fmt: skip
    assert ReportKind.EXITED not in plane.kinds(1, 0)


def test_a_checkpoint_that_a_newer_one_replaced_raises_no_alarm(
    plane: ControlPlane, drive: Drive, state_dir: Path
) -> None:
    driven = drive()
    plane.refuse_with["jobs/1/files/"] = 503
    plane.want(wanted_trainer(plane, play="save", saves=5))
    newest = state_dir / "trainers" / "1-0" / "outputs" / "checkpoint-5.npz"
    driven.until(newest.exists)
    plane.refuse_with.clear()
    driven.until(lambda: plane.kinds(1, 0).count(ReportKind.CHECKPOINTED) == 5)
    assert plane.uploads == {(1, "checkpoint.npz"): b"step 5"}
    reports = [item for item in plane.reports(1, 0) if item.kind is ReportKind.CHECKPOINTED]
    superseded = [item.data.get("superseded", False) for item in reports]
    # An upload of the first that is under way when the refusals end is accepted.
    assert superseded[1:] == [True] * 2 + [False] * 2
    assert not any("upload_errors" in item.data for item in reports)


def test_a_checkpoint_without_room_at_the_site_holds_up_no_report(
    plane: ControlPlane, drive: Drive
) -> None:
    """Its trainer's end would wait behind it, and the accelerator with that."""
    driven = drive()
    plane.refuse_with["jobs/1/files/"] = 507
    plane.want(wanted_trainer(plane, play="save", saves=2))
    driven.until(lambda: plane.kinds(1, 0).count(ReportKind.CHECKPOINTED) == 2)
    assert plane.uploads == {}
    reports = [item for item in plane.reports(1, 0) if item.kind is ReportKind.CHECKPOINTED]
    assert [item.data.get("superseded", False) for item in reports] == [True, True]
    assert not any("upload_errors" in item.data for item in reports)


def test_results_wait_for_room_at_the_site(plane: ControlPlane, drive: Drive) -> None:
    driven = drive()
    plane.refuse_with["jobs/1/files/"] = 507
    plane.want(wanted_trainer(plane, play="finish"))
    trainers = driven.agent.trainers
    driven.until(lambda: (1, 0) in trainers and trainers[1, 0].stage is Stage.GONE)
    assert ReportKind.FINISHED not in plane.kinds(1, 0)
    plane.refuse_with.clear()
    driven.until(lambda: ReportKind.EXITED in plane.kinds(1, 0))
    assert plane.kinds(1, 0)[-2:] == [ReportKind.FINISHED, ReportKind.EXITED]
    assert plane.uploads


@pytest.mark.parametrize("is_passing", [True, False])
def test_a_full_disk_is_told_once_there_is_nothing_to_spare(
    is_passing: bool, plane: ControlPlane, drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what the agent keeps to save work it makes room at the first error."""
    spared: list[bool] = []
    prepare, write_secrets = trainer_handle.trainer_prepare, RunDirectory.write_secrets

    def cramped(*arguments: Any) -> None:
        if not (spared and is_passing):
            raise OSError(errno.ENOSPC, "No space left on device")
        prepare(*arguments)

    def cramped_start(*arguments: Any) -> None:
        if len(spared) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        write_secrets(*arguments)

    monkeypatch.setattr(trainer_handle, "trainer_prepare", cramped)
    monkeypatch.setattr(RunDirectory, "write_secrets", cramped_start)
    monkeypatch.setattr(FileCache, "clear", lambda _cache: spared.append(True))
    driven = drive()
    plane.want(wanted_trainer(plane, 0))
    if is_passing:
        driven.until(lambda: ReportKind.SWITCHED in plane.kinds(1, 0))
        assert len(spared) == 2
    else:
        driven.until(lambda: ReportKind.EXITED in plane.kinds(1, 0))
        failed = plane.told(1, 0, ReportKind.FAILED)
        assert "No space left on device" in failed.data["message"]
    assert spared


def test_an_exit_is_told_though_nothing_can_be_written(
    plane: ControlPlane, drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else gets the accelerator before that."""
    driven = drive()
    plane.want(wanted_trainer(plane))
    driven.until(lambda: ReportKind.SWITCHED in plane.kinds(1, 0))

    def read_only(*_arguments: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(run_directory, "write_atomically", read_only)
    plane.want()
    driven.until(lambda: ReportKind.EXITED in plane.kinds(1, 0))
    driven.until(lambda: (1, 0) not in driven.agent.trainers)


def test_a_prediction_gets_its_model_and_its_parts_are_sent_and_deleted(
    plane: ControlPlane, drive: Drive, state_dir: Path
) -> None:
    content = b"another job's model"
    plane.files["jobs/1/source/"] = content
    wanted = wanted_trainer(plane, play="predict")
    spec = replace(wanted.spec, model_sha256=hashlib.sha256(content).hexdigest())
    driven = drive()
    plane.refuse_with["jobs/1/files/"] = 503
    plane.want(replace(wanted, spec=spec))
    part = state_dir / "trainers" / "1-0" / "outputs" / "predictions-0-4.npz"
    driven.until(part.exists)
    plane.refuse_with.clear()
    driven.until(lambda: ReportKind.PART in plane.kinds(1, 0))
    assert plane.uploads == {(1, "predictions-0-4.npz"): b"made by another job's model"}
    assert not part.exists()
    report = plane.told(1, 0, ReportKind.PART)
    assert "upload_errors" not in report.data
