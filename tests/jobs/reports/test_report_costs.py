"""Statements that the reports of a running job take: there are many of them a second."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.core.protocol.wire import ReportKind
from jobs.models import Job
from jobs.services.reports import profiles
from jobs.services.reports.batches import batch_take
from tests.jobs.world import PlayedNode, PlayedTrainer, World, settled

pytestmark = pytest.mark.django_db

Leader = tuple[PlayedNode, PlayedTrainer]


def steps_say(world: World, job: Job, leader: Leader, epoch: int = 0) -> None:
    """Let a job's leader say that it has done a step."""
    played, trainer = leader
    world.steps[job.pk] = step = world.steps[job.pk] + 1
    played.say(
        trainer, ReportKind.STEPS, first_step=step, last_step=step, epoch=epoch, examples=32,
        seconds=0.1, loss=0.5, last_loss=0.5, num_accelerators=1, batch_size=32,
        learning_rate=0.1, compute_s={"0": 0.08}, noise={"sqr": 4.0, "var": 1.0},
    )  # fmt: skip


def test_reports_of_steps_take_few_statements(
    django_assert_max_num_queries: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiles, "_FEED_EVERY", 100)  # those of a profile come seldom
    world, job = settled(max_accelerators=1, stop_limit=10**6)
    world.train(job)
    leader = played, _ = world.leader_of(job)

    def taken(num_reports: int) -> None:
        for _ in range(num_reports):
            steps_say(world, job, leader)
        world.now_s += 0.5
        batch_take(played.node, played.batch(), world.now)

    for _ in range(3):
        taken(1)
    for num_reports in (1, 2, 4):
        with django_assert_max_num_queries(8 + 7 * num_reports):
            taken(num_reports)
    job.refresh_from_db()
    assert job.step == world.steps[job.pk]
    assert not job.events.filter(kind="report_refused").exists()


def test_epochs_of_no_time_take_few_statements(
    django_assert_max_num_queries: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two phases an epoch, of which only the last one of a batch is stored."""
    monkeypatch.setattr(profiles, "_FEED_EVERY", 100)
    world, job = settled(max_accelerators=1, stop_kind="epochs", stop_limit=100)
    world.train(job)
    leader = played, trainer = world.leader_of(job)

    def taken(epochs: range) -> None:
        for epoch in epochs:
            steps_say(world, job, leader, epoch)
            played.say(trainer, ReportKind.PHASE, phase="evaluating")
            logs = {"loss": 1.0 / (1 + epoch), "val_loss": 0.5}
            played.say(trainer, ReportKind.EPOCH, epoch=epoch, step=world.steps[job.pk], logs=logs)
            played.say(trainer, ReportKind.PHASE, phase=f"after {epoch}")
        world.now_s += 0.5
        batch_take(played.node, played.batch(), world.now)

    for epoch in range(3):
        taken(range(epoch, epoch + 1))
    with django_assert_max_num_queries(8 + 5 * (7 + 2) + 3 + 7):
        taken(range(3, 8))
    job.refresh_from_db()
    assert (job.epoch, job.epoch_reports.count(), job.metrics["loss"]) == (8, 8, 0.125)
    assert job.allocations.get(slot=trainer.slot).phase == "after 7"
    assert not job.events.filter(kind="report_refused").exists()
