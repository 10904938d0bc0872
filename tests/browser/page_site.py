"""A site with seeded jobs and no agents: pages and streams as real processes, own database."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from jobs.demo.environment import demo_environment, socket_path
from jobs.demo.stack import processes
from jobs.demo.stack.ports import free_port
from jobs.demo.stack.supervisor import Supervisor
from tests.support.starts import count_start

ROOT = Path(__file__).parent.parent.parent
#: Names of seeded jobs are looked up by the order in which they were made.
JOB = {
    "finished": 1,
    "running": 2,
    "urgent": 3,
    "script": 4,
    "pending": 5,
    "paused": 7,
    "failed": 8,
}
#: A loop that runs code, one text in JSON a line; answers with its output and its traceback.
_INTERPRETER = """
import contextlib, io, json, sys, traceback
import django
django.setup()
answers = sys.stdout
for line in sys.stdin:
    output, error = io.StringIO(), ""
    with contextlib.redirect_stdout(output):
        try:
            exec(json.loads(line), {})
        except Exception:
            error = traceback.format_exc()
    print(json.dumps([output.getvalue(), error]), file=answers, flush=True)
"""
_SEED = """
from django.core.management import call_command
call_command("migrate", verbosity=0)
from tests.frontend.world import make_channel, make_person, make_sweep, make_world
world = make_world()
make_sweep(world.ada, [0.5, 0.75, 0.7, 0.9])
make_channel(world.admin, num_messages=3)
make_person("newcomer")
from jobs.models import Project
Project.objects.update(description="W" * 200)
"""
#: Code for `Site.run`: a node's answer to the newest validation, and two reports for it.
VALIDATION_ANSWER = """
from django.utils import timezone
from controlplane.core.protocol.node_messages import (ValidationReport)
from jobs import nudges
from jobs.models import Validation
from jobs.services.submission.validations import validation_take
validation = Validation.objects.filter(job=None).latest("id")
report = ValidationReport(validation_id=validation.pk, attempt=validation.attempt, {report})
assert validation_take(validation.node, report, timezone.now())
"""
#: 0.9 * 2 GiB - 1 GB - 64 MiB leave room for 2 examples.
FITTING = """ok=True, facts={
    "memory": {"process_bytes": 1e9, "base_bytes": 0, "bytes_per_example": 3e8}}"""
FAILING = """ok=False, code="user_code", field="code.build", message="ValueError: no data",
    traceback="line 2, in build" """


@dataclass(frozen=True, slots=True)
class Site:
    """Running pages, and a way to change the database behind them."""

    address: str
    environment: dict[str, str]
    interpreter: subprocess.Popen[str]
    supervisor: Supervisor
    #: Stored state of a browser after a login, by name of the person.
    logins: dict[str, Any] = field(default_factory=dict)

    @property
    def stream_address(self) -> str:
        return self.environment["VIRTUALFLOW_STREAM_URL"]

    def run(self, code: str) -> str:
        """Run Python inside the site's settings and give what it printed."""
        assert self.interpreter.stdin is not None
        assert self.interpreter.stdout is not None
        print(json.dumps(code), file=self.interpreter.stdin, flush=True)
        output, error = json.loads(self.interpreter.stdout.readline())
        assert not error, error
        return str(output).strip()


@contextmanager
def running_site(directory: Path, *, seed: str = _SEED, **settings: str) -> Iterator[Site]:
    """Run the web server, the stream server and the broker, with more variables; stop them all.

    Args:
        seed: code that sets up the database, before the servers start.
    """
    count_start("sites for a browser")
    web_port = free_port(19200 + os.getpid() % 500 * 2)
    stream_port = free_port(web_port + 1)
    origin = f"http://127.0.0.1:{web_port}"
    environment = demo_environment(directory) | {
        "VIRTUALFLOW_ORIGINS": origin,
        "VIRTUALFLOW_STREAM_URL": f"http://127.0.0.1:{stream_port}",
        "VIRTUALFLOW_DEMO_PORT": str(web_port),
        "VIRTUALFLOW_DEMO_STREAM_PORT": str(stream_port),
        **settings,
    }
    servers = [
        replace(part, environment=environment)
        for part in processes.site_parts(environment, directory)
        if part.name in {"web", "stream"}
    ]
    broker = processes.broker_part(socket_path(directory), directory)
    supervisor = Supervisor([broker, *servers], directory / "logs", announce=print)
    interpreter = subprocess.Popen(
        [sys.executable, "-c", _INTERPRETER],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    # The interpreter ends with its standard input, which is closed at the end of this block.
    with interpreter:
        site = Site(origin, environment, interpreter, supervisor)
        try:
            site.run(seed)
            supervisor.start()
            yield site
        finally:
            supervisor.stop()
