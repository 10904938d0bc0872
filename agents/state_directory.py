"""The agent's own folder: lock, credentials, boot id, and the paths of its subfolders."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import socket
from pathlib import Path
from typing import Any

from agents.trainer.contract.atomic_write import text_write
from agents.trainer.contract.plain_files import json_parse, plain_file_read
from controlplane.core.protocol.node_messages import EnrolReply
from controlplane.core.protocol.wire import decode, encode

#: Largest file that is read: orders of a job with as many trainers as possible.
JSON_LIMIT_BYTES = 8 * 1024 * 1024
_KERNEL_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class StateDirectoryBusyError(Exception):
    """Another living agent holds the state directory."""


def write_atomically(path: Path, text: str) -> None:
    """Write `text` to `path` atomically, readable by the owner only."""
    text_write(path, text, mode=0o600)


def read_json(path: Path) -> Any:
    """Read JSON; None if the file is missing, not valid, or larger than `JSON_LIMIT_BYTES`."""
    try:
        return json_parse(plain_file_read(path, JSON_LIMIT_BYTES))
    except (OSError, ValueError):
        return None


class StateDirectory:
    """One agent's folder, locked while the agent lives.

    The lock is the kernel's (flock), so it is released however the process ends. Trainers do not
    inherit the lock.
    """

    def __init__(self, path: Path) -> None:
        """Create and lock the folder.

        Raises:
            StateDirectoryBusyError: another agent holds the lock.
            OSError: the folder cannot be created.
        """
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path = path = path.resolve()  # files are opened without following links
        self.trainers = path / "trainers"
        self.validations = path / "validations"
        self.fork_servers = path / "fork_servers"
        self.cache = path / "cache"
        self._credentials = path / "credentials.json"
        lock = os.open(path / "agent.lock", os.O_RDWR | os.O_CREAT, 0o600)
        os.fchmod(lock, 0o600)  # whoever can open it can lock it
        self._lock = os.fdopen(lock, "r+")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.seek(0)
            holder = self._lock.read(32).strip() or "unknown"
            self._lock.close()
            raise StateDirectoryBusyError(
                f"another agent (process {holder}) holds {path}; stop it, or give this one a "
                "--state-dir of its own"
            ) from None
        with contextlib.suppress(OSError):  # on a full disk it is held all the same
            os.ftruncate(lock, 0)
            os.pwrite(lock, str(os.getpid()).encode(), 0)
        for folder in (self.trainers, self.validations, self.fork_servers, self.cache):
            folder.mkdir(exist_ok=True, mode=0o700)

    def close(self) -> None:
        """Release the lock."""
        self._lock.close()

    def boot_id(self) -> str:
        """Return an id of this folder on this boot of this machine.

        A restarted agent keeps its boot id, so the control plane accepts it at once, while a copy
        of the folder, on any machine, has another id and is refused as a duplicate.
        """
        return boot_id_of(self.path)

    def credentials(self, server: str) -> EnrolReply | None:
        """Return the reply of the enrolment at `server`; None if this folder was never enrolled.

        Raises:
            ValueError: the folder belongs to a node of another control plane.
        """
        stored = read_json(self._credentials)
        if stored is None:
            return None
        if stored.get("server") != server:
            raise ValueError(
                f"{self.path} is enrolled at {stored.get('server')}, not at {server}; give another "
                f"--state-dir, or delete {self._credentials.name} in it to enrol anew"
            )
        return decode(EnrolReply, stored.get("reply"), self._credentials.name)

    def keep_credentials(self, server: str, reply: EnrolReply) -> None:
        """Store the reply of an enrolment, readable by the owner only."""
        text = json.dumps({"server": server, "reply": encode(reply)}, indent=1)
        write_atomically(self._credentials, text)


def boot_id_of(folder: Path) -> str:
    """Return the id of a folder on this boot of this machine; it is no secret."""
    status = folder.stat()
    parts = (
        _KERNEL_BOOT_ID.read_text().strip() if _KERNEL_BOOT_ID.exists() else "",
        socket.gethostname(),
        str(status.st_dev),
        str(status.st_ino),
    )
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:32]
