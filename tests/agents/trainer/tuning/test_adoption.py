"""Real trainers that go on with the state of a parallel trial, between two steps."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from controlplane.core.protocol.fork import ForkSpec
from controlplane.core.protocol.tuning import TunableRange, TuningSpec
from controlplane.core.protocol.wire import ReportKind, StopCondition, StopKind, TrainingSpec
from tests.agents.trainer.local_jobs import FaultyJob, local_job, training_spec
from tests.agents.trainer.scheduled_trainer import scheduled_program

#: An epoch of the uneven job has six steps of 20 of its 101 examples.
STEPS_PER_EPOCH = 6
#: Steps at which the trial's state is saved and adopted.
BEGUN_AT, ADOPTED_AT = STEPS_PER_EPOCH, 2 * STEPS_PER_EPOCH
TUNING = TuningSpec(
    space={
        "learning_rate_scale": TunableRange(low=0.01, high=10.0, log=True),
        "weight_decay": TunableRange(low=0.0, high=0.1),
    },
    parallel=True,
)
VALUES = {"learning_rate_scale": 0.3, "weight_decay": 0.05}
SPEC = training_spec(stop=StopCondition(kind=StopKind.EPOCHS, limit=5), tuning=TUNING)


def forked(path: Path, spec: TrainingSpec, step: int, **more: Any) -> TrainingSpec:
    """Give the spec of a job that starts from the checkpoint of a step."""
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    kept = {"keeps_order": True, "keeps_rate": True, "keeps_seed": True}
    return dataclasses.replace(
        spec, job_id=1, fork=ForkSpec(sha256=sha256, step=step, **kept, **more)
    )


def run_to_end(folder: Path, spec: TrainingSpec, checkpoint: Path) -> tuple[dict[str, Any], Path]:
    """Run a fork on one accelerator; give its result and the file of its last state."""
    folder.mkdir()
    with local_job(folder, spec) as job:
        job.restore(1, checkpoint)
        result = job.wait_finished()
        saved = job.trainers[0].last(ReportKind.CHECKPOINTED)
        assert saved is not None
        return result, job.trainers[0].run_dir / "outputs" / saved.data["file"]


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Give the last state of a trial, and the digest of a job that was forked from it."""
    folder = tmp_path_factory.mktemp("trial")
    (folder / "parent").mkdir()
    with local_job(folder / "parent", SPEC) as job:
        job.program = scheduled_program({1: BEGUN_AT})
        job.resize(1)
        begun = job.preempt()
    stop = StopCondition(kind=StopKind.STEPS, limit=ADOPTED_AT)
    spec = dataclasses.replace(SPEC, stop=stop)
    spec = forked(begun, spec, BEGUN_AT, values=VALUES)
    _, state = run_to_end(folder / "child", spec, begun)
    result, _ = run_to_end(folder / "fork", forked(state, SPEC, ADOPTED_AT), state)
    return state, result["digest"]


def adopted_numbers(job: FaultyJob) -> dict[int, int]:
    """Return by generation the number of the adoption in the reports of its members."""
    switched = job.told(ReportKind.SWITCHED)
    found = {report.generation: report.data["adopted"] for report in switched}
    assert all(found[report.generation] == report.data["adopted"] for report in switched)
    return found


def resized_and_bereft(job: FaultyJob, state: Path) -> None:
    """Grow from one to two, adopt, then lose the leader."""
    job.program = scheduled_program({1: 4, 2: ADOPTED_AT, 3: 18})
    job.resize(1)
    job.resize(2, mapping=[[0, 3], [1, 2, 4]])
    job.adopt(1, state)
    job.kill(0)
    job.recover([1])


def adopted_twice_and_preempted(job: FaultyJob, state: Path) -> None:
    """Order the same adoption again, which changes nothing; stop, and go on from a checkpoint."""
    job.program = scheduled_program({1: ADOPTED_AT, 2: 14, 3: 20})
    job.resize(2)
    job.adopt(1, state)
    job.adopt(1, state)
    checkpoint = job.preempt()
    job.restore(1, checkpoint)


@pytest.mark.parametrize(
    "schedule",
    [
        pytest.param(resized_and_bereft, id="resized_and_bereft"),
        pytest.param(
            adopted_twice_and_preempted, id="twice_and_preempted", marks=pytest.mark.nightly
        ),
    ],
)
def test_a_job_that_adopts_a_state_goes_on_like_one_that_started_from_it(
    schedule: Callable[[FaultyJob, Path], None], trial: tuple[Path, str], tmp_path: Path
) -> None:
    state, digest = trial
    with local_job(tmp_path, SPEC) as job:
        schedule(job, state)
        result = job.wait_finished()
        numbers = adopted_numbers(job)
    assert result["digest"] == digest
    assert list(numbers.values()) == sorted(numbers.values()), "an adoption was lost"
    assert max(numbers.values()) == 1


@pytest.mark.nightly  # says that the state above makes a difference
def test_a_trial_that_is_not_adopted_leaves_no_trace(
    trial: tuple[Path, str], tmp_path: Path
) -> None:
    with local_job(tmp_path, SPEC) as job:
        job.resize(1)
        assert job.wait_finished()["digest"] != trial[1]
