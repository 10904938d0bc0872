"""Code is parsed in the web process, never compiled: the compiler takes minutes for some of it."""

from __future__ import annotations

import gc
import sys
import threading
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


class Dying:
    """A cycle of garbage; whoever collects it lets other threads run meanwhile."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        for _ in range(200):
            pass


def test_submissions_at_the_same_time_do_not_disturb_each_other() -> None:
    code = "x = [1, (2, 3), {4: 5}]\n" * 200 + "def build(settings):\n  pass\n"
    errors: list[BaseException] = []

    def submit() -> None:
        try:
            for _ in range(10):
                [Dying() for _ in range(5)]
                submission_read(submission_values(code=code))
        except BaseException as error:
            errors.append(error)

    thresholds, interval = gc.get_threshold(), sys.getswitchinterval()
    gc.set_threshold(50)
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=submit) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
    finally:
        gc.set_threshold(*thresholds)
        sys.setswitchinterval(interval)
    assert errors == []
