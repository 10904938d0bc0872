"""Settings of a demo run, made before Django reads any: its directory, secrets and ports.

Nothing here imports Django.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import socket
import tempfile
from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent.parent.parent
PREFERRED_PORT = 8000
#: Below the ports that Linux hands out for outgoing connections.
TRAINER_PORTS = range(21000, 32000)
#: The path of a Unix socket has to fit into 107 bytes.
LONGEST_SOCKET_PATH = 100


def demo_directory() -> Path:
    """Name the folder that holds everything of the demo: `var/demo`, or VIRTUALFLOW_DEMO_DIR."""
    return Path(os.environ.get("VIRTUALFLOW_DEMO_DIR", BASE_DIR / "var" / "demo")).absolute()


def demo_environment(directory: Path) -> dict[str, str]:
    """Choose ports and give the variables for every process of the demo.

    Makes `directory` (only for its owner) and the secret that sessions are signed with.
    """
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o700)
    web_port = free_port(PREFERRED_PORT)
    stream_port = free_port(web_port + 1)
    origin = f"http://127.0.0.1:{web_port}"
    return {
        "DJANGO_SETTINGS_MODULE": "controlplane.settings",
        "DATABASE_URL": f"sqlite:///{directory / 'controlplane.sqlite3'}",
        "REDIS_URL": f"unix://{socket_path(directory)}?db=0",
        "VIRTUALFLOW_DEBUG": "0",
        "VIRTUALFLOW_STATE_DIR": str(directory),
        "VIRTUALFLOW_SECRET_KEY": kept_secret(directory / "secret-key"),
        "VIRTUALFLOW_HOSTS": "127.0.0.1,localhost",
        "VIRTUALFLOW_ORIGINS": f"{origin},http://localhost:{web_port}",
        "VIRTUALFLOW_STREAM_URL": f"http://127.0.0.1:{stream_port}",
        "VIRTUALFLOW_DEMO_PORT": str(web_port),
        "VIRTUALFLOW_DEMO_STREAM_PORT": str(stream_port),
        "VIRTUALFLOW_LOG_LEVEL": "WARNING",
        "PYTHONUNBUFFERED": "1",
    }


def kept_secret(path: Path) -> str:
    """Read a secret, making it on first use; only its owner can read the file."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path.read_text().strip()
    secret = secrets.token_urlsafe(24)
    with os.fdopen(descriptor, "w") as file:
        file.write(secret + "\n")
    return secret


def socket_path(directory: Path) -> Path:
    """Name the Redis socket, in `directory` unless that path is too long for a Unix socket."""
    path = directory / "redis.sock"
    if len(os.fsencode(path)) <= LONGEST_SOCKET_PATH:
        return path
    digest = hashlib.sha256(os.fsencode(directory)).hexdigest()[:12]
    short = Path(tempfile.gettempdir()) / f"virtualflow-demo-{os.getuid()}-{digest}"
    short.mkdir(mode=0o700, exist_ok=True)
    if short.stat().st_uid != os.getuid():
        raise PermissionError(f"{short} belongs to somebody else; remove it")
    return short / "redis.sock"


def free_port(preferred: int) -> int:
    """Give the first free port of this machine from `preferred` on.

    Raises:
        OSError: a hundred ports in a row are taken.
    """
    for port in range(preferred, preferred + 100):
        if is_free(port):
            return port
    raise OSError(errno.EADDRINUSE, f"no free port from {preferred} to {preferred + 99}")


def free_port_ranges(count: int, size: int) -> list[range]:
    """Find `count` ranges of `size` consecutive free ports for trainers.

    Where the search begins depends on the process: trainers take their ports later, so two demos
    that look at the same time must not be given the same free ones.

    Raises:
        OSError: there are not that many.
    """
    firsts = list(range(TRAINER_PORTS.start, TRAINER_PORTS.stop - size + 1, size))
    begin = os.getpid() * count % len(firsts)
    found: list[range] = []
    for first in firsts[begin:] + firsts[:begin]:
        candidate = range(first, first + size)
        if all(is_free(port) for port in candidate):
            found.append(candidate)
            if len(found) == count:
                return found
    raise OSError(errno.EADDRINUSE, f"found {len(found)} of {count} ranges of {size} free ports")


def is_free(port: int) -> bool:
    """Say whether a server could listen on `port` of this machine now."""
    with socket.socket() as probe:
        # As servers do: a port that only waits out old connections counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
