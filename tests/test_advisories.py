"""The search for known vulnerabilities: it fails on findings, and says when it does not search."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support.advisories import AUDIT, REQUIREMENTS, advisories_search

ROOT = Path(__file__).resolve().parents[1]


#: Answers of the audit about the known release.
FOUND = {"dependencies": [{"name": "jinja2", "version": "2.10", "vulns": [{"id": "X"}]}]}
NONE_KNOWN = {"dependencies": [{"name": "jinja2", "version": "2.10", "vulns": []}]}
NOT_FOUND = {"dependencies": [{"name": "jinja2", "skip_reason": "not found"}]}


def audits(tmp_path: Path, failing: str, known: str, status_of_known: int = 1) -> list[str]:
    """Return a command that notes its last argument, and fails for one of them."""
    script = (
        "import sys; name = sys.argv[-1]; is_known = name.startswith('/');"
        f"print({known!r}) if is_known else print(name, file=open({str(tmp_path / 'log')!r}, 'a'));"
        "is_known or '--strict' in sys.argv or sys.exit(9);"
        f"sys.exit({status_of_known} if is_known else name == {failing!r})"
    )
    return [sys.executable, "-c", script]


@pytest.mark.parametrize("failing", ["", *REQUIREMENTS])
def test_every_file_of_pins_is_searched(failing: str, tmp_path: Path) -> None:
    assert advisories_search(audits(tmp_path, failing, json.dumps(FOUND))) == bool(failing)
    assert (tmp_path / "log").read_text().split() == [*REQUIREMENTS]
    assert all((ROOT / name).exists() for name in REQUIREMENTS)


@pytest.mark.parametrize("status", [0, 1, 2])
@pytest.mark.parametrize("known", [json.dumps(NONE_KNOWN), json.dumps(NOT_FOUND), "no JSON", "[]"])
def test_an_index_without_advisories_is_said(
    status: int, known: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert advisories_search(audits(tmp_path, "", known, status)) == 0
    assert "NOT searched" in capsys.readouterr().out
    assert not (tmp_path / "log").exists()


def test_the_audit_is_pinned() -> None:
    assert "--disable-pip" in AUDIT
    assert "\npip-audit==" in (ROOT / "requirements/dev.txt").read_text()
