"""Reports to peers the generation for which this trainer's runtime is initialised.

A trainer with a fresh runtime must not contact a leader that is about to initialise its own: the
call would reach the leader's old runtime and be lost. So the leader answers queries for its
generation over UDP, on the port number of its collective server, and peers query before they
connect. The answer is one number; the protocol is read-only. If UDP is filtered, peers continue
after a short wait.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable

from agents.trainer.contract.failures import PEER_LOST, TrainerError

ASK = b"virtualflow generation?"
ANSWER = struct.Struct("!16sq")
ANSWER_TAG = b"virtualflow gen "
ASK_EVERY_S = 0.01
#: Time without any answer after which UDP is assumed to be filtered.
SILENCE_LIMIT_S = 3.0
#: Time limit for a leader that answers to become ready.
READY_LIMIT_S = 300.0


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
        threading.Thread(target=self._answer, args=(opened,), name="beacon", daemon=True).start()

    def _answer(self, opened: socket.socket) -> None:
        while True:
            try:
                asked, peer = opened.recvfrom(64)
                if asked == ASK:
                    opened.sendto(ANSWER.pack(ANSWER_TAG, self.generation), peer)
            except OSError:
                time.sleep(ASK_EVERY_S)  # an unreachable peer; the next query may succeed


def _never() -> bool:
    return False


def wait_until_ready(
    address: str, generation: int, is_superseded: Callable[[], bool] = _never
) -> None:
    """Wait until the trainer at `address` is ready for `generation`.

    Raises:
        TrainerError: `peer_lost`, the trainer answered but was not ready in time, or
            `is_superseded` returned True: the generation is over.
    """
    host, _, port = address.rpartition(":")
    started_at = time.monotonic()
    has_answered = False
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.settimeout(ASK_EVERY_S)
        while True:
            answer = _ask(asking, host, int(port))
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


def _ask(asking: socket.socket, host: str, port: int) -> int | None:
    """Query once; returns None without a valid answer within ASK_EVERY_S."""
    requested_at = time.monotonic()
    try:
        asking.sendto(ASK, (host, port))
        tag, generation = ANSWER.unpack(asking.recv(64))
    except (OSError, struct.error):
        time.sleep(max(0.0, ASK_EVERY_S - (time.monotonic() - requested_at)))
        return None
    return int(generation) if tag == ANSWER_TAG else None
