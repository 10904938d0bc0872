"""Reports of a job that selects: what is kept of its end, and what it changes."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.core.protocol.wire import ReportKind
from jobs.models import Event, Job, StepReport
from jobs.selectors.cluster import remaining_examples
from jobs.selectors.selection import selection_counts
from jobs.services.reports.batches import batch_take
from tests.jobs.losses import event, fresh, training
from tests.jobs.world import World

pytestmark = pytest.mark.django_db

SELECTION = {"method": "selective_backprop", "beta": 1.0, "start": 2, "control_every": 4}
END = {"epoch": 5, "step": 90, "reason": "guard", "ratio": 1.138}


def selecting(**selection: Any) -> tuple[World, Job]:
    world, job = training(1, stop_kind="epochs", stop_limit=10, selection=SELECTION | selection)
    Job.objects.update(facts={"num_examples": 100}, epoch=4)
    return world, fresh(job)


def say(world: World, job: Job, **data: Any) -> None:
    played, trainer = world.leader_of(job)
    played.say(trainer, ReportKind.SELECTION_ENDED, **data)
    batch_take(played.node, played.batch(), world.now)


def test_an_end_is_kept_with_its_numbers_and_told_once() -> None:
    world, job = selecting()
    assert remaining_examples(job, in_epoch=0) == 6 * 50
    say(world, job, **END)
    say(world, job, **END)
    job = fresh(job)
    assert job.selection_ended == END
    told = event(job, "selection_ended")
    assert told.message == (
        "Selection ends: an epoch that selects takes 114% of the time of a plain one. From epoch 5 "
        "on all examples are trained on"
    )
    assert told.data == END
    assert remaining_examples(job, in_epoch=0) == 50 + 5 * 100
    say(world, job, **END | {"epoch": 6, "reason": "control", "ratio": 0.5})
    assert fresh(job).selection_ended["epoch"] == 6, "decided again after a restart"
    assert Event.objects.filter(kind="selection_ended").count() == 1


def test_an_end_by_the_control_epochs_has_their_ratio() -> None:
    world, job = selecting()
    say(world, job, **END | {"reason": "control", "ratio": 0.5})
    assert (
        "falls 0.50 times as fast per second as with random"
        in event(job, "selection_ended").message
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"epoch": 2},  # the first epoch that selects is 2
        {"epoch": 10},
        {"reason": "whim"},
        {"reason": "control"},
    ],
)
def test_an_end_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    world, job = selecting(end=9, control_every=None)
    say(world, job, **END | wrong)
    assert fresh(job).selection_ended == {}
    assert event(job, "report_refused")


def test_the_examples_chosen_most_often_are_those_of_the_newest_epoch() -> None:
    world, job = selecting()
    played, trainer = world.leader_of(job)
    for number, chosen in ((5, [[7, 3], [1, 2]]), (4, [[9, 9]])):
        more = {"epoch": number, "step": 90 + number, "logs": {}, "most_chosen": chosen}
        played.say(trainer, ReportKind.EPOCH, **more)
    batch_take(played.node, played.batch(), world.now)
    assert fresh(job).most_chosen == [[7, 3], [1, 2]]


def test_passes_after_the_last_step_count() -> None:
    world, job = selecting()
    played, trainer = world.leader_of(job)
    steps = {"epoch": 3, "examples": 100, "seconds": 2.0, "loss": 0.5, "num_accelerators": 2}
    for first in (101, 111):
        more = {"first_step": first, "last_step": first + 9, "candidates": 200, "analysed": 150}
        played.say(trainer, ReportKind.STEPS, **steps, **more, pass_s=0.5)
    passed = {"candidates": 64, "analysed": 32, "seconds": 0.25}
    played.say(trainer, ReportKind.FINISHED, step=120, metrics={}, passed=passed)
    batch_take(played.node, played.batch(), world.now)
    job = fresh(job)
    assert job.status == "finished"
    counts = selection_counts(job)
    assert counts is not None
    assert (counts.candidates, counts.analysed, counts.trained) == (464, 332, 200)
    last = StepReport.objects.get(job=job, last_step=120)
    assert (last.candidates, last.pass_s, last.seconds) == (264, 0.75, 2.25)
