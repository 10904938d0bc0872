"""Files that users of jobs leave in folders that all share, and their deletion.

A job may leave millions of them, so deleting takes a part of each round of the agent, and the users
take turns.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Collection, Container, Iterable, Iterator
from pathlib import Path

from agents.supervision.deletion import DELETED_PREFIX, ROUND_S, deletion, deletion_advance

#: Folders in which every user may leave files, besides file systems in memory (`shared_folders`).
SHARED_FOLDERS = ("/tmp", "/var/tmp", "/var/crash", "/run/lock", "/dev/shm")  # noqa: S108
#: POSIX message queues are the files of `mqueue`.
_IN_MEMORY = {"tmpfs", "ramfs", "hugetlbfs", "mqueue"}
#: Stands for all users of an earlier agent process.
_UNKNOWN = -1


class Leftovers:
    """Users of jobs whose files are being deleted, the one whose turn is next first."""

    def __init__(self, uids: Iterable[int]) -> None:
        """Begin with all `uids`: an earlier agent process may have ended before it was done."""
        self._unknown = set(uids)
        self._deletions: dict[int, Iterator[None]] = {}
        if self._unknown:
            self._deletions[_UNKNOWN] = leftovers_deletion(self._unknown, resumes=True)

    @property
    def uids(self) -> Collection[int]:
        """Users whose files are being deleted; not empty while those of any are."""
        return self._deletions.keys()

    @property
    def has_unknown(self) -> bool:
        """True while users may have files of before this agent's start."""
        return _UNKNOWN in self._deletions

    def keep(self, uid: int) -> None:
        """Keep what a user has that an earlier agent process gave to a job."""
        self._unknown.discard(uid)

    def add(self, uid: int) -> None:
        """Delete the files of a user without processes."""
        self._deletions[uid] = leftovers_deletion({uid})

    def step(self) -> list[int]:
        """Delete for ROUND_S; return the users that have none left."""
        ends_at = time.monotonic() + ROUND_S
        cleared = []
        while self._deletions and (left_s := ends_at - time.monotonic()) > 0:
            uid = next(iter(self._deletions))
            files = self._deletions.pop(uid)
            if deletion_advance(files, left_s):
                cleared.append(uid)
            else:
                self._deletions[uid] = files
        return cleared


def leftovers_deletion(uids: Container[int], *, resumes: bool = False) -> Iterator[None]:
    """Delete what users have left in folders that all share: the next job has the same user.

    Args:
        resumes: also what an earlier agent process has begun to delete.
    """
    folders = list(shared_folders())
    for folder in folders:
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                yield
                with contextlib.suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    is_begun = resumes and entry.name.startswith(DELETED_PREFIX)
                    if status.st_uid in uids or (is_begun and status.st_uid == os.geteuid()):
                        yield from deletion(Path(entry.path))
                    elif stat.S_ISDIR(status.st_mode) and _is_shared(status):
                        folders.append(entry.path)  # such as /tmp/.X11-unix


def _is_shared(status: os.stat_result) -> bool:
    """Return whether all may write to a folder that only root can replace."""
    return status.st_uid == 0 and status.st_mode & 0o003 == 0o003


def shared_folders() -> set[str]:
    """Return SHARED_FOLDERS and the mounts in memory that every user can reach and write to.

    Not file systems that outlive the machine's start or that other machines share: there, files of
    this user id may be another node's, or results that were meant to stay.
    """
    folders = set(SHARED_FOLDERS)
    for line in Path("/proc/self/mounts").read_text(errors="surrogateescape").splitlines():
        _, escaped, kind, *_ = line.split(" ")
        if kind in _IN_MEMORY and "\\" not in escaped:
            mount = Path(escaped)
            with contextlib.suppress(OSError):
                is_open = mount.stat().st_mode & 0o003 == 0o003
                if is_open and all(parent.stat().st_mode & 0o001 for parent in mount.parents):
                    folders.add(escaped)
    return folders
