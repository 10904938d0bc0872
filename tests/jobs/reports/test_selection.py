"""Reports of a job that selects: what is kept of its end, and what it changes."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from django.test import Client

from controlplane.core.protocol.wire import ReportKind
from jobs.models import Event, Job, StepReport
from jobs.selectors.cluster import _measured_speeds, remaining_examples, remaining_work
from jobs.selectors.estimates.batch_sizes import epoch_examples
from jobs.selectors.selection import examples_chosen, selection_counts
from jobs.services.reports.batches import batch_take
from jobs.services.reports.selection import png_encode
from tests.jobs.losses import event, fresh, training
from tests.jobs.world import World
from tests.support.builders import job_make
from tests.support.present import present

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
        "Selection ends: an epoch that selects takes 114 % of the time of a plain one. From epoch "
        "5 on all examples are trained on"
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


def steps(world: World, job: Job, epoch: int, first: int, **data: Any) -> None:
    """Report 10 steps of 10 examples, 1 s of training for each 100."""
    played, trainer = world.leader_of(job)
    fixed = {"epoch": epoch, "first_step": first, "last_step": first + 9, "num_accelerators": 2}
    values = {"examples": 100, "seconds": 1.0, "loss": 0.5, "compute_s": {"0": 0.1}}
    played.say(trainer, ReportKind.STEPS, **fixed | values | data)
    batch_take(played.node, played.batch(), world.now)


def test_what_is_left_shrinks_within_an_epoch_that_selects() -> None:
    """Of 6 epochs of 100 examples, half of which are chosen, the first one is half over."""
    world, job = selecting()
    steps(world, job, 4, 101, examples=30, candidates=50)
    job = fresh(job)
    assert remaining_examples(job) == 6 * 50 - 25
    assert epoch_examples([job]) == {job.pk: 50}
    steps(world, job, 4, 111, examples=30, candidates=50)
    assert remaining_examples(fresh(job)) == 5 * 50


def test_the_expected_end_does_not_jump_when_a_job_begins_to_select() -> None:
    """A pass costs 0.3 of a step: an epoch that selects takes 0.3 + 0.5 of a plain one."""
    world, job = selecting(start=5, end=None)
    facts = {"num_examples": 100, "selection": {"loss_s": 0.003, "step_s": 0.01}}
    Job.objects.update(facts=facts, throughput_by_count={})
    left = []
    for number, (epoch, values) in enumerate(
        [(4, {}), (5, {"examples": 50, "candidates": 100, "seconds": 0.8, "pass_s": 0.3})]
    ):
        steps(world, fresh(job), epoch, 101 + 10 * number, **values)
        job = fresh(job)
        work = present(remaining_work(job))
        left.append(work / _measured_speeds(job)[2])
    assert left == pytest.approx([5 * 0.8, 4 * 0.8])
    assert job.examples_per_s == pytest.approx(50 / 0.8), "the page's has the passes"


def test_what_is_left_is_expected_by_the_times_with_as_many_accelerators() -> None:
    """A pass takes 0.3 of a step alone, and 0.5 with the exchange between two accelerators."""
    world, job = selecting(start=4)
    times = {"loss_s": 0.003, "step_s": 0.01}
    Job.objects.update(facts={"num_examples": 100, "selection": times}, global_batch_size=20)

    def reported(number: int, count: int, pass_s: float) -> float | None:
        """Report an epoch of 160 analysed and 160 trained examples, 0.01 s for each of these."""
        values = {"examples": 160, "candidates": 160, "analysed": 160, "num_accelerators": count}
        seconds = {"seconds": 1.6 + pass_s, "pass_s": pass_s}
        steps(world, fresh(job), 4, 101 + 10 * number, **values, **seconds)
        counts = present(selection_counts(fresh(job)))
        assert counts.predicted_speed_up == pytest.approx(1 / 0.8)
        work = remaining_work(fresh(job), in_epoch=0)
        assert counts.expected_speed_up is not None
        assert work == pytest.approx(600 / counts.expected_speed_up)
        return counts.expected_speed_up

    assert reported(0, 2, 0.8) == pytest.approx(1 / (0.5 + 0.5))
    assert reported(1, 1, 0.48) == pytest.approx(1 / (0.3 + 0.5)), "of one accelerator now"
    assert reported(2, 2, 1.12) == pytest.approx(1 / (0.6 + 0.5)), "the mean of both"


def test_few_examples_change_no_expectation() -> None:
    world, job = selecting(start=4)
    times = {"loss_s": 0.003, "step_s": 0.01}
    Job.objects.update(facts={"num_examples": 100, "selection": times}, global_batch_size=20)
    steps(world, fresh(job), 4, 101, examples=159, candidates=160, analysed=160, pass_s=0.5)
    counts = present(selection_counts(fresh(job)))
    assert counts.expected_speed_up == counts.predicted_speed_up


def test_a_stop_by_steps_counts_passes_where_the_job_selects() -> None:
    """Of 640 examples 200 come before epoch 2; each later one costs 0.8/0.5 of a plain one."""
    facts = {"num_examples": 100, "selection": {"loss_s": 0.003, "step_s": 0.01}}
    job = job_make(stop_limit=20, selection=SELECTION, facts=facts)
    assert remaining_examples(job) == 640
    assert remaining_work(job) == pytest.approx(200 + 440 * 1.6)
    job.epoch, job.step = 4, 10
    assert remaining_work(job) == pytest.approx(320 * 1.6)
    job.selection = SELECTION | {"end": 5}
    assert remaining_work(job) == pytest.approx(50 * 1.6 + 270)


def test_selection_passes_are_no_exchange_of_gradients() -> None:
    world, job = selecting()
    for number in range(3):
        more = {"seconds": 1.6, "pass_s": 0.6, "candidates": 200}
        steps(world, job, 4, 101 + 10 * number, **more)
    speeds = present(job.generations.latest("number").speeds)
    assert speeds["step_s"] == pytest.approx(0.1)


def test_examples_of_epochs_with_trials_are_no_selected_ones() -> None:
    """Epoch 4 has selected; in epoch 5 a search ran, in epoch 6 one is running."""
    tuning = {"space": {"weight_decay": {"low": 0.0, "high": 0.1, "log": False}}}
    world, job = selecting()
    Job.objects.update(tuning=tuning)
    job = fresh(job)
    played, trainer = world.leader_of(job)
    for epoch, candidates, logs in ((4, 100, {"selected_share": 0.5}), (5, 0, {"loss": 1.0})):
        steps(world, job, epoch, 10 * epoch + 61, candidates=candidates, examples=50)
        more = {"epoch": epoch, "step": 10 * epoch + 70, "logs": logs}
        played.say(trainer, ReportKind.EPOCH, **more)
    steps(world, job, 6, 121)
    trial = {"number": 1, "search": 1, "values": {"weight_decay": 0.0}, "step": 121, "steps": 1}
    played.say(trainer, ReportKind.TRIAL, **trial, speed=0.0, is_running=True)
    batch_take(played.node, played.batch(), world.now)
    counts = present(selection_counts(fresh(job)))
    assert (counts.candidates, counts.trained) == (100, 50)


def test_the_examples_chosen_most_often_are_those_of_the_newest_epoch() -> None:
    world, job = selecting()
    played, trainer = world.leader_of(job)
    for number, chosen in ((5, [[7, 3], [1, 2]]), (4, [[9, 9]])):
        more = {"epoch": number, "step": 90 + number, "logs": {}, "most_chosen": chosen}
        played.say(trainer, ReportKind.EPOCH, **more)
    batch_take(played.node, played.batch(), world.now)
    assert fresh(job).most_chosen == [[7, 3], [1, 2]]


def preview(place: int, label: str, *, width: int = 2, pixels: bytes = b"\0\xff") -> dict[str, Any]:
    text = base64.b64encode(pixels).decode()
    picture = {"height": 1, "width": width, "channels": 1, "pixels": text}
    return {"place": place, "label": label, "picture": picture}


def say_chosen(world: World, job: Job, chosen: list[list[int]], *previews: Any) -> None:
    played, trainer = world.leader_of(job)
    more = {"epoch": 5, "step": 90, "logs": {}, "most_chosen": chosen, "previews": [*previews]}
    played.say(trainer, ReportKind.EPOCH, **more)
    batch_take(played.node, played.batch(), world.now)


def test_previews_of_the_examples_chosen_most_often_are_kept() -> None:
    world, job = selecting()
    say_chosen(world, job, [[7, 3], [1, 2]], preview(7, "cat"), preview(1, "a\0b"))
    say_chosen(world, job, [[7, 5], [2, 5]], {"place": 2, "label": "dog", "picture": None})
    found = examples_chosen(fresh(job))
    assert [(one.place, one.times, one.label, one.has_image) for one in found] == [
        (7, 5, "cat", True),
        (2, 5, "dog", False),
    ]


def test_a_limited_number_of_earlier_previews_is_kept() -> None:
    world, job = selecting()
    for start in range(0, 200, 20):
        places = range(start, start + 20)
        say_chosen(world, job, [[n, 1] for n in places], *(preview(n, "cat") for n in places))
    assert sorted(job.example_previews.values_list("place", flat=True)) == [*range(100, 200)]


@pytest.mark.parametrize(
    "odd",
    [
        preview(8, "not among those chosen"),
        preview(7, "", width=3),
        preview(7, "", width=33, pixels=bytes(33)),
        preview(7, "", width=0, pixels=b""),
        {"place": 7, "picture": {"height": 1, "width": 1, "channels": 2, "pixels": "AAA="}},
        {"place": 7, "picture": {"height": 1, "width": 1, "channels": 1, "pixels": "<svg>"}},
        {"place": 7, "picture": {"height": 1, "width": 1, "channels": 1}},
        {"place": 7, "picture": {}},
        {"place": "7", "picture": None},
        {"label": "of no place"},
        "text",
    ],
)
def test_a_preview_that_is_none_has_no_image_and_stops_nothing(odd: Any) -> None:
    world, job = selecting()
    say_chosen(world, job, [[7, 3]], odd)
    assert [one.has_image for one in examples_chosen(fresh(job))] == [False]
    assert not job.example_previews.exclude(image=None)


def test_a_job_that_selects_nothing_keeps_no_preview() -> None:
    world, job = training(1, stop_kind="epochs", stop_limit=10)
    say_chosen(world, job, [[7, 3]], preview(7, "cat"))
    assert not job.example_previews.exists()


def test_a_job_whose_files_are_deleted_keeps_no_late_preview() -> None:
    world, job = selecting()
    Job.objects.update(files_deleted_at=world.now)
    say_chosen(world, job, [[7, 3]], preview(7, "cat"))
    assert not job.example_previews.exists()


def test_an_image_is_served_as_it_was_reported(client: Client) -> None:
    world, job = selecting()
    say_chosen(world, job, [[7, 3]], preview(7, "cat"))
    client.force_login(job.owner)
    answer = client.get(f"/api/v1/jobs/{job.pk}/examples/7/image/")
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "image/png")
    assert answer.content == png_encode(1, 2, 1, b"\0\xff")
    assert client.get(f"/api/v1/jobs/{job.pk}/examples/8/image/").status_code == 404
    shown = client.get(f"/api/v1/jobs/{job.pk}/").json()["selected"]["most_chosen"]
    assert shown == [{"place": 7, "times": 3, "label": "cat", "has_image": True}]


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
    counts = present(selection_counts(job))
    assert (counts.candidates, counts.analysed, counts.trained) == (464, 332, 200)
    last = StepReport.objects.get(job=job, last_step=120)
    assert (last.candidates, last.pass_s, last.seconds) == (264, 0.75, 2.25)
