"""`python -m tests.support.advisories`: search the pinned packages for known vulnerabilities.

Where no index of advisories can be reached, nothing is searched, and a sentence says so.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = ("requirements.txt", "requirements/dev.txt")
#: A release with known vulnerabilities: an index that lists none for it has no advisories.
KNOWN = "jinja2==2.10"
_FOUND = 1
_LIMIT_S = 1800.0
#: `--strict`: a package that the index does not know fails the audit, too.
AUDIT = (sys.executable, "-m", "pip_audit", "--strict", "--disable-pip", "--progress-spinner",
         "off")  # fmt: skip


def advisories_search(command: Sequence[str] = AUDIT) -> int:
    """Search all pinned packages; return the exit status, 0 if nothing is known or searched."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(KNOWN)
        file.flush()
        status = _status([*command, "--no-deps", "--requirement", file.name])
    if status != _FOUND:
        sys.stdout.write(
            "Known vulnerabilities are NOT searched: no index of advisories can be reached, as "
            f"none is known of {KNOWN}.\n"
        )
        return 0
    searched = [[*command, "--require-hashes", "--requirement", name] for name in REQUIREMENTS]
    return max(_status(each) for each in searched)


def _status(command: Sequence[str]) -> int:
    done = subprocess.run(command, cwd=ROOT, check=False, timeout=_LIMIT_S)
    return abs(done.returncode)


if __name__ == "__main__":
    sys.exit(advisories_search())
