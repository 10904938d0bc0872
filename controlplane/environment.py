"""Typed reads of environment variables that fail loudly, naming the variable and the fix."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Collection
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured

# Set before NumPy is imported: the arrays of policies and fits are small, so several BLAS threads
# would only busy-wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

_SECRET_LENGTH = 50
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off", ""})


def text(name: str, default: str | None = None) -> str:
    """Read a text variable; without a default an unset or empty one is refused."""
    value = os.environ.get(name, "")
    if value:
        return value
    if default is None:
        raise ImproperlyConfigured(f"Set the environment variable {name}; it has no default.")
    return default


def secret(name: str, default: str | None = None, *, may_be_random: bool = False) -> str:
    """Read a secret of at least 50 characters; where it may, an unset one is random."""
    value = text(name, secrets.token_urlsafe(48) if may_be_random else default)
    if len(value) < _SECRET_LENGTH:
        raise ImproperlyConfigured(
            f"{name} has {len(value)} characters; give at least {_SECRET_LENGTH} random ones: "
            "python3 -c 'import secrets; print(secrets.token_urlsafe(48))'"
        )
    return value


def text_or_file(name: str) -> str:
    """Read a secret from a variable, or from the file that `NAME_FILE` names."""
    path = os.environ.get(f"{name}_FILE", "")
    if not path:
        return text(name)
    if os.environ.get(name):
        raise ImproperlyConfigured(f"Set {name} or {name}_FILE, not both.")
    try:
        value = Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ImproperlyConfigured(f"{name}_FILE: {error}") from None
    if not value:
        raise ImproperlyConfigured(f"{name}_FILE: {path} is empty.")
    return value


def existing_file(name: str) -> str:
    """Read the path of a file; empty if unset."""
    value = os.environ.get(name, "")
    if value and not Path(value).is_file():
        raise ImproperlyConfigured(f"{name}: there is no file {value}.")
    return value


def folder(name: str, default: str) -> str:
    """Read the path of a folder, which need not exist yet."""
    value = text(name, default)
    if Path(value).exists() and not Path(value).is_dir():
        raise ImproperlyConfigured(f"{name}: {value} is no folder.")
    return value


def _split(name: str, url: str) -> SplitResult:
    """Return the parts of an address; a wrong one is not repeated, as it may have a password."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises if it is no port
    except ValueError:
        raise ImproperlyConfigured(
            f"{name} is no address: write special characters of a password as %40 for @."
        ) from None
    return parts


def web_address(name: str) -> str:
    """Read an `http://` or `https://` address; empty if unset."""
    value = text(name, "")
    parts = _split(name, value)
    if value and not (parts.scheme in ("http", "https") and parts.hostname):
        raise ImproperlyConfigured(f"{name} must start with https:// or http://, got {value!r}.")
    return value


def origins(name: str) -> list[str]:
    """Read a comma-separated list of origins, such as `https://jobs.example`."""
    found = words(name)
    for origin in found:
        parts = _split(name, origin)
        if parts.scheme not in ("http", "https") or not parts.netloc or parts.path:
            raise ImproperlyConfigured(f"{name} takes https://jobs.example, got {origin!r}.")
    return found


def hosts(name: str, default: tuple[str, ...]) -> list[str]:
    """Read a comma-separated list of host names, without scheme and port."""
    found = words(name, default)
    for host in found:
        if "/" in host or (":" in host and not (host[0] == "[" and host[-1] == "]")):
            raise ImproperlyConfigured(f"{name} takes names without https:// and port: {host!r}.")
    return found


def rate(name: str, default: str) -> str:
    """Read a number of requests per `s`, `min`, `hour` or `day`."""
    value = text(name, default)
    if not re.fullmatch(r"[1-9][0-9]*/(s|sec|second|m|min|minute|h|hour|d|day)", value):
        raise ImproperlyConfigured(f"{name} must be like 6000/min, got {value!r}.")
    return value


def https_address(name: str) -> str:
    """Read an `https://` address; empty if unset. On this machine it may be `http://`."""
    value = os.environ.get(name, "")
    parts = _split(name, value)
    is_local = parts.scheme == "http" and parts.hostname in ("127.0.0.1", "localhost", "::1")
    if value and not (parts.hostname and (parts.scheme == "https" or is_local)):
        raise ImproperlyConfigured(f"{name} must start with https://, got {value!r}.")
    if parts.query or parts.fragment:
        raise ImproperlyConfigured(f"{name} must end with its path, got {value!r}.")
    return value


