"""A site with seeded jobs and no agents: pages and streams as real processes, own database."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from jobs.demo.environment import demo_environment, socket_path
from jobs.demo.stack import processes
from jobs.demo.stack.ports import free_port
from jobs.demo.stack.supervisor import Supervisor

ROOT = Path(__file__).parent.parent.parent
_START = "import django; django.setup(); from django.core.management import call_command\n"
_SEED = """
call_command("migrate", verbosity=0)
from tests.frontend.world import make_person, make_world
make_world()
make_person("newcomer")
"""
#: Code for `Site.run`: a node's answer to the newest validation, and two reports for it.
VALIDATION_ANSWER = """
from django.utils import timezone
from controlplane.core.protocol.wire import ValidationReport
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
    supervisor: Supervisor

    def run(self, code: str) -> str:
        """Run Python inside the site's settings and give what it printed."""
        done = subprocess.run(
            [sys.executable, "-c", _START + code],
            cwd=ROOT,
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


@contextmanager
def running_site(directory: Path, *, with_stream: bool = True) -> Iterator[Site]:
    """Run the web server, the stream server and the broker; stop them all."""
    web_port = free_port(19200 + os.getpid() % 500 * 2)
    stream_port = free_port(web_port + 1)
    origin = f"http://127.0.0.1:{web_port}"
    environment = demo_environment(directory) | {
        "VIRTUALFLOW_ORIGINS": origin,
        "VIRTUALFLOW_STREAM_URL": f"http://127.0.0.1:{stream_port}",
        "VIRTUALFLOW_DEMO_PORT": str(web_port),
        "VIRTUALFLOW_DEMO_STREAM_PORT": str(stream_port),
    }
    wanted = {"web", "stream"} if with_stream else {"web"}
    servers = [
        replace(part, environment=environment)
        for part in processes.site_parts(environment, directory)
        if part.name in wanted
    ]
    broker = processes.broker_part(socket_path(directory), directory)
    supervisor = Supervisor([broker, *servers], directory / "logs", announce=print)
    site = Site(origin, environment, supervisor)
    try:
        site.run(_SEED)
        supervisor.start()
        yield site
    finally:
        supervisor.stop()
