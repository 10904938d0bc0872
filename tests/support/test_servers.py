"""The servers that other tests lean on: they answer, they are real, and they leave nothing."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import psutil
import psycopg
import pytest
import redis

from tests.support import servers


@pytest.mark.postgresql
def test_postgresql_answers_on_its_socket(postgresql_server: servers.RunningServer) -> None:
    with psycopg.connect(postgresql_server.url) as connection:
        row = connection.execute("SELECT current_database(), version()").fetchone()
    assert row is not None
    assert row[0] == servers.DATABASE
    assert row[1].startswith("PostgreSQL")


@pytest.mark.postgresql
@pytest.mark.usefixtures("postgresql_server")
def test_postgresql_leaves_no_process_and_no_file() -> None:
    directory = Path(tempfile.gettempdir()) / f"tests-leftovers-{os.getpid()}"
    server = servers.start_postgresql(directory)
    pids = [child.pid for child in psutil.Process(server.process.pid).children(recursive=True)]
    assert pids
    server.stop()
    assert not [pid for pid in (server.process.pid, *pids) if psutil.pid_exists(pid)]
    assert not directory.exists()


@pytest.mark.redis
def test_redis_answers_and_passes_messages_on(redis_server: servers.RunningServer) -> None:
    with redis.Redis.from_url(redis_server.url) as client, client.pubsub() as listener:
        listener.subscribe("news")
        assert listener.get_message(timeout=5)["type"] == "subscribe"
        client.publish("news", "resized")
        assert listener.get_message(timeout=5)["data"] == b"resized"


@pytest.mark.redis
@pytest.mark.usefixtures("redis_server")
def test_redis_leaves_no_process_and_no_file() -> None:
    server = servers.start_redis()
    server.stop()
    assert not psutil.pid_exists(server.process.pid)
    assert not server.directory.exists()
