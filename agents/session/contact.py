"""The agent's connection to the control plane: registration, heartbeats, handling of refusals."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from agents.session.background import Background
from agents.session.backoff import Backoff
from agents.session.client import (
    ConflictResponseError,
    ControlPlaneAwayError,
    ControlPlaneClient,
    NodeRemovedError,
    NotAuthorisedError,
    RequestRefusedError,
    wished_wait_s,
)
from agents.session.outbox import InFlightBatch, Outbox
from agents.session.registration import RefusedError, Registration
from agents.settings import AgentSettings
from agents.supervision.trainer_handle import TrainerHandle
from agents.supervision.validations import ValidationAttempt
from controlplane.core.protocol.node_messages import BatchReply, EnrolReply, TrainerState

log = logging.getLogger("agents")

EXIT_REFUSED = 4
EXIT_REMOVED = 5
LEAST_HEARTBEAT_S = 0.1
#: Least number of tries within a lease to reach a control plane that does not answer.
TRIES_IN_A_LEASE = 4
#: Number of leases that a duplicate agent waits for the other agent's lease to expire.
LEASES_TO_WAIT = 3
#: HTTP statuses that reject the content of the batch itself.
_BATCH_REFUSED = frozenset({400, 413, 422})
#: HTTP status of a control plane that fails, perhaps over the content of the batch. Others from 500
#: on come from proxies, or say that the control plane is away.
_CONTENT_FAILED = 500


@dataclass(frozen=True, slots=True)
class Fatal:
    """The reason why the agent has to end, with its trainers, and its exit status."""

    message: str
    exit_code: int


class Contact:
    """Sends one request at a time: HELLO until it is answered, then batches.

    Attributes:
        reply: reply to the newest HELLO; None before.
        heartbeat_s: longest time between two batches.
        fatal: set when the agent has to end.
    """

    def __init__(
        self,
        client: ControlPlaneClient,
        registration: Registration,
        outbox: Outbox,
        background: Background,
        settings: AgentSettings,
        on_return: Callable[[], None],
    ) -> None:
        """Prepare only; `on_return` is called when the control plane answers again."""
        self.reply: EnrolReply | None = None
        self.heartbeat_s = LEAST_HEARTBEAT_S
        self.fatal: Fatal | None = None
        self._client = client
        self._registration = registration
        self._outbox = outbox
        self._background = background
        self._settings = settings
        self._on_return = on_return
        self._backoff = Backoff(settings.backoff_first_s, settings.backoff_cap_s)
        self._hello: Future[EnrolReply] | None = None
        self._sending: tuple[InFlightBatch, Future[BatchReply]] | None = None
        self._is_registered = False
        self._not_before = 0.0
        self._refused_since: float | None = None
        self._conflict_since: float | None = None

    @property
    def is_idle(self) -> bool:
        """True while no request is under way."""
        return self._hello is None and self._sending is None

    def step(
        self,
        now: float,
        trainers: Sequence[TrainerHandle],
        validations: Sequence[ValidationAttempt],
        wanted_version: str,
    ) -> Sequence[TrainerState]:
        """Process an answer and send a due request; never blocks.

        Returns:
            Trainers that the control plane reports as stale; they have to end.
        """
        was_saying_hello = self._hello is not None
        stale = self._take_answers(now)
        # The loop handles a new node identity before the first batch is sent under it.
        if self.fatal or was_saying_hello or not self.is_idle or now < self._not_before:
            return stale
        if not self._is_registered or self.reply is None:
            self._hello = self._background.start("hello", self._registration.register)
        elif self._outbox.is_due(now, self.heartbeat_s, trainers, validations, wanted_version):
            in_flight = self._outbox.next_batch(now, trainers, validations, wanted_version)
            batch = in_flight.batch
            call = self._background.start("reports", lambda: self._client.send_reports(batch))
            self._sending = (in_flight, call) if call else None
        return stale

    def _take_answers(self, now: float) -> Sequence[TrainerState]:
        if self._hello is not None and self._hello.done():
            hello, self._hello = self._hello, None
            error = hello.exception()
            if error is None:
                self._registered(hello.result())
            else:
                self._hello_failed(now, error)
        if self._sending is not None and self._sending[1].done():
            (in_flight, call), self._sending = self._sending, None
            error = call.exception()
            if error is None:
                self._answered()
                reply = call.result()
                self._outbox.accept(in_flight, reply.report_every_s)
                return reply.stale
            self._batch_failed(now, in_flight, error)
        return ()

    def _registered(self, reply: EnrolReply) -> None:
        if self.reply is None:
            log.info("node %d, heartbeat every %g s", reply.node_id, reply.heartbeat_s)
        self.reply = reply
        # A control plane that was away grants one lease before it counts silence again.
        self._backoff.cap_s = min(self._settings.backoff_cap_s, reply.lease_s / TRIES_IN_A_LEASE)
        self.heartbeat_s = min(max(reply.heartbeat_s, LEAST_HEARTBEAT_S), reply.lease_s / 2)
        self._is_registered = True
        self._conflict_since = None
        self._answered()

    def _answered(self) -> None:
        if self._backoff.failures:
            log.info("the control plane answers again")
            self._on_return()
        self._backoff.reset()
        self._refused_since = None

    def _hello_failed(self, now: float, error: BaseException) -> None:
        if isinstance(error, RefusedError | ValueError):
            self.fatal = Fatal(str(error), EXIT_REFUSED)
        elif isinstance(error, ConflictResponseError):
            self._conflict(now, error)
        else:
            self._failed(now, error)

    def _conflict(self, now: float, error: ConflictResponseError) -> None:
        """Handle another live agent: wait for its lease to end, or end if this agent had one."""
        known = self.reply or self._registration.stored()
        wait_s = LEASES_TO_WAIT * known.lease_s if known and self.reply is None else 0.0
        if self._conflict_since is None:
            self._conflict_since = now
            log.warning(
                "another agent of this node is alive; waiting up to %g s: %s", wait_s, error
            )
        if now - self._conflict_since >= wait_s:
            self.fatal = Fatal(
                f"another agent of this node is alive, so this one ends: {error}", EXIT_REFUSED
            )
            return
        self._not_before = now + self._backoff.next_delay_s()

    def _batch_failed(self, now: float, in_flight: InFlightBatch, error: BaseException) -> None:
        if isinstance(error, ConflictResponseError):
            log.warning("the lease was lost, saying hello again: %s", error)
            self._is_registered = False
            self._not_before = now + self._backoff.next_delay_s()
            return
        is_batch_refused = isinstance(error, RequestRefusedError) and error.status in _BATCH_REFUSED
        if is_batch_refused and self._outbox.refuse(in_flight):
            log.error("a batch of %d was refused: %s", in_flight.num_items, error)
            return
        if isinstance(error, ControlPlaneAwayError) and error.status == _CONTENT_FAILED:
            self._outbox.note_failure(in_flight)
        self._failed(now, error)

    def _failed(self, now: float, error: BaseException) -> None:
        if isinstance(error, NodeRemovedError):
            self.fatal = Fatal(f"this node was removed: {error}", EXIT_REMOVED)
            return
        if isinstance(error, NotAuthorisedError):
            self._refused_since = now if self._refused_since is None else self._refused_since
            if now - self._refused_since >= self._settings.refused_for_s:
                self.fatal = Fatal(
                    "the control plane does not know this agent any more; enrol it anew with a new "
                    f"enrolment token: {error}",
                    EXIT_REFUSED,
                )
                return
        else:
            self._refused_since = None
        delay_s = self._backoff.next_delay_s(wished_wait_s(error))
        self._not_before = now + delay_s
        is_known = isinstance(error, ControlPlaneAwayError | RequestRefusedError)
        is_first = self._backoff.failures == 1
        log.log(
            logging.WARNING if is_first or not is_known else logging.DEBUG,
            "the control plane does not take what it is sent, again in %.1f s: %s",
            delay_s,
            error,
            exc_info=None if is_known else error,
        )
