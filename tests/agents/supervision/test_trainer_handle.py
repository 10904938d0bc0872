"""A trainer's way through the agent: started, told, resized, ended, reported."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agents.supervision import oom_kills, run_directory, trainer_handle
from agents.supervision.cache import FileCache
from agents.supervision.isolation import Isolation
from agents.supervision.run_directory import AGENT_SEQUENCE, RunDirectory
from controlplane.core.protocol.node_messages import TrainerState
from controlplane.core.protocol.wire import ReportKind
from tests.agents.builders import membership, wanted_trainer
from tests.agents.conftest import Drive, orders_of, trainers_below
from tests.agents.control_plane import ControlPlane


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
    assert [report.data.get("was_missing", False) for report in exits[:2]] == [False, True]
    plane.want()
    driven.until(lambda: not driven.agent.trainers)


def test_a_trainer_that_was_ready_is_not_started_anew(
    plane: ControlPlane, drive: Drive, state_dir: Path
) -> None:
    """As after a restored backup: it ended, was cleared away, and is wanted once more."""
    driven = drive()
    plane.want(dataclasses.replace(wanted_trainer(plane), was_ready=True))
    exited = driven.told(1, 0, ReportKind.EXITED)
    assert (exited.data["was_missing"], exited.data["exit_code"]) == (True, None)
    assert plane.kinds(1, 0) == [ReportKind.EXITED]
    plane.want()
    driven.until(lambda: not driven.agent.trainers)


@pytest.mark.parametrize(
    ("was_ready", "told"), [(True, ReportKind.EXITED), (False, ReportKind.READY)]
)
def test_the_folder_of_an_earlier_trainer_hides_no_report(
    plane: ControlPlane, drive: Drive, was_ready: bool, told: ReportKind
) -> None:
    """As after a restored backup: numbers of jobs and slots are given once more."""
    driven = drive(exit_again_s=1000.0)
    plane.want(wanted_trainer(plane))
    driven.until(lambda: ReportKind.SWITCHED in plane.kinds(1, 0))
    plane.want()
    driven.until(lambda: not driven.agent.trainers)
    plane.batches.clear()
    plane.want(dataclasses.replace(wanted_trainer(plane), was_ready=was_ready))
    driven.until(lambda: told in plane.kinds(1, 0))


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
