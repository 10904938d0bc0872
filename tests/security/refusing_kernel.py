"""A trainer on a kernel that refuses socket filters: seccomp(2) answers for the kernel.

`python -m tests.security.refusing_kernel --run-dir DIR ...` is the trainer, killed if it listens
nevertheless; `--late HOST...` has a listener already when filters are refused, of a job whose hosts
come one after the other, and writes the failure.
"""

from __future__ import annotations

import ctypes
import os
import platform
import socket
import struct
import sys

from agents.trainer.contract.failures import TrainerError
from agents.trainer.peers.bpf import SO_ATTACH_FILTER
from agents.trainer.peers.socket_filter import PeerFilter

LIMIT_S = 20.0
_SETSOCKOPT, _LISTEN = {"x86_64": (54, 50), "aarch64": (208, 201)}.get(platform.machine(), (-1, -1))
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _MODE_FILTER = 22, 38, 2
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050001, 0x80000000
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
#: Offsets in struct seccomp_data.
_NUMBER, _OPTION = 0, 16 + 2 * 8


class Program(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def filters_refuse(*, is_total: bool) -> None:
    """Refuse socket filters from now on, in all threads that are started later.

    Args:
        is_total: refuse to bind to a device, too, and kill who listens.
    """
    program = b"".join(
        struct.pack("=HBBI", *instruction)
        for instruction in (
            (_LOAD, 0, 0, _NUMBER),
            (_JUMP_IF_EQUAL, 5, 0, _LISTEN),
            (_JUMP_IF_EQUAL, 0, 3, _SETSOCKOPT),
            (_LOAD, 0, 0, _OPTION),
            (_JUMP_IF_EQUAL, 3, 0, SO_ATTACH_FILTER),
            (_JUMP_IF_EQUAL, 2 if is_total else 0, 0, socket.SO_BINDTODEVICE),
            (_RETURN, 0, 0, _ALLOW),
            (_RETURN, 0, 0, _KILL if is_total else _ALLOW),
            (_RETURN, 0, 0, _REFUSE),
        )
    )
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in (
        (_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(Program(len(program) // 8, program))),
    ):
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


def late(hosts: list[str]) -> None:
    """Filter a listener on a kernel that refuses, for one host of the job more at a time."""

    def give_up(failure: TrainerError) -> None:
        sys.stdout.write(f"{failure.code} {failure.message}")
        sys.stdout.flush()
        os._exit(0)

    with socket.create_server(("", 0)) as listener:
        filters_refuse(is_total=False)
        peer_filter = PeerFilter(listener.getsockname()[1], give_up)
        for host in hosts:
            peer_filter.follow({host})
            if host == hosts[0]:
                peer_filter.start()
            peer_filter.settle(LIMIT_S)
            device = listener.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16)
            sys.stdout.write(f"bound to {device.decode()}\n")


if __name__ == "__main__":
    if sys.argv[1] == "--late":
        late(sys.argv[2:])
    else:
        from agents.trainer.__main__ import main

        filters_refuse(is_total=True)
        sys.exit(main(sys.argv[1:]))
