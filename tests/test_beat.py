"""The health check of `beat` in docker-compose.yml, on the file that beat touches."""

from __future__ import annotations

import datetime
import os
import shlex
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml
from celery import Celery
from celery.beat import SchedulingError
from kombu import Connection
from kombu.exceptions import OperationalError

from controlplane.beat import QUEUE_LIMIT, TickingScheduler
from controlplane.celery import app
from tests.support.cases import pairs

ROOT = Path(__file__).parent.parent
SERVICE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["beat"]
SCHEDULE = SERVICE["command"][SERVICE["command"].index("--schedule") + 1]
KIND, CHECK = SERVICE["healthcheck"]["test"]
#: Age of the last tick from which beat counts as hanging.
LIMIT_S = 120


@pytest.fixture
def scheduler(tmp_path: Path) -> TickingScheduler:
    """Return a scheduler that has nothing to send."""
    made = TickingScheduler(Celery(), schedule_filename=str(tmp_path / "schedule"))
    made.schedule.clear()
    return made


@pytest.fixture
def is_healthy(scheduler: TickingScheduler) -> Callable[[], bool]:
    """Run the health check on this scheduler's file instead of the container's."""
    assert (KIND, CHECK.count(SCHEDULE)) == ("CMD-SHELL", 1)
    command = CHECK.replace(SCHEDULE, shlex.quote(str(scheduler.schedule_filename)))

    def run() -> bool:
        done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, timeout=30)
        return done.returncode == 0

    return run


def tick_file(scheduler: TickingScheduler) -> Path:
    return Path(f"{scheduler.schedule_filename}.tick")


def age(path: Path, seconds: float) -> None:
    at = time.time() - seconds
    os.utime(path, (at, at))


def test_beat_is_healthy_from_its_first_tick(
    scheduler: TickingScheduler, is_healthy: Callable[[], bool]
) -> None:
    assert not is_healthy()
    scheduler.tick()
    assert is_healthy()


@pytest.mark.parametrize("seconds", [LIMIT_S + 60, 3600, 10 * 24 * 3600])
def test_beat_that_hangs_is_unhealthy_until_it_ticks_again(
    scheduler: TickingScheduler, is_healthy: Callable[[], bool], seconds: float
) -> None:
    scheduler.tick()
    age(tick_file(scheduler), seconds)
    assert not is_healthy()
    scheduler.tick()
    assert is_healthy()


