"""The page about what is supported says what was measured, of every class that there is."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.conformance import cases_known
from tests.conformance.cases import Result
from tests.conformance.page import PAGE_FILE, figures, outcomes_read, page_text
from tests.conformance.registry import MODULES, all_cases, public_classes

TRAINER = Path(__file__).parents[2] / "agents" / "trainer"
PRIVATE = re.compile(r"\.(_[a-z]\w+)")
UPDATE = "run python -m benchmarks.conformance"


def test_page_is_what_the_kept_outcomes_say() -> None:
    assert PAGE_FILE.read_text(encoding="utf-8") == page_text(outcomes_read()), UPDATE


def test_every_case_of_a_class_has_an_outcome_and_none_is_left_over() -> None:
    tried = outcomes_read().keys()
    assert {case.key for case in all_cases()} <= tried <= cases_known().keys(), UPDATE


def test_outcomes_are_the_expected_ones_and_none_fails() -> None:
    known = cases_known()
    for name, outcome in outcomes_read().items():
        expected = Result.REFUSED if known[name].refused else Result.EQUAL
        assert (outcome.result, outcome.code) == (expected, known[name].refused), name


def test_page_lists_every_public_class() -> None:
    rows = set(re.findall(r"^\| (\w+) \|", PAGE_FILE.read_text(encoding="utf-8"), re.MULTILINE))
    for module in MODULES:
        assert public_classes(module).keys() <= rows


def test_private_parts_of_keras_are_used_in_two_files_and_listed_with_a_reason() -> None:
    page = PAGE_FILE.read_text(encoding="utf-8")
    sources = {path: path.read_text(encoding="utf-8") for path in TRAINER.rglob("*.py")}
    used = {
        path.name: set(PRIVATE.findall(line))
        for path, text in sources.items()
        for line in text.splitlines()
        if "SLF001" in line or "keras.src" in line
    }
    files = {"keras_private.py", "compiled_losses.py"}
    assert used.keys() == files
    lines = [line for file in files for line in sources[TRAINER / "model" / file].splitlines()]
    names = {name for line in lines if "SLF001" in line for name in PRIVATE.findall(line)}
    assert len(names) > 5
    assert [name for name in sorted(names) if f"{name}`" not in page] == []


def test_nine_of_ten_classes_are_equal() -> None:
    measured = figures(outcomes_read())
    assert measured["failed"] == 0
    assert measured["equal_share"] >= 0.9
