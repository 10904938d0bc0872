"""The search for known vulnerabilities: it fails on findings, and says when it does not search."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.advisories import AUDIT, REQUIREMENTS, advisories_search

ROOT = Path(__file__).resolve().parents[1]


def audits(tmp_path: Path, failing: str, status_of_known: int = 1) -> list[str]:
    """Return a command that notes its last argument, and fails for one of them."""
    script = (
        "import sys; name = sys.argv[-1]; known = name.startswith('/');"
        f"known or print(name, file=open({str(tmp_path / 'searched')!r}, 'a'));"
        f"sys.exit({status_of_known} if known else name == {failing!r})"
    )
    return [sys.executable, "-c", script]


@pytest.mark.parametrize("failing", ["", *REQUIREMENTS])
def test_every_file_of_pins_is_searched(failing: str, tmp_path: Path) -> None:
    assert advisories_search(audits(tmp_path, failing)) == bool(failing)
    assert (tmp_path / "searched").read_text().split() == [*REQUIREMENTS]
    assert all((ROOT / name).exists() for name in REQUIREMENTS)


@pytest.mark.parametrize("status", [0, 2])
def test_an_index_without_advisories_is_said(
    status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert advisories_search(audits(tmp_path, "", status)) == 0
    assert "NOT searched" in capsys.readouterr().out
    assert not (tmp_path / "searched").exists()


def test_the_audit_passes_over_nothing() -> None:
    """Without `--strict` packages that an index does not know would pass."""
    assert {"--strict", "--disable-pip"} <= {*AUDIT}
    assert "\npip-audit==" in (ROOT / "requirements/dev.txt").read_text()
