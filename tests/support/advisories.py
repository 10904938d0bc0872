"""`python -m tests.support.advisories`: search the pinned packages for known vulnerabilities.

The index of advisories is that of PyPI. Where it cannot be reached, or is a mirror without
advisories, nothing is searched, and a sentence says so.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = ("requirements.txt", "requirements/dev.txt")
INDEX = "https://pypi.org"
#: A release with known vulnerabilities: an index that lists none for it has no advisories.
KNOWN = "pypi/jinja2/2.10/json"
_ANSWER_LIMIT_S, _AUDIT_LIMIT_S = 20.0, 1800.0
#: `--strict`: a package that the index does not know fails the audit, too.
AUDIT = (sys.executable, "-m", "pip_audit", "--strict", "--disable-pip", "--require-hashes",
         "--progress-spinner", "off", "--requirement")  # fmt: skip


def index_missing(index: str = INDEX) -> str:
    """Return why the index has no advisories for us; empty if it has."""
    try:
        answer = httpx.get(f"{index}/{KNOWN}", timeout=_ANSWER_LIMIT_S, follow_redirects=True)
        answer.raise_for_status()
        has_advisories = bool(answer.json()["vulnerabilities"])
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        return (
            f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no answer'}"
        )
    return "" if has_advisories else "it lists no vulnerabilities of a release that has some"


def advisories_search(index: str = INDEX, command: Sequence[str] = AUDIT) -> int:
    """Search all pinned packages; return the exit status, 0 if nothing is known or searched."""
    why = index_missing(index)
    if why:
        sys.stdout.write(
            "Known vulnerabilities are NOT searched: no index of advisories can be reached at "
            f"{index} ({why}).\n"
        )
        return 0
    statuses = [
        subprocess.run([*command, name], cwd=ROOT, check=False, timeout=_AUDIT_LIMIT_S).returncode
        for name in REQUIREMENTS
    ]
    return max(map(abs, statuses))


if __name__ == "__main__":
    sys.exit(advisories_search())
