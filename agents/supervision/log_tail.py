"""Sends a trainer's log to the control plane, in chunks by byte offset.

The beginning is sent whole. A log that goes on beyond it is sent slowly, without what was written
faster than that, so that its newest part can always be read. Secrets of the job are masked before.
"""

from __future__ import annotations

import codecs
import contextlib
import time
from collections.abc import Callable

from agents.supervision.masking import Mask
from agents.supervision.run_directory import RunDirectory
from agents.trainer.contract.plain_files import (
    plain_file_open,
    plain_file_punch,
    plain_file_size,
    plain_file_truncate,
)
from controlplane.core.protocol.node_messages import LogChunk

CHUNK_BYTES = 64 * 1024
#: Seconds between chunks beyond the beginning, and the most that waits to be sent there.
PAUSE_S, WAITING_BYTES = 4.0, 256 * 1024


class LogTail:
    """Reads one log.txt while it is written.

    Chunk text is valid UTF-8 and exactly as many bytes long as its part of the file, so that
    offsets of chunks add up in the control plane. A masked secret keeps its length for that reason.

    Attributes:
        mask: of the job's secrets.
    """

    def __init__(
        self,
        directory: RunDirectory,
        beginning_bytes: int,
        slack_bytes: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.mask = Mask()
        self._directory = directory
        self._beginning_bytes = beginning_bytes
        self._slack_bytes = slack_bytes
        self._clock = clock
        self._next_at = 0.0
        self._punched_to = beginning_bytes + CHUNK_BYTES  # of which a part may not be sent yet

    def next_chunk(self, *, is_writer_gone: bool) -> LogChunk | None:
        """Read the next chunk; None if there is no new text, or it is not yet its turn."""
        offset = self._directory.shipped.log_offset
        if offset >= self._beginning_bytes:
            if not is_writer_gone and self._clock() < self._next_at:
                return None
            offset = self._newest_from(offset)
        part = self._masked(offset, CHUNK_BYTES, is_writer_gone=is_writer_gone)
        # Bytes that may begin a character wait for the rest of it.
        decoder = codecs.getincrementaldecoder("utf-8")("one_mark_a_byte")
        text = decoder.decode(part, final=is_writer_gone)
        job_id, slot = self._directory.key
        whole = text.replace("\0", "?")
        return LogChunk(job_id=job_id, slot=slot, offset=offset, text=whole) if text else None

    def accept(self, chunk: LogChunk) -> None:
        """Continue after `chunk`, which the control plane has acknowledged."""
        self._directory.shipped.log_offset = chunk.offset + len(chunk.text.encode())
        self._next_at = self._clock() + PAUSE_S

    def trim(self) -> None:
        """Give back the space of text that is not sent any more, so that no log fills the disk.

        The writer appends, and offsets stay as they are. Where the file system cannot do that, the
        log is truncated at its beginning, and nothing more of it is sent.
        """
        end = self._size_bytes() - 2 * WAITING_BYTES
        if end - self._punched_to <= self._slack_bytes:
            return
        log = self._directory.log
        with contextlib.suppress(OSError):  # no regular file any more
            try:
                plain_file_punch(log, self._punched_to, end - self._punched_to)
            except OSError:
                plain_file_truncate(log, self._beginning_bytes)
        self._punched_to = end

    def _newest_from(self, offset: int) -> int:
        """Return where to go on: at `offset`, or at a line behind what waits for too long."""
        start = self._size_bytes() - WAITING_BYTES
        if start <= offset:
            return offset
        _, newline, rest = self._read(start, CHUNK_BYTES).partition(b"\n")
        return start + (CHUNK_BYTES - len(rest) if newline else 0)

    def _size_bytes(self) -> int:
        return plain_file_size(self._directory.log)

    def _masked(self, offset: int, count: int, *, is_writer_gone: bool) -> bytes:
        """Read up to `count` bytes, without secrets and, unless complete, the beginning of one."""
        if not self.mask:
            return self._read(offset, count)
        # A secret that begins before these bytes or ends behind them is masked as well.
        before, behind = min(offset, self.mask.longest_bytes), self.mask.longest_bytes
        data = self._read(offset - before, before + count + behind)
        masked = self.mask.data(data)
        num_begun = 0
        if len(data) < before + count + behind:
            num_begun = self.mask.num_begun(data)
        whole = masked[: len(masked) - num_begun]
        if is_writer_gone:
            whole += b"*" * num_begun
        return whole[before : before + count]

    def _read(self, offset: int, count: int) -> bytes:
        try:
            with plain_file_open(self._directory.log) as file:
                file.seek(offset)
                return file.read(count)
        except OSError:
            return b""


def _one_mark_a_byte(error: UnicodeError) -> tuple[str, int]:
    """Decode each byte that is not UTF-8 to one "?", so that lengths in bytes stay equal."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "?" * (error.end - error.start), error.end


codecs.register_error("one_mark_a_byte", _one_mark_a_byte)
