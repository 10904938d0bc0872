"""How well the speed-up of a selection is predicted, and what its guard does.

The digits template trains on one accelerator without the control plane. Its validation measures the
times of a pass and of a step, from which the speed-up is predicted; the trainer's reports give the
measured one. The validation runs in a process of its own, as agents run it.

    python -m benchmarks.selection [--epochs 30] [--repeats 3]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from agents.trainer.local.local_cluster import LocalJob
from benchmarks.figures import figures_print
from controlplane.core.protocol.codec import encode
from controlplane.core.protocol.selection import SelectionMethod, SelectionSpec
from controlplane.core.protocol.wire import (
    ReductionMode,
    ReportKind,
    StopCondition,
    StopKind,
    TrainingSpec,
)
from controlplane.core.selection.cost import (
    ExampleTimes,
    SelectionTotals,
    measured_speed_up,
    predicted_speed_up,
)

TEMPLATE = Path(__file__).resolve().parents[1] / "jobs" / "job_templates" / "digits_cnn.py"
CASES = (
    (SelectionMethod.RANDOM, 1.0),
    (SelectionMethod.SELECTIVE_BACKPROP, 1.0),
    (SelectionMethod.SELECTIVE_BACKPROP, 3.0),
    (SelectionMethod.STALE_SELECTIVE_BACKPROP, 1.0),
    (SelectionMethod.STALE_SELECTIVE_BACKPROP, 3.0),
)


def main() -> int:
    """Run all cases, print the table and the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    print(f"{os.cpu_count()} processors, other load at the start: {os.getloadavg()[0]:.1f}")
    print("method, beta: predicted, measured, relative error, share chosen, epoch of the guard")
    errors: dict[str, float] = {}
    for method, beta in CASES:
        found = [_case(method, beta, options.epochs) for _ in range(options.repeats)]
        predicted, measured, share = (
            statistics.median(run[name] for run in found)
            for name in ("predicted", "measured", "share")
        )
        error = abs(predicted / measured - 1.0)
        errors[f"{method.value}_{beta:g}"] = round(error, 3)
        ends = [run["ended"] for run in found]
        print(f"{method} {beta:g}: {predicted:.2f} {measured:.2f} {error:.3f} {share:.2f} {ends}")
    figures_print("selection", {"prediction_error": max(errors.values()), "errors": errors})
    return 0


def _case(method: SelectionMethod, beta: float, num_epochs: int) -> dict[str, Any]:
    """Validate and train once; returns both speed-ups, the share chosen, and the guard's epoch."""
    selection = SelectionSpec(method=method, beta=beta)
    spec = TrainingSpec(
        job_id=0,
        name="digits",
        entry_file=TEMPLATE.name,
        code_sha256="0" * 64,
        settings={},
        global_batch_size=64,
        num_virtual_nodes=4,
        seed=1,
        reduction=ReductionMode.EXACT,
        stop=StopCondition(kind=StopKind.EPOCHS, limit=num_epochs),
        selection=selection,
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        times = _validated_times(spec, folder)
        with LocalJob(spec, TEMPLATE, folder / "trainers") as job:
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


def _validated_times(spec: TrainingSpec, folder: Path) -> ExampleTimes | None:
    """Validate the job in a process of its own; returns the times it has measured, if it has."""
    directory = folder / "validation"
    (directory / "code").mkdir(parents=True)
    shutil.copy(TEMPLATE, directory / "code")
    (directory / "orders.json").write_text(json.dumps(encode(spec)))
    command = [sys.executable, "-m", "agents.trainer", "--validate", str(directory)]
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    report = json.loads((directory / "validation.json").read_text())
    assert report["ok"], report["message"]
    times = report["facts"].get("selection")
    return None if times is None else ExampleTimes(**times)


if __name__ == "__main__":
    sys.exit(main())
