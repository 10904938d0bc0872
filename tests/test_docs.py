"""Documentation that cannot rot unseen: links lead somewhere, variables and commands exist."""

from __future__ import annotations

import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest
from django.urls import resolve

from controlplane.core.policies import POLICIES
from controlplane.core.protocol.wire import ReportKind
from controlplane.core.values.lifecycle import GenerationPhase
from jobs.models import Event

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
TEXTS = {page: page.read_text() for page in PAGES}
FENCED = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")
#: The path below the API of an address in a command, without its query.
ADDRESS = re.compile(r"\$SITE(?:/api/v1)?(/[^\s\"?]*)")
SETTING = re.compile(r"environment\.\w+\(\s*\"(\w+)\"")
#: The kind in a call that adds an event, or in a constant for it.
EVENT_KIND = re.compile(r"(?:event(?:_add)?\(\s*|EVENT_KIND = )\"(\w+)\"")
EVENT_FIELDS = {field.name for field in Event._meta.fields}
SOURCE_PATH = re.compile(r"`((?:agents|controlplane|docs|frontend|jobs|tests)/[a-z_/.]*)`")
#: A module of ours, with its folder or without.
MODULE = re.compile(r"(?<![\w/.])[a-z_][a-z0-9_/]*\.py\b")
#: Modules of users, and those beside the packages.
OTHER_MODULES = {"digits.py", "manage.py", "my_job.py", "train.py"}
DIAGRAM = re.compile(r"```mermaid\n(.*?)```", re.DOTALL)
#: Names of code in a diagram: snake_case, _private, CamelCase and CONSTANT_CASE.
CODE_NAME = re.compile(r"\b(_\w+|[A-Za-z0-9]+(?:_[A-Za-z0-9]+)+|(?:[A-Z][a-z]+){2,})\b")
#: A definition of a module, or by four spaces of a class: "class " or "def ", and its name.
DEFINED = re.compile(r"^(    )?(?:async )?(class |def )?(\w+)(?= ?[:(=])", re.MULTILINE)
METHOD = re.compile(r"\b([A-Z]\w+)\.(\w+)")
MAKE_COMMAND = re.compile(r"`make ([a-z-]+)|^make ([a-z-]+)", re.MULTILINE)


def test_links_lead_to_files() -> None:
    links = [(page, link.partition("#")[0]) for page in PAGES for link in LINK.findall(TEXTS[page])]
    local = [(page, target) for page, target in links if target and "://" not in target]
    assert len(local) > 200
    assert [(page.name, link) for page, link in local if not (page.parent / link).exists()] == []


def test_addresses_of_the_api_are_served_as_they_are_written() -> None:
    """One without its last slash would be answered by a redirection, which curl does not follow."""
    found = {path for text in TEXTS.values() for path in ADDRESS.findall(text)}
    assert len(found) > 5
    for path in found:
        resolve(f"/api/v1{path.replace('$JOB', '7')}")


def test_every_setting_is_described() -> None:
    read = set(SETTING.findall((ROOT / "controlplane/settings.py").read_text()))
    assert "DATABASE_URL" in read
    described = (ROOT / "docs/settings.md").read_text()
    assert [name for name in sorted(read) if f"`{name}`" not in described] == []


def test_every_kind_of_event_is_described() -> None:
    described = set(re.findall(r"`(\w+)`", (ROOT / "docs/events.md").read_text()))
    modules = [path.read_text() for path in (ROOT / "jobs").rglob("*.py")]
    added = {kind for text in modules for kind in EVENT_KIND.findall(text)}
    assert {"submitted", "node_lost", "kinds_mixed"} <= added
    assert sorted(added - described) == []
    first_cells = re.findall(r"^\| (`.*?`) \|", (ROOT / "docs/events.md").read_text(), re.MULTILINE)
    kinds = {kind for cell in first_cells for kind in re.findall(r"`(\w+)`", cell)} - EVENT_FIELDS
    assert [
        kind for kind in sorted(kinds) if not any(f'"{kind}"' in text for text in modules)
    ] == []


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs/index.md").read_text()
    pages = [path.name for path in (ROOT / "docs").glob("*.md") if path.name != "index.md"]
    assert [name for name in pages if f"({name})" not in index] == []


