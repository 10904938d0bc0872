"""Lets other users reach this interpreter, in a mount namespace of one command.

An interpreter below the home of root, which is closed to others, cannot run jobs as users of their
own. In the namespace only the interpreter's part of that folder is there, and open.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

_SCRIPT = """
set -e
for folder in $FOLDERS; do
    mkdir -p "$PASSING$folder"
    mount --bind "$folder" "$PASSING$folder"
done
for folder in $CLOSED; do mount -t tmpfs -o mode=755 none "$folder"; done
for folder in $FOLDERS; do
    mkdir -p "$folder"
    mount --move "$PASSING$folder" "$folder"
done
exec "$@"
"""


def _closed_above(folder: Path) -> Path | None:
    """Return the uppermost folder on the way that others cannot pass."""
    way = [*reversed(folder.parents), folder]
    return next((part for part in way if not part.stat().st_mode & stat.S_IXOTH), None)


@cache
def _places() -> dict[Path, Path]:
    """Map the folders of this interpreter that others cannot reach to the closed ones above."""
    root = Path(__file__).parents[2]
    wanted = {Path(sys.base_prefix), Path(sys.prefix).resolve(), root}
    return {path: closed for path in wanted if (closed := _closed_above(path)) is not None}


def reachable_command(command: list[str], passing: Path) -> list[str]:
    """Prefix a command so that other users can run this interpreter in it.

    Args:
        passing: a folder for mounts of the namespace.
    """
    places = _places()
    if not places:
        return command
    names = {
        "FOLDERS": " ".join(map(str, places)),
        "CLOSED": " ".join({str(closed) for closed in places.values()}),
        "PASSING": str(passing),
    }
    variables = [f"{name}={value}" for name, value in names.items()]
    return ["unshare", "--mount", "env", *variables, "sh", "-c", _SCRIPT, "sh", *command]


def root_needed() -> None:
    """Skip a test that needs root, or namespaces that this machine does not allow."""
    if os.geteuid() != 0:
        pytest.skip("only root can give jobs users of their own")
    if _places() and (
        shutil.which("unshare") is None
        or subprocess.run(["unshare", "--mount", "true"], check=False).returncode
    ):
        pytest.skip("other users cannot reach this interpreter, and there are no mount namespaces")
