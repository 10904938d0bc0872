"""The health check of the Celery workers in docker-compose.yml, on the file that they touch."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from celery.signals import heartbeat_sent
from celery.worker.heartbeat import Heart

from controlplane.celery import worker_alive

ROOT = Path(__file__).parent.parent
SERVICES = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
WORKERS = [name for name, service in SERVICES.items() if "worker" in service.get("command", ())]
#: Age of the last heartbeat from which a worker counts as hanging.
LIMIT_S = 120


class Timer:
    """Calls what is due when a test says so."""

    def call_repeatedly(self, interval_s: float, call: Callable[..., Any], args: Any) -> None:
        assert interval_s < LIMIT_S / 2
        self.tick = lambda: call(*args)


@pytest.fixture
def file(tmp_path: Path, settings: Any) -> Iterator[Path]:
    settings.WORKER_HEARTBEAT_FILE = str(tmp_path / "heartbeat")
    heartbeat_sent.connect(worker_alive)
    yield tmp_path / "heartbeat"
    heartbeat_sent.disconnect(worker_alive)


def heart_of_worker(send: Callable[..., None] = lambda *_, **__: None) -> tuple[Heart, Timer]:
    """Return the part of a worker that sends heartbeats by `send`, and its timer."""
    timer = Timer()
    eventer = SimpleNamespace(enabled=True, on_enabled=set(), on_disabled=set(), send=send)
    return Heart(timer, eventer), timer


def is_healthy(worker: str, file: Path) -> bool:
    """Run the health check on this file instead of the container's."""
    kind, check = SERVICES[worker]["healthcheck"]["test"]
    named = SERVICES[worker]["environment"]["VIRTUALFLOW_WORKER_HEARTBEAT_FILE"]
    assert (kind, check.count(named)) == ("CMD-SHELL", 1)
    command = check.replace(named, shlex.quote(str(file)))
    return (
        subprocess.run(["/bin/sh", "-c", command], capture_output=True, timeout=30).returncode == 0
    )


def age(file: Path) -> None:
    at = time.time() - LIMIT_S - 60
    os.utime(file, (at, at))


def test_the_workers_are_found() -> None:
    assert WORKERS == ["worker", "replayer", "notifier"]


@pytest.mark.parametrize("worker", WORKERS)
def test_a_worker_waits_for_no_other_worker(worker: str) -> None:
    """Over Redis it can hang in asking the others for their states."""
    assert {"--without-gossip", "--without-mingle"} <= set(SERVICES[worker]["command"])


@pytest.mark.parametrize("worker", WORKERS)
def test_a_worker_is_healthy_while_it_sends_heartbeats(worker: str, file: Path) -> None:
    heart, timer = heart_of_worker()
    assert not is_healthy(worker, file)
    heart.start()
    assert is_healthy(worker, file)
    age(file)
    assert not is_healthy(worker, file)
    timer.tick()
    assert is_healthy(worker, file)


def test_a_heartbeat_that_cannot_be_sent_is_no_second_one(file: Path) -> None:
    """The file is touched before sending, so a broker that hangs does not renew it."""

    def away(*_arguments: Any, **_options: Any) -> None:
        age(file)  # it has taken so long
        raise ConnectionError

    heart, _timer = heart_of_worker(away)
    with pytest.raises(ConnectionError):
        heart.start()
    assert not is_healthy("worker", file)
