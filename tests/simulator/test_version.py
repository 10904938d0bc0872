"""The version of the code that results are marked with."""

from __future__ import annotations

import pytest

from controlplane.simulator.version import statements_of

SOURCE = '''
"""Explain the module."""

RATE = 2.0


def doubled(number: float) -> float:
    """Explain the function."""
    return RATE * number  # why
'''


def test_words_and_lines_are_no_other_version() -> None:
    bare = "RATE = 2.0\ndef doubled(\n    number: float,\n) -> float:\n    return RATE * number\n"
    assert statements_of(SOURCE) == statements_of(bare)


@pytest.mark.parametrize(("old", "new"), [("2.0", "2.5"), ("RATE *", "RATE +"), ("= 2.0", '= "2"')])
def test_another_statement_is_another_version(old: str, new: str) -> None:
    assert statements_of(SOURCE) != statements_of(SOURCE.replace(old, new))
