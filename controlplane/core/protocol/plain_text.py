"""Text of programs as a terminal would show it: no escape sequences, no control characters.

Programs colour their messages and draw over their own lines. What they write comes from strangers
and ends on pages, in logs and in other people's terminals, so only newlines and tabs are let
through. Sequences are those of ECMA-48 (7-bit and 8-bit forms).
"""

from __future__ import annotations

import re
from typing import Any

#: A string of characters ends with its line at the latest: one that is never terminated must not
#: swallow all that follows.
_STRING = r"(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x00-\x08\n-\x1f\x80-\x9f]*"
_SEQUENCE = re.compile(
    rf"{_STRING}(?:\x07|\x1b\\|\x9c)?"
    r"|(?:\x1b\[|\x9b)(?P<parameters>[0-?]*)[ -/]*(?P<final>[@-~]?)"
    r"|\x1b[ -/]*[0-OQ-WYZ\\`-~]"
)
#: A sequence that may go on in the text that comes next.
_UNFINISHED = re.compile(rf"(?:{_STRING}\x1b?|(?:\x1b\[|\x9b)[0-?]*[ -/]*|\x1b[ -/]*)\Z")
#: So much of it is kept at most.
UNFINISHED_LIMIT = 16
#: All that is removed. Carriage returns and backspaces have been followed before.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
#: Stands for the sequence that erases the rest of a line; vertical tabs themselves go out before.
_ERASE = "\v"
_MOVES = re.compile(r"([\r\b\v])")
#: JSON values that are nested deeper are left out.
_DEPTH_LIMIT = 50


def plain_text(text: str) -> str:
    """Give a whole text as a terminal would show it, with newlines and tabs and no other control.

    Plain text comes back as it is, so doing it twice changes nothing.
    """
    return "\n".join(_line_shown(line) for line in _without_sequences(text).split("\n"))


def plain_part(text: str, unfinished: str = "") -> tuple[str, str]:
    """Give a part of a longer text without control characters, and what the next part needs.

    Args:
        text: the part, cut anywhere.
        unfinished: what was given with the part before.

    Returns:
        The part; a carriage return as its first character says that it replaces the unfinished line
        before it (`parts_shown`). And what belongs before the next part: the beginning of a
        sequence, or carriage returns, at most `UNFINISHED_LIMIT` characters.
    """
    text = unfinished + text
    found = _UNFINISHED.search(text)
    sequence = "" if found is None else found[0]
    text = text.removesuffix(sequence)
    whole = text.rstrip("\r")
    rest = "\r" * (len(text) > len(whole)) + _sequence_start(sequence)
    *lines, last = _without_sequences(whole).split("\n")
    first = lines[0].rstrip("\r") if lines else last
    mark = "\r" if "\r" in first else ""
    # The last line goes on: of one that is being written over only what it becomes is kept.
    lines = [*lines, last.rpartition("\r")[2]]
    return mark + "\n".join(_line_shown(line) for line in lines), rest


def _sequence_start(sequence: str) -> str:
    """Shorten an unfinished sequence: what a string says does not matter, only that it goes on."""
    string = re.match(_STRING, sequence)
    if string is None:
        return sequence[: UNFINISHED_LIMIT - 1]
    introducer = sequence[: 2 if sequence[0] == "\x1b" else 1]
    return introducer + "\x1b" * (len(sequence) > string.end())


def parts_shown(text: str) -> str:
    """Give parts that were joined, with those lines taken out that later parts replace."""
    if "\r" not in text:
        return text
    return "\n".join(line.rpartition("\r")[2] for line in text.split("\n"))


def plain_values(value: Any, depth: int = _DEPTH_LIMIT) -> Any:
    """Make all text in plain JSON values plain, names included."""
    if isinstance(value, str):
        return plain_text(value)
    if isinstance(value, dict) and depth:
        return {plain_text(name): plain_values(item, depth - 1) for name, item in value.items()}
    if isinstance(value, list | tuple) and depth:
        return [plain_values(item, depth - 1) for item in value]
    return None if isinstance(value, dict | list | tuple) else value


def _without_sequences(text: str) -> str:
    """Take sequences out; those that erase within a line become control characters."""
    return _SEQUENCE.sub(_sequence_meaning, text.replace(_ERASE, ""))


def _sequence_meaning(sequence: re.Match[str]) -> str:
    if sequence["final"] != "K":
        return ""
    return _ERASE if sequence["parameters"] in ("", "0") else f"\r{_ERASE}"


def _line_shown(line: str) -> str:
    """Write a line as a terminal does: what comes after a carriage return goes over it."""
    if not _MOVES.search(line):
        return _CONTROL.sub("", line)
    cells: list[str] = []
    cursor = 0
    for piece in _MOVES.split(line):
        if piece == "\r":
            cursor = 0
        elif piece == "\b":
            cursor = max(0, cursor - 1)
        elif piece == _ERASE:
            del cells[cursor:]
        else:
            text = _CONTROL.sub("", piece)
            cells[cursor : cursor + len(text)] = text
            cursor += len(text)
    return "".join(cells).rstrip(" ")
