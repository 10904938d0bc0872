"""Options that are equal one by one are equal together, too."""

from __future__ import annotations

import os
from itertools import product

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.conformance.cases import Result, case_try
from tests.conformance.combinations import FACTORS, Row, covering_rows, pairs_of, row_case
from tests.conformance.conftest import EVERYTHING

ROWS = covering_rows()
#: Rows that the normal run draws; `make conformance` tries all rows and as many mixtures again.
BUDGET = 1
IS_EVERYTHING = bool(os.environ.get(EVERYTHING))


def test_rows_cover_every_pair_with_far_fewer_than_all_combinations() -> None:
    every = set().union(*(pairs_of(row) for row in product(*FACTORS)))
    assert set().union(*(pairs_of(row) for row in ROWS)) == every
    assert len(ROWS) < 80


rows_drawn = st.sampled_from(ROWS)
if IS_EVERYTHING:
    rows_drawn |= st.tuples(*(st.sampled_from(choices) for choices in FACTORS))


@pytest.mark.timeout(7200 if IS_EVERYTHING else 300)
@settings(
    max_examples=2 * len(ROWS) if IS_EVERYTHING else BUDGET,
    derandomize=True,
    deadline=None,
    phases=(Phase.generate, Phase.shrink) if IS_EVERYTHING else (Phase.generate,),
    suppress_health_check=list(HealthCheck),
)
@given(row=rows_drawn)
def test_combination_trains_as_in_keras(row: Row) -> None:
    outcome = case_try(row_case(row))
    assert outcome.result is Result.EQUAL, f"{row}: {outcome.note}"
