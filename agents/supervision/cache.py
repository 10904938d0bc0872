"""Cache of downloaded files by SHA-256, bounded in bytes; the least recently used go first."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from agents.trainer.contract.atomic_write import PARTIAL_PREFIX, atomic_write
from agents.trainer.contract.plain_files import plain_file_open

_CHUNK_BYTES = 1024 * 1024
_SHA256 = re.compile(r"[0-9a-f]{64}")


class FileCache:
    """A folder of files named by their digest; safe to use from several threads.

    A file larger than the bound is still fetched (a job may need it) and evicted with the next one.
    `take` copies files, so that neither eviction nor job code that writes into its copy affects
    others, and checks the digest of every copy: job code may be able to write into the folder.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        # Of the files that somebody takes, as long as anybody does.
        self._fetching = weakref.WeakValueDictionary[str, threading.Lock]()
        for leftover in folder.glob(f"{PARTIAL_PREFIX}*"):
            leftover.unlink(missing_ok=True)

    def take(self, sha256: str, fetch: Callable[[BinaryIO], None], target: Path) -> None:
        """Place the file `sha256` at `target`, calling `fetch` if it is not cached.

        `fetch` writes the content to the open file it gets, or raises. Concurrent requests for the
        same file fetch it once.

        Raises:
            ValueError: `sha256` is not a SHA-256, or not that of what `fetch` has written.
            OSError: no room, or the target exists.
        """
        if not _SHA256.fullmatch(sha256):
            raise ValueError(f"a SHA-256 is 64 hexadecimal digits, got {sha256!r:.80}")
        with self._lock:
            turn = self._fetching.setdefault(sha256, threading.Lock())
        try:
            with turn:
                cached = self._folder / sha256
                if not _place(cached, target, sha256):
                    self._fetch(fetch, cached)
                    if not _place(cached, target, sha256):
                        text = f"the file that was fetched does not have SHA-256 {sha256}"
                        raise ValueError(text)
                os.utime(cached, follow_symlinks=False)
            with self._lock:
                self._evict()
        finally:
            del turn  # which the traceback of an error would keep

    def clear(self) -> None:
        """Delete all files that nobody takes just now, for the sake of their room."""
        with self._lock:
            for path in self._folder.iterdir():
                if _SHA256.fullmatch(path.name) and path.name not in self._fetching:
                    with contextlib.suppress(OSError):  # job code has put a folder there
                        path.unlink()

    def _fetch(self, fetch: Callable[[BinaryIO], None], cached: Path) -> None:
        with atomic_write(cached, mode=0o600) as partial, partial.open("wb") as file:
            fetch(file)

    def _evict(self) -> None:
        files = [path for path in self._folder.iterdir() if _SHA256.fullmatch(path.name)]
        facts = sorted((path.lstat().st_mtime, path.lstat().st_size, path) for path in files)
        total_bytes = sum(size_bytes for _, size_bytes, _ in facts)
        for _, size_bytes, path in facts:
            if total_bytes <= self._max_bytes:
                return
            if path.name not in self._fetching:
                with contextlib.suppress(OSError):  # job code has put a folder there
                    path.unlink()
                total_bytes -= size_bytes


def _place(cached: Path, target: Path, sha256: str) -> bool:
    """Copy a file; return False, without a copy, if it is missing or has another digest."""
    try:
        source = plain_file_open(cached)
    except OSError:
        return False
    digest = hashlib.sha256()
    with source, target.open("xb") as copy:
        while chunk := source.read(_CHUNK_BYTES):
            digest.update(chunk)
            copy.write(chunk)
    if digest.hexdigest() != sha256:
        target.unlink()
        return False
    return True
