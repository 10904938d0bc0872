"""Signal handlers, which run between any two bytecodes of the main thread, take no lock."""

from __future__ import annotations

import ast
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from agents.__main__ import StopSignal

ROOT = Path(__file__).parent.parent
PRODUCT = ("agents", "controlplane", "frontend", "jobs")


def _handlers(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    """Yield the functions with a parameter of the type that only signal handlers get."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            types = [ast.unparse(item.annotation) for item in node.args.args if item.annotation]
            if any("FrameType" in name for name in types):
                yield node


def _handlers_of_the_product() -> list[tuple[str, ast.FunctionDef]]:
    paths = sorted(path for part in PRODUCT for path in (ROOT / part).rglob("*.py"))
    return [
        (f"{path.relative_to(ROOT)}:{handler.lineno}", handler)
        for path in paths
        if "signal.signal(" in (text := path.read_text(encoding="utf-8"))
        for handler in _handlers(ast.parse(text))
    ]


FOUND = _handlers_of_the_product()


def test_every_module_that_sets_a_handler_has_one_here() -> None:
    modules = {place.split(":")[0] for place, _ in FOUND}
    assert modules == {"agents/__main__.py", "jobs/demo/run.py"}


@pytest.mark.parametrize("handler", [item for _, item in FOUND], ids=[place for place, _ in FOUND])
def test_a_handler_calls_nothing(handler: ast.FunctionDef) -> None:
    """`Event.set` waits for ever if the signal comes inside `Event.wait` of the same thread."""
    calls = [ast.unparse(node) for node in ast.walk(handler) if isinstance(node, ast.Call)]
    assert calls == []


def test_a_signal_is_recorded() -> None:
    stop = StopSignal()
    stop(signal.SIGTERM, None)
    assert stop.is_set
