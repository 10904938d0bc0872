"""Text of programs as a terminal would show it: no escape sequences, no control characters.

Programs colour their messages and draw over their own lines. Their output is untrusted and ends up
on pages, in logs and in other users' terminals, so only newlines and tabs are let through.
Sequences are those of ECMA-48 (7-bit and 8-bit forms).
"""

from __future__ import annotations

import re
from typing import Any

#: A control string ends with its line at the latest, so that an unterminated one does not swallow
#: all following text.
_STRING = r"(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x00-\x08\n-\x1f\x80-\x9f]*"
_SEQUENCE = re.compile(
    rf"{_STRING}(?:\x07|\x1b\\|\x9c)?"
    r"|(?:\x1b\[|\x9b)(?P<parameters>[0-?]*)[ -/]*(?P<final>[@-~]?)"
    r"|\x1b[ -/]*[0-OQ-WYZ\\`-~]"
)
#: A sequence that may continue in the following text.
_UNFINISHED = re.compile(rf"(?:{_STRING}\x1b?|(?:\x1b\[|\x9b)[0-?]*[ -/]*|\x1b[ -/]*)\Z")
#: Largest number of characters kept of an unfinished sequence.
UNFINISHED_LIMIT = 16
#: Characters that change the order in which text is shown, of lines of code too (UAX #9).
REORDERING = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
#: All characters to be removed. Carriage returns and backspaces have been applied before.
_CONTROL = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f{REORDERING}]")
#: Stands for the sequence that erases the rest of a line; real vertical tabs are removed before.
_ERASE = "\v"
_MOVES = re.compile(r"([\r\b\v])")
#: JSON values nested deeper are left out.
_DEPTH_LIMIT = 50


def plain_text(text: str) -> str:
    """Return a whole text as a terminal would show it, with newlines and tabs and no other control.

    Plain text is returned unchanged, so the function is idempotent.
    """
    return "\n".join(_line_shown(line) for line in _without_sequences(text).split("\n"))


def plain_part(text: str, unfinished: str = "") -> tuple[str, str]:
    """Convert a part of a longer text, and return the state needed for the next part.

    Args:
        text: the part, cut anywhere.
        unfinished: the state returned with the previous part.

    Returns:
        The part without control characters; a carriage return as its first character means that it
        replaces the unfinished line before it (`parts_shown`). And the state for the next part: the
        beginning of a sequence, or carriage returns, at most `UNFINISHED_LIMIT` characters.
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
    # The last line continues: of a line being overwritten only the result is kept.
    lines = [*lines, last.rpartition("\r")[2]]
    return mark + "\n".join(_line_shown(line) for line in lines), rest


def _sequence_start(sequence: str) -> str:
    """Shorten an unfinished sequence: of a string only its state matters, not its content."""
    string = re.match(_STRING, sequence)
    if string is None:
        return sequence[: UNFINISHED_LIMIT - 1]
    introducer = sequence[: 2 if sequence[0] == "\x1b" else 1]
    return introducer + "\x1b" * (len(sequence) > string.end())


def parts_shown(text: str) -> str:
    """Return joined parts without the lines that later parts replace."""
    if "\r" not in text:
        return text
    return "\n".join(line.rpartition("\r")[2] for line in text.split("\n"))


def plain_values(value: Any, depth: int = _DEPTH_LIMIT) -> Any:
    """Apply `plain_text` to all text in plain JSON values, names included."""
    if isinstance(value, str):
        return plain_text(value)
    if isinstance(value, dict) and depth:
        return {plain_text(name): plain_values(item, depth - 1) for name, item in value.items()}
    if isinstance(value, list | tuple) and depth:
        return [plain_values(item, depth - 1) for item in value]
    return None if isinstance(value, dict | list | tuple) else value


def _without_sequences(text: str) -> str:
    """Remove sequences; those that erase within a line become control characters."""
    return _SEQUENCE.sub(_sequence_meaning, text.replace(_ERASE, ""))


def _sequence_meaning(sequence: re.Match[str]) -> str:
    if sequence["final"] != "K":
        return ""
    return _ERASE if sequence["parameters"] in ("", "0") else f"\r{_ERASE}"


def _line_shown(line: str) -> str:
    """Render a line as a terminal does: text after a carriage return overwrites the line."""
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
