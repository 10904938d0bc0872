"""Files of a run directory, whatever job code makes of them, neither stop nor mislead the agent."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import pytest

from agents.session.client import MAX_UPLOAD_BYTES, ControlPlaneClient
from agents.session.report_queue import ReportQueue, last_report
from agents.supervision.log_tail import LogTail
from agents.supervision.run_directory import RunDirectory
from agents.supervision.trainer_handle import TrainerHandle
from agents.supervision.validations import _result_read
from agents.trainer.contract.plain_files import (
    is_plain_file,
    plain_file_delete,
    plain_file_punch,
    plain_file_touch,
    plain_file_truncate,
    plain_file_write,
)
from controlplane.core.protocol.wire import ReportKind
from tests.agents.builders import run_directory, wanted_trainer, wanted_validation
from tests.agents.conftest import DrivenAgent
from tests.agents.control_plane import ControlPlane
from tests.agents.supervision.test_deletion import deep

SECRET = b"agent-token of another\n"

NUMBERS = ("1" + "0" * 400, "1" + "0" * 5000, "1e999", "-1e999", "NaN", "null", '"a"', "[]", "-1")


def texts() -> list[bytes]:
    """List contents of a file, JSON of other forms than the agent expects included."""
    deep = "[" * 100_000
    levels = "[" * 450 + "]" * 450
    report = {"job_id": 4, "slot": 2, "generation": 0, "sequence": 0, "at": 0, "kind": "phase"}
    found = [b"", b"\n", b"{", b"[1]\n", b"7\n", b"\xff\xfe\n", b"\0" * 1000, b"a" * 2**20]
    found += [f"{deep}\n".encode(), f"{levels}\n".encode()]
    found += [
        json.dumps({**report, "data": {}}).replace("{}", f'{{"a": {levels}}}').encode() + b"\n"
    ]
    for name in (*report, "pid", "started_at", "reports_offset", "log_offset", "agent_offset"):
        for number in NUMBERS:
            values = {**report, "pid": 5, "started_at": 1.0, "data": {}}
            values |= {"reports_offset": 0, "agent_offset": 0, "log_offset": 0, name: "NUMBER"}
            found.append(json.dumps(values).replace('"NUMBER"', number).encode() + b"\n")
    return found


def placed(kind: str) -> Callable[[Path, Path], None]:
    """Make a function that puts something else in a file's place."""

    def put(path: Path, secret: Path) -> None:
        path.unlink(missing_ok=True)
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "link":
            path.symlink_to(secret)
        elif kind == "second name":
            path.hardlink_to(secret)
        elif kind == "loop":
            path.symlink_to(path)
        else:
            (path / "inner").mkdir(parents=True)

    return put


#: The agent's own, which job code reaches where it runs as the agent's user.
RECORDS = ("agent.jsonl", "process.json", "shipped.json")
FILES = ("reports.jsonl", "log.txt", "alive", "pulse", "validation.json", "orders.json", *RECORDS)


def place_of(directory: RunDirectory, name: str) -> Path:
    return (directory.records if name in RECORDS else directory.path) / name


def everything_read(directory: RunDirectory) -> list[Any]:
    """Do what an agent does with a run directory, and with a validation's; give what it sends."""
    again = RunDirectory(directory.path.parent, directory.key)
    tail = LogTail(again, 1000, 100)
    queue = ReportQueue(again)
    queue.fill()
    sent: list[Any] = [queued.report for queued in queue.head(1000)]
    sent += [tail.next_chunk(is_writer_gone=True), again.read_orders(), again.read_process()]
    tail.trim()
    sent += [last_report(again, set(ReportKind), is_agents_own=own) for own in (True, False)]
    sent += [_result_read(again.path / name) for name in FILES]
    assert again.has_traces in (True, False)
    again.touch_alive()
    again.write_shipped()
    again.add_own_report(0, ReportKind.EXITED, {"exit_code": None})
    exited = last_report(again, {ReportKind.EXITED}, is_agents_own=True)
    assert exited is not None
    return sent


def bytes_read() -> int:
    """Return the number of bytes that this process has read so far."""
    return int(Path("/proc/self/io").read_text().split()[1])


