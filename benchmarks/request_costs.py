"""Costs of requests inside a process of the site: time, processor time, and queries."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from django.contrib.auth.models import User
from django.db import connection
from django.test import Client

_PAGES_DEEP = 3


def costs_of(
    addresses: Sequence[str], repeats: int, users: Sequence[str]
) -> list[tuple[str, list[float]]]:
    """Ask for each address as some users; return labels and the medians of `_cost`.

    The first user may see everything. Of each list by REST a later page is asked for, too.
    The parallel workers of PostgreSQL are switched off, as nothing tells their processor time.
    """
    connection.close()
    connection.settings_dict["CONN_MAX_AGE"] = None
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SET max_parallel_workers_per_gather = 0")
    found = []
    for name in users:
        client = Client(headers={"host": "127.0.0.1", "accept-encoding": "gzip"})
        client.force_login(User.objects.get(username=name))
        deep = (_deep(client, one) for one in addresses if one.startswith("/api/v1/jobs/?"))
        for address in [*addresses, *filter(None, deep)]:
            # The first answer fills caches.
            costs = [_cost(client, address) for _ in range(repeats + 1)][1:]
            known = [cost for cost in costs if cost is not None]
            assert known or name != users[0], f"{address} is not answered"
            if known:
                medians = [statistics.median(values) for values in zip(*known, strict=True)]
                found.append((f"{name} {address}", medians))
    return found


def _deep(client: Any, address: str) -> str | None:
    """Return the address of a later page of a list; None: it ends before."""
    following: str | None = f"{address}&page_size=200"
    for _ in range(_PAGES_DEEP):
        following = following and client.get(following).json()["next"]
    return following and following.replace("page_size=200", "page_size=50")


def _cost(client: Any, address: str) -> tuple[float, float, float, int] | None:
    """Return the cost of one request; None if this user may not make it.

    Returns:
        Milliseconds by the clock, database included; milliseconds of processor time of this
        process (with SQLite the database's, too); of the database server's process for this
        connection; number of queries.
    """
    num_queries = 0

    def count(execute: Any, *arguments: Any) -> Any:
        nonlocal num_queries
        num_queries += 1
        return execute(*arguments)

    database = _database_ms()
    started_at, site = time.perf_counter(), time.process_time()
    with connection.execute_wrapper(count):
        response = client.get(address)
    site_ms = (time.process_time() - site) * 1000
    ms = (time.perf_counter() - started_at) * 1000
    if response.status_code != 200:
        return None
    return ms, site_ms, _database_ms() - database, num_queries


def _database_ms() -> float:
    """Return the processor time of the connection's server process so far; 0 for SQLite."""
    if connection.vendor != "postgresql":
        return 0.0
    connection.ensure_connection()
    pid = connection.connection.info.backend_pid
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e6
