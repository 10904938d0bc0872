"""Server time of the list of jobs, as a page and by REST, for each filter and each order.

A site with 100 jobs and then one with 100,000, of 20 users: most have ended, each has a tag, three
settings and two metrics. Each address is asked for by an admin, who sees all jobs, and by a user
with a twentieth of them; filters that match nothing and deep pages are among them. The request is
made inside the server's process, so that its time is that of the view, database included.

Figures are of the slowest address, each the median of its repetitions, for PostgreSQL and SQLite:

* page_ms, rest_ms: with 100,000 jobs; page_100_ms, rest_100_ms: with 100.

    python -m benchmarks.job_lists [--jobs 100000] [--repeats 5] [--databases postgresql sqlite]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import django

from benchmarks.figures import figures_print
from tests.support import servers

_GOAL_MS = 200.0
_START = datetime(2026, 1, 1, tzinfo=UTC)
_NUM_USERS = 20
#: Seconds between the submissions of two jobs.
SUBMISSION_GAP_S = 30
_CHUNK = 2_000
_PAGES_DEEP = 3
_QUERIES: Sequence[dict[str, str]] = (
    {}, {"q": "digits"}, {"q": "nowhere"}, {"q": "#17"}, {"name": "digits"}, {"name": "nowhere"},
    {"owner": "user7"}, {"owner": "nobody"}, {"template": "tabular"}, {"template": "none"},
    {"status": "failed"}, {"status": "live"}, {"status": "ended"}, {"status": "paused"},
    {"tag": "tag3"}, {"tag": "rare"}, {"tag": "none"},
    {"metric": "val_accuracy"}, {"metric": "val_accuracy>0.99"}, {"metric": "val_accuracy>2"},
    {"setting": "hidden_units=128"}, {"setting": "number=77"}, {"setting": "hidden_units=1"},
    {"submitted_after": "2026-01-02", "submitted_before": "2026-01-02T01:00Z"},
    {"submitted_before": "2025-01-01"},
    {"order": "submitted"}, {"order": "name"}, {"order": "-name"}, {"order": "status"},
    {"order": "-status"}, {"order": "priority"}, {"order": "-priority"}, {"order": "-duration"},
    {"order": "duration"}, {"order": "-metric", "metric": "val_accuracy"},
    {"order": "metric", "metric": "val_loss"},
    {"order": "-priority", "status": "live", "owner": "user7"},
    {"order": "-metric", "metric": "val_accuracy", "tag": "tag3", "setting": "hidden_units=128"},
    {"order": "name", "status": "failed", "q": "nowhere"},
)  # fmt: skip


def jobs_fill(first: int, last: int, began_at: datetime = _START) -> None:
    """Add jobs until there are `last`, where number 0 was or would have been at `began_at`."""
    from django.contrib.auth.models import User

    from jobs.models import Job, JobMetric, SearchTerm

    users = [
        User.objects.get_or_create(username=f"user{number}")[0] for number in range(_NUM_USERS)
    ]
    for start in range(first, last, _CHUNK):
        numbers = range(start, min(last, start + _CHUNK))
        jobs = Job.objects.bulk_create([_job(number, users, Job, began_at) for number in numbers])
        terms, metrics = [], []
        for number, job in zip(numbers, jobs, strict=True):
            texts = [f"setting={name}={value}" for name, value in job.settings.items()]
            texts += [f"tag={tag}" for tag in job.tags]
            terms += [SearchTerm(job=job, term=text) for text in texts]
            best = number * 7919 % 1000 / 1000
            metrics += [
                JobMetric(job=job, name=name, best=value, best_epoch=3, last=value)
                for name, value in (("val_accuracy", best), ("val_loss", 1 - best))
            ]
        SearchTerm.objects.bulk_create(terms)
        JobMetric.objects.bulk_create(metrics)


def _job(number: int, users: Sequence[Any], job_class: type, began_at: datetime) -> Any:
    status = "finished"
    if number % 1000 == 0:
        status = "pending"
    elif number % 50 == 0:
        status = "failed"
    at = began_at + timedelta(seconds=SUBMISSION_GAP_S * number)
    return job_class(
        owner=users[number % len(users)],
        name=f"{('digits', 'text', 'tables')[number % 3]} {number * 7919 % 100_003}",
        template=("digits_cnn", "tabular", "")[number % 3],
        tags=[f"tag{number % 10}", *(["rare"] if number % 9_999 == 0 else [])],
        settings={"hidden_units": 64 << number % 3, "number": number, "dropout": 0.1},
        facts={"steps_per_epoch": 20, "summary": "x" * 1500},
        code_name="job.py", code_sha256="0" * 64, entry_file="job.py", global_batch_size=32,
        num_virtual_nodes=4, max_accelerators=4, stop_kind="epochs", stop_limit=10,
        status=status, priority=1 + number * 31 % 7 * 10, submitted_at=at,
        started_at=at, ended_at=None if status == "pending" else at + timedelta(minutes=9),
        duration_s=0.0 if status == "pending" else float(number * 17 % 5000), step=200, epoch=10,
        loss=0.1, colour=number % 12,
    )  # fmt: skip


def _times(repeats: int) -> Iterator[tuple[str, str, float]]:
    """Yield (kind, what was asked for, median milliseconds)."""
    from django.contrib.auth.models import User
    from django.test import Client

    boss, _ = User.objects.get_or_create(username="boss", is_staff=True)
    for user in (boss, User.objects.get(username="user7")):
        client = Client(headers={"host": "localhost"})
        client.force_login(user)
        for kind, path in (("page", "/jobs/"), ("rest", "/api/v1/jobs/")):
            client.get(path)
            for query in _QUERIES:
                address = f"{path}?{urlencode(query)}"
                label = f"{user.get_username()} {address}"
                yield kind, label, _median_ms(client, address, repeats)
                if kind == "rest" and (deep := _deep(client, address)):
                    yield kind, f"{label}, deep", _median_ms(client, deep, repeats)


def _deep(client: Any, address: str) -> str | None:
    """Return the address of a later page."""
    following: str | None = f"{address}&page_size=200"
    for _ in range(_PAGES_DEEP):
        following = following and client.get(following).json()["next"]
    return following and following.replace("page_size=200", "page_size=50")


def _median_ms(client: Any, address: str, repeats: int) -> float:
    seconds = []
    for _ in range(repeats):
        started_at = time.perf_counter()
        response = client.get(address)
        seconds.append(time.perf_counter() - started_at)
        assert response.status_code == 200, (address, response.status_code)
    return statistics.median(seconds) * 1000


def _measure(num_jobs: int, repeats: int) -> None:
    """Measure on the database of the environment; print the slowest addresses and the figures."""
    django.setup()
    from django.core.management import call_command
    from django.db import connection

    call_command("migrate", verbosity=0)
    figures, first = {}, 0
    for num in (100, num_jobs):
        jobs_fill(first, num)
        first = num
        _say(f"{connection.vendor} has {num} jobs")
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE")
        found = list(_times(repeats))
        for kind in ("page", "rest"):
            of_kind = sorted(((ms, label) for k, label, ms in found if k == kind), reverse=True)
            name = f"{kind}_ms" if num == num_jobs else f"{kind}_100_ms"
            figures[f"{connection.vendor}_{name}"] = round(of_kind[0][0], 1)
            middle = statistics.median(ms for ms, _ in of_kind)
            _say(f"{connection.vendor}, {num} jobs, {kind}: median address {middle:.0f} ms")
            for ms, label in of_kind[:5]:
                _say(f"  {ms:7.1f} ms{' above the goal' if ms > _GOAL_MS else ''}  {label}")
    print(json.dumps(figures), flush=True)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _child(url: str, directory: Path, options: argparse.Namespace) -> dict[str, float]:
    environment = os.environ | {
        "DJANGO_SETTINGS_MODULE": "controlplane.settings",
        "DATABASE_URL": url,
        "VIRTUALFLOW_STATE_DIR": str(directory),
        "VIRTUALFLOW_DEBUG": "1",
        "VIRTUALFLOW_SECRET_KEY": "signs-nothing-but-the-sessions-of-this-benchmark-run",
    }
    command = [sys.executable, "-m", "benchmarks.job_lists", "--measure"]
    command += ["--jobs", str(options.jobs), "--repeats", str(options.repeats)]
    done = subprocess.run(
        command, env=environment, check=True, stdout=subprocess.PIPE, text=True, timeout=3600
    )
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def main() -> None:
    """Measure on each database."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--databases", nargs="+", default=["postgresql", "sqlite"])
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        return _measure(options.jobs, options.repeats)
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as text:
        directory = Path(text)
        if "postgresql" in options.databases:
            with servers.postgresql_running() as url:
                figures |= _child(url, directory, options)
        if "sqlite" in options.databases:
            figures |= _child(f"sqlite:///{directory}/jobs.sqlite3", directory, options)
    return figures_print("job_lists", figures)


if __name__ == "__main__":
    main()
