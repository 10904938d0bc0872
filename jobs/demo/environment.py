"""Settings of a demo run, made before Django is configured: directory, secrets and addresses.

This module does not import Django.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import tempfile
from pathlib import Path

from jobs.demo.stack.ports import free_port

BASE_DIR = Path(__file__).resolve().parent.parent.parent
PREFERRED_PORT = 8000
#: A Unix socket path is limited to 107 bytes.
LONGEST_SOCKET_PATH = 100


def demo_directory() -> Path:
    """Return the folder of the demo's state: `var/demo`, or VIRTUALFLOW_DEMO_DIR."""
    return Path(os.environ.get("VIRTUALFLOW_DEMO_DIR", BASE_DIR / "var" / "demo")).absolute()


def demo_environment(directory: Path) -> dict[str, str]:
    """Choose ports and return the environment variables of all demo processes.

    Creates `directory` (accessible to its owner only) and the secret for signing sessions.
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
        "VIRTUALFLOW_SECRET_KEY": kept_secret(directory / "secret-key", 48),
        "VIRTUALFLOW_HOSTS": "127.0.0.1,localhost",
        "VIRTUALFLOW_ORIGINS": f"{origin},http://localhost:{web_port}",
        "VIRTUALFLOW_STREAM_URL": f"http://127.0.0.1:{stream_port}",
        "VIRTUALFLOW_DEMO_PORT": str(web_port),
        "VIRTUALFLOW_DEMO_STREAM_PORT": str(stream_port),
        "VIRTUALFLOW_LOG_LEVEL": "WARNING",
        "PYTHONUNBUFFERED": "1",
    }


def kept_secret(path: Path, num_bytes: int = 24) -> str:
    """Read a secret, created at first use in a file readable by its owner only.

    A shorter one than of `num_bytes` random bytes is replaced.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        kept = path.read_text().strip()
        if len(kept) >= num_bytes:
            return kept
        path.unlink()
        return kept_secret(path, num_bytes)
    secret = secrets.token_urlsafe(num_bytes)
    with os.fdopen(descriptor, "w") as file:
        file.write(secret + "\n")
    return secret


def socket_path(directory: Path) -> Path:
    """Return the Redis socket path, in `directory` unless too long for a Unix socket."""
    path = directory / "redis.sock"
    if len(os.fsencode(path)) <= LONGEST_SOCKET_PATH:
        return path
    digest = hashlib.sha256(os.fsencode(directory)).hexdigest()[:12]
    short = Path(tempfile.gettempdir()) / f"virtualflow-demo-{os.getuid()}-{digest}"
    short.mkdir(mode=0o700, exist_ok=True)
    if short.stat().st_uid != os.getuid():
        raise PermissionError(f"{short} belongs to somebody else; remove it")
    return short / "redis.sock"
