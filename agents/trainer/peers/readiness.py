"""Tells peers which generation this trainer's runtime is set up for.

A trainer that has just initialised its runtime must not call on a leader that is about to do so:
the call would reach the leader's old runtime and be lost. So the leader says over UDP, on the port
number that its collective server has on TCP, how far it is, and newcomers ask before they call. The
answer is one number; nothing can be changed from outside. Where UDP is filtered, newcomers go ahead
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
#: After so long without any answer UDP is taken to be filtered.
SILENCE_LIMIT_S = 3.0
#: A leader that answers, but does not get ready, is given up after this.
READY_LIMIT_S = 300.0


class Beacon:
    """Answers on one UDP port with the newest generation this trainer is ready for.

    Attributes:
        address: where it does; None where it cannot.
    """

    def __init__(self, opened: socket.socket | None) -> None:
        """Answer on a UDP socket of `beacon_socket`; without one peers fall back to waiting."""
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
                time.sleep(ASK_EVERY_S)  # an unreachable peer; the next question may be fine


def _never() -> bool:
    return False


def wait_until_ready(address: str, generation: int, is_void: Callable[[], bool] = _never) -> None:
    """Wait until the trainer at `address` is ready for `generation`.

    Raises:
        TrainerError: `peer_lost`, it answered but did not get ready in time, or `is_void` said that
            the generation is over.
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
            if is_void():
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
    """Ask once; None without a valid answer within ASK_EVERY_S."""
    asked_at = time.monotonic()
    try:
        asking.sendto(ASK, (host, port))
        tag, generation = ANSWER.unpack(asking.recv(64))
    except (OSError, struct.error):
        time.sleep(max(0.0, ASK_EVERY_S - (time.monotonic() - asked_at)))
        return None
    return int(generation) if tag == ANSWER_TAG else None
