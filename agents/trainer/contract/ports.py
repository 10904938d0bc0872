"""Ports that are held from the moment they are chosen until a trainer's servers have them.

A trainer needs seconds to import TensorFlow before it listens. Whatever is free until then the
kernel may give to any outgoing connection of the machine. So the port is bound, without listening,
by a socket that is handed over: from the launcher to its trainer, which holds it until TensorFlow
listens there as well.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Sequence
from ipaddress import IPv4Address

from agents.trainer.contract.failures import TrainerError
from controlplane.core.protocol.wire import SlotAddress, TrainerOrders

#: How many numbers that are free for TCP and taken for UDP are put up with.
PAIR_TRIES = 100


class HeldPort:
    """One port number of this machine, kept from all other processes.

    Attributes:
        number: the port, for TCP and UDP.
        beacon: the UDP socket, to be used as it is; None where UDP is taken.
    """

    def __init__(self, tcp: socket.socket, beacon: socket.socket | None) -> None:
        self.number: int = tcp.getsockname()[1]
        self.beacon = beacon
        self._tcp = tcp

    @classmethod
    def take(cls, address: str) -> HeldPort:
        """Hold the port of `address`, HOST:PORT; 0 lets the kernel choose a free one.

        Raises:
            OSError: another process has it.
        """
        host, _, port = address.rpartition(":")
        tcp = _tcp_bound(int(port))
        return cls(tcp, beacon_socket(f"{host}:{tcp.getsockname()[1]}"))

    @classmethod
    def inherit(cls, numbers: Sequence[int]) -> HeldPort:
        """Take over what a parent process holds: the file numbers of its TCP and UDP sockets.

        Raises:
            OSError: one of them is no socket of this process.
        """
        tcp, beacon = (socket.socket(fileno=number) for number in numbers)
        for each in (tcp, beacon):
            each.set_inheritable(False)
        return cls(tcp, beacon)

    @property
    def files(self) -> tuple[int, ...]:
        """File numbers for a child process, as `inherit` takes them."""
        assert self.beacon is not None, "a port that is handed over is held for TCP and UDP"
        return self._tcp.fileno(), self.beacon.fileno()

    def share(self) -> None:
        """Let a server listen beside the socket that holds the port.

        With SO_REUSEADDR on both, Linux lets several sockets be bound and one of them listen. The
        server of TensorFlow has it set. The kernel gives the port to no connection nevertheless.
        """
        self._tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

    def hand_on(self) -> None:
        """Let go of TCP, because a server listens there, and keep the beacon's socket."""
        self._tcp.close()

    def close(self) -> None:
        """Let go of all."""
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
        """Give the file numbers of one port for a child process; none when it was let go of."""
        held = self._held[index]
        return () if held is None else held.files

    def release(self, index: int) -> None:
        """Let go of one port; a process that has inherited it holds it on."""
        held, self._held[index] = self._held[index], None
        if held is not None:
            held.close()

    def close(self) -> None:
        """Let go of all."""
        for index in range(len(self._held)):
            self.release(index)


def port_hold(orders: TrainerOrders, files: Sequence[int] | None = None) -> HeldPort | None:
    """Hold a trainer's own port from its start on; None when another process has it.

    That may be over by the time the runtime connects, which tells of it otherwise.

    Args:
        files: what the parent process has held it with.
    """
    if files:
        return HeldPort.inherit(files)
    with contextlib.suppress(OSError, TrainerError):
        return HeldPort.take(declared_address(orders.membership.declaration, orders.slot))
    return None


def declared_address(declaration: tuple[SlotAddress, ...], slot: int) -> str:
    """Give the address, HOST:PORT, of a slot.

    Raises:
        TrainerError: the slot is not declared.
    """
    address = next((entry.address for entry in declaration if entry.slot == slot), None)
    if address is None:
        raise TrainerError("internal", f"slot {slot} is not in its own declaration")
    return address


def beacon_socket(address: str) -> socket.socket | None:
    """Open a UDP socket on the declared address alone, if this machine has it; None if taken.

    On all of them where peers use a name, which may mean another address to them, or an address
    that somebody translates on the way.
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
    """Hold a number that is free for TCP and UDP.

    Raises:
        OSError: there is none.
    """
    for _ in range(PAIR_TRIES):
        held = HeldPort.take("127.0.0.1:0")
        if held.beacon is not None:
            return held
        held.close()
    raise OSError(errno.EADDRINUSE, f"{PAIR_TRIES} ports in a row are taken for UDP")


def _tcp_bound(port: int) -> socket.socket:
    """Bind without listening, and without letting anybody share it.

    Connections of an earlier server that wait out their time are in the way of a socket without
    SO_REUSEADDR only, so that is set while binding where it has to be.
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
