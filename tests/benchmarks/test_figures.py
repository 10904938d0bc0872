"""Every benchmark ends with a line of JSON: its name and its figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import benchmarks
from benchmarks.figures import figures_print

RUNNABLE = [
    path
    for path in sorted(Path(benchmarks.__file__).parent.glob("*.py"))
    if '__name__ == "__main__"' in path.read_text()
]


def test_the_line_is_read_back(capsys: pytest.CaptureFixture[str]) -> None:
    figures_print("growth", {"pause_ms": 1.5, "worlds": ["a"]})
    line = json.loads(capsys.readouterr().out)
    assert line == {"benchmark": "growth", "figures": {"pause_ms": 1.5, "worlds": ["a"]}}


@pytest.mark.parametrize("path", RUNNABLE, ids=lambda path: path.stem)
def test_a_benchmark_ends_with_the_line_under_its_own_name(path: Path) -> None:
    assert f'figures_print("{path.stem}", ' in path.read_text()
