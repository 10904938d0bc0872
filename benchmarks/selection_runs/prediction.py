"""Predicted and measured speed-up of the digits template's selection, on one accelerator."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

from agents.trainer.local.validation import job_validate
from benchmarks.selection_runs.runs import job_spec
from benchmarks.specs import epochs_stop
from controlplane.core.protocol.selection import SelectionMethod, SelectionSpec
from controlplane.core.protocol.wire import ReportKind
from controlplane.core.selection.cost import (
    ExampleTimes,
    SelectionTotals,
    measured_speed_up,
    predicted_speed_up,
)
from tests.support.steered_jobs import SteeredJob

TEMPLATE = Path(__file__).resolve().parents[2] / "jobs" / "job_templates" / "digits_cnn.py"
CASES = (
    (SelectionMethod.RANDOM, 1.0),
    (SelectionMethod.SELECTIVE_BACKPROP, 1.0),
    (SelectionMethod.SELECTIVE_BACKPROP, 3.0),
    (SelectionMethod.STALE_SELECTIVE_BACKPROP, 1.0),
    (SelectionMethod.STALE_SELECTIVE_BACKPROP, 3.0),
)


def prediction_errors(num_epochs: int, repeats: int) -> dict[str, float]:
    """Run all cases and print the table; returns the relative error of each."""
    print("method, beta: predicted, measured, relative error, share chosen, epoch of the guard")
    errors: dict[str, float] = {}
    for method, beta in CASES:
        found = [_case(method, beta, num_epochs) for _ in range(repeats)]
        predicted, measured, share = (
            statistics.median(run[name] for run in found)
            for name in ("predicted", "measured", "share")
        )
        error = abs(predicted / measured - 1.0)
        errors[f"{method.value}_{beta:g}"] = round(error, 3)
        ends = [run["ended"] for run in found]
        print(
            f"{method} {beta:g}: {predicted:.2f} {measured:.2f} {error:.3f} {share:.2f} {ends}",
            flush=True,
        )
    return errors


def _case(method: SelectionMethod, beta: float, num_epochs: int) -> dict[str, Any]:
    """Validate and train once; returns both speed-ups, the share chosen, and the guard's epoch."""
    selection = SelectionSpec(method=method, beta=beta)
    spec = job_spec({}, epochs_stop(num_epochs), selection, entry_file=TEMPLATE.name)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        facts = job_validate(spec, TEMPLATE.parent, folder / "validation")
        times = ExampleTimes(**facts["selection"]) if "selection" in facts else None
        with SteeredJob(spec, TEMPLATE, folder / "trainers") as job:
            job.resize(1)
            job.wait_finished()
            reports = [report.data for report in job.step_reports()]
            (trainer,) = job.trainers.values()
            ended = trainer.last(ReportKind.SELECTION_ENDED)
    end = num_epochs if ended is None else ended.data["epoch"]
    rows = [data for data in reports if selection.start <= data["epoch"] < end]
    pass_s = sum(data["pass_s"] for data in rows)
    totals = SelectionTotals(
        candidates=sum(data["candidates"] for data in rows),
        trained=sum(data["examples"] for data in rows),
        pass_s=pass_s,
        step_s=sum(data["seconds"] for data in rows) - pass_s,
    )
    return {
        "predicted": predicted_speed_up(selection, times),
        "measured": measured_speed_up([totals]),
        "share": totals.trained / totals.candidates,
        "ended": None if ended is None else end,
    }