def test_a_tick_is_noted_before_anything_is_sent(
    scheduler: TickingScheduler, is_healthy: Callable[[], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sign of life is given before sending, so a broker that hangs does not renew it."""

    def away(*_arguments: Any, **_options: Any) -> float:
        age(tick_file(scheduler), LIMIT_S + 60)  # it has taken so long
        raise ConnectionError

    monkeypatch.setattr("celery.beat.PersistentScheduler.tick", away)
    with pytest.raises(ConnectionError):
        scheduler.tick()
    assert not is_healthy()


def test_beat_ticks_often_and_sends_all_between_two_restarts_of_every_night() -> None:
    """A new container begins to count anew: its schedule is on no volume."""
    periods = [entry["schedule"] for entry in app.conf.beat_schedule.values()]
    assert min(periods) < LIMIT_S / 2
    assert max(periods) <= 3600


def test_nothing_is_sent_into_a_queue_that_nobody_empties(
    scheduler: TickingScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    lengths = {"replays": QUEUE_LIMIT, "celery": QUEUE_LIMIT - 1}
    monkeypatch.setattr("controlplane.beat.queue_lengths", lambda: lengths)
    monkeypatch.setattr(TickingScheduler, "apply_async", lambda _, entry, **__: sent.append(entry))
    for name, entry in app.conf.beat_schedule.items():
        scheduler.apply_entry(scheduler.Entry(name, app=scheduler.app, **entry))
    queues = [entry.options["queue"] for entry in sent]
    assert queues == ["celery"] * (len(app.conf.beat_schedule) - 2)


def test_an_outage_of_the_broker_is_logged_once_and_its_end(
    scheduler: TickingScheduler, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    entry = scheduler.Entry("one", "jobs.tasks.one", app=scheduler.app)
    answers = [None, SchedulingError("away"), SchedulingError("away"), None, None]

    def send(*_arguments: Any, **_options: Any) -> None:
        if error := answers.pop(0):
            raise error

    monkeypatch.setattr(TickingScheduler, "apply_async", send)
    while answers:
        scheduler.apply_entry(entry)
    assert [record.getMessage() for record in caplog.records if record.levelname != "INFO"] == [
        "nothing is sent until the broker is back: away",
        "tasks are sent again",
    ]


def test_workers_and_beat_wait_for_the_broker_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """By default they end after 100 tries, three quarters of an hour."""
    failures = [redis.ConnectionError("away")] * 1000

    def connect(_connection: Connection) -> str:
        if failures:
            raise failures.pop()
        return "connected"

    monkeypatch.setattr(Connection, "_connection_factory", connect)
    monkeypatch.setattr("kombu.utils.functional.sleep", lambda _seconds: None)
    connection = Connection("redis://127.0.0.1:1/0")
    connection.ensure_connection(max_retries=app.conf.broker_connection_max_retries)
    assert not failures


class SetClock:
    """A clock that a test sets; tells what beat sends by it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = datetime.datetime(2026, 3, 1, tzinfo=datetime.UTC)
        self.sent: list[str] = []
        self._path = str(folder / "schedule")
        monkeypatch.setattr(Celery, "now", lambda _: self.now)
        monkeypatch.setattr(TickingScheduler, "producer", None)
        monkeypatch.setattr(
            TickingScheduler, "apply_entry", lambda _, entry, **__: self.sent.append(entry.name)
        )

    def scheduler(self) -> TickingScheduler:
        """Start beat."""
        made = Celery()
        made.conf.beat_schedule = app.conf.beat_schedule
        return TickingScheduler(made, schedule_filename=self._path)

    def passes(self, scheduler: TickingScheduler, seconds: float) -> None:
        """Let beat tick for some time."""
        end = self.now + datetime.timedelta(seconds=seconds)
        while self.now < end:
            self.now += datetime.timedelta(seconds=max(scheduler.tick(), 0.01))


@pytest.mark.parametrize(
    ("back", "is_restarted"),
    pairs([{"minutes": 1}, {"hours": 2}, {"days": 400}], [False, True]),
    ids=str,
)
def test_everything_is_sent_in_time_after_the_clock_was_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_restarted: bool, back: dict[str, int]
) -> None:
    clock = SetClock(tmp_path, monkeypatch)
    scheduler = clock.scheduler()
    clock.passes(scheduler, 1205)
    clock.now -= datetime.timedelta(**back)
    if is_restarted:
        scheduler.close()
        scheduler = clock.scheduler()
    clock.sent.clear()
    clock.passes(scheduler, 605)
    for name, entry in app.conf.beat_schedule.items():
        # Beat sends each a hundredth of a second early.
        expected = pytest.approx(600 / entry["schedule"], rel=0.02, abs=1.01)
        assert clock.sent.count(name) == expected, name


def test_every_beat_ticks_like_this() -> None:
    assert app.conf.beat_scheduler == f"{TickingScheduler.__module__}:{TickingScheduler.__name__}"


def test_beat_of_the_containers_ticks() -> None:
    """Another scheduler would touch no file."""
    named = SERVICE["command"][SERVICE["command"].index("--scheduler") + 1]
    assert named == f"{TickingScheduler.__module__}:{TickingScheduler.__name__}"


def test_a_request_tries_once_to_reach_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    away, slept = Celery(broker="redis://127.0.0.1:1/0"), list[float]()
    away.conf.broker_transport_options = app.conf.broker_transport_options
    monkeypatch.setattr("kombu.utils.functional.sleep", slept.append)
    with pytest.raises(OperationalError):
        away.send_task("jobs.tasks.answer_replay", retry=False)
    assert slept == []
