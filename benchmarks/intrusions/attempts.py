"""Attempts with their outcomes, and the people of a site on which they are made."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from jobs.demo.environment import BASE_DIR
from tests.support.stack import Stack

PASSWORD = "correct-horse-battery-staple"
_COMMAND_LIMIT_S = 120.0
_REQUEST_LIMIT_S = 30.0
_MAKE_USERS = """
from django.contrib.auth.models import User
for name in {names!r}:
    User.objects.create_user(name, password={password!r})
"""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attack, named after its finding, and its success."""

    name: str
    succeeded: bool


@dataclass(frozen=True, slots=True)
class Site:
    """A running site with a victim, `ada`, and an attacker, `mallory`.

    Attributes:
        url: of pages, without a final slash; the API is below.
        stream_url: of the agents' API.
        clients: name -> REST client with a token of that user.
    """

    stack: Stack
    url: str
    stream_url: str
    clients: Mapping[str, httpx.Client]

    @classmethod
    def open(cls, stack: Stack) -> Site:
        """Create both people on a running stack."""
        names = ["ada", "mallory"]
        environment = {**os.environ, **stack.environment}
        _manage(environment, "shell", "-c", _MAKE_USERS.format(names=names, password=PASSWORD))
        clients = {}
        for name in names:
            token = _manage(environment, "api_token", name).split()[-1]
            clients[name] = httpx.Client(
                base_url=stack.rest.base_url,
                headers={"Authorization": f"Bearer {token}"},
                timeout=_REQUEST_LIMIT_S,
                trust_env=False,
            )
        url = f"http://127.0.0.1:{environment['VIRTUALFLOW_DEMO_PORT']}"
        return cls(stack, url, environment["VIRTUALFLOW_STREAM_URL"], clients)

    def submit(self, user: str, **fields: Any) -> int:
        """Submit a small job as a user; returns its number."""
        body = {
            "code": (Path(__file__).parent / "hostile_job.py").read_text(),
            "global_batch_size": 8,
            "num_virtual_nodes": 4,
            "max_accelerators": 1,
            "stop": {"kind": "steps", "limit": 40},
            "seed": 1,
            **fields,
        }
        answer = self.clients[user].post("jobs/", json=body)
        if answer.status_code != httpx.codes.CREATED:
            raise AssertionError(f"{user} cannot submit: {answer.text}")
        return int(answer.json()["id"])

    def wait_until(self, job_id: int, statuses: Iterable[str], limit_s: float = 240.0) -> str:
        """Wait for one of the statuses of a job, and return it."""
        wanted = {*statuses}

        def status() -> str | None:
            found = str(self.stack.get(f"jobs/{job_id}/")["status"])
            return found if found in wanted else None

        what = f"job {job_id} to be {' or '.join(sorted(wanted))}"
        return str(self.stack.wait_for(what, status, limit_s))

    def goes_on(self, job_id: int, limit_s: float = 60.0) -> bool:
        """Return whether a job does further steps within the limit, with all nodes online."""

        def seen() -> tuple[int, bool]:
            nodes = self.stack.get("nodes/")["results"]
            is_online = all(node["status"] == "online" for node in nodes)
            return int(self.stack.get(f"jobs/{job_id}/")["step"]), is_online

        before, _ = seen()
        try:
            self.stack.wait_for(
                "further steps", lambda: seen()[0] > before + 2 and seen()[1], limit_s
            )
        except AssertionError:
            return False
        return True


def accepted(name: str, send: Callable[..., httpx.Response], *path: str, **body: Any) -> Attempt:
    """Send a request that the site has to refuse."""
    try:
        return Attempt(name, send(*path, **body).is_success)
    except httpx.HTTPError:
        return Attempt(name, succeeded=False)


def broken(name: str, send: Callable[..., httpx.Response], *path: str, **body: Any) -> Attempt:
    """Send a request after which the site must not have an error of its own."""
    try:
        return Attempt(name, send(*path, **body).is_server_error)
    except httpx.HTTPError:
        return Attempt(name, succeeded=True)


def _manage(environment: Mapping[str, str], *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=BASE_DIR,
        env={**environment},
        capture_output=True,
        text=True,
        timeout=_COMMAND_LIMIT_S,
        check=False,
    )
    if done.returncode:
        raise AssertionError(done.stdout + done.stderr)
    return done.stdout
