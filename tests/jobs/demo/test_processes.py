"""The processes of the demo and of the containers, by their command lines."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from celery.concurrency import get_implementation
from celery.concurrency.prefork import TaskPool

from jobs.demo.stack.processes import site_parts

ROOT = Path(__file__).parents[3]
#: Queues of tasks that others can make long: receivers of messages, questions "what if".
SLOW_QUEUES = {"notifications", "replays"}


def commands() -> list[list[str]]:
    """List the commands of the demo, of docker-compose.yml and of docs/operations.md."""
    ports = {"VIRTUALFLOW_DEMO_PORT": "1", "VIRTUALFLOW_DEMO_STREAM_PORT": "2"}
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    written = (ROOT / "docs/operations.md").read_text().splitlines()
    return [
        *(list(part.command) for part in site_parts(ports, ROOT)),
        *(service["command"] for service in services.values() if "command" in service),
        *(shlex.split(line) for line in written if line.startswith("celery ")),
    ]


def option(command: Sequence[str], name: str, default: str) -> str:
    return command[command.index(name) + 1] if name in command else default


SLOW_WORKERS = [
    command
    for command in commands()
    if SLOW_QUEUES & set(option(command, "--queues", "celery").split(","))
]


def test_every_slow_queue_has_a_worker_in_each_set_of_processes() -> None:
    served = [queue for one in SLOW_WORKERS for queue in option(one, "--queues", "").split(",")]
    assert {queue: served.count(queue) for queue in SLOW_QUEUES} == dict.fromkeys(SLOW_QUEUES, 3)


@pytest.mark.parametrize("command", SLOW_WORKERS, ids=lambda one: option(one, "--queues", ""))
def test_time_limits_hold_where_tasks_may_be_long(command: Sequence[str]) -> None:
    """A pool of threads ignores the time limits of tasks; a dripping receiver holds it for good."""
    assert get_implementation(option(command, "--pool", "prefork")) is TaskPool
