"""The queue that a trainer's reports wait in."""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.session import report_queue
from agents.session.report_queue import (
    BYTES_A_SECOND,
    READ_BYTES,
    SKIP_EVERY_S,
    ReportQueue,
    last_report,
)
from agents.supervision import run_directory as run_directories
from agents.supervision.run_directory import AGENT_SEQUENCE, RunDirectory
from controlplane.core.protocol.wire import ReportKind
from tests.agents.builders import run_directory


def line(sequence: int, **changes: Any) -> bytes:
    values = {"job_id": 4, "slot": 2, "generation": 1, "sequence": sequence, "at": 1.0}
    return json.dumps(values | {"kind": "phase", "data": {}} | changes).encode() + b"\n"


def sent(queue: ReportQueue, limit: int = 10_000) -> list[int]:
    """Accept everything that a queue gives, and list the sequence numbers."""
    found: list[int] = []
    queue.fill()
    while not queue.is_empty:
        part = [queued.report.sequence for queued in queue.head(limit)]
        queue.accept(len(part))
        found += part
        queue.fill()
    return found


def test_queue_passes_over_what_is_no_report_of_this_trainer(tmp_path: Path) -> None:
    directory = run_directory(tmp_path)
    directory.reports.write_bytes(
        line(0)
        + b"not json\n"
        + line(1, slot=3)
        + line(-1)
        + line(AGENT_SEQUENCE)  # only the agent may number like this
        + line(2, kind="exited")  # and only it can see the end
        + line(3, data="text")
        + line(3, at=10**400)
        + b"[" * 100_000
        + b"\n"
        + line(4)
        + line(5)[:-1]  # its newline has not been written yet
    )
    queue = ReportQueue(directory)
    assert sent(queue) == [0, 4]
    with directory.reports.open("ab") as file:
        file.write(b"\n" + line(6))
    assert sent(queue) == [5, 6]


def test_queue_drops_a_line_that_is_too_long_and_goes_on(tmp_path: Path) -> None:
    directory = run_directory(tmp_path)
    long = line(1, data={"text": "x" * (2 * READ_BYTES)})
    directory.reports.write_bytes(line(0) + long + line(2))
    queue, found = ReportQueue(directory), []
    for _ in range(5):
        found += sent(queue)
    assert found == [0, 2]


def test_queue_parses_no_line_that_is_too_short_for_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[bytes] = []
    monkeypatch.setattr(report_queue, "json_parse", lambda one: parsed.append(one) or {})
    directory = run_directory(tmp_path)
    shortest = line(0, job_id=1, slot=0, kind="left").replace(b" ", b"")
    directory.reports.write_bytes(b"{}\n" * 1000 + b"\n" * 1000 + shortest)
    assert not sent(ReportQueue(directory))
    assert [one + b"\n" for one in parsed] == [shortest]


def test_queue_ends_with_the_agents_own_reports(tmp_path: Path) -> None:
    directory = run_directory(tmp_path)
    junk = b"no report\n" * (READ_BYTES // 10 + 10)
    directory.reports.write_bytes(line(0) + junk + line(1))
    directory.add_own_report(1, ReportKind.FAILED, {"code": "internal"})
    directory.add_own_report(1, ReportKind.EXITED, {"exit_code": 1})
    queue, found = ReportQueue(directory), []
    for _ in range(3):
        found += sent(queue, limit=1)
    assert found == [0, 1, AGENT_SEQUENCE, AGENT_SEQUENCE + 1]


@given(cuts=st.lists(st.integers(1, 12), max_size=6))
def test_queue_goes_on_after_a_restart_where_acceptance_ended(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int]
) -> None:
    directory = run_directory(tmp_path_factory.mktemp("queue"))
    directory.reports.write_bytes(b"".join(line(sequence) for sequence in range(40)))
    accepted = 0
    for cut in cuts:
        queue = ReportQueue(RunDirectory(directory.path.parent, directory.key))
        queue.fill()
        heads = [queued.report.sequence for queued in queue.head(cut)]
        assert heads == list(range(accepted, min(accepted + cut, 40)))
        queue.accept(len(heads))
        accepted += len(heads)
        queue._directory.write_shipped()


def test_queue_cleans_values_that_cannot_be_stored(tmp_path: Path) -> None:
    directory = run_directory(tmp_path)
    data = {"loss": float("inf"), "text": "a\0b\ud800", "list": [float("nan"), 1.5]}
    directory.reports.write_bytes(line(0, data=data))
    queue = ReportQueue(directory)
    queue.fill()
    (queued,) = queue.head(1)
    assert queued.report.data == {"loss": None, "text": "a?b?", "list": [None, 1.5]}


