"""The recipes of docs/node-agents.md for the network between nodes, tried in network namespaces.

They are read from the page, as an admin copies them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from tests.security.network_probe import READY

_ROOT = Path(__file__).parents[2]
_LIMIT_S = 60
_PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
_TRAINER, _OTHER_SERVICE = 21_001, 22
_BOTH = ["tcp", "udp"]


def _required(command: str, package: str) -> None:
    if shutil.which(command, path=_PATH) is None:
        if os.environ.get("TEST_SERVERS_REQUIRED") == "1":
            pytest.fail(f"{command} is missing: install the package {package}")
        pytest.skip(f"{command} is missing")


def _recipes(language: str) -> list[str]:
    page = (_ROOT / "docs/node-agents.md").read_text()
    blocks = re.findall(rf"^( *)```{language}\n(.*?)^ *```$", page, re.DOTALL | re.MULTILINE)
    return [re.sub(rf"^{indent}", "", text, flags=re.MULTILINE) for indent, text in blocks]


class _Machine:
    """Namespaces of network, mounts and processes; all of it ends with `held`."""

    def __init__(self, held: ExitStack) -> None:
        self._held = held
        command = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child"]
        command += ["sh", "-c", f"echo {READY}; exec sleep infinity"]
        holder = self._start(command)
        [first] = psutil.Process(holder.pid).children()
        self.pid = first.pid
        for folder in ("/run", "/etc"):
            self.run("mount", "-t", "tmpfs", "tmpfs", folder)
        self.run("ip", "link", "set", "lo", "up")

    def _start(self, command: list[str]) -> subprocess.Popen[str]:
        process = self._held.enter_context(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        self._held.callback(process.kill)
        assert process.stdout is not None
        assert process.stdout.readline() == f"{READY}\n"
        return process

    def _inside(self, *command: str) -> list[str]:
        entered = ["nsenter", f"--target={self.pid}", "--net", "--mount", "--pid"]
        return [*entered, f"--wd={_ROOT}", "env", f"PATH={_PATH}", *command]

    def tried(self, *command: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        command = tuple(self._inside(*command))
        return subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )

    def run(self, *command: str, text: str | None = None) -> str:
        done = self.tried(*command, text=text)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def probe(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a listener or an eavesdropper, and wait until it is ready."""
        return self._start(
            self._inside(sys.executable, "-m", "tests.security.network_probe", *arguments)
        )

    @contextmanager
    def listener(self, port: int = _TRAINER) -> Iterator[set[str]]:
        """Listen on a port; the set has, after the block, what arrived ("udp 10.20.0.1")."""
        arrived: set[str] = set()
        process = self.probe("listen", str(port))
        yield arrived
        arrived |= set(process.communicate("", timeout=_LIMIT_S)[0].splitlines())

    def reaches(self, *addresses: str, port: int = _TRAINER, within_s: int = 30) -> list[list[str]]:
        """Return the protocols over which each address answers."""
        call = ["tests.security.network_probe", "call", str(within_s), str(port), *addresses]
        answers: list[list[str]] = json.loads(self.run(sys.executable, "-m", *call))
        return answers

    def is_kept_out(self, *addresses: str, port: int = _TRAINER) -> bool:
        """Return whether no address answers within 3 s."""
        return not any(self.reaches(*addresses, port=port, within_s=3))

    def join(self, wire: _Machine, name: str, *addresses: str) -> None:
        """Give the machine an interface on the wire, from which it sends to everybody there."""
        pair = f"ip link add {name} type veth peer name eth0 netns {self.pid}"
        enter = ["nsenter", f"--target={wire.pid}", "--net"]
        subprocess.run([*enter, *pair.split()], check=True, timeout=_LIMIT_S)
        wire.run("ip", "link", "set", name, "master", "wire", "up")
        self.run("ip", "link", "set", "eth0", "up")
        for address in addresses:
            quick = ["nodad"] if ":" in address else []
            self.run("ip", "address", "add", address, "dev", "eth0", *quick)
        self.run("ip", "route", "add", "default", "dev", "eth0")


@pytest.fixture
def held() -> Iterator[ExitStack]:
    if os.geteuid() != 0:
        pytest.skip("only root can make network namespaces")
    for command, package in (("nft", "nftables"), ("ip", "iproute2")):
        _required(command, package)
    with ExitStack() as stack:
        yield stack


class _Network:
    """Two nodes and a stranger on one wire."""

    def __init__(self, held: ExitStack) -> None:
        self.wire, self.first, self.second, self.stranger = (_Machine(held) for _ in range(4))
        self.wire.run("ip", "link", "add", "wire", "type", "bridge")
        self.wire.run("ip", "link", "set", "wire", "up")
        self.first.join(self.wire, "first", "10.20.0.1/24", "fd00::1/64")
        self.second.join(self.wire, "second", "10.20.0.2/24", "fd00::2/64")
        self.stranger.join(self.wire, "stranger", "10.30.0.9/24", "fd00::9/64")


