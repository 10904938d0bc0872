"""Documentation that cannot rot unseen: links lead somewhere, variables and commands exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")
SETTING = re.compile(r"environment\.\w+\(\s*\"(\w+)\"")
MAKE_COMMAND = re.compile(r"`make ([a-z]+)|^make ([a-z]+)", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    targets = [link.partition("#")[0] for link in LINK.findall(page.read_text())]
    local = [target for target in targets if target and "://" not in target]
    assert [target for target in local if not (page.parent / target).exists()] == []


def test_every_setting_is_described() -> None:
    read = set(SETTING.findall((ROOT / "controlplane/settings.py").read_text()))
    assert "DATABASE_URL" in read
    described = (ROOT / "docs/settings.md").read_text()
    assert [name for name in sorted(read) if f"`{name}`" not in described] == []


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs/index.md").read_text()
    pages = [path.name for path in (ROOT / "docs").glob("*.md") if path.name != "index.md"]
    assert [name for name in pages if f"({name})" not in index] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_make_targets_exist(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    named = {word for pair in MAKE_COMMAND.findall(page.read_text()) for word in pair if word}
    assert [name for name in sorted(named) if f"\n{name}:" not in makefile] == []