def test_queue_reads_on_while_something_is_pending_and_ends_with_the_agents_own(
    tmp_path: Path,
) -> None:
    directory = run_directory(tmp_path)
    directory.reports.write_bytes(line(0))
    queue = ReportQueue(directory)
    queue.fill()
    with directory.reports.open("ab") as file:
        file.write(line(1))
    directory.add_own_report(1, ReportKind.EXITED, {"exit_code": 0})
    queue.fill()
    queue.fill()
    found = [(queued.report.sequence, queued.is_agents_own) for queued in queue.head(10)]
    assert found == [(0, False), (1, False), (AGENT_SEQUENCE, True)]
    queue.accept(3)
    queue.fill()
    assert queue.is_empty


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
@pytest.mark.parametrize("full", [(True, True), (True, False), (False, True)])
def test_reports_of_the_agent_need_no_disk(
    full: tuple[bool, bool], number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each comes once and in order, whichever of them is on the disk; so does a later one."""
    directory = run_directory(tmp_path)
    directory.reports.write_bytes(line(0))
    queue = ReportQueue(directory)
    is_full = True
    write = run_directories.write_atomically

    def cramped(*arguments: Any) -> None:
        if is_full:
            raise OSError(number, os.strerror(number))
        write(*arguments)

    monkeypatch.setattr(run_directories, "write_atomically", cramped)
    is_full = full[0]
    directory.add_own_report(1, ReportKind.FAILED, {})
    is_full = full[1]
    directory.add_own_report(1, ReportKind.EXITED, {})
    assert sent(queue) == [0, AGENT_SEQUENCE, AGENT_SEQUENCE + 1]
    is_full = False
    directory.add_own_report(1, ReportKind.EXITED, {})
    assert sent(queue) == [AGENT_SEQUENCE + 2]


def test_accepted_reports_do_not_fill_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that trains for months reports all the time."""
    monkeypatch.setattr(report_queue, "TRIM_BYTES", READ_BYTES)
    monkeypatch.setattr(report_queue, "LAST_BYTES", READ_BYTES)
    directory = run_directory(tmp_path)
    queue, padding = ReportQueue(directory), {"text": "x" * 1000}
    used, found = [], []
    with directory.reports.open("ab", buffering=0) as writer:
        for start in range(0, 4000, 500):
            writer.write(b"".join(line(start + i, data=padding) for i in range(500)))
            found += sent(queue)
            queue.trim()
            used.append(directory.reports.stat().st_blocks * 512)
    assert found == [*range(4000)]
    assert max(used) <= 6 * READ_BYTES < directory.reports.stat().st_size
    last = last_report(directory, {ReportKind.PHASE}, is_agents_own=False)
    assert last is not None
    assert last.sequence == 3999
    # An agent that was killed before it had noted what was accepted comes to new reports as well.
    with directory.reports.open("ab") as file:
        file.write(line(4000))
    queue, found = ReportQueue(RunDirectory(tmp_path, directory.key)), []
    for _ in range(directory.reports.stat().st_size // READ_BYTES + 1):
        found += sent(queue)
    assert found[-1] == 4000


def test_of_a_flood_of_reports_the_newest_are_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the trainer is told at once, whatever has been written before."""
    now_s, burst_bytes = 100.0, 4 * READ_BYTES
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    monkeypatch.setattr(report_queue, "BURST_BYTES", burst_bytes)
    monkeypatch.setattr(report_queue, "BYTES_A_SECOND", 0)  # however long this takes
    directory = run_directory(tmp_path)
    directory.write_process(1234, time.clock_gettime(time.CLOCK_BOOTTIME))
    count = 3 * burst_bytes // len(line(0))
    lines = [line(number) for number in range(count)]
    lines[-5] = line(count - 5, kind="switched")
    directory.reports.write_bytes(b"".join(lines))
    queue = ReportQueue(directory)
    found = sent(queue)
    whole = next(place for place, number in enumerate(found) if number != place)
    assert count / 3 <= whole <= count / 2
    assert found[whole:] == [count - 5, count - 1]
    with directory.reports.open("ab") as file:
        file.write(line(count) + line(count + 1))
    assert sent(queue) == []
    now_s += SKIP_EVERY_S
    assert sent(queue) == [count + 1]
    with directory.reports.open("ab") as file:
        file.write(line(count + 2))
    directory.add_own_report(1, ReportKind.EXITED, {"exit_code": 1})
    assert sent(queue) == [AGENT_SEQUENCE]


def test_an_old_trainer_may_have_reported_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_queue, "BURST_BYTES", 0)
    directory = run_directory(tmp_path)
    started_at = time.clock_gettime(time.CLOCK_BOOTTIME) - 4 * READ_BYTES / BYTES_A_SECOND
    directory.write_process(1234, started_at)
    count = 3 * READ_BYTES // len(line(0))
    directory.reports.write_bytes(b"".join(map(line, range(count))))
    assert sent(ReportQueue(directory)) == list(range(count))
