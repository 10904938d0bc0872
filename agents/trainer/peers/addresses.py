"""Addresses from which a job's trainers connect: of the job's hosts, and of this machine."""

from __future__ import annotations

import socket
from collections.abc import Collection
from ipaddress import IPv4Network, IPv6Network, ip_network

import psutil

from agents.trainer.peers.bpf import Network

LOOPBACK: tuple[Network, ...] = (IPv4Network("127.0.0.0/8"), IPv6Network("::1/128"))


def own_addresses() -> set[Network]:
    """List this machine's addresses: the loopback networks and those of its interfaces."""
    found: set[Network] = set(LOOPBACK)
    for addresses in psutil.net_if_addrs().values():
        found.update(
            ip_network(entry.address.partition("%")[0])
            for entry in addresses
            if entry.family in (socket.AF_INET, socket.AF_INET6)
        )
    return found


def are_own(addresses: Collection[Network]) -> bool:
    own = own_addresses()
    return all(any(_is_within(address, network) for network in own) for address in addresses)


def _is_within(address: Network, network: Network) -> bool:
    return address.version == network.version and address.subnet_of(network)  # type: ignore[arg-type]


class HostAddresses:
    """Resolver of host names; a literal address stands for itself, names are resolved each time.

    A requested name keeps every address resolved so far, so that a name server that returns a part
    of the addresses at a time, or none temporarily, does not cut peers off.
    """

    def __init__(self) -> None:
        self._known: dict[str, set[Network]] = {}

    def find(self, hosts: Collection[str]) -> tuple[set[Network], list[str]]:
        """Return the addresses of `hosts`, and the hosts without any; may take seconds."""
        self._known = {host: self._known.get(host, set()) | _resolved(host) for host in hosts}
        unknown = sorted(host for host, addresses in self._known.items() if not addresses)
        return set().union(*self._known.values()), unknown


def _resolved(host: str) -> set[Network]:
    try:
        return {ip_network(host)}
    except ValueError:
        pass  # a name
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return set()
    return {ip_network(str(address[0]).partition("%")[0]) for *_, address in found}
