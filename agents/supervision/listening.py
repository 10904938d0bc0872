"""Ports on which users of jobs listen, from the kernel's tables of sockets."""

from __future__ import annotations

import contextlib
import math
import time
from collections import defaultdict
from collections.abc import Mapping, Set
from pathlib import Path

from agents.supervision.port_range import port_range_warning

#: Seconds for which a look at the tables counts; they may be long.
LOOK_EVERY_S = 2.0
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENS = "0A"


class ListeningPorts:
    """TCP ports of an agent's range by the user that listens on them.

    None are known where the kernel gives out ports of that range: code has not chosen them.
    """

    def __init__(self, first_port: int, last_port: int) -> None:
        is_ours = port_range_warning(first_port, last_port) is None
        self._ports = range(first_port, last_port + 1 if is_ours else first_port)
        self._by_user: Mapping[int, set[int]] = {}
        self._read_at = -math.inf

    def strays(self, uid: int, own: Set[int]) -> Set[int]:
        """Return the ports on which a user listens now that are not its `own`.

        They are looked for at times, and looked at again then: an earlier look may have seen a
        trainer whose port was its own until it ended.
        """
        if self._ports and time.monotonic() - self._read_at >= LOOK_EVERY_S:
            self._look()
        if self._by_user.get(uid, set()) - own:
            self._look()
        return self._by_user.get(uid, set()) - own

    def _look(self) -> None:
        self._by_user, self._read_at = self._read(), time.monotonic()

    def _read(self) -> Mapping[int, set[int]]:
        found: defaultdict[int, set[int]] = defaultdict(set)
        for table in _TABLES:
            with contextlib.suppress(OSError), table.open() as lines:  # no IPv6
                next(lines)
                for line in lines:
                    _, local, _, state, _, _, _, uid, *_ = line.split()
                    if state != _LISTENS:
                        break  # the kernel lists those that listen first; others may be very many
                    if (port := int(local.rpartition(":")[2], 16)) in self._ports:
                        found[int(uid)].add(port)
        return found
