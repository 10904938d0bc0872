"""Environment of what a local run starts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from agents.trainer.local.local_cluster import LocalJob, LocalJobError
from agents.trainer.local.validation import job_validate
from tests.agents.trainer.local_jobs import training_spec

SAYS_ITS_SEED = (sys.executable, "-c", "import os; print(os.environ['PYTHONHASHSEED'])")


def test_sets_have_one_order_in_the_validation_and_in_all_trainers(tmp_path: Path) -> None:
    """As on a site, whatever the shell says."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "job.py").touch()
    seeds: list[str] = []

    def spawn(_: Sequence[str], environment: dict[str, str], *__: Any) -> mock.Mock:
        seeds.append(environment["PYTHONHASHSEED"])
        return mock.Mock(poll=lambda: 0)

    with mock.patch.dict("os.environ", {"PYTHONHASHSEED": "7"}):
        with pytest.raises(LocalJobError, match="ended with status 0\n0\n"):
            job_validate(training_spec(), tmp_path / "code", tmp_path / "trial", SAYS_ITS_SEED)
        with LocalJob(training_spec(), tmp_path / "code", tmp_path / "trainers") as job:
            job.spawn = spawn
            job.prepare(job.plan(2, None))
    assert seeds == ["0", "0"]
