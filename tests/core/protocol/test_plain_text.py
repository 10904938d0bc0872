"""Tests of text from programs: what a terminal would show, however it was cut into parts."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from controlplane.core.protocol.plain_text import (
    UNFINISHED_LIMIT,
    parts_shown,
    plain_part,
    plain_text,
    plain_values,
)

#: Text as programs write it: words, sequences of every kind, and controls that are half of one.
PIECES = st.sampled_from(
    [
        "Epoch 1",
        "ä漢",
        " ",
        "\t",
        "\n",
        "\x1b",
        "\x1b[1m",
        "\x1b[38;5;196m",
        "\x1b[",
        "\x9b31m",
        "\x1b]0;a title\x07",
        "\x1b]8;;https://example.org/\x1b\\",
        "\x1b]",
        "\x1bP+q\x1b\\",
        "\x90",
        "\x9c",
        "\x1b(B",
        "\x1bM",
        "\x00",
        "\x07",
        "\x7f",
        "\x85",
        "[0m",
        ";",
        "7",
    ]
)
MOVING = st.sampled_from(["\r", "\b", "\r\n", "\x1b[K", "\x1b[2K", "\v"])
PROGRAM_TEXT = st.lists(PIECES, max_size=30).map("".join)
ANY_TEXT = st.one_of(st.text(), st.lists(st.one_of(PIECES, MOVING), max_size=30).map("".join))


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("\x1b[1mInput 0\x1b[0m of layer", "Input 0 of layer"),
        ("\x1b[38;5;33mdense\x1b[0m (\x1b[38;5;34mDense\x1b[0m)", "dense (Dense)"),
        ("\x1b]0;title\x07text", "text"),
        ("lost \u202e99.0\u202c: \u2066loss\u2069", "lost 99.0: loss"),
        ("\x1b]8;;https://example.org\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x9b31mred\x9d0;title\x9c", "red"),
        ("\x1bPdata\x1b\\\x1b_data\x1b\\\x1b^data\x1b\\\x1bXdata\x1b\\text", "text"),
        ("\x1b(B\x1b=\x1bMtext\x1b7", "text"),
        ("never ended \x1b]0;title\nnext line", "never ended \nnext line"),
        ("half a sequence \x1b[3", "half a sequence "),
        ("bell\a, null\0, delete\x7f, next line\x85", "bell, null, delete, next line"),
        ("a\tb\nc", "a\tb\nc"),
        ("one\r\ntwo\r\r\n", "one\ntwo\n"),
        ("  1%\r 50%\r100%\ndone", "100%\ndone"),
        ("longer line\rshort", "shortr line"),
        ("longer line\r\x1b[Kshort", "short"),
        ("longer line\x1b[2Kshort", "short"),
        ("12\b\b34", "34"),
        ("\b\b3", "3"),
    ],
)
def test_what_a_terminal_would_show(written: str, shown: str) -> None:
    assert plain_text(written) == shown


@given(ANY_TEXT)
def test_no_control_character_but_newline_and_tab_is_left(text: str) -> None:
    shown = plain_text(text)
    assert not [c for c in shown if unicodedata.category(c) == "Cc" and c not in "\n\t"]
    assert shown.count("\n") == text.count("\n")
    assert plain_text(shown) == shown


@given(st.text(st.characters(exclude_categories=("Cc",), include_characters="\n\t")))
def test_plain_text_comes_back_as_it_is(text: str) -> None:
    assert plain_text(text) == text
    assert plain_part(text) == (text, "")


def parts_of(text: str, cuts: list[int]) -> list[str]:
    """Give what is stored of a text that comes in parts."""
    places = sorted({min(cut, len(text)) for cut in cuts})
    stored, unfinished = [], ""
    for start, end in zip([0, *places], [*places, len(text)], strict=True):
        part, unfinished = plain_part(text[start:end], unfinished)
        assert len(unfinished) <= UNFINISHED_LIMIT
        stored.append(part)
    return stored


@given(PROGRAM_TEXT, st.lists(st.integers(0, 200), max_size=8))
@example("\x1b]0;a title that goes on\x1b\\text", [3, 23])
@example("\x1b[38;5;196mred", [1, 2, 5])
def test_cuts_leave_no_garbage(text: str, cuts: list[int]) -> None:
    assert "".join(parts_of(text, cuts)) == plain_text(text)


@given(ANY_TEXT, st.lists(st.integers(0, 200), max_size=8))
def test_parts_hold_a_carriage_return_only_as_their_first_character(
    text: str, cuts: list[int]
) -> None:
    for part in parts_of(text, cuts):
        body = part.removeprefix("\r")
        assert not [c for c in body if unicodedata.category(c) == "Cc" and c not in "\n\t"]


@given(st.lists(st.integers(0, 100), max_size=12), st.lists(st.integers(0, 200), max_size=8))
def test_a_progress_bar_is_one_line_however_it_is_cut(values: list[int], cuts: list[int]) -> None:
    bar = "".join(f"\r{value:3}% done" for value in values)
    text = f"begins\n{bar}\nends\n"
    last = f"{values[-1]:3}% done" if values else ""
    assert parts_shown("".join(parts_of(text, cuts))) == f"begins\n{last}\nends\n"


def test_a_line_that_ends_with_a_carriage_return_stays_until_it_is_written_over() -> None:
    stored = parts_of("ready\n50%\r60%\r", [6, 10])
    assert stored == ["ready\n", "50%", "\r60%"]
    assert parts_shown("".join(stored)) == "ready\n60%"
    assert parts_shown("".join(parts_of("one\r\ntwo", [4]))) == "one\ntwo"


@pytest.mark.parametrize(
    "text",
    ["\x90" * 200_000 + "\n", "\r" * 200_000 + "x", "\x1b[0" * 60_000, "\x1b]" * 100_000 + "\n"],
)
def test_long_hostile_text_takes_no_longer_than_its_length(text: str) -> None:
    assert len(plain_text(text)) <= 200_001  # quadratic work would take minutes
    part, unfinished = plain_part(text)
    assert len(part) <= 200_001
    assert len(unfinished) <= UNFINISHED_LIMIT


def test_values_become_plain_however_deep() -> None:
    value = {"\x1b[1mname": ["\x1b[0mtext", {"deep": ("\x07bell", 1, None, 2.5, True)}]}
    assert plain_values(value) == {"name": ["text", {"deep": ["bell", 1, None, 2.5, True]}]}
    nested: list[object] = []
    for _ in range(10_000):
        nested = [nested]
    assert plain_values(nested) is not None
