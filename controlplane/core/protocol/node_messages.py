"""Messages of agents and the control plane, over HTTP; see `wire` for their form and their parts.

An agent enrols, says hello, fetches its `WantedState`, and sends a `ReportBatch` as its heartbeat.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from controlplane.core.protocol.fork import Adoption
from controlplane.core.protocol.wire import (
    PROTOCOL_VERSION,
    REPORT_EVERY_S,
    AcceleratorInfo,
    Membership,
    TrainerReport,
    TrainingSpec,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HelloRequest:
    """An enrolled agent's (re)start: its present addresses and accelerators, and its boot id.

    Attributes:
        isolation: how jobs run there, "uid" (each as a user of its own) or "none".
        filters_peers: trainers start only if they drop packets from outside their job.
    """

    host: str
    first_port: int
    last_port: int
    boot_id: str
    accelerators: tuple[AcceleratorInfo, ...]
    isolation: str = "none"
    filters_peers: bool = True
    protocol: int = PROTOCOL_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrolRequest(HelloRequest):
    """Registration of a new node, with the one-time token that an admin created for it."""

    token: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrolReply:
    """The agent's own credentials, its heartbeat interval and its lease."""

    node_id: int
    agent_token: str
    heartbeat_s: float
    lease_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedTrainer:
    """A trainer that is to exist on a node.

    Attributes:
        code_name: file name of the job's code as uploaded (".py" or ".zip").
        checkpoint_sha256: set when a checkpoint must be fetched before the trainer starts.
        profile, peers, save_request: as in `TrainerOrders`.
        adoption: a state that a coming membership will adopt; the agent fetches it beforehand.
        secrets: variables of the trainer's environment that no file, log or report may have.
        was_ready: it has reported that it was ready; an agent without it reports that it is gone.
    """

    spec: TrainingSpec
    slot: int
    accelerator_index: int
    membership: Membership
    go: bool
    code_name: str
    checkpoint_sha256: str | None = None
    profile: bool = False
    peers: tuple[str, ...] = ()
    save_request: int = 0
    adoption: Adoption | None = None
    secrets: dict[str, str] = field(default_factory=dict, repr=False)
    was_ready: bool = False


#: Largest part by which a busy machine may stretch the time limit of a validation.
BUSY_FACTOR = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedValidation:
    """A job whose code is to be built once on this node, in a process that is then discarded.

    Attributes:
        spec: its `job_id` is 0 before the job is submitted.
        timeout_s: limit, without the time for which it waits for a processor, which may make it
            `BUSY_FACTOR` times as long.
        secrets: as in `WantedTrainer`.
    """

    validation_id: int
    spec: TrainingSpec
    attempt: int
    code_name: str
    timeout_s: float
    secrets: dict[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedState:
    """Desired state of a node. Processes that are not in it have to end.

    Attributes:
        version: digest of the content, with secrets as they are stored, encrypted; a long-poll
            returns when it differs from the agent's.
    """

    version: str
    trainers: tuple[WantedTrainer, ...]
    validations: tuple[WantedValidation, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerState:
    """A trainer process that an agent owns now; `adoption`: the newest whose state it has."""

    job_id: int
    slot: int
    generation: int
    accelerator_index: int
    pid: int
    adoption: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogChunk:
    """Part of a trainer's log: text that starts at byte `offset` of that trainer's log."""

    job_id: int
    slot: int
    offset: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationReport:
    """Result of a validation.

    Attributes:
        validation_id, attempt: of the `WantedValidation`, set by the agent.
        code: machine-readable error code ("user_code", "custom_train_step"), None when valid.
        field: the field of the submission that has to change.
        facts: num_parameters, num_examples, steps_per_epoch, state_bytes, warnings ...
    """

    validation_id: int = 0
    attempt: int = 0
    ok: bool
    code: str | None = None
    field: str | None = None
    message: str = ""
    traceback: str = ""
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportBatch:
    """A heartbeat with all events on a node since the last accepted one.

    Attributes:
        sent_at: by the node's clock, to find out how far that is behind.
        trainers: trainers that the agent owns now, also while it still fetches their code (pid 0).
        wanted_version: version of the wanted state in force when the agent listed them; a trainer
            of this node that is neither in that state nor in `trainers` is gone.
        readings: see protocol/readings.py; received as plain values, so that a wrong one does not
            keep out the batch. Older agents send none.
    """

    boot_id: str
    sent_at: float
    trainers: tuple[TrainerState, ...]
    reports: tuple[TrainerReport, ...]
    logs: tuple[LogChunk, ...]
    validations: tuple[ValidationReport, ...]
    wanted_version: str = ""
    readings: Any = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReply:
    """Acceptance of the whole batch.

    Attributes:
        stale: trainers that reported for an old generation.
        report_every_s: time that trainers of this node should leave between two reports of steps;
            so long reports of steps and logs may wait at the agent as well.
    """

    stale: tuple[TrainerState, ...]
    report_every_s: float = REPORT_EVERY_S
