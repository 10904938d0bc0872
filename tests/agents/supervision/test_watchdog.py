"""A job for which the agent has to wait is killed, and the loop goes on."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from agents import loop
from agents.session import uploads
from agents.session.report_queue import ReportQueue
from agents.supervision import processes
from agents.supervision.heartbeat import Pulse
from agents.supervision.isolation import Isolation
from agents.supervision.log_tail import LogTail
from agents.supervision.processes import OwnedProcess
from agents.supervision.run_directory import RunDirectory
from agents.supervision.validations import ValidationAttempt
from agents.supervision.watchdog import CHECK_S, Watchdog
from controlplane.core.protocol.wire import ReportKind
from tests.agents.builders import wanted_trainer, wanted_validation
from tests.agents.conftest import Drive, run_dirs_below, wait_until
from tests.agents.control_plane import ControlPlane


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the loop's watchdog wait for one check alone."""
    monkeypatch.setattr(loop, "Watchdog", partial(Watchdog, CHECK_S))


def blocked(
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    name: str,
    folder_of: Callable[[Any], Path],
    folder: Path,
) -> None:
    """Have a method wait while a process of a run directory lives, as for a lock that it holds."""
    method = getattr(owner, name)

    def waiting(self: Any, *arguments: Any, **options: Any) -> Any:
        if folder_of(self) == folder:
            wait_until(lambda: folder not in [run_dir for _, run_dir in run_dirs_below(folder)])
        return method(self, *arguments, **options)

    monkeypatch.setattr(owner, name, waiting)


@pytest.mark.parametrize(
    ("owner", "name", "folder_of"),
    [
        pytest.param(RunDirectory, "touch_alive", lambda self: self.path, id="sign of life"),
        pytest.param(ReportQueue, "fill", lambda self: self._directory.path, id="reports"),
        pytest.param(LogTail, "next_chunk", lambda self: self._directory.path, id="log"),
        pytest.param(LogTail, "trim", lambda self: self._directory.path, id="end of the log"),
        pytest.param(Pulse, "is_lost", lambda self: self._path.parent, id="pulse"),
    ],
)
def test_a_trainer_is_killed_whose_files_keep_the_loop_waiting(
    owner: type,
    name: str,
    folder_of: Callable[[Any], Path],
    plane: ControlPlane,
    drive: Drive,
    state_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop, "ALIVE_EVERY_S", 0.0)
    driven = drive()
    plane.want(wanted_trainer(plane, 0), wanted_trainer(plane, 1, job_id=2))
    driven.until(lambda: ReportKind.SWITCHED in plane.kinds(1, 0))
    driven.until(lambda: ReportKind.SWITCHED in plane.kinds(2, 1))
    blocked(monkeypatch, owner, name, folder_of, state_dir / "trainers" / "1-0")
    exited = driven.told(1, 0, ReportKind.EXITED)
    assert exited.data["reason"] == "its files could not be read or written"
    num_before = len(plane.reports(2, 1))
    driven.until(lambda: len(plane.reports(2, 1)) > num_before + 10)
    assert ReportKind.EXITED not in plane.kinds(2, 1)


def test_a_validation_is_killed_whose_files_keep_the_loop_waiting(
    plane: ControlPlane, drive: Drive, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driven = drive()
    plane.want(
        wanted_trainer(plane, 1, job_id=2),
        validations=[wanted_validation(plane, 3, timeout_s=600.0, play="hang")],
    )
    validations = state_dir / "validations"
    driven.until(lambda: run_dirs_below(validations) and plane.reports(2, 1))
    (folder,) = validations.iterdir()
    blocked(monkeypatch, ValidationAttempt, "_trim_log", lambda self: self.path, folder)
    driven.until(lambda: any(batch.validations for batch in plane.batches))
    (report,) = next(batch.validations for batch in plane.batches if batch.validations)
    assert (report.ok, report.code) == (False, "crashed")
    assert report.message.endswith("was ended: its files could not be read or written")
    num_before = len(plane.reports(2, 1))
    driven.until(lambda: len(plane.reports(2, 1)) > num_before + 10)


def test_a_trainer_is_killed_whose_sent_file_cannot_be_deleted(
    plane: ControlPlane, drive: Drive, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = state_dir / "trainers" / "1-0"
    delete = uploads.plain_file_delete

    def waiting(path: Path, below: Path) -> None:
        wait_until(lambda: not run_dirs_below(folder))
        delete(path, below)

    monkeypatch.setattr(uploads, "plain_file_delete", waiting)
    content = b"another job's model"
    plane.files["jobs/1/source/"] = content
    wanted = wanted_trainer(plane, play="predict")
    spec = replace(wanted.spec, model_sha256=hashlib.sha256(content).hexdigest())
    plane.want(replace(wanted, spec=spec))
    driven = drive()
    exited = driven.told(1, 0, ReportKind.EXITED)
    assert exited.data["reason"] == "its files could not be read or written"


def test_each_long_wait_is_ended_and_no_short_one() -> None:
    watchdog = Watchdog(CHECK_S)
    ended = threading.Event()
    for _ in range(3):
        ended.clear()
        with watchdog.watching(ended.set):
            assert ended.wait(60.0)
    watchdog.close()

    watchdog = Watchdog(4 * CHECK_S)
    ended.clear()
    for _ in range(350):  # in all longer than one may be
        with watchdog.watching(ended.set):
            time.sleep(CHECK_S / 50)
    watchdog.close()
    assert not ended.is_set()


def test_a_wait_on_another_thread_is_ended_as_well() -> None:
    watchdog = Watchdog(CHECK_S)
    ended = [threading.Event(), threading.Event()]

    def wait(event: threading.Event) -> None:
        with watchdog.watching(event.set):
            assert event.wait(60.0)

    other = threading.Thread(target=wait, args=(ended[0],))
    other.start()
    wait(ended[1])
    other.join()
    watchdog.close()
    assert ended[0].is_set()


def test_an_error_while_killing_ends_no_watch(caplog: pytest.LogCaptureFixture) -> None:
    watchdog = Watchdog(CHECK_S)
    ended = threading.Event()

    def fail() -> None:
        ended.set()
        raise psutil.NoSuchProcess(1)

    for kill in (fail, ended.set):
        ended.clear()
        with watchdog.watching(kill):
            assert ended.wait(60.0)
    watchdog.close()
    assert "what the agent waits for cannot be killed" in caplog.text


@pytest.mark.parametrize("what", ["trainer", "validation"])
def test_what_outlives_its_kill_takes_all_processes_of_its_user_along(
    what: str, plane: ControlPlane, drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that traces the leader has its status first, and the agent never."""
    killed: list[str] = []
    has_ended = OwnedProcess._has_leader_ended
    monkeypatch.setattr(processes, "KILL_LIMIT_S", 0.1)
    monkeypatch.setattr(
        OwnedProcess, "_has_leader_ended", lambda self: bool(killed) and has_ended(self)
    )
    monkeypatch.setattr(Isolation, "kill_begin", lambda _, run_dir: killed.append(run_dir.name))
    driven = drive(grace_s=0.1)
    if what == "trainer":
        plane.want(wanted_trainer(plane))
        driven.until(lambda: ReportKind.SWITCHED in plane.kinds(1, 0))
        plane.want()
        driven.until(lambda: ReportKind.EXITED in plane.kinds(1, 0))
    else:
        plane.want(validations=[wanted_validation(plane, play="hang", timeout_s=0.5)])
        driven.until(lambda: [row for batch in plane.batches for row in batch.validations])
    assert killed == ["1-0" if what == "trainer" else "1-1"]
