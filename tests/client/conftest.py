"""A live site with played nodes, a client of it, and the command line run in this process."""

from __future__ import annotations

import io
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.contrib.auth.models import User
from django.db import connection
from django.utils import timezone
from virtualflow import Client
from virtualflow.cli.main import main
from virtualflow.credentials import SERVER_VARIABLE, TOKEN_VARIABLE

from jobs.models import Job
from tests.client.scripted_site import ScriptedSite
from tests.jobs.world import World
from tests.support.builders import CODE, START, api_token_make, user_make
from tests.support.waiting import wait_until as wait_until

TOKEN = "vfp_secret"
SPEC = "name: from a file\nglobal_batch_size: 16\nnum_virtual_nodes: 4\npriority: 7\n"
SPEC += "settings: {units: 8, name: old}\nstop: {kind: steps, limit: 4}\n"
#: The fixture `connect`: makes clients of a site that a test scripts.
Connect = Callable[..., Client]


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(SPEC)
    return path


@pytest.fixture
def code(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_bytes(CODE)
    return path


@dataclass
class Site:
    """A running site in this process: its people, and the nodes that a test plays."""

    address: str
    ada: User
    admin: User
    tokens: dict[str, str] = field(default_factory=dict)

    def token(self, user: User) -> str:
        if user.username not in self.tokens:
            self.tokens[user.username] = api_token_make(user)
        return self.tokens[user.username]

    def client(self, user: User | None = None, **options: Any) -> Client:
        """Return a client of a person, by default of Ada."""
        return Client(self.address, self.token(user or self.ada), poll_s=0.05, **options)

    @contextmanager
    def meanwhile(self, play: Callable[[], None]) -> Iterator[None]:
        """Let something happen in a thread meanwhile; what fails there fails the test."""
        errors: list[BaseException] = []

        def act() -> None:
            try:
                play()
            except BaseException as error:
                errors.append(error)
                # Nobody shall wait for a job that nobody plays.
                Job.objects.update(status="failed", ended_at=START, version=1000)
            finally:
                connection.close()

        thread = threading.Thread(target=act)
        thread.start()
        try:
            yield
        finally:
            thread.join(timeout=120)
        assert errors == []
        assert not thread.is_alive()


@pytest.fixture
def site(live_server: Any, settings: Any, tmp_path: Path) -> Site:
    Path(django_settings.STATIC_ROOT).mkdir(parents=True, exist_ok=True)
    settings.MEDIA_ROOT = str(tmp_path / "media")
    return Site(live_server.url, user_make("ada"), user_make("admin", is_staff=True))


@pytest.fixture
def client(site: Site) -> Iterator[Client]:
    with site.client() as client:
        yield client


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str


Shell = Callable[..., Ended]


@pytest.fixture(autouse=True)
def _sigterm_restored() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def shell(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Shell:
    """Run the command line in this process, away from the user's own files."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in (SERVER_VARIABLE, TOKEN_VARIABLE, "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: object, text: str = "") -> Ended:
        monkeypatch.setattr(sys, "argv", ["virtualflow", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return Ended(int(ended.value.code or 0), printed.out, printed.err)

    return run


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("virtualflow.transport._FIRST_PAUSE_S", 0.0)


@pytest.fixture
def logged_in(site: Site, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """Run the command line as Ada."""
    monkeypatch.setenv(SERVER_VARIABLE, site.address)
    monkeypatch.setenv(TOKEN_VARIABLE, site.token(site.ada))
    return shell


def nodes_now() -> World:
    """Make two nodes that were heard of just now."""
    world = World()
    world.now_s = (timezone.now() - START).total_seconds()
    world.hear()
    return world


def played_to_the_end(world: World, job: Job) -> None:
    """Let a job of this site start, train and finish."""
    world.until(job.generations.filter(phase="active").exists)
    for _ in range(3):
        world.train(job)
    world.finish(job)


@pytest.fixture
def pauses() -> list[float]:
    return []


@pytest.fixture
def connect(pauses: list[float]) -> Iterator[Connect]:
    clients: list[Client] = []

    def make(site: ScriptedSite | str, **options: Any) -> Client:
        address = site if isinstance(site, str) else site.address
        client = Client(address, TOKEN, timeout_s=5, sleep=pauses.append, **options)
        clients.append(client)
        return client

    yield make
    for client in clients:
        client.close()
