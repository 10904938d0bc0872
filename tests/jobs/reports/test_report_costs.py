"""Statements that the reports of a running job take: there are many of them a second."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.core.protocol.wire import ReportKind
from jobs.services.reports import profiles
from jobs.services.reports.batches import batch_take
from tests.jobs.world import settled

pytestmark = pytest.mark.django_db


def test_reports_of_steps_take_few_statements(
    django_assert_max_num_queries: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiles, "_FEED_EVERY", 100)  # those of a profile come seldom
    world, job = settled(max_accelerators=1, stop_limit=10**6)
    world.train(job)
    played, trainer = world.leader_of(job)

    def say(first: int) -> None:
        played.say(
            trainer, ReportKind.STEPS, first_step=first, last_step=first, epoch=0, examples=32,
            seconds=0.1, loss=0.5, last_loss=0.5, num_accelerators=1, batch_size=32,
            learning_rate=0.1, compute_s={"0": 0.08}, noise={"sqr": 4.0, "var": 1.0},
        )  # fmt: skip

    def taken(num_reports: int) -> None:
        for _ in range(num_reports):
            say(world.steps[job.pk] + 1)
            world.steps[job.pk] += 1
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
