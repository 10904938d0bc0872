"""Ports of this machine for the parts of a demo, reserved against other demos.

This module does not import Django.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: Below the ports that Linux uses for outgoing connections.
TRAINER_PORTS = range(21000, 32000)


def free_port(preferred: int) -> int:
    """Return the first free port of this machine from `preferred` on.

    It is reserved until this process ends: servers here may share a port (SO_REUSEPORT), so two
    demos that start at once would both listen on it, unnoticed.

    Raises:
        OSError: a hundred ports in a row are taken.
    """
    descriptor = _reservations_open()
    for port in range(preferred, preferred + 100):
        if is_free(port) and _lock(descriptor, range(port, port + 1)):
            return port
    os.close(descriptor)
    raise OSError(errno.EADDRINUSE, f"no free port from {preferred} to {preferred + 99}")


@contextmanager
def reserved_ports(count: int, size: int) -> Iterator[list[range]]:
    """Reserve `count` ranges of `size` consecutive free ports for trainers, inside the block.

    Trainers open their ports later, and few of them: a check for free ports is not enough. A
    reserved range is given to no other block, neither in this process nor in other processes of
    this user. Reservations are kernel locks, released however the process ends. The search starts
    at a position that depends on the process, to avoid other users' ranges.

    Raises:
        OSError: there are not enough free ranges.
    """
    firsts = list(range(TRAINER_PORTS.start, TRAINER_PORTS.stop - size + 1, size))
    begin = os.getpid() * count % len(firsts)
    found: list[range] = []
    descriptor = _reservations_open()
    try:
        for first in firsts[begin:] + firsts[:begin]:
            candidate = range(first, first + size)
            if all(is_free(port) for port in candidate) and _lock(descriptor, candidate):
                found.append(candidate)
            if len(found) == count:
                break
        else:
            message = f"found {len(found)} of {count} ranges of {size} free ports"
            raise OSError(errno.EADDRINUSE, message)
        yield found
    finally:
        os.close(descriptor)


def _reservations_open() -> int:
    path = Path(tempfile.gettempdir()) / f"virtualflow-ports-{os.getuid()}"
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)


def _lock(descriptor: int, ports: range) -> bool:
    """Lock one byte of a file per port; return False if another open file holds one of them.

    The locks belong to the open file (Linux: open file description locks), not to the process.
    """
    wanted = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, ports.start, len(ports), 0)
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, wanted)
    except (BlockingIOError, PermissionError):
        return False
    return True


def is_free(port: int) -> bool:
    """Return whether a server could listen on `port` of this machine now."""
    with socket.socket() as probe:
        # As servers do: a port in TIME_WAIT after old connections counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
