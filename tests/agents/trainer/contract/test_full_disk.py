"""A full disk of a node: reports wait and are whole, files wait, output is dropped and noted."""

from __future__ import annotations

import errno
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from agents.trainer.contract import full_disk, run_dir
from agents.trainer.contract.full_disk import OutputFile, room_awaited
from agents.trainer.contract.run_dir import ReportWriter, whole_lines

WAIT_S = 30.0


class Disk:
    """A disk with room for a number of bytes; None: any."""

    def __init__(self) -> None:
        self.room: int | None = None
        self.error: OSError | None = None

    def write(self, descriptor: int, data: bytes) -> int:
        if self.error is not None:
            raise self.error
        if self.room is None:
            return os.write(descriptor, data)
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = os.write(descriptor, data[: self.room])
        self.room -= taken
        return taken


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    made = Disk()
    system: Any = type("System", (), {**vars(os), "write": staticmethod(made.write)})
    monkeypatch.setattr(run_dir, "os", system)
    monkeypatch.setattr(run_dir, "FULL_DISK_POLL_S", 0.01)
    monkeypatch.setattr(full_disk, "FULL_DISK_POLL_S", 0.01)
    return made


def phases(folder: Path) -> list[str]:
    lines = [line for line, _ in whole_lines(folder / run_dir.REPORTS_FILE, 0)]
    return [json.loads(line)["data"]["phase"] for line in lines]


@pytest.mark.parametrize("room", [0, 1, 40, 250])
def test_no_report_is_lost_or_torn(room: int, tmp_path: Path, disk: Disk) -> None:
    reports = ReportWriter(tmp_path, job_id=1, slot=0)
    reports.phase("first")
    disk.room = room
    for number in range(5):
        reports.phase(f"phase {number}")
    reports.settle(0.02)
    assert phases(tmp_path)[:1] == ["first"]
    assert len(phases(tmp_path)) < 6
    disk.room = None
    reports.settle(WAIT_S)
    assert phases(tmp_path) == ["first", *(f"phase {number}" for number in range(5))]
    disk.room = 0
    reports.phase("again")
    disk.room = None
    reports.settle(WAIT_S)
    assert phases(tmp_path)[-1] == "again"


def test_reports_that_wait_are_bounded(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_dir, "UNWRITTEN_LIMIT_BYTES", 1000)
    reports = ReportWriter(tmp_path, job_id=1, slot=0)
    disk.room = 0
    reports.phase("first")
    with pytest.raises(OSError, match="No space"):
        reports.phase("x" * 1000)
    disk.room = None
    reports.settle(WAIT_S)


def test_another_error_is_raised_at_once(tmp_path: Path, disk: Disk) -> None:
    reports = ReportWriter(tmp_path, job_id=1, slot=0)
    disk.error = OSError(errno.EIO, "broken")
    with pytest.raises(OSError, match="broken"):
        reports.phase("first")


def test_output_without_room_is_dropped_and_noted(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    full = os.open("/dev/full", os.O_WRONLY)
    kept = os.dup(descriptor)
    output = OutputFile(descriptor)
    try:
        assert output.write(b"one\n") == 4
        os.dup2(full, descriptor)
        assert output.write(b"lost\n") == 5
        assert output.write(b"lost again\n") == 11
        os.dup2(kept, descriptor)
        assert output.write(b"two\n") == 4
        assert output.write(b"three\n") == 6
    finally:
        for one in (descriptor, full, kept):
            os.close(one)
    assert log.read_text() == "one\n\n[16 bytes found no room on the disk]\ntwo\nthree\n"


def test_a_file_waits_for_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(full_disk, "FULL_DISK_POLL_S", 0.01)
    has_room = threading.Event()
    tries: list[int] = []

    def write() -> str:
        tries.append(1)
        if len(tries) == 3:
            has_room.set()
        if not has_room.is_set():
            raise OSError(errno.EDQUOT, "Disk quota exceeded")
        return "written"

    assert room_awaited(write, WAIT_S) == "written"
    assert len(tries) == 3


@pytest.mark.parametrize(("number", "limit_s"), [(errno.ENOSPC, 0.0), (errno.EIO, WAIT_S)])
def test_a_file_does_not_wait_for_ever_or_for_something_else(number: int, limit_s: float) -> None:
    def write() -> None:
        raise OSError(number, "no")

    with pytest.raises(OSError, match="no"):
        room_awaited(write, limit_s)
