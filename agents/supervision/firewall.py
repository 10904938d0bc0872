"""Firewall rules by user: a job's processes reach the trainers of their job, and nothing else.

Nobody else reaches those: a trainer's port is open to this machine and the hosts of its job alone.

The rules are one table of nftables for each agent. It is replaced as a whole at every change, and
outlives the agent, whose trainers do so too. Connections that exist are not cut.
"""

from __future__ import annotations

import logging
import math
import shutil
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import partial
from ipaddress import IPv4Address, IPv6Address, ip_address

from agents.session.background import Background
from agents.settings import AgentSettings, Network

log = logging.getLogger("agents")

Address = IPv4Address | IPv6Address
#: A peer's address and port. None: all ports but those that agents give to trainers, for NCCL,
#: whose connections between GPUs have ports that the kernel chooses.
Peer = tuple[Address, int | None]
#: A trainer's own port, and an address from which it may be reached.
Caller = tuple[int, Address]
#: Time limits of nft: for the check at the agent's start, and for changes, for which the agent's
#: loop waits (see `watchdog.STUCK_S`).
_CHECK_LIMIT_S, _CHANGE_LIMIT_S = 10.0, 3.0
#: Time without changes after one that has not ended, so that heartbeats go on meanwhile.
PAUSE_S = 6.0
#: Longest wait for the addresses of names, which a resolver may seek for half a minute, and names
#: that are sought at a time.
LOOKUP_S, LOOKUPS_LIMIT = 1.0, 64


class FirewallError(OSError):
    """The rules cannot be set; the message is that of nft."""


class _FirewallTimeoutError(FirewallError):
    """The program nft did not end."""


