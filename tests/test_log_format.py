"""Log lines of the site, of workers, and of agents: as JSON objects, and in an outage."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import OperationalError

from controlplane.core.log_format import JsonFormatter
from controlplane.core.protocol.wire import ReportKind
from jobs.models import Job
from jobs.services.lifecycle.events import event_add
from tests.agents.builders import wanted_trainer
from tests.agents.conftest import DrivenAgent
from tests.agents.conftest import drive as drive
from tests.agents.conftest import plane as plane
from tests.agents.conftest import state_dir as state_dir
from tests.agents.control_plane import ControlPlane
from tests.support.builders import at, job_make, node_make

ROOT = Path(__file__).resolve().parents[1]
#: Log records of a worker and a web server, through the settings of the site.
SCRIPT = """
import django, logging, sys
django.setup()
from controlplane.celery import app
app.log.setup(loglevel="INFO", redirect_stdouts=False)
logging.getLogger("jobs.x").warning("two\\nlines", extra={"job": 7, "generation": 2})
request = {"addr": "192.0.2.1", "method": "GET", "path": '/a"b', "status": 200, "dt_ms": 1.5}
logging.getLogger("granian.access").info("%(method)s %(path)s", request)
"""


def entries(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_site_and_workers_log_json_if_told_to() -> None:
    environment = {**os.environ, "VIRTUALFLOW_DEBUG": "1", "VIRTUALFLOW_LOG_FORMAT": "json"}
    environment |= {"DJANGO_SETTINGS_MODULE": "controlplane.settings", "REDIS_URL": ""}
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True
    )
    about_job, access = entries(done.stderr)
    assert about_job["message"] == "two\nlines"
    assert (about_job["job"], about_job["generation"], about_job["level"]) == (7, 2, "WARNING")
    assert about_job["time"].endswith("Z")
    assert (access["path"], access["status"], access["milliseconds"]) == ('/a"b', 200, 1.5)
    assert "job" not in access


def test_an_error_is_one_line() -> None:
    try:
        int("no\nway")
    except ValueError:
        record = logging.LogRecord("a", logging.ERROR, "", 1, "m", None, sys.exc_info())
    line = JsonFormatter("node-a").format(record)
    assert "\n" not in line
    entry = json.loads(line)
    assert (entry["node"], entry["message"]) == ("node-a", "m")
    assert "ValueError: invalid literal" in entry["exception"]


@pytest.mark.parametrize(
    ("logger", "message"),
    [
        ("celery.app.trace", "Task a raised unexpected: OperationalError('no answer\\nsure?')"),
        ("django.request", "Service Unavailable: /api/v1/agent/reports/"),
    ],
)
@pytest.mark.parametrize("state", [None, "57P01", "40P01"])
def test_an_outage_of_the_database_is_logged_without_traceback(
    caplog: pytest.LogCaptureFixture, logger: str, message: str, state: str | None
) -> None:
    """A deadlock (40P01) keeps its traceback."""
    cause = psycopg.OperationalError("no answer")
    cause.sqlstate = state
    error = OperationalError("no answer\nsure?")
    error.__cause__ = cause
    logging.getLogger(logger).error("%s", message, exc_info=error)
    lines = caplog.text.splitlines()
    assert lines[0].endswith(message) if state == "40P01" else "no answer" in lines[0]
    assert (len(lines) > 1) == (state == "40P01")


@pytest.mark.django_db
def test_events_are_logged_with_job_and_generation(
    caplog: pytest.LogCaptureFixture, django_capture_on_commit_callbacks: Callable[..., Any]
) -> None:
    job, (node, _) = job_make(), node_make("node-a")
    Job.objects.filter(pk=job.pk).update(generation=4)
    job.refresh_from_db()
    caplog.set_level(logging.INFO)
    with django_capture_on_commit_callbacks(execute=True):
        event_add("grown", "From 1 to 2\nforged line", now=at(0), job=job, node=node)
    (record,) = (record for record in caplog.records if record.name == "jobs.events")
    entry = json.loads(JsonFormatter().format(record))
    wanted = {"job": job.pk, "generation": 4, "event": "grown", "node": "node-a"}
    assert wanted.items() <= entry.items()
    assert entry["message"].endswith("From 1 to 2 forged line")


def test_agents_log_trainers_with_job_and_generation(
    plane: ControlPlane, drive: Callable[..., DrivenAgent], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "agents")
    driven = drive()
    plane.want(wanted_trainer(plane, job_id=5, play="finish"))
    driven.until(lambda: plane.report(5, 0, ReportKind.EXITED))
    logged = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
    about = [entry for entry in logged if "trainer of job 5" in entry["message"]]
    assert len(about) >= 2
    for entry in about:
        assert {"job": 5, "slot": 0, "generation": 1}.items() <= entry.items()


def test_agents_refuse_another_format() -> None:
    command = [
        sys.executable,
        "-m",
        "agents",
        "--log-format",
        "xml",
        "--server",
        "http://127.0.0.1",
    ]
    command += ["--node", "a", "--state-dir", "/nowhere"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--log-format must be text or json" in done.stderr