@pytest.mark.parametrize("name", FILES)
def test_little_is_read_of_a_file_of_any_size(name: str, tmp_path: Path) -> None:
    directory = run_directory(tmp_path)
    with place_of(directory, name).open("ab") as file:
        file.truncate(4 * 1024**3)  # takes no room
    before = bytes_read()
    everything_read(directory)
    assert bytes_read() - before < 16 * 1024**2


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["pipe", "link", "loop", "directory", "second name"])
def test_only_regular_files_are_read_and_written(name: str, kind: str, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    directory = run_directory(tmp_path / "run")
    secret = tmp_path / "credentials.json"
    secret.write_bytes(SECRET * 1000)
    placed(kind)(place_of(directory, name), secret)
    assert SECRET.decode().strip() not in repr(everything_read(directory))
    assert secret.read_bytes() == SECRET * 1000


@pytest.mark.parametrize("name", FILES)
def test_any_content_is_read_or_passed_over(name: str, tmp_path: Path) -> None:
    for content in texts():
        directory = run_directory(tmp_path)
        place_of(directory, name).write_bytes(content)
        everything_read(directory)


def test_a_folder_that_cannot_be_looked_into_is_passed_over(tmp_path: Path) -> None:
    """A name that is too long gives the same kind of error as a folder without permissions."""
    directory = run_directory(tmp_path)
    for name in ("log", "own_reports", "reports", "pulse"):
        setattr(directory, name, directory.path / ("a" * 300))
    queue = ReportQueue(directory)
    queue.fill()
    assert queue.is_empty
    assert LogTail(directory, 1000, 100).next_chunk(is_writer_gone=True) is None


@pytest.mark.parametrize("kind", ["file", "gone", "closed", "link"])
def test_the_last_report_is_written_whatever_became_of_the_folder(
    kind: str, tmp_path: Path
) -> None:
    directory = run_directory(tmp_path)
    if kind == "closed":
        directory.records.chmod(0)
    else:
        shutil.rmtree(directory.records)
    if kind == "file":
        directory.records.write_bytes(b"")
    elif kind == "link":
        directory.records.symlink_to(tmp_path / "elsewhere")
    directory.add_own_report(0, ReportKind.EXITED, {"exit_code": None})
    assert last_report(directory, {ReportKind.EXITED}, is_agents_own=True)
    assert (directory.records.stat().st_mode & 0o777) == 0o700


@pytest.mark.parametrize("kind", ["pipe", "link", "directory", "second name", "linked folder"])
def test_only_regular_files_are_uploaded_and_deleted(kind: str, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    directory = run_directory(tmp_path / "run")
    secret = tmp_path / "model.keras"
    secret.write_bytes(SECRET)
    path = directory.outputs / "model.keras"
    if kind == "linked folder":
        directory.outputs.rmdir()
        directory.outputs.symlink_to(tmp_path)
    else:
        placed(kind)(path, secret)
    client = ControlPlaneClient("http://127.0.0.1:9", 0.1)
    refusal = r"not a regular file|symbolic link|Is a directory|Not a directory"
    with pytest.raises(OSError, match=refusal):
        client.upload(1, 0, 1, "model.keras", path, directory.path)
    client.close()
    assert not is_plain_file(path, directory.path)
    with contextlib.suppress(OSError):
        plain_file_delete(path, directory.path)
    assert secret.read_bytes() == SECRET


def test_a_file_without_end_is_not_read(tmp_path: Path) -> None:
    directory = run_directory(tmp_path)
    path = directory.outputs / "model.keras"
    path.touch()
    os.truncate(path, MAX_UPLOAD_BYTES + 1)  # takes no room
    client = ControlPlaneClient("http://127.0.0.1:9", 0.1)
    with pytest.raises(OSError, match="larger than"):
        client.upload(1, 0, 1, "model.keras", path, directory.path)
    client.close()


def test_of_a_file_that_grows_only_the_beginning_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that grows by terabytes of nothing would keep all uploads of the node waiting."""
    directory = run_directory(tmp_path)
    path = directory.outputs / "model.keras"
    path.write_bytes(b"weights")
    sizes = os.fstat

    def grown(descriptor: int) -> os.stat_result:
        found = sizes(descriptor)
        os.truncate(path, 1024**2)
        return found

    def answer(request: httpx.Request) -> httpx.Response:
        received.append((request.read(), request.headers["Content-Length"]))
        return httpx.Response(204)

    received: list[tuple[bytes, str]] = []
    client = ControlPlaneClient("http://127.0.0.1:9", 0.1)
    client._http = httpx.Client(base_url="http://a", transport=httpx.MockTransport(answer))
    monkeypatch.setattr("agents.session.client.os", Mock(fstat=grown))
    client.upload(1, 0, 1, "model.keras", path, directory.path)
    assert received == [(b"weights", "7")]
    client.close()


@pytest.mark.parametrize(
    "write",
    [
        plain_file_touch,
        lambda path: plain_file_write(path, b"{}"),
        lambda path: plain_file_write(path, io.BytesIO(b"{}")),
    ],
)
def test_the_agent_writes_through_no_link(write: Callable[[Path], object], tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="Not a directory"):
        write(tmp_path / "run" / "orders.json")
    assert not list((tmp_path / "elsewhere").iterdir())
    (tmp_path / "elsewhere" / "orders.json").symlink_to(tmp_path / "secret")
    with contextlib.suppress(OSError):
        write(tmp_path / "elsewhere" / "orders.json")
    assert not (tmp_path / "secret").exists()


@pytest.mark.parametrize("kind", ["link", "second name", "pipe", "folder", "missing"])
@pytest.mark.parametrize(
    "cut", [lambda path: plain_file_truncate(path, 0), lambda path: plain_file_punch(path, 0, 8)]
)
def test_nothing_but_a_plain_file_is_cut(
    cut: Callable[[Path], object], kind: str, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)
    if kind != "missing":
        placed(kind)(tmp_path / "log.txt", secret)
    with pytest.raises(OSError, match=r"log\.txt"):
        cut(tmp_path / "log.txt")
    assert secret.read_bytes() == SECRET


@pytest.mark.parametrize("kind", ["pipe", "link", "directory"])
def test_an_agent_goes_on_with_other_trainers(
    kind: str,
    plane: ControlPlane,
    drive: Callable[..., DrivenAgent],
    state_dir: Path,
    tmp_path: Path,
) -> None:
    driven = drive()
    (tmp_path / "secret").write_bytes(SECRET)
    plane.want(wanted_trainer(plane), wanted_trainer(plane, slot=1, job_id=2))
    driven.until(lambda: plane.reports(1, 0) and plane.reports(2, 1))
    for name in FILES:
        folder = "1-0.agent" if name in RECORDS else "1-0"
        placed(kind)(state_dir / "trainers" / folder / name, tmp_path / "secret")
    before = len(plane.reports(2, 1))
    driven.until(lambda: len(plane.reports(2, 1)) > before + 10)
    plane.want(wanted_trainer(plane, slot=1, job_id=2))
    driven.until(lambda: ReportKind.EXITED in plane.kinds(1, 0))


def test_an_agent_goes_on_after_folders_of_more_levels_than_it_can_walk(
    plane: ControlPlane, drive: Callable[..., DrivenAgent], state_dir: Path
) -> None:
    driven = drive(kept_run_directories=0)
    plane.want(wanted_trainer(plane), validations=[wanted_validation(plane, 2, play="fine")])
    driven.until(lambda: plane.reports(1, 0) and any(one.validations for one in plane.batches))
    (validated,) = (state_dir / "validations").iterdir()
    deep(validated, state_dir)
    deep(state_dir / "trainers" / "1-0" / "code", state_dir)
    plane.want(wanted_trainer(plane, slot=1, job_id=2))
    driven.until(lambda: plane.reports(2, 1) and ReportKind.EXITED in plane.kinds(1, 0))
    driven.until(lambda: not list((state_dir / "validations").iterdir()))
    driven.until(lambda: not list((state_dir / "trainers").glob("1-0*")))


def test_an_error_over_one_trainer_does_not_end_the_loop(
    plane: ControlPlane, drive: Callable[..., DrivenAgent], monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = TrainerHandle.step

    def step(self: TrainerHandle, *arguments: Any) -> None:
        if self.key == (1, 0):
            raise RuntimeError("odd")
        honest(self, *arguments)

    monkeypatch.setattr(TrainerHandle, "step", step)
    driven = drive()
    plane.want(wanted_trainer(plane), wanted_trainer(plane, slot=1, job_id=2))
    driven.until(lambda: len(plane.reports(2, 1)) > 10)
    monkeypatch.undo()
    driven.until(lambda: plane.reports(1, 0))