def test_named_modules_exist() -> None:
    folders = ("agents", "benchmarks", "client", "controlplane", "frontend", "jobs", "tests")
    paths = [path.as_posix() for folder in folders for path in (ROOT / folder).rglob("*.py")]
    code = "".join(f"/{path}\n" for path in paths)
    named = {(page.name, name) for page, text in TEXTS.items() for name in MODULE.findall(text)}
    assert len(named) > 80
    unknown = [(page, name) for page, name in sorted(named) if f"/{name}\n" not in code]
    assert [pair for pair in unknown if pair[1] not in OTHER_MODULES] == []


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    pairs = [pair for text in TEXTS.values() for pair in MAKE_COMMAND.findall(text)]
    named = {word for pair in pairs for word in pair if word}
    assert {"demo", "test", "nightly"} <= named
    assert [name for name in sorted(named) if f"\n{name}:" not in makefile] == []


@cache
def _code_names() -> dict[str, set[str]]:
    """Return the methods and fields of each class, and all names of the product under ""."""
    names: dict[str, set[str]] = defaultdict(set)
    for package in ("agents", "controlplane", "jobs"):
        for path in (ROOT / package).rglob("*.py"):
            names[""].add(path.stem)
            owner = ""
            for indent, keyword, name in DEFINED.findall(path.read_text()):
                if not indent:
                    owner = name if keyword == "class " else ""
                elif owner:
                    names[owner].add(name)
                if owner or not indent:
                    names[""].add(name)
    return names


DIAGRAMS = DIAGRAM.findall((ROOT / "docs/architecture.md").read_text())


def test_the_architecture_has_its_three_diagrams() -> None:
    kinds = [diagram.split()[0] for diagram in DIAGRAMS]
    assert kinds == ["flowchart", "sequenceDiagram", "sequenceDiagram"]


@pytest.mark.parametrize("diagram", DIAGRAMS)
def test_what_a_diagram_names_is_in_the_code(diagram: str) -> None:
    names = _code_names()
    named, methods = set(CODE_NAME.findall(diagram)), set(METHOD.findall(diagram))
    assert sorted(named - names[""]) == []
    assert sorted(f"{owner}.{name}" for owner, name in methods if name not in names[owner]) == []
    assert len(named) >= 12
    assert set(re.findall(r"\breport (\w+)", diagram)) <= {*ReportKind}
    assert set(re.findall(r"\bphase (\w+)", diagram)) <= {*GenerationPhase}


def test_the_glossary_is_short_and_sorted() -> None:
    rows = re.findall(r"^\| (.+?) \|", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE)
    assert rows[1:] == sorted(rows[1:])
    assert 10 < len(rows[1:]) <= 20


def test_contributing_names_files_that_exist() -> None:
    paths = set(SOURCE_PATH.findall((ROOT / "CONTRIBUTING.md").read_text()))
    assert len(paths) >= 30
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []


def test_every_policy_has_a_page_and_every_page_a_policy() -> None:
    pages = {path.stem for path in (ROOT / "docs/policies").glob("*.md")}
    assert pages == {*POLICIES, "index"}, "docs/policies/NAME.md for each of the registry"
    index = (ROOT / "docs/policies/index.md").read_text()
    rows = [name for name in POLICIES if f"[`{name}`]({name}.md)" not in index]
    assert rows == [], "each needs a row of the table in docs/policies/index.md"
    for title in ("## Choosing", "**Kinds.**"):
        part = index.partition(title)[2].partition("\n\n")[0]
        absent = [name for name in POLICIES if f"`{name}`" not in part]
        assert absent == [], f"each stands under {title} in docs/policies/index.md"


def test_a_decision_is_one_short_page() -> None:
    decisions = {page: text for page, text in TEXTS.items() if page.parent.name == "decisions"}
    assert len(decisions) > 50
    for page, text in decisions.items():
        lines = text.splitlines()
        assert len(lines) <= 25, page.name
        assert re.fullmatch(rf"# {int(page.stem[:4])}\. .+", lines[0]), page.name
        assert re.fullmatch(r"Date: \d{4}-\d\d-\d\d", lines[2]), page.name
        parts = re.findall(r"^\*\*(Question|Choice|Why|Price)\.\*\*", text, re.MULTILINE)
        assert parts == ["Question", "Choice", "Why", "Price"], page.name


def test_lines_are_short() -> None:
    """Rows of tables, code and the generated page cannot be broken."""
    long = [
        f"{page.name}: {line}"
        for page, text in TEXTS.items()
        if page.name != "keras-support.md"
        for line in FENCED.sub("", text).splitlines()
        if len(line) > 100 and line[:1] != "|" and line[:4] != "    "
    ]
    assert not long, "over 100 characters:\n" + "\n".join(long)
