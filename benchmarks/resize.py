"""Live resize against kill-and-restart from a checkpoint, the same job side by side.

Each repeat runs one job twice on this machine: once resized live (1 -> 2 -> 1 trainers), once by
the usual way: all trainers save a checkpoint and stop, fresh processes start and restore it. Both
are timed alike: from the last step of the old membership to the first completed step of the new
one, less a normal step. The digest of both runs at the end must be the same.

    python -m benchmarks.resize [--repeats 3] [--hidden-units 512] [--steps-between 100]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from agents.trainer.local import LocalJob
from controlplane.core.wire import (
    Membership,
    ReductionMode,
    ReportKind,
    StopCondition,
    StopKind,
    TrainerReport,
    TrainingSpec,
)

JOB = """
import keras
import numpy as np


def build(settings):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(4096, 256)).astype("float32")
    y = generator.integers(0, 10, size=4096)
    units = settings["hidden_units"]
    model = keras.Sequential(
        [
            keras.Input((256,)),
            keras.layers.Dense(units, activation="relu"),
            keras.layers.Dense(units, activation="relu"),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Adam(1e-4), loss=loss, metrics=["accuracy"])
    return model, (x, y), None
"""

SIZES = (1, 2, 1)


#: `steps` reports of the new membership to wait for, so that its normal pace is known.
SETTLED_REPORTS = 4


@dataclass(frozen=True)
class Cost:
    """What a change of size cost, in seconds.

    Attributes:
        pause_s: from the last step before to the first completed step after, less a normal step.
        total_s: from asking to the first completed step after.
    """

    pause_s: float
    total_s: float


@dataclass(frozen=True)
class Change:
    """One measured change of membership."""

    way: str
    kind: str
    cost: Cost


def main() -> int:
    """Run all repeats, print the table and the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--hidden-units", type=int, default=512)
    parser.add_argument("--steps-between", type=int, default=100)
    options = parser.parse_args()
    changes: list[Change] = []
    digests = set()
    for repeat in range(options.repeats):
        ways = [("live", change_live), ("restart", change_by_restart)]
        for way, change in ways if repeat % 2 == 0 else reversed(ways):
            measured, digest = run_once(way, change, options)
            changes.extend(measured)
            digests.add(digest)
            print(f"repeat {repeat + 1}, {way}: " + ", ".join(map(describe, measured)), flush=True)
    if len(digests) != 1:
        print(f"the runs ended with different bits: {sorted(digests)}", file=sys.stderr)
        return 1
    figures = summarise(changes, options)
    print_table(figures)
    print(json.dumps({"benchmark": "resize", "figures": figures}))
    return 0


def run_once(
    way: str, change: Callable[[LocalJob, int], Membership], options: argparse.Namespace
) -> tuple[list[Change], str]:
    """Train the job through all sizes; returns what each change cost, and the final digest."""
    total_steps = options.steps_between * (2 * len(SIZES) + 4)
    spec = TrainingSpec(
        job_id=0,
        name="resize benchmark",
        entry_file="job.py",
        code_sha256="",
        settings={"hidden_units": options.hidden_units},
        global_batch_size=128,
        num_virtual_nodes=4,
        seed=0,
        reduction=ReductionMode.EXACT,
        stop=StopCondition(kind=StopKind.STEPS, limit=total_steps),
    )
    measured = []
    with tempfile.TemporaryDirectory(prefix="virtualflow-resize-") as folder:
        code = Path(folder) / "job.py"
        code.write_text(JOB)
        with LocalJob(spec, code, Path(folder) / "trainers", num_slots=8) as job:
            job.resize(SIZES[0])
            for old, new in pairwise(SIZES):
                job.wait_step(job.step() + options.steps_between)
                cost = measure(job, change, new)
                measured.append(Change(way, "grow" if new > old else "shrink", cost))
            return measured, job.wait_finished()["digest"]


def change_live(job: LocalJob, size: int) -> Membership:
    """Resize as the engine does it."""
    return job.resize(size)


def change_by_restart(job: LocalJob, size: int) -> Membership:
    """Save, stop every process, start fresh ones, restore."""
    return job.restore(size, job.preempt())


def measure(job: LocalJob, change: Callable[[LocalJob, int], Membership], size: int) -> Cost:
    """Change the size of a job that trains and has done so for a while."""
    assert job.membership is not None
    old = job.membership.generation
    asked_at = time.time()
    new = change(job, size).generation
    job.wait(
        lambda: len(steps_of(job, new)) >= SETTLED_REPORTS or job.finished() is not None,
        "steps after the change",
        120.0,
    )
    first, *settled = steps_of(job, new)
    seconds = sum(report.data["seconds"] for report in settled)
    num_steps = sum(r.data["last_step"] - r.data["first_step"] + 1 for r in settled)
    gap_s = first.at - steps_of(job, old)[-1].at
    return Cost(pause_s=gap_s - seconds / num_steps, total_s=first.at - asked_at)


def steps_of(job: LocalJob, generation: int) -> list[TrainerReport]:
    """List a generation's `steps` reports by time; the first holds just the first step."""
    reports = [
        report
        for trainer in job.trainers.values()
        for report in trainer.reports
        if report.kind is ReportKind.STEPS and report.generation == generation
    ]
    return sorted(reports, key=lambda report: report.at)


def summarise(changes: list[Change], options: argparse.Namespace) -> dict[str, Any]:
    """Take medians over the repeats; the ratio is the median of the paired ratios."""
    figures: dict[str, Any] = {"repeats": options.repeats, "hidden_units": options.hidden_units}
    for kind in ("grow", "shrink"):
        pauses = {
            way: [c.cost.pause_s for c in changes if (c.way, c.kind) == (way, kind)]
            for way in ("live", "restart")
        }
        totals = {
            way: [c.cost.total_s for c in changes if (c.way, c.kind) == (way, kind)]
            for way in ("live", "restart")
        }
        # A pause can come out at nothing or below it; a millisecond is as fine as this goes.
        ratios = [
            restart / max(live, 0.001)
            for live, restart in zip(pauses["live"], pauses["restart"], strict=True)
        ]
        figures |= {
            f"{kind}_live_pause_ms": round(1e3 * statistics.median(pauses["live"]), 1),
            f"{kind}_restart_pause_ms": round(1e3 * statistics.median(pauses["restart"]), 1),
            f"{kind}_restart_over_live": round(statistics.median(ratios), 1),
            f"{kind}_live_asked_to_step_s": round(statistics.median(totals["live"]), 2),
            f"{kind}_restart_asked_to_step_s": round(statistics.median(totals["restart"]), 2),
        }
    return figures


def describe(change: Change) -> str:
    """Render one change in a few words."""
    return f"{change.kind} pause {1e3 * change.cost.pause_s:.0f} ms"


def print_table(figures: dict[str, Any]) -> None:
    """Print both ways beside each other."""
    print(f"\n{'':8}{'live pause':>14}{'restart pause':>16}{'ratio':>9}")
    for kind in ("grow", "shrink"):
        print(
            f"{kind:8}{figures[f'{kind}_live_pause_ms']:>11.1f} ms"
            f"{figures[f'{kind}_restart_pause_ms']:>13.1f} ms"
            f"{figures[f'{kind}_restart_over_live']:>8.1f}x"
        )
    print()


if __name__ == "__main__":
    sys.exit(main())
