"""The process of the conformance suite works as a trainer's does."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import tensorflow as tf

from tests.conformance.harness import process_prepare, process_restore

#: Set by `make conformance`: every case instead of a sample.
EVERYTHING = "CONFORMANCE_ALL"


@pytest.fixture(autouse=True)
def _works_as_a_trainer() -> Iterator[None]:
    process_prepare()
    yield
    process_restore()
    tf.random.set_seed(None)


@pytest.fixture
def everything() -> bool:
    return bool(os.environ.get(EVERYTHING))
