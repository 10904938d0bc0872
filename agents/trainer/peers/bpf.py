"""Filters the source addresses of a socket's packets with a classic BPF program, on Linux.

A process may filter its own sockets, on newer kernels only with `CAP_NET_ADMIN`. Packets dropped on
a listening TCP socket establish no connection and cause no reply. A connection inherits the filter
that its listener had when it was established. (Measured on Linux 6.18, IPv4 and dual-stack.)
"""

from __future__ import annotations

import ctypes
import errno
import socket
import struct
from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network

Network = IPv4Network | IPv6Network

#: From Linux's asm-generic/socket.h; Python's socket module lacks them.
SO_ATTACH_FILTER = SO_GET_FILTER = 26
SO_MEMINFO, _MEMINFO = 55, struct.Struct("=9I")

#: Most instructions of a program, BPF_MAXINSNS.
MAX_INSTRUCTIONS = 4096
_LOAD_WORD, _LOAD_BYTE, _AND, _JUMP, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x30, 0x54, 0x05, 0x15, 0x06
#: SKF_NET_OFF: offset of loads relative to the network header; the socket's data begin after it.
_NETWORK_HEADER = 2**32 - 0x100000
_FULL_WORD = 2**32 - 1
_SOURCE_OFFSET = {4: 12, 6: 8}

Instruction = tuple[int, int, int, int]
_DROP: Instruction = (_RETURN, 0, 0, 0)
_PASS: Instruction = (_RETURN, 0, 0, _FULL_WORD)


def filter_program(sources: Iterable[Network]) -> bytes:
    """Return the program that passes only packets from `sources`.

    Raises:
        ValueError: the program would be too long for the kernel.
    """
    networks = set(sources)
    # Single IPv4 addresses, the most frequent kind, come first, so that one load serves all.
    tests: dict[int, list[Instruction]] = {4: [_load_source(4, 0)], 6: []}
    for network in sorted(networks, key=lambda network: (-network.prefixlen, str(network))):
        is_loaded = network.version == 4 and network.prefixlen == 32
        tests[network.version] += _source_test(network)[int(is_loaded) :]
    for test in tests.values():
        test.append(_DROP)
    program: list[Instruction] = [
        (_LOAD_BYTE, 0, 0, _NETWORK_HEADER),
        (_AND, 0, 0, 0xF0),
        (_JUMP_IF_EQUAL, 0, 1, 6 << 4),
        (_JUMP, 0, 0, 2 + len(tests[4])),
        (_JUMP_IF_EQUAL, 1, 0, 4 << 4),
        _DROP,
        *tests[4],
        *tests[6],
    ]
    if len(program) > MAX_INSTRUCTIONS:
        raise ValueError(f"{len(networks)} addresses are too many for a filter")
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def filter_attach(which: socket.socket, program: bytes) -> None:
    """Attach the program to a socket, replacing an earlier one.

    Raises:
        OSError: the kernel refuses the program.
    """
    instructions = ctypes.create_string_buffer(program, len(program))
    argument = struct.pack("@HP", len(program) // 8, ctypes.addressof(instructions))
    which.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, argument)


def has_filter(which: socket.socket) -> bool:
    """Return whether a socket has a filter, of any origin."""
    try:
        which.getsockopt(socket.SOL_SOCKET, SO_GET_FILTER, 0)
    except OSError as error:  # EINVAL: it does not fit; EACCES: no classic BPF program
        return error.errno in (errno.EINVAL, errno.EACCES)
    return False


def num_dropped(which: socket.socket) -> int:
    """Return the number of packets dropped by the socket for any reason; 0 if not known."""
    try:
        counts = which.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, _MEMINFO.size)
        return int(_MEMINFO.unpack(counts)[8])
    except (OSError, struct.error):
        return 0


def _load_source(version: int, word: int) -> Instruction:
    return (_LOAD_WORD, 0, 0, _NETWORK_HEADER + _SOURCE_OFFSET[version] + 4 * word)


def _source_test(network: Network) -> list[Instruction]:
    """Return a test that passes packets from `network`; others continue after the test."""
    words = f"!{network.max_prefixlen // 32}I"
    address = struct.unpack(words, network.network_address.packed)
    mask = struct.unpack(words, network.netmask.packed)
    test: list[Instruction] = [_PASS]
    for number in reversed(range(len(address))):
        if mask[number] == 0:
            continue
        load = _load_source(network.version, number)
        cut: list[Instruction] = [] if mask[number] == _FULL_WORD else [(_AND, 0, 0, mask[number])]
        test[:0] = [load, *cut, (_JUMP_IF_EQUAL, 0, len(test), address[number])]
    return test
