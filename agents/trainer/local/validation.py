"""The validation of a local run: what a site would refuse is refused before training."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agents.trainer.contract.environment import HASH_ENVIRONMENT
from agents.trainer.local.local_cluster import TRAINER_PROGRAM, LocalJobError
from agents.trainer.local.local_trainer import REPOSITORY
from controlplane.core.protocol.node_messages import ValidationReport
from controlplane.core.protocol.wire import TrainingSpec, decode, encode

_LOG_TAIL = 2_000
#: A site ends code that is built longer than two minutes; this machine may be slower or busy.
_LIMIT_S = 600.0


def job_validate(
    spec: TrainingSpec,
    code: Path,
    folder: Path,
    program: Sequence[str] = TRAINER_PROGRAM,
    limit_s: float = _LIMIT_S,
) -> dict[str, Any]:
    """Build the job in the folder `code` once, in a process of its own; returns what it found.

    Args:
        folder: for the validation's files; does not exist yet.

    Raises:
        LocalJobError: the job is refused, with the traceback of its own code, or takes too long.
    """
    folder.mkdir()
    shutil.copytree(code, folder / "code")
    (folder / "orders.json").write_text(json.dumps(encode(spec)), encoding="utf-8")
    log = folder / "log.txt"
    with log.open("wb") as file:
        try:
            done = subprocess.run(
                [*program, "--validate", str(folder)],
                cwd=REPOSITORY,
                env={**os.environ, **HASH_ENVIRONMENT, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                check=False,
                timeout=limit_s,
            )
        except subprocess.TimeoutExpired:
            raise LocalJobError(
                f"building the code took longer than {limit_s:g} s and was ended; look for an "
                "endless loop, and load or compute less while it is built"
            ) from None
    result = folder / "validation.json"
    if done.returncode or not result.is_file():
        text = log.read_text(encoding="utf-8", errors="replace")[-_LOG_TAIL:]
        raise LocalJobError(f"the validation ended with status {done.returncode}\n{text}")
    report = decode(ValidationReport, json.loads(result.read_text(encoding="utf-8")))
    if not report.ok:
        below = f"\n\n{report.traceback}" if report.traceback else ""
        raise LocalJobError(f"{report.code}: {report.message}{below}")
    return report.facts
