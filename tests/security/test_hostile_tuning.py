"""Parallel tuning of other jobs goes on, whatever one of them reports or how many one user has."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User

from controlplane.core.protocol.wire import ReportKind
from controlplane.core.values.lifecycle import JobStatus
from jobs.models import Job, Trial, TuningRound
from jobs.services.lifecycle import retention
from jobs.services.submission import tuning_rounds, tuning_verdicts
from jobs.services.submission.tuning_rounds import tuning_advance
from tests.jobs.losses import event, fresh
from tests.jobs.world import World
from tests.security.hostile_reports import SOUND
from tests.support.builders import job_make
from tests.support.rows import PREDICTION, trial_make

pytestmark = pytest.mark.django_db
STEPS = 20
TUNING = {
    "space": {"learning_rate": {"low": 0.001, "high": 1.0, "log": True}},
    "parallel": True,
    "max_parallel": 1,
    "trial_steps": STEPS,
}


def tuned(owner: User | None = None, **other: Any) -> Job:
    return job_make(
        owner, **{"stop_kind": "epochs", "stop_limit": 1000, "max_accelerators": 1, **other},
        tuning=TUNING,
    )  # fmt: skip


def say_steps(world: World, job: Job, first: int) -> None:
    world.tell(world.steps_say(job, first, first + 1, loss=1.0))


def begun(job: Job) -> bool:
    return TuningRound.objects.filter(job=job).exists()


@pytest.fixture
def world(db: None) -> World:
    return World(1, 6)


def test_a_job_cannot_report_trials_that_are_jobs_of_their_own(world: World, ada: User) -> None:
    job = tuned(ada)
    world.settle(4)
    ours = trial_make(job, is_running=True)
    played, trainer = world.leader_of(job)
    for number in (1, 2):
        forged = SOUND[ReportKind.TRIAL] | {"number": number, "search": 7}
        played.say(trainer, ReportKind.TRIAL, **forged)
    world.tell(played)
    assert list(Trial.objects.values_list("pk", "search", "values")) == [(ours.pk, 1, {})]
    assert "does not tune these values" in event(job, "report_refused").message


@pytest.mark.parametrize("step", [2**31, 2**62, 2**63 - 2])
@pytest.mark.database
def test_steps_that_no_trial_can_have_keep_no_other_job_from_its_round(
    step: int, world: World, ada: User, bob: User
) -> None:
    hostile = tuned(ada)
    world.settle(4)
    say_steps(world, hostile, 1)
    say_steps(world, hostile, step)
    tuning_advance(world.now)
    hostile.artifacts.create(
        name="checkpoint.npz", sha256="a", size_bytes=1, generation=1, step=step, at=world.now
    )
    victim = tuned(bob)
    world.settle(4)
    say_steps(world, victim, 1)
    assert fresh(hostile).step == step + 1
    assert victim.pk in tuning_advance(world.now)
    assert begun(victim)


@pytest.mark.parametrize("status", [JobStatus.PENDING, JobStatus.PAUSED, JobStatus.VALIDATING])
def test_jobs_that_wait_keep_no_running_one_from_its_round(
    status: JobStatus, world: World, ada: User, bob: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning_rounds, "_AT_ONCE", 2)
    for _ in range(3):
        tuned(ada, status=status, min_accelerators=9, max_accelerators=9, num_virtual_nodes=16)
    victim = tuned(bob)
    world.settle(4)
    say_steps(world, victim, 1)
    assert victim.pk in tuning_advance(world.now)
    assert begun(victim)


def test_trials_whose_models_are_in_use_keep_no_other_ones_files(
    world: World, ada: User, bob: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "EXPIRED_AT_ONCE", 2)
    trials = []
    for owner in (ada, ada, bob):
        parent = tuned(owner, status=JobStatus.FINISHED)
        child = job_make(owner, status=JobStatus.FINISHED, trial_of=parent)
        trial_make(parent, child=child, end="slower")
        trials.append(child)
    for child in trials[:2]:
        source = {"source_job": child, "source_sha256": "a" * 64}
        job_make(ada, status=JobStatus.PAUSED, **source, **PREDICTION)
    assert tuning_advance(world.now) == {trials[2].pk}
    assert [fresh(one).files_deleted_at is None for one in trials] == [True, True, False]


def test_of_a_job_that_went_on_the_judged_steps_alone_are_read(world: World, ada: User) -> None:
    job = tuned(ada)
    world.settle(4)
    for step in range(1, 4 * STEPS, 2):
        say_steps(world, job, step)
    judged = TuningRound(job=job, start_step=STEPS, num_steps=STEPS)
    read = [(span.first, span.last) for span in tuning_verdicts._spans(job, judged)]
    assert read == [(step, step + 1) for step in range(STEPS + 1, 2 * STEPS, 2)]
