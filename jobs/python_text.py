"""Python text of users, parsed and never compiled or run."""

from __future__ import annotations

import ast
import threading

#: Before Python 3.11.8 threads that parse at the same time can disturb each other: the depth of
#: their recursion is counted together, and one of them fails with a SystemError.
_LOCK = threading.Lock()


def python_parse(text: bytes | str, file_name: str = "<text>") -> ast.Module:
    """Parse a file.

    Raises:
        SyntaxError: it is not valid.
        ValueError, RecursionError, MemoryError: it cannot be parsed.
    """
    with _LOCK:
        return ast.parse(text, file_name)