def flag(name: str, *, default: bool = False) -> bool:
    """Read a yes/no variable."""
    value = os.environ.get(name)
    if value is None:
        return default
    if value.lower() in _TRUE:
        return True
    if value.lower() in _FALSE:
        return False
    raise ImproperlyConfigured(f"{name} must be 1 or 0, got {value!r}.")


def number(name: str, default: float, *, low: float, high: float) -> float:
    """Read a number within `[low, high]`."""
    value = os.environ.get(name, "")
    if not value:
        return default
    try:
        parsed = float(value)
    except ValueError:
        raise ImproperlyConfigured(f"{name} must be a number, got {value!r}.") from None
    if not low <= parsed <= high:
        raise ImproperlyConfigured(f"{name} must be between {low:g} and {high:g}, got {value}.")
    return parsed


def choice(name: str, choices: Collection[str], default: str) -> str:
    """Read one of several words."""
    value = text(name, default)
    if value not in choices:
        raise ImproperlyConfigured(f"{name} must be one of {', '.join(choices)}, got {value!r}.")
    return value


def words(name: str, default: tuple[str, ...] = ()) -> list[str]:
    """Read a comma-separated list."""
    value = os.environ.get(name, "")
    return [word.strip() for word in value.split(",") if word.strip()] or list(default)


#: Of libpq. A server whose machine or network is gone closes no connection: without limits threads
#: would wait for it a quarter of an hour, or two hours. One that computes is waited for.
_CONNECTION = {
    "connect_timeout": 5,
    "keepalives_idle": 20,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}


def database(url: str, *, connection_age_s: float) -> dict[str, Any]:
    """Turn `sqlite:///file` or `postgresql://user:password@host:port/name` into Django's settings.

    A PostgreSQL unix socket is given as `postgresql://user@/name?host=/directory`.
    """
    parts = _split("DATABASE_URL", url)
    if parts.scheme == "sqlite":
        name = unquote(parts.path).removeprefix("/")
        if parts.netloc or not name:
            raise ImproperlyConfigured("DATABASE_URL must have a path after sqlite:///.")
        return {**_sqlite(name), "CONN_MAX_AGE": int(connection_age_s)}
    if parts.scheme not in ("postgresql", "postgres"):
        raise ImproperlyConfigured(
            f"DATABASE_URL must start with sqlite:/// or postgresql://, got {parts.scheme!r}."
        )
    if parts.fragment or parts.path in ("", "/"):
        raise ImproperlyConfigured(
            "DATABASE_URL must end with the name of a database; write # in a password as %23."
        )
    options = dict(parse_qsl(parts.query))
    return {
        "ENGINE": "controlplane.postgresql",
        "NAME": unquote(parts.path.lstrip("/")),
        "USER": unquote(parts.username or options.pop("user", "")),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": unquote(parts.hostname or "") or options.pop("host", ""),
        "PORT": str(parts.port or options.pop("port", "")),
        "CONN_MAX_AGE": int(connection_age_s),
        "CONN_HEALTH_CHECKS": connection_age_s > 0,
        "OPTIONS": {**_CONNECTION, **options},
    }


def _sqlite(name: str) -> dict[str, Any]:
    # IMMEDIATE takes the write lock when a transaction begins, where waiting for it is possible; a
    # deferred one would fail with "database is locked" at its first write.
    if name != ":memory:":
        try:
            Path(name).parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ImproperlyConfigured(
                f"DATABASE_URL (by default in VIRTUALFLOW_STATE_DIR): {error}"
            ) from None
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": name,
        "OPTIONS": {
            "timeout": 30,
            "transaction_mode": "IMMEDIATE",
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
        },
    }


def celery_broker(redis_url: str) -> str:
    """Turn a Redis URL into Celery's form, which names unix sockets differently."""
    parts = _split("REDIS_URL", redis_url)
    is_server = parts.scheme in ("redis", "rediss") and parts.hostname and not parts.fragment
    database_number = _db(parts.query) if parts.scheme == "unix" else parts.path[1:] or "0"
    if not (is_server or parts.scheme == "unix") or not database_number.isdecimal():
        raise ImproperlyConfigured(
            "REDIS_URL must be like redis://:password@host:6379/0 or unix:///path/redis.sock?db=0; "
            "write special characters of a password as %23 for #."
        )
    if parts.scheme == "unix":
        return f"redis+socket://{parts.path}" + (f"?virtual_host={_db(parts.query)}")
    return redis_url


def _db(query: str) -> str:
    return dict(parse_qsl(query)).get("db", "0")
