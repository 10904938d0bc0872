"""Probes which peers still listen: a hint for the control plane, never a decision of a trainer."""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import time
from collections.abc import Iterable, Mapping
from typing import Any

from agents.trainer.contract.ports import declared_address
from controlplane.core.protocol.wire import SlotAddress

PROBE_LIMIT_S = 1.0
IN_PROGRESS = (0, errno.EINPROGRESS, errno.EWOULDBLOCK)
#: The newest place of each address: while a name server fails, peers are where they were.
_resolved: dict[str, Any] = {}


def slots_unreachable(
    cluster_addresses: tuple[SlotAddress, ...], slots: Iterable[int], limit_s: float = PROBE_LIMIT_S
) -> list[int]:
    """List, ascending, the slots whose ports accept no connection within `limit_s`.

    All are probed at once. A suspended trainer still looks reachable, because the kernel answers.
    """
    trying: dict[int, tuple[int, socket.socket]] = {}
    lost = []
    for slot in slots:
        probe = _connect(declared_address(cluster_addresses, slot))
        if probe is None:
            lost.append(slot)
        else:
            trying[probe.fileno()] = slot, probe
    try:
        lost += _refused_or_silent(trying, time.monotonic() + limit_s)
    finally:
        for _, probe in trying.values():
            probe.close()
    return sorted(lost)


def _connect(address: str) -> socket.socket | None:
    """Begin to connect; returns None if that fails at once."""
    host, _, port = address.rpartition(":")
    try:
        with contextlib.suppress(socket.gaierror):
            _resolved[address] = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
        family, kind, protocol, _, target = _resolved[address]
        probe = socket.socket(family, kind, protocol)
    except (OSError, KeyError):
        return None
    probe.setblocking(False)
    if probe.connect_ex(target) in IN_PROGRESS:
        return probe
    probe.close()
    return None


def _refused_or_silent(
    trying: Mapping[int, tuple[int, socket.socket]], deadline: float
) -> list[int]:
    """Wait for the connections under way (by file number); returns the slots not reached."""
    waiting = dict(trying)
    refused = []
    poll = select.poll()
    for number in waiting:
        poll.register(number, select.POLLOUT)
    while waiting and (left_s := deadline - time.monotonic()) > 0.0:
        for number, _ in poll.poll(max(1.0, 1e3 * left_s)):
            slot, probe = waiting.pop(number)
            poll.unregister(number)
            if probe.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                refused.append(slot)
    return refused + [slot for slot, _ in waiting.values()]
