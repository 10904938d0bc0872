"""Whole networks train as Keras trains them: a few in the normal run, all in `make conformance`."""

from __future__ import annotations

import os

import pytest

from tests.conformance.architecture_cases import all_cases, job_cases
from tests.conformance.cases import Case, Result, case_try
from tests.conformance.conftest import EVERYTHING

#: Networks that the normal run tries.
FEW = ("Stepping: custom train_step", "Rivals: custom train_step")
TRIED = all_cases() if os.environ.get(EVERYTHING) else [c for c in job_cases() if c.key in FEW]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("case", TRIED, ids=lambda case: case.key)
def test_network_trains_as_in_keras_or_is_refused(case: Case) -> None:
    outcome = case_try(case)
    assert outcome.result is not Result.FAILED, outcome.note
