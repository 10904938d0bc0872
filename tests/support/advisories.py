"""`python -m tests.support.advisories`: search the pinned packages for known vulnerabilities.

Where no index of advisories can be reached, nothing is searched, and a sentence says so.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = ("requirements.txt", "requirements/dev.txt", "requirements/installer.txt")
#: A release with known vulnerabilities: an index that lists none for it has no advisories.
KNOWN = "jinja2==2.10"
_LIMIT_S = 1800.0
AUDIT = (sys.executable, "-m", "pip_audit", "--disable-pip", "--progress-spinner", "off")


def advisories_search(command: Sequence[str] = AUDIT) -> int:
    """Search all pinned packages; return the exit status, 0 if nothing is known or searched."""
    if not _has_advisories(command):
        sys.stdout.write(
            "Known vulnerabilities are NOT searched: no index of advisories can be reached, as "
            f"none is known of {KNOWN}.\n"
        )
        return 0
    # `--strict`: a package that the index does not know fails the audit, too.
    searched = [[*command, "--strict", "--require-hashes", "-r", name] for name in REQUIREMENTS]
    return max(_run(each).returncode for each in searched)


def _has_advisories(command: Sequence[str]) -> bool:
    """Return whether the audit finds the known vulnerabilities.

    Its exit status does not tell: it is 1 as well if the index does not know the package, as a
    mirror without advisories does not.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(KNOWN)
        file.flush()
        done = _run([*command, "--no-deps", "--format", "json", "-r", file.name], capture=True)
    try:
        (package,) = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        return False
    return bool(package.get("vulns"))


def _run(command: Sequence[str], *, capture: bool = False) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command, cwd=ROOT, check=False, timeout=_LIMIT_S, capture_output=capture)


if __name__ == "__main__":
    sys.exit(advisories_search())
