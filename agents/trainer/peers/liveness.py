"""Aborts collectives that wait for unreachable peers, as after a network partition.

TensorFlow detects a peer whose process ends. If packets are lost instead, a collective would wait
until its time limit. So a trainer that waits long probes its peers; reachable peers may take as
long as they need.
"""

from __future__ import annotations

import threading
import time

from agents.trainer.collectives.runtime import CollectiveRuntime
from agents.trainer.peers.reachability import slots_unreachable

LOOK_EVERY_S = 1.0
#: Waiting time of a collective from which on peers are probed.
PATIENCE_S = 2.0


class PeerWatch:
    """Aborts a trainer's collectives when two consecutive probes do not reach the same peer."""

    def __init__(self, runtime: CollectiveRuntime) -> None:
        """Prepare only; `start` begins to watch, `look` probes once."""
        self._runtime = runtime
        self._suspects: set[int] = set()
        self._generation = -1

    def start(self) -> None:
        """Call `look` periodically, in a thread."""
        threading.Thread(target=self._run, name="peers", daemon=True).start()

    def look(self, now: float) -> None:
        """Probe the peers once if a collective has waited for long; abort it if one is lost.

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
        silent = {*slots_unreachable(membership.cluster_addresses, peers)}
        lost, self._suspects = sorted(silent & self._suspects), silent
        if lost:
            self._runtime.give_up(membership, f"slots {lost} cannot be reached any more")

    def _run(self) -> None:
        while True:
            time.sleep(LOOK_EVERY_S)
            self.look(time.monotonic())