class Firewall:
    """The table of an agent whose jobs run as users of a range."""

    def __init__(self, uids: range, ports: tuple[int, int], networks: Sequence[Network]) -> None:
        """Prepare; nothing is changed before `follow`.

        Args:
            uids: users that the rules apply to.
            ports: first and last port of trainers.
            networks: what all jobs may reach besides, such as a store of training data.
        """
        self._uids = uids
        self._table = f"table inet virtualflow_{uids[0]}"
        self._ports = ports
        self._networks = networks
        self._known: dict[int, tuple[frozenset[Peer], frozenset[Caller]]] = {}
        self._names: dict[str, frozenset[Address]] = {}
        self._background = Background(LOOKUPS_LIMIT, lambda: None)
        self._lookups: dict[str, Future[frozenset[Address]]] = {}  # that take long
        self._paused_until = -math.inf

    @property
    def is_paused(self) -> bool:
        """True for a time after a change that has not ended; others fail at once meanwhile."""
        return time.monotonic() < self._paused_until

    @classmethod
    def find(cls, settings: AgentSettings) -> Firewall | None:
        """Return the firewall of an agent; None, with a warning, where none is possible."""
        if settings.job_uids is None or settings.job_networks is None:
            return None
        ports = settings.first_port, settings.last_port
        firewall = cls(settings.job_uids, ports, settings.job_networks)
        try:
            firewall.check()
        except FirewallError as error:
            log.warning(
                "jobs reach whatever this machine reaches, because no firewall can be set: %s; "
                "install nftables and give the agent CAP_NET_ADMIN, or say --job-networks any",
                error,
            )
            return None
        return firewall

    def check(self) -> None:
        """Check that the kernel takes such rules from this process, without setting them.

        Raises:
            FirewallError: it does not.
        """
        old, new = ip_address("127.0.0.1"), ip_address("::1")
        peers: frozenset[Peer] = frozenset({(old, 1), (new, None)})
        _nft(self._rules({self._uids[-1]: (peers, frozenset({(1, old), (1, new)}))}), "--check")

    def peers_at(self, addresses: Iterable[str], *, has_gpus: bool) -> frozenset[Peer]:
        """Return the peers at addresses "host:port"; may take `LOOKUP_S` if hosts have names.

        Raises:
            FirewallError: a name has no address, or none yet.
        """
        places = [text.rpartition(":") for text in addresses]
        found = self._addresses(host.strip("[]") for host, _, _ in places)
        peers: set[Peer] = set()
        for host, _, port in places:
            for address in found[host.strip("[]")]:
                peers.add((address, int(port)))
                if has_gpus:
                    peers.add((address, None))
        return frozenset(peers)

    def callers_at(self, port: int, hosts: Iterable[str]) -> frozenset[Caller]:
        """Return the callers of a port at hosts; may take `LOOKUP_S` if hosts have names.

        Raises:
            FirewallError: a name has no address, or none yet.
        """
        found = self._addresses(hosts)
        return frozenset((port, address) for known in found.values() for address in known)

    def follow(
        self, uid: int, peers: frozenset[Peer], callers: frozenset[Caller] = frozenset()
    ) -> None:
        """Let a user reach these peers, and be reached by these callers, and no others.

        Raises:
            FirewallError: the rules are as before.
        """
        if self._known.get(uid) == (peers, callers):
            return
        wanted = {**self._known, uid: (peers, callers)}
        self._change(self._rules(wanted))
        self._known = wanted

    def forget(self, uid: int) -> None:
        """Drop what is known of a user that has no processes; the last one's end removes the table.

        Other users' rules change with the next `follow`.
        """
        self._known.pop(uid, None)
        if not self._known:
            try:
                self._change(f"{self._table}\ndelete {self._table}\n")
            except FirewallError as error:
                log.warning("the %s stays: %s", self._table, error)

    def _change(self, rules: str) -> None:
        if self.is_paused:
            raise FirewallError("nft does not end, and is tried again in some seconds")
        try:
            _nft(rules)
        except _FirewallTimeoutError:
            self._paused_until = time.monotonic() + PAUSE_S
            raise

    def _addresses(self, hosts: Iterable[str]) -> dict[str, frozenset[Address]]:
        """Return the addresses of hosts, all that their names have had so far.

        The agent's loop waits here, so all names are looked up at a time, and a name server that
        does not answer is waited for once only; the answer that comes later is that of a later
        call.
        """
        found: dict[str, frozenset[Address]] = {}
        names: set[str] = set()
        for host in hosts:
            try:
                found[host] = frozenset({ip_address(host)})
            except ValueError:
                names.add(host)
        lookups = {name: self._lookups.pop(name, None) for name in names}
        started = []
        for name in sorted(names, key=lambda name: (name in self._names, name)):
            if lookups[name] is None:
                lookups[name] = self._background.start(name, partial(_resolved, name))
                started.append(lookups[name])
        wait([lookup for lookup in started if lookup is not None], LOOKUP_S)
        errors: dict[str, object] = {}
        for name, lookup in lookups.items():
            errors[name] = "the name server has not answered yet"
            if lookup is not None and not lookup.done():
                self._lookups[name] = lookup
            elif lookup is not None:
                errors[name] = error = lookup.exception()
                known = self._names.get(name, frozenset())
                self._names[name] = known if error else known | lookup.result()
            found[name] = self._names.get(name, frozenset())
        for name in sorted(names):
            if not found[name]:
                raise FirewallError(f"no address is known of {name}: {errors[name]}")
        return found

    def _rules(self, known: Mapping[int, tuple[frozenset[Peer], frozenset[Caller]]]) -> str:
        allowed = [
            f"meta skuid {uid} {rule}"
            for uid, (peers, _) in sorted(known.items())
            for rule in self._accepting("daddr", peers)
        ]
        callers = frozenset().union(*(callers for _, callers in known.values()))
        entering = self._accepting("saddr", {(address, port) for port, address in callers})
        allowed += [f"{_version(network)} daddr {network} accept" for network in self._networks]
        users = f"{self._uids[0]}-{self._uids[-1]}"
        # Packets without a socket have no user: they pass the first rule of `output` by.
        return "\n".join(
            [
                self._table,
                f"delete {self._table}",
                f"{self._table} {{",
                "chain jobs {",
                "ct state established,related accept",
                *allowed,
                "reject with icmpx type admin-prohibited",
                "}",
                "chain output {",
                "type filter hook output priority 0; policy accept;",
                f"meta skuid {users} jump jobs",
                "}",
                "chain input {",
                "type filter hook input priority 0; policy accept;",
                'iifname "lo" accept',
                "ct state established,related accept",
                *entering,
                f"meta l4proto {{ tcp, udp }} th dport {self._ports[0]}-{self._ports[1]} drop",
                "}",
                "}",
                "",
            ]
        )

    def _accepting(self, side: str, peers: Iterable[Peer]) -> list[str]:
        """Return rules, four at most however many peers there are: each packet passes all.

        Args:
            side: of a packet, on which the peers are: "saddr" or "daddr".
        """
        places: dict[str, list[str]] = {}
        for address, port in sorted(peers, key=str):
            where, place = f"{_version(address)} {side}", str(address)
            if port is not None:
                where, place = f"{where} . th dport", f"{address} . {port}"
            places.setdefault(where, []).append(place)
        others = f"th dport != {self._ports[0]}-{self._ports[1]} "
        return [
            f"meta l4proto {{ tcp, udp }} {'' if '.' in where else others}"
            f"{where} {{ {', '.join(known)} }} accept"
            for where, known in places.items()
        ]


def _resolved(name: str) -> frozenset[Address]:
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return frozenset(ip_address(str(address[0]).partition("%")[0]) for *_, address in found)


def _version(address: Address | Network) -> str:
    return "ip" if address.version == 4 else "ip6"


def _nft(rules: str, *options: str) -> None:
    program = shutil.which("nft") or shutil.which("nft", path="/usr/sbin:/sbin")
    if program is None:
        raise FirewallError("the program nft is missing (package nftables)")
    try:
        done = subprocess.run(
            [program, *options, "--file", "-"],
            input=rules,
            capture_output=True,
            text=True,
            timeout=_CHECK_LIMIT_S if options else _CHANGE_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise _FirewallTimeoutError(f"nft did not end within {error.timeout:g} s") from error
    except OSError as error:
        raise FirewallError(str(error)) from error
    if done.returncode:
        raise FirewallError(done.stderr.strip()[-500:] or f"nft ended with {done.returncode}")
