"""Kinds of the parts of Python code, for its colours: keywords, strings, numbers, comments, names.

The code comes from everybody who may submit a job. The tokenizer of the standard library reads line
by line: it can be stopped between tokens, and none takes long in a line of bounded length. The
regular expressions of general highlighters read on across lines, and a few kilobytes can keep them
busy for hours.
"""

from __future__ import annotations

import itertools
import keyword
import time
import tokenize
from collections.abc import Iterator, Sequence

_KINDS = {tokenize.STRING: "string", tokenize.NUMBER: "number", tokenize.COMMENT: "comment"}
_DEFINITIONS = ("def", "class")
#: Most characters of a line, with the square of which the time for a token may grow ...
_LINE_LIMIT = 400
#: ... and most seconds for all of them.
_TIME_LIMIT_S = 0.5

#: Columns where a part begins and ends, and its kind.
Part = tuple[int, int, str]


def python_parts(lines: Sequence[str]) -> list[list[Part]]:
    """Return the parts of each line that have a kind, in order.

    Kinds are keyword, string, number, comment and name (of what is defined). Lines have none from
    the first one on that is no Python or too long, or when the time is over.
    """
    parts: list[list[Part]] = [[] for _ in lines]
    try:
        for kind, (first, start), (last, end) in _tokens(lines):
            for number in range(first - 1, last):
                left = start if number == first - 1 else 0
                right = end if number == last - 1 else len(lines[number])
                if left < right:
                    parts[number].append((left, right, kind))
    except (tokenize.TokenError, SyntaxError):
        pass  # cut off, or no Python from here on
    return parts


def _tokens(lines: Sequence[str]) -> Iterator[tuple[str, tuple[int, int], tuple[int, int]]]:
    """Yield kind, start and end of the tokens that have a kind."""
    short = itertools.takewhile(lambda line: len(line) <= _LINE_LIMIT, lines)
    rest = (f"{line}\n" for line in short)
    before, deadline = "", time.monotonic() + _TIME_LIMIT_S
    for token in tokenize.generate_tokens(lambda: next(rest, "")):
        if time.monotonic() > deadline:
            return
        kind = _KINDS.get(token.type, "")
        if token.type == tokenize.NAME:
            if keyword.iskeyword(token.string):
                kind = "keyword"
            elif before in _DEFINITIONS:
                kind = "name"
        if kind:
            yield kind, token.start, token.end
        before = token.string
