"""Users who try to reach each other behind the firewall of an agent, in a network of their own.

`unshare --net python -m tests.security.network_namespace` writes a JSON object to standard output:
the name of a situation -> the targets that user 200001 reaches in it.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
import sys
from ipaddress import ip_address, ip_network

from agents.supervision.firewall import Firewall

UIDS = range(200_000, 200_010)
JOB, OTHER_JOB = 200_001, 200_002
PORTS = (21_000, 21_999)
_SET_FLAGS = 0x8914
_UP_AND_RUNNING = 0x41
_LIMIT_S = 5.0


def interface_up(name: bytes = b"lo") -> None:
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sH14s", name, _UP_AND_RUNNING, b""))


def reaches(uid: int, target: socket.socket) -> bool:
    """Try to send one byte to a target as a user, and see whether it arrives."""
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        with socket.socket(target.family, target.type) as caller:
            caller.settimeout(_LIMIT_S)
            try:
                caller.connect(target.getsockname())
                caller.send(b"x")
            except OSError:
                os._exit(1)
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def main() -> None:
    """Go through the situations."""
    interface_up()
    targets: dict[str, socket.socket] = {}
    for name, family, kind, host, port in (
        ("peer", socket.AF_INET, socket.SOCK_STREAM, "127.0.0.1", 21_001),
        ("peer's beacon", socket.AF_INET, socket.SOCK_DGRAM, "127.0.0.1", 21_001),
        ("trainer of another job", socket.AF_INET, socket.SOCK_STREAM, "127.0.0.1", 21_002),
        ("site", socket.AF_INET, socket.SOCK_STREAM, "127.0.0.1", 8000),
        ("site over IPv6", socket.AF_INET6, socket.SOCK_STREAM, "::1", 8000),
        ("store of data", socket.AF_INET, socket.SOCK_STREAM, "127.0.0.9", 9000),
    ):
        targets[name] = socket.socket(family, kind)
        targets[name].bind((host, port))
        if kind is socket.SOCK_STREAM:
            targets[name].listen()

    def reached(uid: int = JOB) -> list[str]:
        return [name for name, target in targets.items() if reaches(uid, target)]

    loopback = ip_address("127.0.0.1")
    firewall = Firewall(UIDS, PORTS, [])
    firewall.check()
    found = {"no rules": reached()}
    firewall.follow(JOB, frozenset())
    found["no peers"] = reached()
    firewall.follow(JOB, frozenset({(loopback, 21_001)}))
    found["a peer"] = reached()
    found["a job without rules of its own"] = reached(OTHER_JOB)
    found["the agent"] = reached(0)
    firewall.follow(OTHER_JOB, frozenset({(loopback, 21_002)}))
    found["a peer, after a change for another job"] = reached()
    firewall.follow(JOB, frozenset({(ip_address("::1"), 8000)}))
    found["another peer"] = reached()
    firewall.follow(JOB, frozenset({(loopback, None)}))
    found["a peer with GPUs"] = reached()
    Firewall(UIDS, PORTS, [ip_network("127.0.0.8/29")]).follow(JOB, frozenset())
    found["a network for all jobs"] = reached()
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
