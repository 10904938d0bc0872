"""Version of the code that decides the results of a simulation."""

from __future__ import annotations

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
    """Return twelve hexadecimal digits that change with the core or the simulator."""
    found = hashlib.sha256()
    for place in _DECIDING:
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            found.update(path.relative_to(_HERE.parent).as_posix().encode())
            found.update(path.read_bytes())
    return found.hexdigest()[:12]
