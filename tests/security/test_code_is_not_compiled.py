"""Code is parsed in the web process, never compiled: the compiler takes minutes for some of it."""

from __future__ import annotations

import time

import pytest

from jobs.api.jobs.submission_request import submission_read
from jobs.exceptions import InvalidInputError
from tests.support.builders import submission_values


def finally_blocks(levels: int) -> str:
    """Write nested blocks, each of which the compiler copies twice into the next one."""
    lines = ["def build(settings):"]
    for level in range(levels):
        indent = " " * (level + 1)
        lines += [f"{indent}try:", f"{indent} return", f"{indent}finally:"]
    return "\n".join([*lines, " " * (levels + 1) + "pass"])


@pytest.mark.parametrize("levels", [5, 30, 90])
def test_nested_blocks_take_no_time(levels: int) -> None:
    started_at = time.process_time()
    submission_read(submission_values(code=finally_blocks(levels)))
    assert time.process_time() - started_at < 1.0


@pytest.mark.parametrize(
    "code", ["a+" * 50_000 + "a", "-" * 100_000 + "1", "not " * 20_000 + "1", "a." * 50_000 + "a"]
)
def test_deep_expressions_are_refused(code: str) -> None:
    with pytest.raises(InvalidInputError) as refusal:
        submission_read(submission_values(code=code))
    assert refusal.value.fields["code"][0].startswith("This is no Python text")


def test_a_syntax_error_is_told_with_its_line() -> None:
    with pytest.raises(InvalidInputError) as refusal:
        submission_read(submission_values(code="a = 1\ndef build(:\n"))
    assert refusal.value.fields == {"code": ["Line 2: invalid syntax."]}


def test_large_code_is_left_to_its_validation() -> None:
    code = "x = 1\n" * 50_000 + "def build(:\n"
    assert submission_read(submission_values(code=code)).code == code.encode()
