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
