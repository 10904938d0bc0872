"""Real PostgreSQL and Redis servers for tests: started from Debian's binaries, stopped by pid.

Each server lives in a directory of its own under the system's temporary directory and listens on a
Unix socket in it, so test runs cannot meet each other. Nothing is left behind, also when the test
run is killed: the kernel ends the servers with the process that started them.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psycopg
import redis

from jobs.demo.stack.supervisor import end_with_parent

_START_DEADLINE_S = 30.0
_STOP_DEADLINE_S = 15.0
_CHECK_EVERY_S = 0.02
DATABASE = "tests"


class ServerMissingError(Exception):
    """The server's programs are not installed; the message says how to get them."""


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server process, its directory, and the address that clients use."""

    process: subprocess.Popen[bytes]
    directory: Path
    url: str

    def stop(self) -> None:
        """End the process (kill it when it does not obey) and remove its directory."""
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(timeout=_STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(timeout=_STOP_DEADLINE_S)
        shutil.rmtree(self.directory, ignore_errors=True)


def postgresql_programs() -> Path:
    """Find the directory with PostgreSQL's server programs, the newest when there are several.

    Raises:
        ServerMissingError: there is none.
    """
    found = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[4])
    )
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    if on_path is None:
        raise ServerMissingError("PostgreSQL is not installed: apt-get install postgresql")
    return Path(on_path).resolve().parent


def redis_program() -> str:
    """Find the Redis server.

    Raises:
        ServerMissingError: there is none.
    """
    program = shutil.which("redis-server")
    if program is None:
        raise ServerMissingError("Redis is not installed: apt-get install redis-server")
    return program


def postgresql_directory() -> Path:
    """Name a directory for a server of this process without making it."""
    return Path(tempfile.gettempdir()) / f"tests-postgresql-{os.getpid()}"


def postgresql_url(directory: Path) -> str:
    """Give the address of the database that a server in `directory` will have."""
    return f"postgresql://postgres@/{DATABASE}?host={directory}"


def start_postgresql(directory: Path) -> RunningServer:
    """Make a database cluster in `directory` and start a server that listens on a socket in it.

    PostgreSQL refuses to run as root; root starts it as the user `postgres` of Debian's package.
    """
    programs = postgresql_programs()
    user = _unprivileged_user()
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(mode=0o700)
    if user is not None:
        account = pwd.getpwnam(user)
        os.chown(directory, account.pw_uid, account.pw_gid)
    data = directory / "data"
    with (directory / "initdb.log").open("wb") as log:
        subprocess.run(
            [programs / "initdb", "--pgdata", data, "--username", "postgres", "--auth", "trust",
             "--encoding", "UTF8", "--locale", "C.UTF-8", "--no-sync", "--no-instructions"],
            check=True, user=user, cwd=directory, stdout=log, stderr=log, timeout=120,
        )  # fmt: skip
    settings = {
        "listen_addresses": "",
        "unix_socket_directories": str(directory),
        "max_connections": "80",
        "fsync": "off",
        "synchronous_commit": "off",
        "full_page_writes": "off",
    }
    command = [str(programs / "postgres"), "-D", str(data)]
    command += [item for name, value in settings.items() for item in ("-c", f"{name}={value}")]
    process = _start(command, directory, user)
    maintenance = f"postgresql://postgres@/postgres?host={directory}"
    _wait_until(lambda: _postgresql_answers(maintenance), process, directory)
    with psycopg.connect(maintenance, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{DATABASE}"')
    return RunningServer(process, directory, postgresql_url(directory))


@contextmanager
def postgresql_running() -> Iterator[str]:
    """Run a server of this process while the block runs; gives the address of its database."""
    server = start_postgresql(postgresql_directory())
    try:
        yield server.url
    finally:
        server.stop()


def create_database(server: RunningServer, name: str) -> str:
    """Make an empty database beside the one that Django tests use, and give its address."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
        connection.execute(f'CREATE DATABASE "{name}"')
    return server.url.replace(f"/{DATABASE}?", f"/{name}?")


def start_redis() -> RunningServer:
    """Start a Redis server that keeps nothing on disk, on a socket, and wait until it answers."""
    program = redis_program()
    directory = Path(tempfile.mkdtemp(prefix="tests-redis-"))
    socket_path = directory / "redis.sock"
    command = [program, "--port", "0", "--unixsocket", str(socket_path), "--save", "",
               "--appendonly", "no", "--dir", str(directory)]  # fmt: skip
    process = _start(command, directory, None)
    url = f"unix://{socket_path}?db=0"
    _wait_until(lambda: _redis_answers(url), process, directory)
    return RunningServer(process, directory, url)


def _unprivileged_user() -> str | None:
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("postgres").pw_name
    except KeyError:
        raise ServerMissingError(
            "PostgreSQL does not run as root and there is no user `postgres`: "
            "apt-get install postgresql, or run the tests as another user"
        ) from None


def _start(command: list[str], directory: Path, user: str | None) -> subprocess.Popen[bytes]:
    with (directory / "server.log").open("wb") as log:
        return subprocess.Popen(
            command,
            cwd=directory,
            user=user,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=partial(end_with_parent, signal.SIGKILL),
        )


def _postgresql_answers(url: str) -> bool:
    try:
        psycopg.connect(url, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


def _redis_answers(url: str) -> bool:
    try:
        with redis.Redis.from_url(url, socket_timeout=2) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False


def _wait_until(
    is_ready: Callable[[], bool], process: subprocess.Popen[bytes], directory: Path
) -> None:
    deadline = time.monotonic() + _START_DEADLINE_S
    while not is_ready():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            process.wait(timeout=_STOP_DEADLINE_S)
            log = (directory / "server.log").read_text(errors="replace")[-2000:]
            raise RuntimeError(f"{process.args!r} did not start:\n{log}")
        time.sleep(_CHECK_EVERY_S)
