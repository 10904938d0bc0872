"""The queue of reports of one trainer: the trainer's lines first, then the agent's, by offset.

The files are the queue and are never truncated; the space of accepted reports is given back. An
offset marks the part that the control plane has accepted, so an unreachable control plane or a
killed agent only causes repeats.

Job code can write reports as well. Of a trainer that has written far more than any healthy one only
the newest report of each kind is sent, once a second.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import Container, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from agents.supervision.run_directory import AGENT_SEQUENCE, RunDirectory
from agents.trainer.contract.plain_files import json_parse, plain_file_punch, plain_file_size
from agents.trainer.contract.run_dir import whole_lines
from controlplane.core.protocol.wire import ReportKind, TrainerReport, decode

log = logging.getLogger("agents")

#: Size of one read from a file; a longer line is dropped.
READ_BYTES = 256 * 1024
#: A shorter line is no report. A file of empty ones would take seconds to be parsed line by line.
LEAST_BYTES = 64
#: Bytes of reports that are sent of a trainer, and more for each second since its start: some 100
#: epochs or reports of steps a second.
BURST_BYTES, BYTES_A_SECOND = 16 * 1024 * 1024, 64 * 1024
SKIP_EVERY_S = 1.0
#: Bytes at the end of a file of reports in which the last one of some kind is looked for. A trainer
#: that has ended writes no more, so that one is there.
LAST_BYTES = 4 * READ_BYTES
#: Accepted reports whose space is given back at once.
TRIM_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class QueuedReport:
    """A report, with the offset of its line's end in the file and the line's size, in bytes."""

    report: TrainerReport
    is_agents_own: bool
    end_offset: int
    size_bytes: int


class ReportQueue:
    """Reports of one trainer that were not accepted yet, in order, read from disk as needed."""

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        self._reports_read = directory.shipped.reports_offset
        self._own_read = directory.shipped.agent_offset
        self._pending: deque[QueuedReport] = deque()
        self._trimmed_to = 0
        self._skipped_at = -math.inf
        self._made_at = _machine_age_s()

    def fill(self) -> None:
        """Read more reports, unless a block is pending; memory is bounded by two blocks.

        The agent writes its own reports after the trainer is gone, so if there are any, the
        trainer's file is complete and is read to its end first.
        """
        if sum(queued.size_bytes for queued in self._pending) >= READ_BYTES:
            return
        directory = self._directory
        has_own = plain_file_size(directory.own_reports) > 0 or directory.unwritten
        self._read_trainers()
        if has_own and not self._read_trainers():
            found, self._own_read = read_reports(directory, self._own_read, is_agents_own=True)
            self._pending.extend(found)
            unwritten, directory.unwritten = directory.unwritten, []
            self._pending.extend(
                QueuedReport(report, True, self._own_read, 0) for report in unwritten
            )

    def head(self, limit: int) -> Iterator[QueuedReport]:
        """Yield up to `limit` next reports without removing them."""
        return islice(self._pending, limit)

    def accept(self, count: int) -> None:
        """Remove the first `count` reports, which the control plane has acknowledged."""
        for _ in range(count):
            queued = self._pending.popleft()
            if queued.is_agents_own:
                self._directory.shipped.agent_offset = queued.end_offset
            else:
                self._directory.shipped.reports_offset = queued.end_offset

    def trim(self) -> None:
        """Give back the space of accepted reports but for those that `last_report` reads.

        Offsets stay as they are. Nothing is done where the file system cannot do that.
        """
        start, end = self._trimmed_to, self._directory.shipped.reports_offset - LAST_BYTES
        if end - start >= TRIM_BYTES:
            with contextlib.suppress(OSError):
                plain_file_punch(self._directory.reports, start, end - start)
            self._trimmed_to = end

    @property
    def is_empty(self) -> bool:
        """True while no report that was read waits for acknowledgement."""
        return not self._pending

    def _read_trainers(self) -> bool:
        """Read the trainer's next lines; returns whether there were any (more may follow)."""
        before = self._reports_read
        if self._is_flooding():
            return self._skip_to_newest()
        found, self._reports_read = read_reports(self._directory, before, is_agents_own=False)
        self._pending.extend(found)
        return self._reports_read != before

    def _is_flooding(self) -> bool:
        """Return whether the trainer has written more reports than a healthy one does."""
        if self._reports_read <= BURST_BYTES:
            return False
        process = self._directory.read_process()
        began_at = self._made_at if process is None else process[1]
        return self._reports_read > BURST_BYTES + BYTES_A_SECOND * (_machine_age_s() - began_at)

    def _skip_to_newest(self) -> bool:
        """Read the newest report of each kind among the last lines, if it is time for that."""
        now, before = time.monotonic(), self._reports_read
        if now - self._skipped_at < SKIP_EVERY_S:
            return False
        if self._skipped_at == -math.inf:
            log.warning("job %d, slot %d reports too much, some is left out", *self._directory.key)
        self._skipped_at = now
        start = max(before, plain_file_size(self._directory.reports) - READ_BYTES)
        found, self._reports_read = read_reports(self._directory, start, is_agents_own=False)
        newest = {queued.report.kind: queued for queued in found}.values()
        self._pending.extend(sorted(newest, key=lambda queued: queued.end_offset))
        return self._reports_read != before


def read_reports(
    directory: RunDirectory, offset: int, *, is_agents_own: bool
) -> tuple[list[QueuedReport], int]:
    """Read whole lines from byte `offset` on, at most `READ_BYTES`; also returns the end offset.

    Lines that are no report of this trainer are skipped: user code can write to the file too.
    """
    path = directory.own_reports if is_agents_own else directory.reports
    found = []
    for line, end_offset in whole_lines(path, offset, READ_BYTES):
        offset = end_offset
        if len(line) < LEAST_BYTES:
            continue
        try:
            report = decode(TrainerReport, storable(json_parse(line)))
        except ValueError as error:
            log.debug("a line of %s is no report: %s", path, error)
            continue
        is_ours = (report.job_id, report.slot) == directory.key
        is_first_hand = (report.sequence >= AGENT_SEQUENCE) is is_agents_own
        is_exit_of_trainer = report.kind is ReportKind.EXITED and not is_agents_own
        if is_ours and is_first_hand and report.sequence >= 0 and not is_exit_of_trainer:
            found.append(QueuedReport(report, is_agents_own, end_offset, len(line)))
    return found, offset


def last_report(
    directory: RunDirectory, kinds: Container[ReportKind], *, is_agents_own: bool
) -> TrainerReport | None:
    """Return the last report of one of `kinds` that the trainer, or the agent for it, wrote.

    Only the last `LAST_BYTES` are read: user code can make the file as long as it likes.
    """
    path = directory.own_reports if is_agents_own else directory.reports
    end = plain_file_size(path)
    last, before, offset = None, -1, max(0, end - LAST_BYTES)
    while before < offset < end:
        before = offset
        found, offset = read_reports(directory, before, is_agents_own=is_agents_own)
        last = next((item.report for item in reversed(found) if item.report.kind in kinds), last)
    return last


def _machine_age_s() -> float:
    """Return the seconds since the machine's start, whatever its clock is set to."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def storable(value: Any) -> Any:
    """Replace values that JSON or a database cannot hold: NaN, infinity, NUL, lone surrogates."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return value.replace("\0", "?").encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {storable(name): storable(item) for name, item in value.items()}
    if isinstance(value, list):
        return [storable(item) for item in value]
    return value
