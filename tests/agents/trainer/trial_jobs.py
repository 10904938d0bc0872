"""Jobs to validate: the code around a model, and the orders that go with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from agents.supervision.devices import VALIDATION_ENVIRONMENT
from agents.supervision.processes import trainer_environment
from agents.trainer.local.local_trainer import REPOSITORY
from agents.trainer.validate.run import job_validate
from controlplane.core.protocol.node_messages import ValidationReport
from controlplane.core.protocol.wire import StopCondition, StopKind, TrainingSpec, decode, encode
from tests.agents.trainer.job_texts import SMALL_NETWORK
from tests.agents.trainer.local_jobs import training_spec

HEAD = (
    SMALL_NETWORK
    + """
random = np.random.default_rng(5)
X = random.normal(size=(24, 4)).astype("float32")
Y = (X[:, :1] > 0).astype("float32")
"""
)


def spec_of(**changes: Any) -> TrainingSpec:
    stop = StopCondition(kind=StopKind.EPOCHS, limit=2)
    plain = {"global_batch_size": 9, "num_virtual_nodes": 2, "stop": stop}
    return training_spec(**plain | changes)


def validated(folder: Path, code: str, **changes: Any) -> ValidationReport:
    (folder / "job.py").write_text(HEAD + textwrap.dedent(code))
    return job_validate(spec_of(**changes), folder)


def run_to_validate(folder: Path, code: str, spec: TrainingSpec) -> ValidationReport:
    """Validate in a process of its own, started as an agent starts it."""
    (folder / "code").mkdir()
    (folder / "code" / "job.py").write_text(code)
    (folder / "orders.json").write_text(json.dumps(encode(spec)))
    done = subprocess.run(
        [sys.executable, "-m", "agents.trainer", "--validate", str(folder)],
        env=trainer_environment(os.environ, folder, VALIDATION_ENVIRONMENT),
        cwd=REPOSITORY, capture_output=True, text=True, timeout=120.0, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return decode(ValidationReport, json.loads((folder / "validation.json").read_text()))


def returning(model: str, data: str = "(X, Y)", before: str = "") -> str:
    return f"{textwrap.dedent(before)}\n\ndef build(settings):\n    return {model}, {data}, None\n"


def warnings_of(report: ValidationReport) -> list[str]:
    found: list[str] = report.facts["warnings"]
    return found
