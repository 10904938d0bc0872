"""Jobs to validate: the code around a model, and the orders that go with it."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from agents.trainer.validate.run import job_validate
from controlplane.core.protocol.wire import (
    ReductionMode,
    StopCondition,
    StopKind,
    TrainingSpec,
    ValidationReport,
)
from tests.agents.trainer.job_texts import SMALL_NETWORK

HEAD = (
    SMALL_NETWORK
    + """
random = np.random.default_rng(5)
X = random.normal(size=(24, 4)).astype("float32")
Y = (X[:, :1] > 0).astype("float32")
"""
)


def spec_of(**changes: Any) -> TrainingSpec:
    plain: dict[str, Any] = {
        "job_id": 3,
        "name": "trial",
        "entry_file": "job.py",
        "code_sha256": "",
        "settings": {},
        "global_batch_size": 9,
        "num_virtual_nodes": 2,
        "seed": 11,
        "reduction": ReductionMode.EXACT,
        "stop": StopCondition(kind=StopKind.EPOCHS, limit=2),
    }
    return TrainingSpec(**plain | changes)


def validated(folder: Path, code: str, **changes: Any) -> ValidationReport:
    (folder / "job.py").write_text(HEAD + textwrap.dedent(code))
    return job_validate(spec_of(**changes), folder)


def returning(model: str, data: str = "(X, Y)", before: str = "") -> str:
    return f"{textwrap.dedent(before)}\n\ndef build(settings):\n    return {model}, {data}, None\n"


def warnings_of(report: ValidationReport) -> list[str]:
    found: list[str] = report.facts["warnings"]
    return found
