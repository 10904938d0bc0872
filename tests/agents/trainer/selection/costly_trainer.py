"""A real trainer whose selection passes seem to take as long as training steps.

`python -m tests.agents.trainer.selection.costly_trainer TEXT --run-dir DIR ...`: TEXT is JSON with
the `last_steps` of a `scheduled_trainer` and the `endings` of a `dying_trainer`. The guard ends the
selection after two windows of twelve passes.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agents.trainer.__main__ import main
from controlplane.core.selection import guard as selection_guard
from controlplane.core.selection.cost import ExampleTimes
from controlplane.core.selection.guard import BreakEvenGuard
from tests.agents.trainer.dying_trainer import Ending, ending_install
from tests.agents.trainer.scheduled_trainer import schedule_install


def costly_program(
    last_steps: Mapping[int, int] | None = None, endings: Sequence[Ending] = ()
) -> tuple[str, ...]:
    """Give the command that starts such a trainer."""
    steps = {str(generation): step for generation, step in (last_steps or {}).items()}
    text = json.dumps({"last_steps": steps, "endings": [asdict(ending) for ending in endings]})
    return sys.executable, "-m", "tests.agents.trainer.selection.costly_trainer", text


def costs_install() -> None:
    """Let every example take as long in passes as in steps: a cost of 1 + the share chosen.

    An example takes as many seconds as the generation's number: times differ between memberships,
    as they do between accelerators.
    """
    after_batch = BreakEvenGuard.after_batch

    def timed(
        guard: BreakEvenGuard, spec: Any, generation: int, sent: ExampleTimes, **counts: int
    ) -> BreakEvenGuard:
        each = float(generation)
        times = ExampleTimes(each * (sent.loss_s > 0.0), each * (sent.step_s > 0.0))
        return after_batch(guard, spec, generation, times, **counts)

    selection_guard.WINDOW_PASSES, selection_guard.WINDOW_TIMES = 6, 2
    selection_guard.CLEAR_COST = math.inf  # one window does not suffice
    BreakEvenGuard.after_batch = timed  # type: ignore[method-assign]


def _install(given: Mapping[str, Any], folder: Path) -> None:
    costs_install()
    if given["last_steps"]:
        schedule_install({int(key): step for key, step in given["last_steps"].items()})
    for fields in given["endings"]:
        if fields["slot"] == int(folder.name.rpartition("-")[2]):
            ending_install(Ending(**fields), folder)


if __name__ == "__main__":
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    text, *rest = sys.argv[1:]
    _install(json.loads(text), Path(rest[rest.index("--run-dir") + 1]))
    sys.exit(main(rest))