def test_the_firewall_lets_only_nodes_reach_trainers(held: ExitStack) -> None:
    network = _Network(held)
    outside = ["10.20.0.2", "fd00::2"]
    with network.second.listener():
        assert network.stranger.reaches(*outside) == [_BOTH, _BOTH]
        network.second.run("nft", "-f", "-", text=_recipes("nft")[0])
        assert network.first.reaches("10.20.0.2") == [_BOTH]
        assert network.second.reaches("127.0.0.1", "10.20.0.2") == [_BOTH, _BOTH]
        assert network.first.is_kept_out("fd00::2")
        assert network.stranger.is_kept_out(*outside)
    with network.second.listener(_OTHER_SERVICE):
        assert network.stranger.reaches(*outside, port=_OTHER_SERVICE) == [_BOTH, _BOTH]


_AGENTS_RULES = """
from ipaddress import ip_address
from agents.supervision.firewall import Firewall
firewall = Firewall(range(200_000, 200_010), (21_000, 21_999), [])
firewall.follow(200_001, frozenset(), firewall.callers_at({port}, ["10.20.0.1", "fd00::1"]))
firewall.follow(200_002, frozenset(), firewall.callers_at(21_900, ["fd00::9"]))
"""


def test_an_agents_firewall_opens_a_trainers_port_to_the_hosts_of_its_job(held: ExitStack) -> None:
    network = _Network(held)
    second = ["10.20.0.2", "fd00::2"]
    with network.second.listener():
        assert network.stranger.reaches(*second) == [_BOTH, _BOTH]
        network.second.run(sys.executable, "-c", _AGENTS_RULES.format(port=_TRAINER))
        assert network.first.reaches(*second) == [_BOTH, _BOTH]
        assert network.second.reaches("127.0.0.1", *second) == [_BOTH] * 3
        assert network.stranger.is_kept_out(*second)
    with network.second.listener(21_900):
        assert network.first.is_kept_out(*second, port=21_900)
        assert network.stranger.reaches("fd00::2", port=21_900) == [_BOTH]
    with network.second.listener(_OTHER_SERVICE):
        assert network.stranger.reaches(*second, port=_OTHER_SERVICE) == [_BOTH, _BOTH]


def _overheard(network: _Network, address: str) -> bool:
    """Return whether a message from the first to the second node is readable on the wire."""
    eavesdropper = network.wire.probe("overhear")
    assert network.first.reaches(address) == [_BOTH]
    heard = json.loads(eavesdropper.communicate("", timeout=_LIMIT_S)[0])
    assert isinstance(heard, bool)
    return heard


def _wireguard_required(machine: _Machine) -> None:
    for command in ("wg", "wg-quick"):
        _required(command, "wireguard-tools")
    if machine.tried("ip", "link", "add", "attempt", "type", "wireguard").returncode:
        if not Path("/dev/net/tun").exists():
            pytest.skip("this kernel has neither WireGuard nor tunnels for a process")
        _required("wireguard-go", "wireguard-go")


def test_wireguard_encrypts_and_lets_nobody_forge_an_address(held: ExitStack) -> None:
    network = _Network(held)
    _wireguard_required(network.wire)
    nodes = (network.first, network.second)
    with network.second.listener():
        assert _overheard(network, "10.20.0.2")

    [settings] = _recipes("ini")
    keys = []
    for node in nodes:
        node.run("mkdir", "/etc/wireguard")
        node.run("sh", "-c", "umask 077; wg genkey > /etc/wireguard/key")
        keys.append(node.run("sh", "-c", "wg pubkey < /etc/wireguard/key").strip())
    of_the_second = re.sub(
        r"(10\.\d+\.0\.)([12])\b", lambda found: f"{found[1]}{3 - int(found[2])}", settings
    )
    for node, text, key in zip(nodes, (settings, of_the_second), reversed(keys), strict=True):
        text = text.replace("PUBLIC KEY OF THE SECOND NODE", key)
        node.run("sh", "-c", "umask 077; cat > /etc/wireguard/wg0.conf", text=text)
        node.run("wg-quick", "up", "wg0")
    network.stranger.run("ip", "address", "add", "10.99.0.1/32", "dev", "eth0")
    route = "route add 10.99.0.2 via 10.20.0.2 dev eth0 src 10.99.0.1 onlink"
    network.stranger.run("ip", *route.split())
    with network.second.listener() as arrived:
        assert network.stranger.is_kept_out("10.99.0.2")
    assert "udp 10.99.0.1" in arrived, "without the rules an address inside can be forged"

    network.second.run("nft", "-f", "-", text=_recipes("nft")[1])
    with network.second.listener() as arrived:
        assert network.stranger.is_kept_out("10.99.0.2", "10.20.0.2", "fd00::2")
        assert network.first.is_kept_out("10.20.0.2")
    assert arrived == set()
    with network.second.listener() as arrived:
        assert not _overheard(network, "10.99.0.2")
        assert network.second.reaches("127.0.0.1", "10.99.0.2") == [_BOTH, _BOTH]
    assert {"tcp 10.99.0.1", "udp 10.99.0.1"} <= arrived
