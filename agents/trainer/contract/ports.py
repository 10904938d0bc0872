"""Holds a trainer's port from the moment it is chosen until the trainer's servers listen there.

A trainer needs seconds to import TensorFlow before it listens. Until then the kernel may assign a
free port to any outgoing connection. So a socket binds the port without listening; the launcher
hands this socket to its trainer, which holds it until TensorFlow listens there too.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Sequence
from ipaddress import IPv4Address

from agents.trainer.contract.failures import TrainerError
from controlplane.core.protocol.wire import SlotAddress, TrainerOrders

#: Number of tries to find a port that is free for both TCP and UDP.
PAIR_TRIES = 100


class HeldPort:
    """One port number of this machine, held so that no other process can use it.

    Attributes:
        number: the port, for TCP and UDP.
        beacon: the bound UDP socket; None if the number is taken for UDP.
    """

    def __init__(self, tcp: socket.socket, beacon: socket.socket | None) -> None:
        self.number: int = tcp.getsockname()[1]
        self.beacon = beacon
        self._tcp = tcp

    @classmethod
    def take(cls, address: str) -> HeldPort:
        """Hold the port of `address`, HOST:PORT; 0 lets the kernel choose a free one.

        Raises:
            OSError: another process uses the port.
        """
        host, _, port = address.rpartition(":")
        tcp = _tcp_bound(int(port))
        return cls(tcp, beacon_socket(f"{host}:{tcp.getsockname()[1]}"))

    @classmethod
    def inherit(cls, numbers: Sequence[int]) -> HeldPort:
        """Take over the TCP and UDP sockets of a parent process, given by file number.

        Raises:
            OSError: one of the numbers is no socket of this process.
        """
        tcp, beacon = (socket.socket(fileno=number) for number in numbers)
        for each in (tcp, beacon):
            each.set_inheritable(False)
        return cls(tcp, beacon)

    @property
    def files(self) -> tuple[int, ...]:
        """File numbers for `inherit` in a child process."""
        assert self.beacon is not None, "a port that is handed over is held for TCP and UDP"
        return self._tcp.fileno(), self.beacon.fileno()

    def share(self) -> None:
        """Allow a server to listen on the port while this socket still holds it.

        With SO_REUSEADDR on both, Linux allows several bound sockets, one of them listening.
        TensorFlow's server sets the option. The kernel still assigns the port to no connection.
        """
        self._tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

    def hand_on(self) -> None:
        """Close the TCP socket, because a server listens there, and keep the beacon's socket."""
        self._tcp.close()

    def close(self) -> None:
        self._tcp.close()
        if self.beacon is not None:
            self.beacon.close()


class PortHolder:
    """Holds free ports for trainers that are started later."""

    def __init__(self, number: int) -> None:
        held = [_free_pair() for _ in range(number)]
        self._held: list[HeldPort | None] = [*held]
        self.numbers = [each.number for each in held]

    def files(self, index: int) -> tuple[int, ...]:
        """Return the file numbers of one port for a child process; none after `release`."""
        held = self._held[index]
        return () if held is None else held.files

    def release(self, index: int) -> None:
        """Release one port; a process that has inherited the port still holds it."""
        held, self._held[index] = self._held[index], None
        if held is not None:
            held.close()

    def close(self) -> None:
        for index in range(len(self._held)):
            self.release(index)


def port_hold(orders: TrainerOrders, files: Sequence[int] | None = None) -> HeldPort | None:
    """Hold a trainer's own port from its start on; None if another process uses the port.

    The port may be free again when the runtime connects; if not, `connect` raises the error.

    Args:
        files: file numbers of the parent process's sockets that hold the port.
    """
    if files:
        return HeldPort.inherit(files)
    with contextlib.suppress(OSError, TrainerError):
        return HeldPort.take(declared_address(orders.membership.cluster_addresses, orders.slot))
    return None


def declared_address(cluster_addresses: tuple[SlotAddress, ...], slot: int) -> str:
    """Return the address, HOST:PORT, of a slot.

    Raises:
        TrainerError: the slot is not declared.
    """
    address = next((entry.address for entry in cluster_addresses if entry.slot == slot), None)
    if address is None:
        raise TrainerError("internal", f"slot {slot} is not in its own cluster_addresses")
    return address


def beacon_socket(address: str) -> socket.socket | None:
    """Open a UDP socket on the declared address if this machine has it; None if it is taken.

    The socket binds all addresses if the declared host is a name, which peers may resolve
    differently, or not an address of this machine (NAT).
    """
    host, _, port = address.rpartition(":")
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        try:
            opened.bind((str(IPv4Address(host)), int(port)))
        except ValueError:
            opened.bind(("", int(port)))
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
            opened.bind(("", int(port)))
    except OSError:
        opened.close()
        return None
    return opened


def _free_pair() -> HeldPort:
    """Hold a port number that is free for TCP and UDP.

    Raises:
        OSError: none was found in `PAIR_TRIES` tries.
    """
    for _ in range(PAIR_TRIES):
        held = HeldPort.take("127.0.0.1:0")
        if held.beacon is not None:
            return held
        held.close()
    raise OSError(errno.EADDRINUSE, f"{PAIR_TRIES} ports in a row are taken for UDP")


def _tcp_bound(port: int) -> socket.socket:
    """Bind exclusively, without listening.

    Connections in TIME_WAIT of an earlier server block only a socket without SO_REUSEADDR, so the
    option is set while binding if necessary.
    """
    holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        try:
            holder.bind(("", port))
        except OSError:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind(("", port))
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    except OSError:
        holder.close()
        raise
    return holder
