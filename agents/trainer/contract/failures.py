"""How a trainer ends early: one coded error, reported as `failed`."""

from __future__ import annotations

#: Exit statuses of a trainer, see docs/protocol.md.
EXIT_DONE = 0
EXIT_FAILED = 3

#: Code of the one failure that a trainer survives: it keeps its state and waits for orders.
PEER_LOST = "peer_lost"
#: Code of a trainer that was to go on while its variables are at most half of the lost state.
STATE_LOST = "state_lost"


class TrainerError(Exception):
    """The trainer cannot go on.

    Attributes:
        code: `user_code`, `out_of_memory`, `peer_lost`, `state_lost`, `port_in_use`, `internal`,
            `nonfinite_loss` or `nonfinite_metric`.
        traceback: frames that help whoever has to act, empty when the message says it all.
    """

    def __init__(self, code: str, message: str, traceback: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.traceback = traceback
