"""Ports that users of jobs hold, from the kernel's socket monitoring; see sock_diag(7)."""

from __future__ import annotations

import contextlib
import itertools
import math
import socket
import struct
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Set

from agents.supervision.port_range import ports_at_risk

#: Seconds between two looks at the kernel's sockets.
LOOK_EVERY_S = 2.0
#: Looks after the first one that have to find a stray port too: a trainer may just have ended.
_MORE_LOOKS = 2
_LIMIT_S = 1.0
#: Sockets that are looked at of each kind; more than trainers have. Others behind them are unseen.
MOST_SOCKETS = 20_000
_MAX_BYTES = 1 << 16
# Of linux/netlink.h, sock_diag.h and inet_diag.h.
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _REQUEST_AND_DUMP, _DONE, _ERROR = 4, 20, 0x301, 3, 2
_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence number, port id
_REQUEST = struct.Struct("=BBBxI48x")  # family, protocol, extensions, states, any socket
_FILTER = struct.Struct("=HHBBHxxHBBHxxH")  # attribute, then two comparisons with a port
_FILTER_KIND, _AT_LEAST, _AT_MOST, _ALL_STATES = 1, 2, 3, (1 << 32) - 1
_SOCKET = struct.Struct("!4xH46x")  # its own port
_OWNER = struct.Struct("=12xII")  # user and inode, 0 if no process has it any more
_TABLES = tuple(
    itertools.product((socket.AF_INET, socket.AF_INET6), (socket.IPPROTO_TCP, socket.IPPROTO_UDP))
)


class BoundPorts:
    """Ports of an agent's range by the user that holds them, whether it listens there or not.

    Ports that the kernel gives to outgoing connections are left out: no code has chosen them.
    Sockets that are bound and no more are told by Linux 6.8 and newer.
    """

    def __init__(self, first_port: int, last_port: int) -> None:
        at_risk = ports_at_risk(first_port, last_port)
        self._ports = {*range(first_port, last_port + 1)} - at_risk
        self._by_user: Mapping[int, set[int]] = {}
        self._crowds: Set[int] = frozenset()
        self._suspects: dict[int, dict[int, int]] = {}  # by user and port: look that found it first
        self._looked_at = -math.inf
        self._num_looks = 0

    def strays(self, uid: int, own: Set[int]) -> Set[int]:
        """Return the ports that a user holds in several looks and that are not its `own`."""
        if self._ports and time.monotonic() - self._looked_at >= LOOK_EVERY_S:
            self._look()
        known, first = self._suspects.get(uid, {}), self._num_looks
        strays = self._by_user.get(uid, set()) - own
        self._suspects[uid] = {port: known.get(port, first) for port in strays}
        return {port for port, at in self._suspects[uid].items() if at + _MORE_LOOKS <= first}

    def is_crowd(self, uid: int) -> bool:
        """Return whether the last look ended early, with most sockets of this user."""
        return uid in self._crowds

    def _look(self) -> None:
        found: defaultdict[int, set[int]] = defaultdict(set)
        crowds: set[int] = set()
        for family, protocol in _TABLES:
            with contextlib.suppress(OSError):  # no IPv6, or no such monitoring
                held = _sockets(family, protocol, min(self._ports), max(self._ports))
                numbers: Counter[int] = Counter()
                for port, uid in itertools.islice(held, MOST_SOCKETS):
                    numbers[uid] += 1
                    if port in self._ports:
                        found[uid].add(port)
                if numbers.total() == MOST_SOCKETS:
                    crowds.add(max(numbers, key=numbers.__getitem__))
        self._by_user, self._crowds, self._looked_at = found, crowds, time.monotonic()
        self._num_looks += 1


def _sockets(family: int, protocol: int, first: int, last: int) -> Iterator[tuple[int, int]]:
    """Yield port and user of each socket in a range of ports that a process still holds.

    Raises:
        OSError: the kernel does not tell.
    """
    request = _REQUEST.pack(family, protocol, 0, _ALL_STATES)
    # Each comparison: where to go on if it holds, and if not; beyond the end is no match.
    request += _FILTER.pack(
        _FILTER.size, _FILTER_KIND, _AT_LEAST, 8, 20, first, _AT_MOST, 8, 12, last
    )  # fmt: skip
    size = _HEADER.size + len(request)
    header = _HEADER.pack(size, _SOCK_DIAG_BY_FAMILY, _REQUEST_AND_DUMP, 0, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(_LIMIT_S)
        kernel.send(header + request)
        while True:
            answer, offset = kernel.recv(_MAX_BYTES), 0
            while offset < len(answer):
                length, kind, *_ = _HEADER.unpack_from(answer, offset)
                if kind in (_DONE, _ERROR):
                    return
                at = offset + _HEADER.size
                (port,) = _SOCKET.unpack_from(answer, at)
                uid, inode = _OWNER.unpack_from(answer, at + _SOCKET.size)
                if inode:
                    yield port, uid
                offset += length + 3 & ~3
