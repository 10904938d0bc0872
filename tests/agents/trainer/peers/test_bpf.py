"""The kernel's filter on real sockets; addresses of 127.0.0.0/8 play several machines."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from ipaddress import IPv4Network, ip_network

import pytest

from agents.trainer.peers.addresses import LOOPBACK, HostAddresses, own_addresses
from agents.trainer.peers.bpf import (
    filter_attach,
    filter_program,
    has_filter,
    num_dropped,
)
from agents.trainer.peers.socket_filter import PeerFilter, sockets_of
from tests.agents.trainer.peers.socket_filters import needs_filters

pytestmark = needs_filters

LIMIT_S = 10.0


def wait(is_done: Callable[[], bool]) -> None:
    until = time.monotonic() + LIMIT_S
    while not is_done():
        assert time.monotonic() < until, "waited in vain"


@pytest.fixture(params=[socket.AF_INET, socket.AF_INET6], ids=["v4", "dual"])
def listener(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    """Listen as TensorFlow does where there is IPv6, and where there is none."""
    with socket.socket(request.param) as found:
        if request.param == socket.AF_INET6:
            found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        found.bind(("", 0))
        found.listen()
        found.settimeout(LIMIT_S)
        yield found


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


def call(stack: ExitStack, listener: socket.socket, source: str) -> socket.socket:
    """Begin to connect from an address of 127.0.0.0/8."""
    caller = stack.enter_context(closing(socket.socket()))
    caller.bind((source, 0))
    caller.setblocking(False)
    assert caller.connect_ex(("127.0.0.1", listener.getsockname()[1])) != 0
    return caller


def is_through(caller: socket.socket) -> bool:
    return bool(select.select([], [caller], [], 0)[1])


def filter_length(which: socket.socket) -> int:
    """Count instructions, which the kernel gives as the length of what it answers."""
    return len(bytes(which.getsockopt(socket.SOL_SOCKET, 26, 1024)))


def test_only_given_sources_get_a_connection(listener: socket.socket, stack: ExitStack) -> None:
    program = filter_program([ip_network("127.0.0.2"), ip_network("127.0.4.0/22")])
    filter_attach(listener, program)
    for source in ("127.0.0.3", "127.0.8.1", "127.0.3.255", "127.0.0.1"):
        before = num_dropped(listener)
        caller = call(stack, listener, source)
        wait(lambda before=before: num_dropped(listener) > before)  # type: ignore[misc]
        assert not is_through(caller)
    for source in ("127.0.0.2", "127.0.4.1", "127.0.7.255"):
        caller = call(stack, listener, source)
        accepted = stack.enter_context(closing(listener.accept()[0]))
        assert accepted.getpeername()[0].endswith(source)
        assert filter_length(accepted) == len(program) // 8
        wait(lambda caller=caller: is_through(caller))  # type: ignore[misc]
        caller.setblocking(True)
        caller.sendall(b"question")
        assert accepted.recv(8) == b"question"
        accepted.sendall(b"answer")
        assert caller.recv(6) == b"answer"
    assert has_filter(listener)


@pytest.mark.parametrize("source", ["::1", "::/1", "127.0.0.1", "::2", "fd00::/8"])
def test_addresses_of_version_six(source: str, stack: ExitStack) -> None:
    listener = stack.enter_context(closing(socket.socket(socket.AF_INET6)))
    try:
        listener.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6")
    listener.listen()
    filter_attach(listener, filter_program([ip_network(source), ip_network("10.0.0.0/8")]))
    caller = stack.enter_context(closing(socket.socket(socket.AF_INET6)))
    caller.setblocking(False)
    caller.connect_ex(listener.getsockname())
    wait(lambda: is_through(caller) or num_dropped(listener) > 0)
    assert is_through(caller) == (source in {"::1", "::/1"})


def test_datagrams(stack: ExitStack) -> None:
    def bound(host: str) -> socket.socket:
        found = stack.enter_context(closing(socket.socket(type=socket.SOCK_DGRAM)))
        found.bind((host, 0))
        found.settimeout(LIMIT_S)
        return found

    listener, stranger, peer = bound("127.0.0.1"), bound("127.0.0.3"), bound("127.0.0.2")
    filter_attach(listener, filter_program([ip_network("127.0.0.2")]))
    stranger.sendto(b"not mine", listener.getsockname())
    peer.sendto(b"mine", listener.getsockname())
    assert listener.recv(64) == b"mine"
    assert num_dropped(listener) == 1


def test_a_filter_has_a_greatest_length() -> None:
    network = IPv4Network("10.0.0.0/8")
    most = [IPv4Network((int(network.network_address) + number, 32)) for number in range(2043)]
    assert len(filter_program([*most, most[0]])) // 8 <= 4096
    with pytest.raises(ValueError, match="2044 addresses are too many"):
        filter_program([*most, IPv4Network("192.0.2.1/32")])


def test_names_keep_what_they_once_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"node-a": ["192.0.2.1"], "node-b": ["192.0.2.2", "2001:db8::2"]}

    def resolve(host: str, *_: object, **__: object) -> list[object]:
        if host not in answers:
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return [(None, None, None, "", (address, 0)) for address in answers[host]]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    addresses = HostAddresses()
    first = {ip_network(text) for text in ("192.0.2.1", "192.0.2.2", "2001:db8::2", "10.0.0.1")}
    assert addresses.find({"node-a", "node-b", "10.0.0.1"}) == (first, [])
    answers["node-a"] = ["192.0.2.9"]
    del answers["node-b"]
    second = first | {ip_network("192.0.2.9")}
    assert addresses.find({"node-a", "node-b", "10.0.0.1"}) == (second, [])
    of_a = {ip_network("192.0.2.1"), ip_network("192.0.2.9")}
    assert addresses.find({"node-d", "node-c", "node-a"}) == (of_a, ["node-c", "node-d"])
    answers["node-b"] = ["192.0.2.7"]
    assert addresses.find({"node-b"}) == ({ip_network("192.0.2.7")}, [])


def test_this_machine_is_among_its_own_addresses() -> None:
    assert {*LOOPBACK} <= own_addresses()
    assert all(network.num_addresses == 1 for network in own_addresses() - {*LOOPBACK})


def test_the_filter_follows_the_hosts_and_leaves_out_those_without_an_address(
    listener: socket.socket,
    stack: ExitStack,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("agents.trainer.peers.socket_filter.own_addresses", set)
    port = listener.getsockname()[1]
    call(stack, listener, "127.0.0.3")
    early = stack.enter_context(closing(listener.accept()[0]))
    peer_filter = PeerFilter(port, pytest.fail)
    peer_filter.follow({"127.0.0.2"})
    peer_filter.start()
    assert peer_filter.settle(LIMIT_S)
    assert filter_length(early) == filter_length(listener) > 0

    late = stack.enter_context(closing(socket.socket(type=socket.SOCK_DGRAM)))
    late.bind(("127.0.0.1", port))
    assert filter_length(late) == 0
    peer_filter.refresh()
    assert peer_filter.settle(LIMIT_S)
    assert filter_length(late) == filter_length(listener)

    joiner = call(stack, listener, "127.0.0.5")
    wait(lambda: num_dropped(listener) > 0)
    peer_filter.follow({"127.0.0.2", "127.0.0.5"})
    assert peer_filter.settle(LIMIT_S)
    assert "packets" in caplog.text
    stack.enter_context(closing(listener.accept()[0]))  # the joiner tries again by itself
    wait(lambda: is_through(joiner))

    before = filter_length(listener)
    peer_filter.follow({"no-such-host.invalid"})
    assert peer_filter.settle(LIMIT_S)
    assert [filter_length(each) for each in (listener, early, late)] == [before] * 3
    expected = f"not every host of this job can reach port {port}: no address is known of no-such"
    assert expected in caplog.text
    dropped = num_dropped(listener)
    call(stack, listener, "127.0.0.7")
    wait(lambda: num_dropped(listener) > dropped)


def test_too_many_addresses_let_no_stranger_in(
    listener: socket.socket, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner of a name decides how many addresses it has."""
    monkeypatch.setattr("agents.trainer.peers.socket_filter.own_addresses", set)
    many = {ip_network(int(ip_network("10.0.0.0/8").network_address) + n) for n in range(3000)}
    monkeypatch.setattr("agents.trainer.peers.addresses._resolved", lambda _: many)
    peer_filter = PeerFilter(listener.getsockname()[1], pytest.fail)
    peer_filter.follow({"of-a-stranger"})
    with pytest.raises(ValueError, match="too many"):
        peer_filter.apply()
    call(stack, listener, "127.0.0.3")
    wait(lambda: num_dropped(listener) > 0)


def test_sockets_are_found_by_their_local_port(stack: ExitStack) -> None:
    def bound(kind: socket.SocketKind, port: int) -> socket.socket:
        found = stack.enter_context(closing(socket.socket(type=kind)))
        found.bind(("127.0.0.1", port))
        return found

    one = bound(socket.SOCK_STREAM, 0)
    port = one.getsockname()[1]
    bound(socket.SOCK_DGRAM, port)
    bound(socket.SOCK_STREAM, 0)
    stack.enter_context(closing(socket.socketpair()[0]))
    assert {each.type for each in sockets_of(port)} == {socket.SOCK_STREAM, socket.SOCK_DGRAM}
