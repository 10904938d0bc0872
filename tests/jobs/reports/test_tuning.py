"""Reports of the trials of a tuned job: what is kept, summarised and refused."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.core.protocol.wire import ReportKind
from jobs.models import Event, Job, StepReport, Trial
from jobs.selectors.tuning import MAX_SEARCHES, in_trials, search_spans, tuned_of
from jobs.services.reports.batches import batch_take
from tests.jobs.losses import event, fresh, training
from tests.jobs.world import World

pytestmark = pytest.mark.django_db

TUNING = {"space": {"learning_rate": {"low": 0.001, "high": 1.0, "log": True}}}
FIRST: dict[str, Any] = {
    "number": 1,
    "search": 1,
    "values": {"learning_rate": 0.01},
    "step": 10,
    "steps": 10,
    "start_loss": 2.0,
    "losses": [1.9, 1.8],
    "verdict": "converging",
    "speed": 0.02,
    "end": "slower",
    "is_running": False,
    "search_end": None,
}
KEPT = FIRST | {"number": 2, "values": {"learning_rate": 0.1}, "step": 20, "end": "kept"}
SECOND_SEARCH = FIRST | {"number": 3, "search": 2, "step": 50, "end": None, "is_running": True}


def tuned() -> tuple[World, Job]:
    world, job = training(1, stop_kind="epochs", stop_limit=10, tuning=TUNING)
    return world, fresh(job)


def say(world: World, job: Job, *reports: dict[str, Any]) -> None:
    played, trainer = world.leader_of(job)
    for data in reports:
        played.say(trainer, ReportKind.TRIAL, **data)
    batch_take(played.node, played.batch(), world.now)


def test_trials_are_kept_with_why_and_from_which_state() -> None:
    world, job = tuned()
    ended = {"search_end": "trials"}
    say(world, job, FIRST, KEPT | ended, SECOND_SEARCH, KEPT | ended)
    Job.objects.update(step=60)
    found = tuned_of(fresh(job))
    assert found is not None
    assert (found.num_trials, found.steps, found.share) == (3, 30, 0.5)
    assert found.values == {"learning_rate": 0.1}
    assert [(row.number, row.parent, row.reason) for row in found.trials] == [
        (1, None, "the loss of another trial fell faster"),
        (2, None, "kept: the job goes on from it"),
        (3, 2, "running"),
    ]
    assert event(job, "tuned").message == "Search 1 keeps trial 2: learning_rate 0.1"
    assert Event.objects.filter(kind="tuned").count() == 1, "a repeat is told again"
    assert tuned_of(Job()) is None


def test_an_older_report_changes_nothing() -> None:
    world, job = tuned()
    say(world, job, KEPT, KEPT | {"end": None, "step": 15, "is_running": True})
    assert Trial.objects.get(job=job).end == "kept"


@pytest.mark.parametrize("later", [21, 223])
def test_a_repeat_by_another_leader_does_not_move_the_steps_of_a_search(later: int) -> None:
    world, job = tuned()
    ended = {"search_end": "trials"}
    trials = [FIRST | ended | {"step": 20}, KEPT | ended]
    say(world, job, *trials)
    spans = search_spans(fresh(job))
    assert [(span.first, span.last) for span in spans] == [(1, 20)]
    Job.objects.update(generation=2)
    say(world, job, *(trial | {"step": later} for trial in trials))
    assert search_spans(fresh(job)) == spans


def test_a_search_that_goes_on_after_a_resize_ends_where_it_ends() -> None:
    world, job = tuned()
    running = FIRST | {"end": None, "is_running": True}
    say(world, job, running, running | {"step": 12, "steps": 12}, FIRST | {"step": 15, "steps": 15})
    assert [(span.first, span.last) for span in search_spans(fresh(job))] == [(1, None)]
    say(world, job, FIRST | {"step": 16, "steps": 15, "search_end": "trials"})
    assert [(span.first, span.last) for span in search_spans(fresh(job))] == [(2, 16)]


def test_of_many_searches_the_newest_are_told_apart() -> None:
    """A condition of 10,000 parts is more than a database takes."""
    world, job = tuned()
    Trial.objects.bulk_create(
        Trial(
            job=job, number=number, search=number, values={}, steps=1, speed=0.0, generation=1,
            step=number, search_end="trials", at=world.now,
        )
        for number in range(1, 2001)
    )  # fmt: skip
    spans = search_spans(job)
    newest = [*range(2001 - MAX_SEARCHES, 2001)]
    assert [(span.first, span.last) for span in spans] == [(step, step) for step in newest]
    assert not StepReport.objects.filter(in_trials(job)).exists()


@pytest.mark.parametrize(
    "wrong",
    [
        {"values": {}},
        {"values": {"momentum": 0.5}},
        {"values": {"learning_rate": "fast"}},
        {"end": "whim"},
        {"verdict": "good"},
        {"search_end": "whim"},
        {"number": 0},
        {"number": 10_001},
        {"steps": -1},
        {"speed": -1.0},
        {"is_running": "perhaps"},
    ],
)
def test_a_trial_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    world, job = tuned()
    say(world, job, FIRST | wrong)
    assert not Trial.objects.exists()
    assert event(job, "report_refused")


def test_a_job_that_is_not_tuned_has_no_trials(caplog: pytest.LogCaptureFixture) -> None:
    """An event and a line of the log say so once, however many trials the job reports."""
    world, job = training(1)
    for _ in range(20):
        say(world, job, FIRST)
    assert not Trial.objects.exists()
    assert event(job, "report_refused")
    (line,) = (one for one in caplog.records if one.levelname == "WARNING")
    assert "the job does not tune these values" in line.message
