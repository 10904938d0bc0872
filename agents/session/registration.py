"""Registration of an agent: enrol once, send HELLO at every start and after a lost lease."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from agents.session.client import (
    ConflictResponseError,
    ControlPlaneClient,
    NotAuthorisedError,
    RequestRefusedError,
)
from agents.settings import AgentSettings
from agents.state_directory import StateDirectory
from controlplane.core.protocol.node_messages import EnrolReply, EnrolRequest, HelloRequest
from controlplane.core.protocol.wire import AcceleratorInfo

log = logging.getLogger("agents")


class RefusedError(Exception):
    """The agent cannot continue; the message states the reason and the fix."""


class Registration:
    """Describes this node to the control plane, and stores the credentials received.

    Attributes:
        is_new_node: set by an enrolment as another node: trainers still in the state directory
            belong to this agent's former node.
    """

    def __init__(
        self,
        settings: AgentSettings,
        state: StateDirectory,
        client: ControlPlaneClient,
        host: str,
        accelerators: Sequence[AcceleratorInfo],
    ) -> None:
        self.boot_id = state.boot_id()
        self.is_new_node = False
        self._settings = settings
        self._state = state
        self._client = client
        self._host = host
        self._accelerators = tuple(accelerators)

    def stored(self) -> EnrolReply | None:
        """Return the reply of an earlier enrolment, if any.

        Raises:
            ValueError: the state directory belongs to another control plane.
        """
        return self._state.credentials(self._settings.server)

    def register(self) -> EnrolReply:
        """Send HELLO with the stored token, enrolling first if necessary.

        Raises:
            RefusedError: registration is not possible without a change by the operator.
            ConflictError: another living agent is registered for this node.
            ControlPlaneAwayError, NotAuthorisedError, NodeRemovedError, RequestRefusedError.
        """
        reply = self.stored() or self._enrol()
        try:
            answered = self._hello(reply)
        except NotAuthorisedError:
            if not self._settings.enrolment_token:
                raise
            log.warning("the stored agent token is not known any more; enrolling anew")
            reply = self._enrol()
            answered = self._hello(reply)
        if answered != reply:
            # Stored before it is used: its first use ends the old token.
            try:
                self._state.keep_credentials(self._settings.server, answered)
            except OSError as error:
                log.warning("the control plane's answer cannot be stored, going on: %s", error)
            else:
                self._client.authorise(answered.agent_token)
        return answered

    def _enrol(self) -> EnrolReply:
        settings = self._settings
        if not settings.enrolment_token:
            raise RefusedError(
                f"{self._state.path} is not enrolled yet; an admin makes an enrolment token on the "
                "nodes page, give it with --enrolment-token or VIRTUALFLOW_ENROLMENT_TOKEN (or its "
                "file in VIRTUALFLOW_ENROLMENT_TOKEN_FILE)"
            )
        request = EnrolRequest(
            token=settings.enrolment_token, name=settings.node, **self._present()
        )
        try:
            reply = self._client.enrol(request)
        except (ConflictResponseError, NotAuthorisedError) as error:
            raise RefusedError(f"enrolment was refused, ask for a new token: {error}") from error
        except RequestRefusedError as error:
            raise RefusedError(f"enrolment was refused: {error}") from error
        former = self.stored()
        self._state.keep_credentials(settings.server, reply)
        self.is_new_node = former is None or former.node_id != reply.node_id
        log.info("enrolled as node %d", reply.node_id)
        self._delete_token_file()
        return reply

    def _delete_token_file(self) -> None:
        path = self._settings.enrolment_token_file
        if path is None:
            return
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("the used enrolment token is still there, delete it: %s", error)

    def _hello(self, reply: EnrolReply) -> EnrolReply:
        self._client.authorise(reply.agent_token)
        return self._client.hello(HelloRequest(**self._present()))

    def _present(self) -> dict[str, Any]:
        """Return what enrolment and hello tell alike."""
        return {
            "host": self._host,
            "first_port": self._settings.first_port,
            "last_port": self._settings.last_port,
            "boot_id": self.boot_id,
            "accelerators": self._accelerators,
            "isolation": self._settings.isolation,
            "filters_peers": self._settings.peer_filter,
        }
