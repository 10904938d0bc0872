"""A log that is sent on while it is written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.supervision.log_tail import PAUSE_S, LogTail
from agents.supervision.run_directory import RunDirectory
from tests.agents.builders import run_directory
from tests.support.present import present


@given(st.lists(st.binary(max_size=9), max_size=12))
def test_log_chunks_stand_for_exactly_their_bytes(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes]
) -> None:
    directory = run_directory(tmp_path_factory.mktemp("log"))
    tail = LogTail(directory, beginning_bytes=1000, slack_bytes=10)
    text, written = b"", b""
    for index, part in enumerate([*parts, b""]):
        written += part
        directory.log.write_bytes(written)
        while chunk := tail.next_chunk(is_writer_gone=index == len(parts)):
            assert chunk.offset == len(text)
            text += chunk.text.encode()
            tail.accept(chunk)
    assert len(text) == len(written)
    assert b"\0" not in text
    try:
        assert text.decode() == written.decode().replace("\0", "?")
    except UnicodeDecodeError:
        assert b"?" in text


def test_a_character_in_two_writes_stays_one(tmp_path: Path) -> None:
    directory = run_directory(tmp_path)
    tail = LogTail(directory, beginning_bytes=1000, slack_bytes=10)
    euro = "€".encode()
    directory.log.write_bytes(b"5 " + euro[:2])
    chunk = present(tail.next_chunk(is_writer_gone=False))
    assert chunk.text == "5 "
    tail.accept(chunk)
    directory.log.write_bytes(b"5 " + euro)
    chunk = present(tail.next_chunk(is_writer_gone=False))
    assert chunk.text == "€"


class Clock:
    """A clock that is set by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def endless(
    folder: Path, monkeypatch: pytest.MonkeyPatch, lines: Sequence[bytes]
) -> tuple[RunDirectory, LogTail, Clock]:
    """Return a log with these lines, of which 20 bytes are sent whole, then 16 at most wait."""
    monkeypatch.setattr("agents.supervision.log_tail.CHUNK_BYTES", 8)
    monkeypatch.setattr("agents.supervision.log_tail.WAITING_BYTES", 16)
    directory, clock = run_directory(folder), Clock()
    directory.log.write_bytes(b"".join(lines))
    return directory, LogTail(directory, 20, 50, clock), clock


def sent(tail: LogTail, *, is_writer_gone: bool = False) -> list[tuple[int, str]]:
    """Send what may be sent now."""
    chunks = []
    while chunk := tail.next_chunk(is_writer_gone=is_writer_gone):
        tail.accept(chunk)
        chunks.append((chunk.offset, chunk.text))
    return chunks


def test_of_an_endless_log_the_newest_part_follows_the_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [b"%06d\n" % number for number in range(100)]
    directory, tail, clock = endless(tmp_path, monkeypatch, lines)
    beginning = sent(tail)
    assert "".join(text for _, text in beginning) == "000000\n000001\n000002\n000"
    clock.now += PAUSE_S - 0.1
    assert sent(tail) == []
    clock.now += 0.1
    # Of 700 bytes 16 may wait: those from 684 on, where the line of byte 686 begins.
    assert sent(tail) == [(686, "000098\n0")]
    with directory.log.open("ab") as writer:
        writer.write(b"once\n")
    clock.now += PAUSE_S
    assert sent(tail) == [(694, "00099\non")]
    assert sent(tail, is_writer_gone=True) == [(702, "ce\n")]


def test_the_end_of_an_ended_log_is_sent_without_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [b"%06d\n" % number for number in range(100)]
    _, tail, _ = endless(tmp_path, monkeypatch, lines)
    assert sent(tail, is_writer_gone=True)[-2:] == [(686, "000098\n0"), (694, "00099\n")]


def test_an_endless_log_without_lines_is_sent_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, tail, clock = endless(tmp_path, monkeypatch, ["é".encode() * 101, b"x"])
    sent(tail)
    clock.now += PAUSE_S
    # The 16 bytes begin in the middle of a letter.
    assert sent(tail) == [(187, "?ééé")]


@pytest.mark.parametrize("can_punch", [True, False])
def test_an_endless_log_does_not_fill_the_disk(
    can_punch: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError("not supported")

    if not can_punch:
        monkeypatch.setattr("agents.supervision.log_tail.plain_file_punch", refused)
    directory, block = run_directory(tmp_path), b"0123456789abcde\n" * 4096 * 16  # 1 MiB
    tail = LogTail(directory, beginning_bytes=len(block), slack_bytes=len(block))
    used = []
    with directory.log.open("ab", buffering=0) as writer:
        for _ in range(8):
            writer.write(block)
            tail.trim()
            used.append(directory.log.stat().st_blocks * 512)
    assert max(used) <= 4 * len(block)
    with directory.log.open("rb") as log:
        assert log.read(len(block)) == block
    chunks = sent(tail, is_writer_gone=True)
    text = "".join(text for _, text in chunks)
    assert set(text.splitlines()) == {"0123456789abcde"}
    if can_punch:
        assert chunks[-1][0] + len(chunks[-1][1]) == 8 * len(block)
