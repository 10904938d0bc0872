"""A listener, a caller and an eavesdropper, each a process in some network namespace.

`python -m tests.security.network_probe listen PORT` answers what it gets over TCP and UDP, IPv4 and
IPv6, until its input ends, and writes a line for each arrival: protocol and source address.
`call SECONDS PORT ADDRESS...` writes, as JSON, for each address over which protocols it answers.
`overhear` writes, when its input ends, whether MESSAGE was in a packet of any interface.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address

MESSAGE = b"the parameters of a model"
READY = "ready"
_ALL_PACKETS = 3
#: Seconds that a caller may be silent, and between two datagrams, of which one may be lost.
_LIMIT_S, _AGAIN_S = 5.0, 0.2


def _write(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def listen(port: int) -> None:
    """Answer until the input ends."""
    stream = socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
    packets = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    packets.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    packets.bind(("::", port))
    selector = selectors.DefaultSelector()
    selector.register(stream, selectors.EVENT_READ)
    selector.register(packets, selectors.EVENT_READ)
    selector.register(sys.stdin, selectors.EVENT_READ)
    _write(READY)
    while True:
        for key, _ in selector.select():
            if key.fileobj is sys.stdin:
                return
            if key.fileobj is packets:
                message, source = packets.recvfrom(len(MESSAGE))
                packets.sendto(message, source)
                _write(f"udp {_plain(source[0])}")
                continue
            connection, source = stream.accept()
            with connection:
                connection.settimeout(_LIMIT_S)
                connection.sendall(connection.recv(len(MESSAGE)))
            _write(f"tcp {_plain(source[0])}")


def _plain(address: str) -> str:
    parsed = ip_address(address)
    return str(getattr(parsed, "ipv4_mapped", None) or parsed)


def _answers(address: str, protocol: str, port: int, within_s: float) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    kind = socket.SOCK_STREAM if protocol == "tcp" else socket.SOCK_DGRAM
    end = time.monotonic() + within_s
    with socket.socket(family, kind) as caller:
        caller.settimeout(within_s if protocol == "tcp" else _AGAIN_S)
        while time.monotonic() < end:
            try:
                caller.connect((address, port))
                caller.send(MESSAGE)
                return caller.recv(len(MESSAGE)) == MESSAGE
            except TimeoutError:
                continue
            except OSError:
                return False
    return False


def call(within_s: float, port: int, addresses: list[str]) -> None:
    """Try all addresses at once."""
    ways = [(address, protocol) for address in addresses for protocol in ("tcp", "udp")]
    with ThreadPoolExecutor(len(ways)) as pool:
        answered = list(pool.map(lambda way: _answers(*way, port, within_s), ways))
    reached = [way for way, answer in zip(ways, answered, strict=True) if answer]
    found = [[protocol for to, protocol in reached if to == address] for address in addresses]
    _write(json.dumps(found))


def overhear() -> None:
    """Read all packets that this namespace sees."""
    heard = False
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PACKETS)) as packets:
        selector = selectors.DefaultSelector()
        selector.register(packets, selectors.EVENT_READ)
        selector.register(sys.stdin, selectors.EVENT_READ)
        _write(READY)
        ended = False
        while True:
            ready = [key.fileobj for key, _ in selector.select(0 if ended else None)]
            if packets in ready:
                heard |= MESSAGE in packets.recv(65_535)
            elif ended:
                break
            ended |= sys.stdin in ready
    _write(json.dumps(heard))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["listen", port]:
            listen(int(port))
        case ["call", within_s, port, *addresses]:
            call(float(within_s), int(port), addresses)
        case ["overhear"]:
            overhear()
