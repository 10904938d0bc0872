"""Every public class of Keras trains as Keras trains it, or is refused by name."""

from __future__ import annotations

import os
import zlib
from collections import Counter

import pytest

from tests.conformance.cases import Case, Result, case_try
from tests.conformance.conftest import EVERYTHING
from tests.conformance.registry import MODULES, all_cases, module_cases, public_classes

#: Of how many refused cases the normal run tries one; `make conformance` tries all.
SAMPLED_REFUSED = 8
#: Cases that are always tried: what was wrong here once, and what is most easily wrong. Skipped
#: steps are in tests/agents/trainer/engine/test_nonfinite_runs.py.
ALWAYS = frozenset(
    {
        "layers.Dropout: noise shape",
        "layers.Layer: own gradient of a weight",
        "layers.Layer: recomputed for the gradient",
        "losses.SparseCategoricalCrossentropy: logits",
    }
)


def is_tried(case: Case) -> bool:
    is_sampled = bool(case.refused) and zlib.crc32(case.key.encode()) % SAMPLED_REFUSED == 0
    return bool(os.environ.get(EVERYTHING)) or is_sampled or case.key in ALWAYS


@pytest.mark.parametrize("module", MODULES)
def test_every_public_class_has_a_case(module: str) -> None:
    covered = {case.subject for case in module_cases(module)}
    files = " or ".join(f"{file.__name__.rpartition('.')[2]}.py" for file in MODULES[module])
    missing = sorted(public_classes(module).keys() - covered)
    assert not missing, f"keras.{module} has {missing}: add cases for them to {files}"


def test_no_two_cases_have_one_name_and_all_of_those_always_tried_exist() -> None:
    counts = Counter(case.key for case in all_cases())
    assert [key for key, count in counts.items() if count > 1] == []
    assert counts.keys() >= ALWAYS


@pytest.mark.parametrize(
    "case", [case for case in all_cases() if is_tried(case)], ids=lambda case: case.key
)
def test_class_trains_as_in_keras_or_is_refused(case: Case) -> None:
    outcome = case_try(case)
    assert outcome.result is not Result.FAILED, outcome.note
