"""The coded error that ends a trainer early, reported as FAILED; exit statuses."""

from __future__ import annotations

#: Exit statuses of a trainer, see docs/protocol.md.
EXIT_DONE = 0
EXIT_FAILED = 3

#: Code of the only failure that a trainer survives: it keeps its state and waits for orders.
PEER_LOST = "peer_lost"
#: Code of a trainer ordered to continue that has at most a part of the lost state.
STATE_LOST = "state_lost"


class TrainerError(Exception):
    """The trainer cannot continue.

    Attributes:
        code: `user_code`, `out_of_memory`, `peer_lost`, `state_lost`, `port_in_use`, `internal`,
            `nonfinite_loss` or `nonfinite_metric`.
        traceback: frames that help to diagnose the failure; empty if the message suffices.
    """

    def __init__(self, code: str, message: str, traceback: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.traceback = traceback
