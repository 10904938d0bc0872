"""Restricts access to a trainer's port to the machines of its job; see docs/node-agents.md.

TensorFlow's server listens on all interfaces without authentication, and neither can be changed.
But its socket belongs to this process, which attaches a filter: the kernel drops packets that come
neither from this machine nor from a host of the job. The beacon's socket, on the same port number,
and connections accepted before the filter get the same filter.

A thread updates the filter from the orders, because resolving names may take seconds. A host whose
name has no address is left out, with a warning.

Where the kernel refuses the filter (some want CAP_NET_ADMIN for TCP), sockets are bound to the
loopback device while all hosts of the job are this machine. Otherwise the trainer does not listen,
and a socket that stays open to others ends the process.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from agents.trainer.contract.environment import FILTER_VARIABLE
from agents.trainer.contract.failures import TrainerError
from agents.trainer.contract.ports import declared_address
from agents.trainer.peers.addresses import LOOPBACK, HostAddresses, are_own, own_addresses
from agents.trainer.peers.bpf import (
    filter_attach,
    filter_program,
    has_filter,
    num_dropped,
)
from controlplane.core.protocol.wire import TrainerOrders

logger = logging.getLogger(__name__)

#: Interval of searching for sockets without the filter and resolving names again.
REFRESH_S = 10.0
_LOOPBACK_DEVICE = b"lo\0"
SOCKETS = Path("/proc/self/fd")


class PeerFilter:
    """The filter on all sockets of one port of this process.

    Attributes:
        port: local port number, TCP and UDP.
    """

    def __init__(self, port: int, give_up: Callable[[TrainerError], None]) -> None:
        """Prepare only; `follow` sets the allowed hosts, `start` begins to filter.

        Args:
            give_up: ends this process; called by the thread if a socket stays without a filter.
        """
        self.port = port
        self._give_up = give_up
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
            OSError: no sockets or addresses are found; all filters are as before.
            TrainerError: the kernel refuses the filter of a socket that has none.
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
                is_local = not unknown and are_own(addresses)
                problem = self._restrict(each, program, is_local=is_local) or problem
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
        """Call `apply`; log an error once, and give up if a socket has no filter."""
        try:
            self.apply()
        except TrainerError as refusal:
            self._give_up(refusal)
        except Exception as error:  # the thread must survive, to allow later peers
            if isinstance(error, OSError) and not self._program:
                self._give_up(self._refusal(error))
            if str(error) != self._warned:
                logger.warning("not every host of this job can reach port %d: %s", self.port, error)
            self._warned = str(error)
        else:
            if self._warned:
                logger.warning("this job's hosts, and no others, can reach port %d", self.port)
            self._warned = ""

    def check(self) -> None:
        """Check that a socket can be restricted, before the first one listens.

        Raises:
            TrainerError: it cannot.
        """
        with socket.socket() as probe:
            try:
                filter_attach(probe, filter_program(LOOPBACK))
            except OSError as error:
                addresses, unknown = self._addresses.find(self._hosts)
                if unknown or not are_own(addresses) or not _is_bound_to_loopback(probe):
                    raise self._refusal(error) from error

    def _restrict(self, which: socket.socket, program: bytes, *, is_local: bool) -> str:
        """Attach a program to a socket; return the problem if an earlier one stays.

        Raises:
            TrainerError: others than the hosts of the job can reach the socket.
        """
        try:
            filter_attach(which, program)
        except OSError as error:
            if has_filter(which):
                return f"the kernel refuses a longer filter: {error}"
            if not is_local or not _is_bound_to_loopback(which):
                raise self._refusal(error) from error
        return ""

    def _refusal(self, error: OSError) -> TrainerError:
        return TrainerError(
            "internal",
            f"the kernel refuses the socket filter of port {self.port}, so every machine could "
            f"reach this trainer: {error}. Give the node's agent a firewall (--isolation uid, "
            "nftables, CAP_NET_ADMIN); on a network of trusted machines alone, start it with "
            "--no-peer-filter",
        )

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


def peer_filter_prepare(
    orders: TrainerOrders, give_up: Callable[[TrainerError], None]
) -> PeerFilter | None:
    """Return the filter of this trainer's port, to `start` when servers listen there.

    None: the agent's operator wants no filter.

    Raises:
        TrainerError: the kernel refuses filters, so this trainer must not listen.
    """
    if os.environ.get(FILTER_VARIABLE, "1") == "0":
        return None
    address = declared_address(orders.membership.cluster_addresses, orders.slot)
    peer_filter = PeerFilter(int(address.rpartition(":")[2]), give_up)
    peer_filter.follow(hosts_allowed(orders))
    peer_filter.check()
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


def _is_bound_to_loopback(which: socket.socket) -> bool:
    """Bind a socket to the loopback device, which packets of this machine alone come from."""
    option = socket.SOL_SOCKET, socket.SO_BINDTODEVICE
    try:
        if not which.getsockopt(*option, 16):
            which.setsockopt(*option, _LOOPBACK_DEVICE)
        return which.getsockopt(*option, 16) == _LOOPBACK_DEVICE
    except OSError:
        return False


def _local_port(which: socket.socket) -> int:
    try:
        return int(which.getsockname()[1])
    except OSError:
        return 0
