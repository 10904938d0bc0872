"""Keeps the newest desired state ("wanted state") by long-polling on a thread of its own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from agents.session.backoff import Backoff
from agents.session.client import (
    ControlPlaneAwayError,
    ControlPlaneClient,
    NodeRemovedError,
    RequestRefusedError,
    wished_wait_s,
)
from agents.settings import AgentSettings
from controlplane.core.protocol.node_messages import WantedState

log = logging.getLogger("agents")

LEAST_WAIT_S = 0.2
#: Failures in a row after which the log tells of them.
TOLD_FAILURES = 5


class WantedPoller:
    """A thread that long-polls the desired state, independently of heartbeats.

    Attributes:
        newest: the last desired state; None before the first answer. Replaced, never modified.
        is_removed: whether the control plane reported the node as removed.
    """

    def __init__(
        self, client: ControlPlaneClient, settings: AgentSettings, wake: Callable[[], None]
    ) -> None:
        self.newest: WantedState | None = None
        self.is_removed = False
        self._client = client
        self._wait_s = settings.long_poll_s
        self._backoff = Backoff(settings.backoff_first_s, settings.backoff_cap_s)
        self._wake = wake
        self._stop = threading.Event()
        self._hurry = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wanted", daemon=True)

    def start(self) -> None:
        """Start polling; repeated calls do nothing."""
        if self._thread.ident is None and not self._stop.is_set():  # it has never run
            self._thread.start()

    def stop(self) -> None:
        """Stop polling. A request under way is left to its timeout, on the daemon thread."""
        self._stop.set()
        self._hurry.set()

    def hurry(self) -> None:
        """End the present delay: the control plane answers other requests again."""
        self._hurry.set()

    def _run(self) -> None:
        while not self._stop.is_set() and not self.is_removed:
            try:
                delay_s = self.poll_once()
            except Exception:
                # Without this thread the agent gets no orders. After `stop` the client is closed.
                if self._stop.is_set():
                    return
                log.exception("asking for the wanted state failed")
                delay_s = self._backoff.next_delay_s()
            if delay_s:
                self._hurry.wait(delay_s)
                self._hurry.clear()

    def poll_once(self) -> float:
        """Poll once; return the delay before the next poll, in seconds."""
        version = self.newest.version if self.newest else ""
        requested_at = time.monotonic()
        try:
            newest = self._client.wanted(version, self._wait_s if version else 0.0)
        except NodeRemovedError:
            self.is_removed = True
            self._wake()
            return 0.0
        except (ControlPlaneAwayError, RequestRefusedError) as error:
            delay_s = self._backoff.next_delay_s(wished_wait_s(error))
            # Heartbeats may be taken all the while: then the node looks well and starts nothing.
            level = logging.WARNING if self._backoff.failures == TOLD_FAILURES else logging.DEBUG
            log.log(level, "no wanted state, asking again in %.1f s: %s", delay_s, error)
            return delay_s
        self._backoff.reset()
        if newest is not None and newest.version != version:
            numbers = len(newest.trainers), len(newest.validations)
            log.debug("wanted state %s: %d trainers, %d validations", newest.version, *numbers)
            self.newest = newest
            self._wake()
            return 0.0
        # An immediate answer without a new state must not make this a busy loop.
        return max(0.0, LEAST_WAIT_S - (time.monotonic() - requested_at))
