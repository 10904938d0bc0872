"""Warm processes: they take over like a trainer that was started, and are never in the way."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from agents.supervision import standbys
from agents.trainer.contract import standby as warming
from controlplane.core.protocol.wire import ReportKind
from tests.agents.builders import membership, wanted_trainer
from tests.agents.conftest import (
    DEADLINE_S,
    AgentProcess,
    DrivenAgent,
    trainers_below,
    wait_until,
)
from tests.agents.control_plane import ENROLMENT_TOKEN, ControlPlane

Drive = Callable[..., DrivenAgent]
Spawn = Callable[..., AgentProcess]


def idle(state_dir: Path) -> list[psutil.Process]:
    """Find standbys that are nobody's trainer."""
    return trainers_below(state_dir / "standbys")


def warm_pids(state_dir: Path) -> set[int]:
    """Give the processes of standbys that can take over."""
    found = set()
    for process in idle(state_dir):
        if (Path(process.environ()["VIRTUALFLOW_RUN_DIR"]) / "warm").exists():
            found.add(process.pid)
    return found


def booted_in(plane: ControlPlane, job_id: int, slot: int) -> int:
    return next(s.pid for s in plane.owned() if (s.job_id, s.slot) == (job_id, slot))


def test_a_standby_becomes_the_trainer_and_keeps_its_contract(
    plane: ControlPlane, drive: Drive, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://secret")
    driven = drive(standbys=None)
    driven.until(lambda: len(warm_pids(state_dir)) == 2)
    warm = warm_pids(state_dir)
    plane.want(wanted_trainer(plane, 0, play="parent"))
    driven.until(lambda: ReportKind.SWITCHED in plane.kinds(1, 0))
    assert booted_in(plane, 1, 0) in warm
    booted = plane.report(1, 0, ReportKind.PHASE)
    assert booted is not None
    environment = booted.data["environment"]
    run_dir = state_dir / "trainers" / "1-0"
    assert environment["VIRTUALFLOW_RUN_DIR"] == str(run_dir)
    assert environment["PYTHONHASHSEED"] == "0"
    assert "DATABASE_URL" not in environment
    assert "VIRTUALFLOW_ROOM" not in environment
    assert booted.data["code"] == ["job.py"]
    assert len(trainers_below(run_dir)) == 3  # itself, a child, and a child in its own session
    driven.until(lambda: len(warm_pids(state_dir)) == 2)  # replaced
    plane.want(wanted_trainer(plane, 0, play="parent", generation=membership(2, source=0)))
    driven.until(lambda: ReportKind.EXITED in plane.kinds(1, 0))
    exited = plane.report(1, 0, ReportKind.EXITED)
    assert exited is not None
    assert exited.data["exit_code"] == 0
    assert not trainers_below(run_dir)
    assert len(warm_pids(state_dir)) == 2


def test_its_log_begins_with_the_take_over(
    plane: ControlPlane, drive: Drive, state_dir: Path
) -> None:
    driven = drive(standbys=1)
    driven.until(lambda: warm_pids(state_dir))
    (warm,) = warm_pids(state_dir)
    plane.want(wanted_trainer(plane, 1, play="noisy", characters=100))
    driven.until(lambda: plane.log(1, 1) == "ä" * 100)
    assert booted_in(plane, 1, 1) == warm  # accelerators with equal environments share them


def test_it_is_ended_by_sigterm_or_killed_with_its_children(
    plane: ControlPlane, drive: Drive, state_dir: Path
) -> None:
    driven = drive(standbys=1, grace_s=0.2)
    driven.until(lambda: warm_pids(state_dir))
    plane.want(wanted_trainer(plane, 0, play="parent"))
    driven.until(lambda: ReportKind.READY in plane.kinds(1, 0))
    plane.want()
    driven.until(lambda: ReportKind.EXITED in plane.kinds(1, 0))
    exited = plane.report(1, 0, ReportKind.EXITED)
    assert exited is not None
    assert exited.data["exit_code"] == -15
    assert not trainers_below(state_dir / "trainers")


def test_a_standby_that_died_costs_a_cold_start_and_nothing_else(
    plane: ControlPlane, drive: Drive, state_dir: Path
) -> None:
    driven = drive(standbys=1)
    driven.until(lambda: warm_pids(state_dir))
    (standby,) = idle(state_dir)
    plane.want(wanted_trainer(plane))
    standby.kill()
    driven.until(lambda: ReportKind.SWITCHED in plane.kinds(1, 0))
    assert booted_in(plane, 1, 0) != standby.pid
    assert plane.kinds(1, 0).count(ReportKind.PHASE) == 1


@pytest.mark.parametrize("way", ["deaf", "stopped"])
def test_a_standby_that_does_not_answer_is_killed_before_the_cold_start(
    plane: ControlPlane, drive: Drive, state_dir: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    if way == "deaf":
        monkeypatch.setenv("FAKE_STANDBY", way)
    driven = drive(standbys=1, kept_environment=("FAKE_STANDBY",))
    driven.until(lambda: warm_pids(state_dir))
    (standby,) = idle(state_dir)
    if way == "stopped":
        standby.suspend()
    plane.want(wanted_trainer(plane))
    driven.until(lambda: ReportKind.SWITCHED in plane.kinds(1, 0))
    assert not standby.is_running() or standby.status() == psutil.STATUS_ZOMBIE
    assert booted_in(plane, 1, 0) != standby.pid
    assert plane.kinds(1, 0).count(ReportKind.PHASE) == 1


def test_standbys_that_do_not_get_warm_are_not_tried_without_end(
    plane: ControlPlane, drive: Drive, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_STANDBY", "broken")
    monkeypatch.setattr(standbys, "FAILED_FIRST_S", 60.0)
    driven = drive(standbys=1, kept_environment=("FAKE_STANDBY",))
    driven.until(lambda: idle(state_dir))
    driven.until(lambda: not idle(state_dir))
    sent = len(plane.batches)
    driven.until(lambda: len(plane.batches) > sent + 2)
    assert not idle(state_dir)
    plane.want(wanted_trainer(plane))
    driven.until(lambda: ReportKind.SWITCHED in plane.kinds(1, 0))


def test_a_killed_agents_standbys_go_with_it_and_the_trainer_is_adopted(
    plane: ControlPlane, spawn: Spawn, state_dir: Path
) -> None:
    options = ["--standbys", "2"]
    killed = spawn(*options, VIRTUALFLOW_ENROLMENT_TOKEN=ENROLMENT_TOKEN)
    wait_until(lambda: len(warm_pids(state_dir)) == 2)
    warm = warm_pids(state_dir)
    plane.want(wanted_trainer(plane))
    wait_until(lambda: ReportKind.SWITCHED in plane.kinds(1, 0))
    (trainer,) = trainers_below(state_dir / "trainers")
    assert trainer.pid in warm
    killed.send(signal.SIGKILL)
    killed.ended()
    wait_until(lambda: not idle(state_dir))
    steps = plane.kinds(1, 0).count(ReportKind.STEPS)

    second = spawn(*options)
    wait_until(lambda: plane.kinds(1, 0).count(ReportKind.STEPS) > steps + 5)
    assert trainers_below(state_dir / "trainers") == [trainer]
    wait_until(lambda: len(warm_pids(state_dir)) == 2)
    second.send(signal.SIGTERM)
    assert second.ended()[0] == 0
    assert not trainers_below(state_dir)
    assert plane.kinds(1, 0)[-1] is ReportKind.EXITED


def test_memory_bounds_them(plane: ControlPlane, drive: Drive, state_dir: Path) -> None:
    driven = drive(standbys=2, standby_memory_bytes=standbys.EXPECTED_BYTES + 1)
    driven.until(lambda: len(warm_pids(state_dir)) == 2)  # far smaller than what is expected
    size_bytes = idle(state_dir)[0].memory_info().rss
    assert size_bytes < 200e6
    pool = driven.agent._standbys
    pool._limit_bytes = int(1.5 * size_bytes)
    pool._measured_at = float("-inf")
    driven.until(lambda: len(idle(state_dir)) == 1)
    sent = len(plane.batches)
    driven.until(lambda: len(plane.batches) > sent + 2)
    assert len(idle(state_dir)) == 1


def test_none_is_started_where_none_is_wanted_or_while_others_boot(
    plane: ControlPlane, drive: Drive, state_dir: Path
) -> None:
    driven = drive(standbys=0)
    sent = len(plane.batches)
    driven.until(lambda: len(plane.batches) > sent + 2)
    assert not idle(state_dir)
    driven.agent.end(0.0)
    driven.until_nothing_runs()
    driven.vanish()

    plane.held_up.add("jobs/1/code/")  # so it is being fetched for as long as the test lasts
    plane.want(wanted_trainer(plane))
    second = drive(standbys=2)
    second.until(lambda: [state.pid for state in plane.owned()] == [0])
    sent = len(plane.batches)
    second.until(lambda: len(plane.batches) > sent + 2)
    assert not idle(state_dir)


def test_the_session_of_a_standby_lets_others_go_first_while_it_warms_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = tmp_path / "autogroup"
    shown.write_text("0")
    monkeypatch.setattr(warming, "SESSION_NICENESS_FILE", shown)
    seen: list[str] = []
    thread = threading.Thread(
        target=warming._warm, args=(tmp_path, lambda: seen.append(shown.read_text()))
    )
    thread.start()
    thread.join(DEADLINE_S)
    assert (seen, shown.read_text()) == (["5"], "0")
    assert (tmp_path / warming.WARM_FILE).exists()


def test_a_kernel_that_does_not_share_by_session_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warming, "SESSION_NICENESS_FILE", tmp_path / "proc" / "autogroup")
    with warming._low_session():
        pass
    assert not (tmp_path / "proc").exists()


@pytest.mark.skipif(
    not warming.SESSION_NICENESS_FILE.exists(), reason="this kernel does not share by session"
)
def test_the_kernel_takes_the_low_priority_and_the_usual_one_again() -> None:
    program = """
from agents.trainer.contract.standby import SESSION_NICENESS_FILE, _low_session
with _low_session():
    print(SESSION_NICENESS_FILE.read_text().split()[-1])
print(SESSION_NICENESS_FILE.read_text().split()[-1])
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        start_new_session=True,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    assert done.stdout.split() == ["5", "0"]
