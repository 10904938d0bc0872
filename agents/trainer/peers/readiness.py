"""Reports to peers the generation for which this trainer's runtime is initialised.

A trainer with a fresh runtime must not contact a leader that is about to initialise its own: the
call would reach the leader's old runtime and be lost. So the leader answers queries for its
generation over UDP, on the port number of its collective server, and peers query before they
connect. The answer is one number; the protocol is read-only. If UDP is filtered, peers continue
after a short wait.

An answer counts only if it comes from the address that was queried and repeats the random nonce of
the query, so that no other host or process can forge one.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable

from agents.trainer.contract.failures import PEER_LOST, TrainerError

#: Tag and nonce.
QUERY = struct.Struct("!16s16s")
QUERY_TAG = b"virtualflow ask "
#: Tag, nonce of the query, and generation.
ANSWER = struct.Struct("!16s16sq")
ANSWER_TAG = b"virtualflow gen "
ASK_EVERY_S = 0.01
#: Time without any answer after which UDP is assumed to be filtered.
SILENCE_LIMIT_S = 3.0
#: Time limit for a leader that answers to become ready.
READY_LIMIT_S = 300.0
#: Of ip(7); Python 3.11 does not name it. The structure: interface, local and header's address.
_IP_PKTINFO = 8
_PKTINFO = struct.Struct("=i4s4s")


class Beacon:
    """Answers on one UDP port with the newest generation for which this trainer is ready.

    Attributes:
        address: local address of the socket; None without a socket.
    """

    def __init__(self, opened: socket.socket | None) -> None:
        """Answer on a UDP socket of `beacon_socket`; without one, peers fall back to waiting."""
        self.generation = -1
        self.address: tuple[str, int] | None = None
        if opened is None:
            return
        self.address = opened.getsockname()
        opened.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)
        threading.Thread(target=self._answer, args=(opened,), name="beacon", daemon=True).start()

    def _answer(self, opened: socket.socket) -> None:
        """Answer queries from the address that each was sent to, of several that this host has."""
        while True:
            try:
                query, ancillary, _, peer = opened.recvmsg(
                    QUERY.size + 1, socket.CMSG_SPACE(_PKTINFO.size)
                )
                if len(query) != QUERY.size or not query.startswith(QUERY_TAG):
                    continue
                (_, _, pktinfo), *_ = ancillary
                _, local, _ = _PKTINFO.unpack(pktinfo)
                source = (socket.IPPROTO_IP, _IP_PKTINFO, _PKTINFO.pack(0, local, bytes(4)))
                answer = ANSWER.pack(ANSWER_TAG, QUERY.unpack(query)[1], self.generation)
                opened.sendmsg([answer], [source], 0, peer)
            except OSError:
                time.sleep(ASK_EVERY_S)  # an unreachable peer; the next query may succeed


def wait_until_ready(
    address: str, generation: int, is_superseded: Callable[[], bool] = lambda: False
) -> None:
    """Wait until the trainer at `address` is ready for `generation`.

    Raises:
        TrainerError: `peer_lost`, the trainer answered but was not ready in time, or
            `is_superseded` returned True: the generation is over.
    """
    host, _, port = address.rpartition(":")
    started_at = time.monotonic()
    has_answered = False
    nonce = os.urandom(16)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        while True:
            answer = _ask(asking, (host, int(port)), nonce)
            if answer is not None and answer >= generation:
                return
            if is_superseded():
                raise TrainerError(PEER_LOST, f"generation {generation} is over")
            has_answered = has_answered or answer is not None
            waited_s = time.monotonic() - started_at
            if not has_answered and waited_s > SILENCE_LIMIT_S:
                return
            if waited_s > READY_LIMIT_S:
                raise TrainerError(
                    PEER_LOST, f"the leader at {address} did not get ready for {generation}"
                )
            time.sleep(ASK_EVERY_S / 10)


def _ask(asking: socket.socket, address: tuple[str, int], nonce: bytes) -> int | None:
    """Query once; returns None without a valid answer within ASK_EVERY_S, whatever else arrives."""
    ends_at = time.monotonic() + ASK_EVERY_S
    with contextlib.suppress(OSError):
        asking.connect(address)  # other addresses' datagrams do not arrive from now on
        asking.send(QUERY.pack(QUERY_TAG, nonce))
        while (left_s := ends_at - time.monotonic()) > 0:
            asking.settimeout(left_s)
            answer = asking.recv(ANSWER.size + 1)
            if len(answer) == ANSWER.size and answer.startswith(ANSWER_TAG + nonce):
                return int(ANSWER.unpack(answer)[2])
    time.sleep(max(0.0, ends_at - time.monotonic()))
    return None
