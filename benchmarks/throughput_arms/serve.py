"""How an arm's process takes commands and tells how long its steps took.

A command is one JSON line on standard input with `network`, `arm` and `steps`, the answer one JSON
line on standard output, `wall_s`: seconds per step. The first few steps of a command do not count.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

NOT_COUNTED = 3
#: Threads of each pool in every process: one accelerator of the emulation.
NUM_THREADS = 1

Stamps = list[float]
#: Does a number of steps; gives the time after each.
Run = Callable[[int], Stamps]


def serve(make: Callable[[str, str], Run]) -> None:
    """Answer commands until standard input ends; `make` builds an arm when it is first asked."""
    runs: dict[tuple[str, str], Run] = {}
    for line in sys.stdin:
        command = json.loads(line)
        key = (command["network"], command["arm"])
        if key not in runs:
            runs[key] = make(*key)
        stamps = runs[key](command["steps"] + NOT_COUNTED)
        spent_s = stamps[-1] - stamps[NOT_COUNTED - 1]
        print(json.dumps({"wall_s": spent_s / (len(stamps) - NOT_COUNTED)}), flush=True)
