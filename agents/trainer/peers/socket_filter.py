"""Restricts access to a trainer's port to the machines of its job; see docs/node-agents.md.

TensorFlow's server listens on all interfaces without authentication, and neither can be changed.
But its socket belongs to this process, which attaches a filter: the kernel drops packets that come
neither from this machine nor from a host of the job. The beacon's socket, on the same port number,
and connections accepted before the filter get the same filter.

A thread updates the filter from the orders, because resolving names may take seconds. A host whose
name has no address is left out, with a warning; only where the kernel refuses filters, all hosts
can connect.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Collection, Iterator
from pathlib import Path

from agents.trainer.contract.environment import FILTER_VARIABLE
from agents.trainer.contract.ports import declared_address
from agents.trainer.peers.addresses import HostAddresses, own_addresses
from agents.trainer.peers.bpf import (
    HAS_FILTERS,
    filter_attach,
    filter_program,
    has_filter,
    num_dropped,
)
from controlplane.core.protocol.wire import TrainerOrders

logger = logging.getLogger(__name__)

#: Interval of searching for sockets without the filter and resolving names again.
REFRESH_S = 10.0
SOCKETS = Path("/proc/self/fd")


class PeerFilter:
    """The filter on all sockets of one port of this process.

    Attributes:
        port: local port number, TCP and UDP.
    """

    def __init__(self, port: int) -> None:
        """Prepare only; `follow` sets the allowed hosts, `start` begins to filter."""
        self.port = port
        self._hosts: frozenset[str] = frozenset()
        self._addresses = HostAddresses()
        self._changed = threading.Condition()
        self._wanted = self._done = 0
        self._program = b""
        self._warned = ""
        self._has_dropped = False

    def start(self) -> None:
        """Start the thread that attaches and updates the filter."""
        threading.Thread(target=self._run, name="peer-filter", daemon=True).start()

    def follow(self, hosts: Collection[str]) -> None:
        """Allow these hosts, all earlier ones and this machine; returns at once.

        Earlier ones stay: members that leave still take part in the switch to the next membership.
        """
        with self._changed:
            self._hosts = self._hosts.union(hosts)
            self._wanted += 1
            self._changed.notify_all()

    def refresh(self) -> None:
        """Request a search for new sockets; returns at once."""
        with self._changed:
            self.follow(self._hosts)

    def settle(self, limit_s: float) -> bool:
        """Wait until all requests are done; returns False after `limit_s` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._done == self._wanted, limit_s)

    def apply(self) -> None:
        """Update the filter of every socket; resolving names may take seconds.

        Raises:
            ValueError: a host is left out, or there are too many addresses; all others are dropped.
            OSError: the kernel refuses the filter.
        """
        addresses, unknown = self._addresses.find(self._hosts)
        problem = f"no address is known of {', '.join(unknown)}" if unknown else ""
        try:
            program = filter_program(addresses | own_addresses())
        except ValueError as error:
            problem = str(error)
            program = self._program or filter_program(own_addresses())
        for each in sockets_of(self.port):
            self._log_dropped(each)
            if program != self._program or not has_filter(each):
                filter_attach(each, program)
        self._program = program
        if problem:
            raise ValueError(problem)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._done != self._wanted, REFRESH_S)
                wanted = self._wanted
            self._apply_or_warn()
            with self._changed:
                self._done = wanted
                self._changed.notify_all()

    def _apply_or_warn(self) -> None:
        """Call `apply`; log an error once."""
        try:
            self.apply()
        except Exception as error:  # the thread must survive, to allow later peers
            if str(error) != self._warned:
                is_refused = isinstance(error, OSError)
                who = "everybody" if is_refused else "not every host of this job"
                logger.warning("%s can reach port %d: %s", who, self.port, error)
            self._warned = str(error)
        else:
            if self._warned:
                logger.warning("this job's hosts, and no others, can reach port %d", self.port)
            self._warned = ""

    def _log_dropped(self, which: socket.socket) -> None:
        """Log once that packets were dropped, since these may come from a peer behind NAT."""
        is_listening = bool(which.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
        if is_listening and not self._has_dropped and num_dropped(which):
            self._has_dropped = True
            logger.warning(
                "packets to port %d were dropped, perhaps because they came from none of this "
                "job's hosts; if peers send from other addresses than their --host, start agents "
                "with --no-peer-filter",
                self.port,
            )


def peer_filter_start(orders: TrainerOrders) -> PeerFilter | None:
    """Start the filter on this trainer's port; None if disabled by the agent or not supported."""
    if os.environ.get(FILTER_VARIABLE, "1") == "0":
        return None
    if not HAS_FILTERS:
        logger.warning("this system has no socket filters: everybody can reach this trainer")
        return None
    address = declared_address(orders.membership.cluster_addresses, orders.slot)
    peer_filter = PeerFilter(int(address.rpartition(":")[2]))
    peer_filter.follow(hosts_allowed(orders))
    peer_filter.start()
    return peer_filter


def hosts_allowed(orders: TrainerOrders) -> frozenset[str]:
    """Return the hosts whose trainers may connect, including joiners of a coming generation."""
    return orders.membership.hosts | {*orders.peers}


def sockets_of(port: int) -> Iterator[socket.socket]:
    """Yield duplicates of this process's sockets of a local port, each open during its turn."""
    for entry in SOCKETS.iterdir():
        try:
            if not str(entry.readlink()).startswith("socket:"):
                continue
            number = os.dup(int(entry.name))
        except OSError:
            continue  # closed meanwhile
        try:
            copy = socket.socket(fileno=number)
        except OSError:
            os.close(number)  # no socket any more
            continue
        with copy:
            if copy.family in (socket.AF_INET, socket.AF_INET6) and _local_port(copy) == port:
                yield copy


def _local_port(which: socket.socket) -> int:
    try:
        return int(which.getsockname()[1])
    except OSError:
        return 0
