"""Ends the wait for peers that have fallen silent: a cut network tells nobody of it.

TensorFlow hears of a peer whose process ends. When packets are lost instead, a collective would
wait until its time limit. So whoever waits long looks whether the peers can still be reached; those
who can may take as long as they need.
"""

from __future__ import annotations

import threading
import time

from agents.trainer.collectives.runtime import CollectiveRuntime
from agents.trainer.peers.reachability import slots_unreachable

LOOK_EVERY_S = 1.0
#: No look as long as collectives take less than this.
PATIENCE_S = 2.0


class PeerWatch:
    """Gives up the collectives of a trainer when two looks on end do not reach the same peer."""

    def __init__(self, runtime: CollectiveRuntime) -> None:
        """Watch nothing yet: see `start`, or call `look`."""
        self._runtime = runtime
        self._suspects: set[int] = set()
        self._generation = -1

    def start(self) -> None:
        """Look again and again, in a thread of its own."""
        threading.Thread(target=self._run, name="peers", daemon=True).start()

    def look(self, now: float) -> None:
        """Look once whether those are there for whom this trainer has waited for long.

        Args:
            now: monotonic seconds.
        """
        since, membership = self._runtime.waiting_since, self._runtime.membership
        if since is None or membership is None or now - since < PATIENCE_S:
            self._suspects.clear()
            return
        if membership.generation != self._generation:
            self._generation = membership.generation
            self._suspects.clear()
        peers = {member.slot for member in membership.members} - {self._runtime.slot}
        silent = {*slots_unreachable(membership.declaration, peers)}
        lost, self._suspects = sorted(silent & self._suspects), silent
        if lost:
            self._runtime.give_up(membership, f"slots {lost} cannot be reached any more")

    def _run(self) -> None:
        while True:
            time.sleep(LOOK_EVERY_S)
            self.look(time.monotonic())
