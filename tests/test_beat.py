"""The health check of `beat` in docker-compose.yml, on the file that beat touches."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from celery import Celery

from controlplane.beat import TickingScheduler
from controlplane.celery import app

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


def test_beat_ticks_more_often_than_the_check_expects() -> None:
    periods = [entry["schedule"] for entry in app.conf.beat_schedule.values()]
    assert min(period for period in periods if isinstance(period, int | float)) < LIMIT_S / 2


def test_beat_of_the_containers_ticks() -> None:
    """Another scheduler would touch no file."""
    named = SERVICE["command"][SERVICE["command"].index("--scheduler") + 1]
    assert named == f"{TickingScheduler.__module__}:{TickingScheduler.__name__}"
