"""Usage from the sums of days equals usage from the rows of jobs, also after the past changed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext

from controlplane.core.protocol.wire import ReportKind
from controlplane.core.values.lifecycle import GenerationPhase
from jobs.api.projects.usage_views import usage_csv
from jobs.models import (
    Accelerator,
    AcceleratorPrice,
    Allocation,
    Generation,
    Job,
    Project,
    ProjectMembership,
    ReadingBin,
    UsageDay,
    UsageSum,
)
from jobs.selectors import usage_sums
from jobs.selectors.usage import Usage, UsageBy, usage_between
from jobs.selectors.usage_periods import day_start, days_summed
from jobs.services.lifecycle import usage_days
from jobs.services.lifecycle.search_rows import search_terms_write
from jobs.services.lifecycle.usage_days import DAYS_AT_ONCE, usage_changed, usage_days_sum
from jobs.services.submission.job_actions import job_describe
from tests.jobs.world import World
from tests.support.builders import at, job_make, membership_make, node_make, user_make

pytestmark = pytest.mark.django_db

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
NOW = datetime(2026, 5, 10, 15, 30, tzinfo=UTC)
MIDNIGHT = datetime(2026, 5, 10, tzinfo=UTC)
#: Periods, some of whole days, some that begin and end within one, some without a whole day.
PERIODS = [
    (NOW - 12 * DAY, NOW),
    (MIDNIGHT - 7 * DAY, MIDNIGHT - 2 * DAY),
    (NOW - 5 * DAY - 4 * HOUR, NOW - DAY + 3 * HOUR),
    (NOW - 20 * DAY, NOW - 10 * DAY),
    (MIDNIGHT - 9 * HOUR, MIDNIGHT + 9 * HOUR),
    (MIDNIGHT - 2 * HOUR, MIDNIGHT + 3 * HOUR),
]
TAGS = ("a", "b", "c")


class History:
    """Thirteen days of four accelerators: who held them, changes of memberships, readings."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        node, _ = node_make(num_accelerators=4)
        self.places = list(Accelerator.objects.filter(node=node).order_by("index"))
        Accelerator.objects.filter(pk=self.places[3].pk).update(kind="gpu")
        AcceleratorPrice.objects.create(kind="gpu", per_hour=2.5)
        self.admin = user_make("admin", is_staff=True)
        self.ada, self.bob = user_make("ada"), user_make("bob")
        projects = [
            Project.objects.create(name=name, created_at=at(0)) for name in ("vision", "text")
        ]
        ProjectMembership.objects.create(project=projects[0], user=self.ada, since=at(0))
        self.jobs = [
            self._job(self.random.choice((self.ada, self.bob)), project)
            for project in (*projects, None) * 4
        ]
        for place in self.places:
            self._hold(place)
            self._read(place)

    def _job(self, owner: User, project: Project | None) -> Job:
        tags = self.random.sample(TAGS, self.random.randrange(3))
        job = job_make(owner, project=project, tags=tags)
        search_terms_write(job)
        return job

    def _hold(self, place: Accelerator) -> None:
        """Let jobs hold an accelerator one after another; the last one still does."""
        allocations, generations = [], []
        since = NOW - 13 * DAY
        for slot in itertools.count(place.index * 1000):
            since += timedelta(minutes=self.random.choice((0, 1, 45, 300)))
            until: datetime | None = since + timedelta(
                minutes=self.random.choice((2, 59, 150, 700, 2900)), microseconds=slot
            )
            assert until is not None
            if self.random.random() < 0.2:
                until = until.replace(hour=0, minute=0, second=0, microsecond=0) + DAY
            if until > NOW:
                until = None
            job = self.random.choice(self.jobs)
            allocations.append(Allocation(
                job=job, accelerator=place, slot=slot, granted_generation=1, granted_at=since,
                released_at=until,
            ))  # fmt: skip
            generations.append(Generation(
                job=job, number=slot, phase=GenerationPhase.CLOSED,
                membership=membership_make(slot, {0: [0]}), num_members=self.random.randrange(1, 5),
                requested_at=since, switched_at=since, pause_s=self.random.choice((None, 0.25, 9)),
            ))  # fmt: skip
            if until is None:
                break
            since = until
        Allocation.objects.bulk_create(allocations)
        Generation.objects.bulk_create(generations)

    def _read(self, place: Accelerator) -> None:
        full = NOW.replace(minute=0)
        times = [(3600, full - number * HOUR) for number in range(13 * 24)]
        times += [(60, NOW - timedelta(minutes=number)) for number in range(1, 600)]
        ReadingBin.objects.bulk_create(
            ReadingBin(
                accelerator=place, width_s=width_s, at=time, read_at=time, num_readings=6,
                utilisation_percent=self.random.choice((1.0, 7.0, 50.0, None)),
            )
            for width_s, time in times
        )  # fmt: skip

    def usages(self, periods: Sequence[tuple[datetime, datetime]] = PERIODS) -> list[Usage]:
        """Return the usage of each period by everything, as an admin sees it and as others do."""
        found = []
        others = itertools.cycle(
            [(self.ada, ""), (self.bob, ""), (self.ada, "text"), (self.admin, "vision")]
        )
        for (since, until), by in itertools.product(periods, UsageBy):
            found.append(usage_between(self.admin, by, since, until))
            person, project = next(others)
            found.append(usage_between(person, by, since, until, project))
        return found

    def retag(self) -> None:
        """Change the tags of some jobs, which have held accelerators for days."""
        for job in self.random.sample(self.jobs, 4):
            tags = self.random.sample(TAGS, self.random.randrange(4))
            job_describe(job.pk, NOW, actor="user:x", tags=tags)


