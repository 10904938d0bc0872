"""A log that is sent on while it is written."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.supervision.log_tail import LogTail
from tests.agents.builders import run_directory


@given(st.lists(st.binary(max_size=9), max_size=12))
def test_log_chunks_stand_for_exactly_their_bytes(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes]
) -> None:
    directory = run_directory(tmp_path_factory.mktemp("log"))
    tail = LogTail(directory, shipped_bytes=1000, slack_bytes=10)
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
    tail = LogTail(directory, shipped_bytes=1000, slack_bytes=10)
    euro = "€".encode()
    directory.log.write_bytes(b"5 " + euro[:2])
    chunk = tail.next_chunk(is_writer_gone=False)
    assert chunk is not None
    assert chunk.text == "5 "
    tail.accept(chunk)
    directory.log.write_bytes(b"5 " + euro)
    chunk = tail.next_chunk(is_writer_gone=False)
    assert chunk is not None
    assert chunk.text == "€"


def test_a_log_is_cut_at_its_bound_on_disk_too(tmp_path: Path) -> None:
    directory = run_directory(tmp_path)
    tail = LogTail(directory, shipped_bytes=100, slack_bytes=50)
    with directory.log.open("ab") as writer:
        writer.write(b"a" * 140)
        writer.flush()
        tail.trim()
        assert directory.log.stat().st_size == 140
        writer.write(b"b" * 20)
        writer.flush()
        tail.trim()
        assert directory.log.stat().st_size == 101
        writer.write(b"c" * 10)
        writer.flush()
    assert directory.log.read_bytes() == b"a" * 101 + b"c" * 10
    chunks = []
    while chunk := tail.next_chunk(is_writer_gone=False):
        tail.accept(chunk)
        chunks.append(chunk.text)
    assert chunks[0] == "a" * 100
    assert chunks[1].startswith("\n[the log goes on")
    assert len(chunks) == 2
