"""Address and token of a site: from the environment, or from a file of mode 0600."""

from __future__ import annotations

import json
import os
import stat
import tempfile
from pathlib import Path
from typing import NamedTuple

from virtualflow.errors import VirtualFlowError
from virtualflow.transport import bad_input, server_read, token_read

SERVER_VARIABLE = "VIRTUALFLOW_SERVER"
TOKEN_VARIABLE = "VIRTUALFLOW_TOKEN"  # noqa: S105
_LIMIT_BYTES = 64 * 1024


class Credentials(NamedTuple):
    """Address of a site, and a token for it."""

    server: str
    token: str

    def __repr__(self) -> str:
        return f"Credentials({self.server!r})"


def credentials_path() -> Path:
    """Return the path of the file, below `XDG_CONFIG_HOME` or `~/.config`.

    Raises:
        VirtualFlowError: the user has no home.
    """
    home = os.environ.get("XDG_CONFIG_HOME", "")
    try:
        folder = Path(home) if Path(home).is_absolute() else Path.home() / ".config"
    except RuntimeError:
        raise bad_input("HOME", "Set HOME or XDG_CONFIG_HOME to a folder of yours.") from None
    return folder / "virtualflow" / "credentials.json"


def credentials_find() -> Credentials:
    """Return the credentials of the environment, or else of the file.

    A stored token is sent to the site that it was stored for, and to no other.

    Raises:
        VirtualFlowError: there are none, or the file is damaged or readable by others.
    """
    server, token = os.environ.get(SERVER_VARIABLE, ""), os.environ.get(TOKEN_VARIABLE, "")
    stored = None if server and token else _stored()
    if not server and stored:
        server = stored.server
    if not token and stored and server_read(server) == stored.server:
        token = stored.token
    if not server or not token:
        missing = "server" if not server else "token"
        raise VirtualFlowError(
            f"Not logged in{f' at {server}' if server else ''}.",
            code="not_logged_in",
            fields={
                missing: [
                    f"Run `virtualflow login`, or set {SERVER_VARIABLE} and {TOKEN_VARIABLE}."
                ]
            },
        )
    return Credentials(server_read(server), token_read(token))


def credentials_store(credentials: Credentials) -> Path:
    """Write the file anew, readable by its owner alone; return its path.

    Raises:
        VirtualFlowError: it cannot be written.
    """
    path = credentials_path()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Made with mode 0600 before anything is in it, then moved over the old one.
        number, name = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(number, "w") as file:
                json.dump(credentials._asdict(), file)
            Path(name).replace(path)
        finally:
            Path(name).unlink(missing_ok=True)
    except OSError as error:
        raise bad_input("file", f"{path}: {error.strerror or error}.") from None
    return path


def credentials_forget() -> bool:
    """Delete the file; return whether there was one.

    Raises:
        VirtualFlowError: it cannot be deleted.
    """
    path = credentials_path()
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise bad_input("file", f"{path}: {error.strerror or error}.") from None
    return True


def _stored() -> Credentials | None:
    path = credentials_path()
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(_LIMIT_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise bad_input("file", f"{path}: {error.strerror or error}.") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise bad_input("file", f"Others can read {path}. Run: chmod 600 {path}")
    try:
        data = json.loads(text)
        return Credentials(server_read(data["server"]), token_read(data["token"]))
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError, VirtualFlowError):
        raise bad_input("file", f"{path} is damaged. Run `virtualflow login` again.") from None
