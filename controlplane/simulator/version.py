"""Version of the code that decides the results of a simulation."""

from __future__ import annotations

import ast
import hashlib
from functools import cache
from pathlib import Path

_HERE = Path(__file__).resolve().parent

#: Folders and files whose code results depend on.
_DECIDING = (
    _HERE.parent / "core",
    *(_HERE / name for name in ("applications", "engine", "published", "workloads", "settings.py")),
)


@cache
def code_version() -> str:
    """Return twelve hexadecimal digits that change with the core or the simulator.

    Comments, docstrings and the layout of lines do not count.
    """
    found = hashlib.sha256()
    for place in _DECIDING:
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            found.update(path.relative_to(_HERE.parent).as_posix().encode())
            found.update(statements_of(path.read_text()).encode())
    return found.hexdigest()[:12]


def statements_of(source: str) -> str:
    """Return a text that is equal for sources with the same statements."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            node.body = [one for one in node.body if not _is_text(one)]
    return ast.dump(tree)


def _is_text(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