def sum_all(now: datetime = NOW) -> int:
    """Run the task until nothing is left; return the number of days."""
    return sum(iter(lambda: usage_days_sum(now), 0))


def reads_sums(history: History) -> bool:
    """Return whether the usage of twelve days is read from sums of days."""
    with CaptureQueriesContext(connection) as queries:
        usage_between(history.admin, UsageBy.USER, *PERIODS[0])
    return any('FROM "jobs_usagesum"' in one["sql"] for one in queries)


@pytest.mark.database
def test_sums_of_days_change_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def joined() -> Iterator[None]:
        """Let the database join the jobs, as it does with many of them."""
        with monkeypatch.context() as patched:
            patched.setattr(usage_sums, "MAX_JOBS", 0)
            yield

    history = History(1)
    live = history.usages()
    with joined():
        assert history.usages() == live
    files = [usage_csv(one).content for one in live]
    assert all(one.rows for one in live[::2])
    assert any(one.total.idle_hours and one.total.paused_hours for one in live)
    assert not reads_sums(history)

    assert sum_all() == 13
    assert reads_sums(history)
    summed = history.usages()
    assert summed == live
    with joined():
        assert history.usages() == live
    assert [usage_csv(one).content for one in summed] == files

    history.retag()
    periods = PERIODS[:3]
    renewed = history.usages(periods)
    assert renewed != live[: len(renewed)]
    with joined():
        assert sum_all() > 0
    assert history.usages(periods) == renewed
    UsageDay.objects.all().delete()
    assert history.usages(periods) == renewed


def test_a_run_sums_some_days_the_newest_first_and_later_runs_the_others() -> None:
    History(0)
    first = MIDNIGHT.date() - 13 * DAY
    assert usage_days_sum(NOW) == DAYS_AT_ONCE
    assert set(days_summed(first, NOW.date())) == {
        MIDNIGHT.date() - number * DAY for number in range(1, DAYS_AT_ONCE + 1)
    }
    assert usage_days_sum(NOW) == 13 - DAYS_AT_ONCE
    rows = UsageSum.objects.count()
    assert usage_days_sum(NOW) == 0
    assert usage_days_sum(MIDNIGHT + DAY + HOUR / 2) == 0  # yesterday's last rows may be on the way
    assert usage_days_sum(MIDNIGHT + DAY + HOUR) == 1
    assert UsageSum.objects.count() > rows
    assert usage_days_sum(MIDNIGHT + 5 * DAY) == 3  # the task was away


def test_days_are_summed_again_for_another_limit_of_idleness(settings: Any) -> None:
    def usage() -> Usage:
        return usage_between(history.admin, UsageBy.PROJECT, *PERIODS[0])

    history = History(0)
    sum_all()
    before = usage()
    settings.IDLE_PERCENT = 10
    assert not reads_sums(history)
    live = usage()
    assert live != before
    assert sum_all() == 13
    assert usage() == live


def test_a_change_during_the_sum_leaves_the_day_to_the_next_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    History(0)
    yesterday = MIDNIGHT - HOUR
    real = usage_days.live_period

    def changed(*arguments: Any) -> Any:
        monkeypatch.setattr(usage_days, "live_period", real)
        usage_changed(yesterday, yesterday, NOW)
        return real(*arguments)

    monkeypatch.setattr(usage_days, "live_period", changed)
    assert usage_days_sum(NOW) == DAYS_AT_ONCE - 1
    assert yesterday.date() not in days_summed(yesterday.date(), NOW.date())
    usage_days_sum(NOW)
    assert yesterday.date() in days_summed(yesterday.date(), NOW.date())


def test_a_pause_told_late_counts_on_its_day() -> None:
    """Both trainers of a job stood still for 90 s more than was known when the day was summed."""
    world = World(num_nodes=1, num_accelerators=2)
    ended, job = job_make(max_accelerators=2), job_make(max_accelerators=2)
    world.until(lambda: ended.generations.filter(phase="active").exists())
    world.finish(ended)
    world.until(lambda: job.generations.filter(phase="active", num_members=2).exists())
    generation = job.generations.get(phase="active")
    assert generation.switched_at is not None
    day = generation.switched_at.date()
    world.now_s += 2 * DAY.total_seconds()
    assert sum_all(world.now) == 2
    played, leader = world.leader_of(job)
    played.say(leader, ReportKind.SWITCHED, step=0, pause_s=90.0, bytes_moved=0, joined=False)
    world.tell(played)
    assert day not in days_summed(day, day + DAY)
    assert sum_all(world.now) == 1
    admin = user_make(is_staff=True)
    usage = usage_between(admin, UsageBy.USER, day_start(day), day_start(day) + DAY)
    assert usage.total.paused_hours == pytest.approx(2 * 90 / 3600)
