"""A real trainer that waits for a file: before anything else, or before it imports TensorFlow."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from agents.trainer import __main__ as program

BEFORE_ALL, BEFORE_TENSORFLOW = "all", "tensorflow"
LIMIT_S = 120.0


def patient_program(before: str, gate: Path) -> Sequence[str]:
    """Give the command of a trainer that notes that it waits, `gate`.waiting, and goes on then."""
    return (sys.executable, "-m", "tests.agents.trainer.patient_trainer", before, str(gate))


def wait_for(gate: Path) -> None:
    """Wait for a file.

    Raises:
        TimeoutError: it does not come.
    """
    deadline = time.monotonic() + LIMIT_S
    while not gate.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{gate} has not come")
        time.sleep(0.01)


def _wait_here(gate: Path) -> None:
    gate.with_suffix(".waiting").touch()
    wait_for(gate)


if __name__ == "__main__":
    place, gate = sys.argv[1], Path(sys.argv[2])
    with_tensorflow = program._with_tensorflow

    def _patiently(module: str) -> ModuleType:
        _wait_here(gate)
        return with_tensorflow(module)

    if place == BEFORE_ALL:
        _wait_here(gate)
    else:
        program._with_tensorflow = _patiently
    sys.exit(program.main(sys.argv[3:]))
