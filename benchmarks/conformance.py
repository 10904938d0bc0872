"""Trains every public class of Keras by the engine and by Keras, and writes what came of it.

Each case is a small model (`tests/conformance`): trained at least 20 steps like `fit`, in four
slices like a plain loop of gradient accumulation, by 1 and 3 trainers with equal bits; or refused
at validation, by name. Outcomes are kept in `tests/conformance/outcomes.json`, and
`docs/keras-support.md` is written from them.

The last line: `total`, `equal`, `refused`, `failed` cases; `equal_share` of the classes that are
not refused altogether; `architectures_equal`, the share of whole networks that are not refused.

    python -m benchmarks.conformance [--workers 2] [--only PATTERN] [--fresh]
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from agents.trainer.contract.environment import heap_environment
from benchmarks.figures import figures_print
from tests.conformance.architecture_cases import all_cases as architecture_cases
from tests.conformance.cases import Case, Outcome, case_try
from tests.conformance.harness import process_prepare
from tests.conformance.page import (
    OUTCOMES_FILE,
    PAGE_FILE,
    figures,
    outcomes_read,
    outcomes_write,
    page_text,
)
from tests.conformance.registry import all_cases

#: A worker is started afresh after so many cases: traced functions stay in its memory.
CASES_PER_WORKER = 60
#: The longest time that a worker may take for its cases.
WORKER_LIMIT_S = 7200.0


def cases_known() -> dict[str, Case]:
    """List all cases by name."""
    return {case.key: case for case in [*all_cases(), *architecture_cases()]}


def worker(names: Sequence[str]) -> None:
    """Try some cases and print each outcome as a line of JSON."""
    process_prepare()
    known = cases_known()
    for name in names:
        outcome = case_try(known[name])
        print(json.dumps([name, outcome.to_json(), outcome.seconds]), flush=True)


def outcomes_measure(names: Sequence[str], num_workers: int) -> Iterator[tuple[str, Outcome]]:
    """Try cases in worker processes; gives outcomes as they come."""
    num_shares = max(num_workers, -(-len(names) // CASES_PER_WORKER))
    shares = [share for number in range(num_shares) if (share := names[number::num_shares])]
    results: queue.Queue[tuple[str, Outcome] | None] = queue.Queue()
    with ThreadPoolExecutor(num_workers) as pool:
        for share in shares:
            pool.submit(_share_run, share, results)
        left = len(shares)
        while left:
            found = results.get(timeout=WORKER_LIMIT_S)
            if found is None:
                left -= 1
            else:
                yield found


def _share_run(names: Sequence[str], results: queue.Queue[tuple[str, Outcome] | None]) -> None:
    """Try a share of the cases in one process; None says that it has ended."""
    command = [sys.executable, "-m", "benchmarks.conformance", "--worker"]
    options: dict[str, Any] = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.DEVNULL,
        "env": {**os.environ, **heap_environment(os.cpu_count() or 1)},
    }
    try:
        with subprocess.Popen(command, text=True, **options) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(list(names)))
            process.stdin.close()
            for line in process.stdout:
                with suppress(json.JSONDecodeError):
                    name, stored, seconds = json.loads(line)
                    results.put((name, replace(Outcome.from_json(stored), seconds=seconds)))
    finally:
        results.put(None)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suite, write the page and print the figures as the last line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) // 2))
    parser.add_argument("--only", default="", help="regular expression for names of cases")
    parser.add_argument("--fresh", action="store_true", help="try what has an outcome again")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        worker(json.load(sys.stdin))
        return 0
    known = cases_known()
    outcomes = {name: kept for name, kept in outcomes_read().items() if name in known}
    wanted = [name for name in known if re.search(options.only, name)]
    if not options.fresh:
        wanted = [n for n in wanted if n not in outcomes or outcomes[n].result == "failed"]
    for name, outcome in outcomes_measure(wanted, options.workers):
        outcomes[name] = outcome
        print(f"{outcome.result:<8} {name} ({outcome.seconds:.1f} s) {outcome.summary}", flush=True)
        outcomes_write(outcomes)
    Path(PAGE_FILE).write_text(page_text(outcomes), encoding="utf-8")
    print(f"{OUTCOMES_FILE.name} and {PAGE_FILE.name} written")
    result = figures(outcomes)
    figures_print("conformance", result)
    return 0 if result["failed"] == 0 and len(outcomes) == len(known) else 1


if __name__ == "__main__":
    sys.exit(main())
