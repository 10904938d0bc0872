"""Validation before a local run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from agents.trainer.local.local_cluster import LocalJobError
from agents.trainer.local.validation import job_validate
from tests.agents.trainer.local_jobs import training_spec

ENDLESS = (sys.executable, "-c", "import threading; threading.Event().wait()")


def test_code_that_is_built_for_ever_is_ended(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    folder = tmp_path / "validation"
    with pytest.raises(LocalJobError, match=r"took longer than 0\.5 s and was ended"):
        job_validate(training_spec(), tmp_path / "code", folder, program=ENDLESS, limit_s=0.5)
