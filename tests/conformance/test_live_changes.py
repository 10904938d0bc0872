"""Models as real jobs: resized, and robbed of a trainer, they end with the same bits."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from controlplane.core.protocol.wire import StopCondition, StopKind, TrainingSpec
from tests.agents.trainer.local_jobs import local_job, training_spec, undisturbed
from tests.agents.trainer.scheduled_trainer import scheduled_program
from tests.conformance.cases import Case
from tests.conformance.conftest import EVERYTHING
from tests.conformance.registry import all_cases

#: Chooses the models; another one in the environment chooses others.
SEED = int(os.environ.get("CONFORMANCE_SEED", "14"))
NUM_CHOSEN = 10 if os.environ.get(EVERYTHING) else 1
NUM_STEPS = 30
#: Generation -> last step that is done in it.
LAST_STEPS = {1: 10, 2: 20}
JOB = """
from tests.conformance.registry import all_cases


def build(settings):
    case = next(case for case in all_cases() if case.key == settings["case"])
    return case.build(), case.arrays, None
"""


def chosen() -> list[Case]:
    trained = [case for case in all_cases() if not case.refused]
    return random.Random(SEED).sample(trained, NUM_CHOSEN)


def spec_of(case: Case) -> TrainingSpec:
    return training_spec(
        settings={"case": case.key},
        global_batch_size=case.schedule.batch_size,
        num_virtual_nodes=4,
        stop=StopCondition(kind=StopKind.STEPS, limit=NUM_STEPS),
    )


@pytest.mark.nightly  # tests/agents/trainer does the same to jobs of its own
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", chosen(), ids=lambda case: case.key)
def test_resized_and_robbed_of_a_trainer_it_ends_with_the_same_bits(
    tmp_path: Path, case: Case
) -> None:
    """Two trainers become three; one is killed in the ten steps after that."""
    expected = undisturbed(tmp_path / "undisturbed", spec_of(case), JOB)
    with local_job(tmp_path, spec_of(case), JOB) as job:
        job.program = scheduled_program(LAST_STEPS)
        job.resize(2, [[0, 3], [1, 2]])
        grown = job.resize(3)
        assert job.finished() is None
        assert len(grown.members) == 3
        job.kill(1)
        job.recover([0, 2], [[1], [0, 2, 3]])
        result = job.wait_finished()
    assert result["digest"] == expected["digest"]
    assert result["metrics"] == expected["metrics"]
