"""Jobs whose loss or a metric is not finite: they stop for good, or go on and say so."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest

from controlplane.core.estimates.loss_prediction import NoForecast
from controlplane.core.protocol.codec import encode
from controlplane.core.protocol.nonfinite import Nonfinite
from controlplane.core.protocol.wire import OnNonfinite, ReportKind
from jobs.api.jobs.submission_request import submission_read
from jobs.models import Allocation, Artifact, Event, Job, Node
from jobs.selectors.desired_state.state import training_spec
from jobs.selectors.estimates.job import known_read
from jobs.selectors.estimates.nonfinite import nonfinite_warning
from jobs.services.reports.batches import batch_take
from jobs.services.reports.model_fitting import models_fit
from jobs.services.reports.nonfinite import NAMES_LIMIT, TIMES_LIMIT
from jobs.services.submission.rows import job_clone_values
from tests.jobs.losses import event, fresh, training
from tests.jobs.world import World
from tests.support.builders import submission_values
from tests.support.rows import artifact_make

pytestmark = pytest.mark.django_db

LOSS = Nonfinite(metric=None, value="nan", step=14, epoch=0, last_finite=2.31, last_finite_step=13)
METRIC = dataclasses.replace(LOSS, metric="val_mae", value="inf", step=20, last_finite_step=10)


def going_on(**other: Any) -> tuple[World, Job]:
    return training(1, on_nonfinite="continue", stop_kind="epochs", **other)


def steps(world: World, job: Job, first: int, last: int, **more: Any) -> None:
    played, trainer = world.leader_of(job)
    data = {"epoch": 0, "examples": 100, "seconds": 0.5, "loss": None, "num_accelerators": 2}
    data |= {"first_step": first, "last_step": last}
    played.say(trainer, ReportKind.STEPS, **data | more)
    world.now_s += 1.0
    batch_take(played.node, played.batch(), world.now)
    models_fit(world.now)


def epoch(world: World, job: Job, number: int, **more: Any) -> None:
    played, trainer = world.leader_of(job)
    played.say(trainer, ReportKind.EPOCH, epoch=number, step=10 * (number + 1), **more)
    batch_take(played.node, played.batch(), world.now)
    models_fit(world.now)


def changes(job: Job) -> list[tuple[str, str]]:
    kinds = ("nonfinite", "finite_again")
    rows = Event.objects.filter(job=job, kind__in=kinds).order_by("id")
    return list(rows.values_list("kind", "message"))


@pytest.mark.parametrize("found", [LOSS, METRIC])
def test_a_job_that_stops_is_not_tried_again_and_its_node_is_not_blamed(found: Nonfinite) -> None:
    world, job = training(1)
    played, leader = world.leader_of(job)
    for row, trainer in world.trainers_of(job):
        if trainer is not leader:
            row.say(trainer, ReportKind.FINISHED, step=13, epoch=0, reason=found.code)
            row.say(trainer, ReportKind.EXITED, exit_code=0)
            del row.trainers[job.pk, trainer.slot]
    artifact_make(job)
    played.say(
        leader,
        ReportKind.FAILED,
        code=found.code,
        message=found.failure_text,
        traceback="",
        step=13,
        files=["checkpoint.npz", "history.csv"],
        nonfinite=encode(found),
        upload_errors={"history.csv": "too large"},
    )
    played.say(leader, ReportKind.EXITED, exit_code=3)
    del played.trainers[job.pk, leader.slot]
    batch_take(played.node, played.batch(), world.now)
    world.settle(4)
    job = fresh(job)
    assert (job.status, job.status_code, job.restarts) == ("failed", found.code, 0)
    assert job.status_reason == found.failure_text
    assert (job.step, job.nonfinite) == (13, {found.name: encode(found)})
    assert Artifact.objects.get(job=job).step == 13
    assert event(job, "failed").data["code"] == found.code
    assert "history.csv" in event(job, "files_lost").message
    assert not Allocation.objects.filter(released_at=None).exists()
    assert not Node.objects.exclude(quarantined_until=None).exists()
    assert not any(generation.is_recovery for generation in job.generations.all())


def test_a_bare_failure_ends_the_job_as_well() -> None:
    world, job = training(1)
    played, leader = world.leader_of(job)
    played.say(leader, ReportKind.FAILED, code="nonfinite_loss", message="nan", nonfinite="odd")
    batch_take(played.node, played.batch(), world.now)
    assert (fresh(job).status, fresh(job).status_code) == ("failed", "nonfinite_loss")


def test_one_that_goes_on_says_so_once_and_once_when_it_is_over() -> None:
    world, job = going_on()
    steps(world, job, 11, 20, nonfinite=encode(LOSS))
    steps(world, job, 21, 30, nonfinite=encode(LOSS))
    job = fresh(job)
    assert job.status == "running"
    assert nonfinite_warning(job) == "The loss is not finite since step 14."
    assert changes(job) == [("nonfinite", f"{LOSS.became_text}; the job trains on")]
    assert event(job, "nonfinite").data["last_finite"] == 2.31
    steps(world, job, 31, 40, loss=0.5, nonfinite=None)
    job = fresh(job)
    assert nonfinite_warning(job) == ""
    assert changes(job)[1:] == [("finite_again", "The loss is finite again since step 31")]
    world.finish(job)
    assert fresh(job).status_reason == (
        "Finished at step 100: all steps done. The loss was not finite from step 14 to step 30."
    )


def test_a_run_within_one_report_makes_both_events() -> None:
    world, job = going_on()
    over = dataclasses.replace(LOSS, until_step=16)
    steps(world, job, 11, 20, nonfinite=encode(over))
    steps(world, job, 21, 30, loss=0.5)
    assert [kind for kind, _ in changes(job)] == ["nonfinite", "finite_again"]
    assert nonfinite_warning(fresh(job)) == ""


def test_steps_that_the_loss_scale_skipped_are_nothing() -> None:
    world, job = going_on()
    steps(world, job, 11, 20, nonfinite=None)
    assert changes(job) == []
    assert fresh(job).loss is None
    steps(world, job, 21, 30, nonfinite=encode(LOSS))
    steps(world, job, 31, 40, nonfinite=None)  # null, but not known to be finite either
    assert [kind for kind, _ in changes(job)] == ["nonfinite"]


def test_a_job_that_goes_back_to_before_it_does_not_say_that_it_is_over() -> None:
    world, job = going_on()
    steps(world, job, 11, 20, nonfinite=encode(LOSS))
    _, trainer = world.leader_of(job)
    trainer.generation += 1  # as if it had been started again from a checkpoint
    active = job.generations.filter(phase="active")
    active.update(number=trainer.generation, previous=None, step=2)
    Job.objects.filter(id=job.pk).update(generation=trainer.generation)
    steps(world, job, 3, 10, loss=0.5)
    assert [kind for kind, _ in changes(job)] == ["nonfinite"]
    assert fresh(job).nonfinite == {}


def test_metrics_are_told_by_epoch() -> None:
    world, job = going_on()
    epoch(world, job, 0, logs={"val_mae": 0.5}, nonfinite=[])
    epoch(world, job, 1, logs={"val_mae": None}, nonfinite=[encode(METRIC)])
    epoch(world, job, 0, logs={"val_mae": 0.5}, nonfinite=[])  # told again by a new leader
    assert nonfinite_warning(fresh(job)) == ("The metric val_mae is not finite since step 20.")
    epoch(world, job, 2, logs={"val_mae": 0.4}, nonfinite=[])
    assert [kind for kind, _ in changes(job)] == ["nonfinite", "finite_again"]
    assert fresh(job).metrics == {"val_mae": 0.4}


def test_what_comes_and_goes_leaves_a_bounded_number_of_events() -> None:
    world, job = going_on()
    for turn in range(TIMES_LIMIT + 5):
        first = 20 + 10 * turn
        state = dataclasses.replace(LOSS, step=first + 1, until_step=first + 2)
        steps(world, job, first, first + 9, nonfinite=encode(state))
    assert len(changes(job)) == 2 * TIMES_LIMIT
    assert "not recorded any more" in changes(job)[-1][1]
    many = [encode(dataclasses.replace(METRIC, metric=f"m{i}")) for i in range(2 * NAMES_LIMIT)]
    epoch(world, job, 0, logs={}, nonfinite=many)
    job = fresh(job)
    assert len(job.nonfinite) <= NAMES_LIMIT
    assert nonfinite_warning(job).endswith(f"So it is with {NAMES_LIMIT - 4} more.")


@pytest.mark.parametrize("odd", ["nan", 3, {}, {"value": "nan"}, [1], encode(LOSS) | {"step": -1}])
def test_what_is_no_such_thing_is_left_out_of_a_report(odd: Any) -> None:
    world, job = going_on()
    steps(world, job, 11, 20, nonfinite=odd)
    epoch(world, job, 0, logs={"mae": 1.0}, nonfinite=odd)
    job = fresh(job)
    assert (job.step, job.epoch, job.nonfinite) == (20, 1, {})


def test_no_fall_is_expected_of_a_loss_that_is_not_finite() -> None:
    world, job = going_on()
    steps(world, job, 11, 20, nonfinite=encode(LOSS))
    job = fresh(job)
    assert known_read([job], {}, ())[job.pk].loss == NoForecast()
    steps(world, job, 21, 30, loss=0.5)
    assert not isinstance(known_read([fresh(job)], {}, ())[job.pk].loss, NoForecast)


def test_losses_of_any_size_are_learnt_from_as_json() -> None:
    """A loss on its way to infinity is finite for long; its fits must not be nan in the rows."""
    world, job = going_on()
    for place, loss in enumerate([1.0, 1e4, 1e12, 1e20, 1e30, 3e38, 1e38, 1e150, 1e300, 1.7e308]):
        world.now_s += 10.0
        steps(world, job, 11 + 10 * place, 20 + 10 * place, loss=loss)
    job = fresh(job)
    assert job.loss == 1.7e308
    assert len(job.estimates.losses) == 10
    json.dumps([job.estimates.loss_fit, job.estimates.losses], allow_nan=False)
    forecast = known_read([job], {}, ())[job.pk].loss
    assert forecast is None or not math.isnan(forecast.loss(1e6))


@pytest.mark.parametrize("choice", OnNonfinite)
def test_the_choice_reaches_trainers_and_clones(choice: OnNonfinite) -> None:
    _, job = training(1, on_nonfinite=choice.value)
    assert training_spec(job).on_nonfinite is choice
    values = job_clone_values(job, job.owner)
    assert values["on_nonfinite"] == choice.value
    again = submission_read(submission_values(on_nonfinite=values["on_nonfinite"]))
    assert again.on_nonfinite is choice
    assert submission_read(submission_values()).on_nonfinite is OnNonfinite.STOP


def test_the_loss_of_a_job_is_that_of_the_last_step() -> None:
    """Reports are of other steps each time: their means differ between equal jobs."""
    world, job = going_on()
    steps(world, job, 21, 24, loss=0.5, last_loss=0.3)
    job.refresh_from_db()
    assert (job.loss, job.step_reports.get(last_step=24).loss) == (0.3, 0.5)
    steps(world, job, 25, 28, loss=0.4)
    job.refresh_from_db()
    assert job.loss == 0.4, "repeated by a new leader"
    steps(world, job, 29, 32, loss=None, last_loss=0.2)
    job.refresh_from_db()
    assert job.loss == 0.2
