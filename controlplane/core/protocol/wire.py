"""The agent protocol, version 1: messages of agents and trainers, and what other messages contain.

Every message is a frozen dataclass; `encode` turns one into plain JSON values and `decode` turns
JSON values into one, checking every field. Unknown fields are ignored, so that an older reader
understands a newer writer; a missing or ill-typed field is refused with its path.

Two conversations use these messages:

* agent <-> control plane, over HTTP (see jobs/api/agent), with those of `node_messages`: enrol,
  fetch `WantedState`, send `ReportBatch`, upload and download files;
* agent <-> trainer, over files in the trainer's run directory: the agent writes `orders.json`
  (`TrainerOrders`, replaced atomically), the trainer appends lines to `reports.jsonl`
  (`TrainerReport`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from controlplane.core.protocol.codec import Message as Message
from controlplane.core.protocol.codec import decode as decode
from controlplane.core.protocol.codec import encode as encode
from controlplane.core.protocol.fork import Adoption, ForkSpec
from controlplane.core.protocol.selection import SelectionSpec
from controlplane.core.protocol.tuning import TuningSpec

PROTOCOL_VERSION = 1
#: Least time between a trainer's reports of steps, which is also that of a control plane at ease.
REPORT_EVERY_S = 0.5


class ReductionMode(StrEnum):
    """How gradients of virtual nodes are combined."""

    EXACT = "exact"  # one fixed tree over virtual-node index: bitwise equal on any mapping
    FAST = "fast"  # the runtime's own all-reduce


class Task(StrEnum):
    """Operation of a job on its model and its data."""

    TRAIN = "train"
    PREDICT = "predict"  # one pass over the data in its own order; the model's outputs are kept


class StopKind(StrEnum):
    """Criterion that ends a job."""

    STEPS = "steps"
    EPOCHS = "epochs"
    METRIC = "metric"


class OnNonfinite(StrEnum):
    """The choice of a job for a loss or metric that becomes nan or infinite."""

    STOP = "stop"  # it fails at that step
    CONTINUE = "continue"  # it trains on, and reports that


@dataclass(frozen=True, slots=True, kw_only=True)
class StopCondition:
    """Condition under which a job is finished.

    Attributes:
        kind: count steps, count epochs, or watch a metric at each epoch's end.
        limit: number of steps or epochs; for a metric the largest number of epochs (always bounds).
        metric: name in the epoch's logs ("val_accuracy"), metric stops only.
        target: value to reach, metric stops only.
        higher_is_better: whether reaching means >= target (True) or <= target (False).
    """

    kind: StopKind
    limit: int
    metric: str | None = None
    target: float | None = None
    higher_is_better: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSpec:
    """Computation of a job; fixed for its whole life.

    Attributes:
        job_id: 0 for a run without a control plane.
        entry_file: the Python file with `build(settings)`, relative to the unpacked code.
        code_sha256: digest of the uploaded code archive or file.
        settings: passed to `build` as a plain dict.
        global_batch_size: examples of a step, as submitted; validation always uses as many.
        batch_size_min, batch_size_max: bounds of the size that memberships may use instead (both or
            none); learning rates are then scaled to the batch.
        on_nonfinite: reaction to a loss or metric that is nan or infinite.
        shuffle: whether each epoch visits the examples in a fresh seeded order.
        checkpoint_every_s: interval at which the leader saves the whole state during training, in
            case all trainers are lost; 0: never.
        task: a prediction job stops after one epoch, its pass over the data.
        model_sha256: digest of `source.keras` beside the code, which a prediction job uses instead
            of the model that its code builds.
        merges: whether virtual nodes on one accelerator may run together in fast mode; False where
            a validation has found that the model's results differ then.
        selection: selects the training examples of some epochs; None: all are trained on.
        fork: state of another job from which this one starts; None: it starts from its seed.
        tuning: searches better tunables in short trials while it trains; None: it keeps its own.
    """

    job_id: int
    name: str
    entry_file: str
    code_sha256: str
    settings: dict[str, Any]
    global_batch_size: int
    num_virtual_nodes: int
    seed: int
    reduction: ReductionMode
    stop: StopCondition
    shuffle: bool = True
    checkpoint_every_s: float = 0.0
    task: Task = Task.TRAIN
    model_sha256: str | None = None
    batch_size_min: int | None = None
    batch_size_max: int | None = None
    merges: bool = True
    on_nonfinite: OnNonfinite = OnNonfinite.STOP
    selection: SelectionSpec | None = None
    fork: ForkSpec | None = None
    tuning: TuningSpec | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceleratorInfo:
    """One device as its agent reports it. `threads` is the CPU thread budget of an emulated one."""

    index: int
    kind: str
    name: str
    memory_bytes: int
    threads: int = 0
    uuid: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotAddress:
    """A declared place for a trainer: its number, never reused in a job, and its RPC address."""

    slot: int
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One trainer of a membership and the virtual nodes it runs, ascending."""

    slot: int
    node_id: int
    accelerator_index: int
    virtual_nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """The trainers of a job in one generation.

    Attributes:
        members: in slot order of seniority; empty: save a checkpoint and leave.
        leader_slot: resolves collectives and reports for the job; None only without members.
        source_slot: a trainer of the previous generation that sends its state to the joiners; it
            takes part in the switch even if it is no longer a member. None: no trainer has the
            state, the leader creates it (from the seed, or from the checkpoint with `restore`).
        cluster_addresses: every slot known to the runtime, a superset of members and source. While
            (cluster_addresses, leader_slot) stay the same a switch needs no re-initialisation.
        recover: a trainer was lost. Members abort their waits, initialise their runtimes, and the
            most advanced member sends its state to the others (`source_slot` is None).
        parked: the members are too few: they keep their state and do no steps until new orders.
        global_batch_size: examples of a training step; None: as in the spec.
        resume_at: number of examples, from the first on, with safe predictions; a prediction job
            continues after them, whatever its members' positions. None: at their positions.
        epochs_known: number of the first epoch that the control plane has no report of; the leader
            reports its history from there on, as a former leader may be lost with its reports.
            None: nothing is missing.
        steps_known: number of steps, from the first on, that the control plane has reports of; the
            leader reports later ones that it has in memory. None: nothing is missing.
        adoption: state that the members, who are those of the previous generation, go on with; each
            reads it from its own copy. None: with their own.
    """

    generation: int
    members: tuple[Member, ...]
    leader_slot: int | None
    source_slot: int | None
    cluster_addresses: tuple[SlotAddress, ...]
    restore: bool = False
    recover: bool = False
    parked: bool = False
    global_batch_size: int | None = None
    resume_at: int | None = None
    epochs_known: int | None = None
    steps_known: int | None = None
    adoption: Adoption | None = None

    @property
    def slots(self) -> tuple[int, ...]:
        """The slots of the members, in order."""
        return tuple(member.slot for member in self.members)

    def member(self, slot: int) -> Member | None:
        """Find the member in `slot`."""
        return next((member for member in self.members if member.slot == slot), None)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses of members, leader and source, as in cluster_addresses."""
        taking_part = {*self.slots, self.leader_slot, self.source_slot}
        return tuple(row.address for row in self.cluster_addresses if row.slot in taking_part)

    @property
    def hosts(self) -> frozenset[str]:
        """The hosts of `addresses`: names, or addresses without brackets."""
        hosts = (address.rpartition(":")[0] for address in self.addresses)
        return frozenset(host.strip("[]") for host in hosts)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerOrders:
    """Desired state of one trainer process (`orders.json`).

    Attributes:
        slot: fixed for the life of the process.
        membership: the newest generation that includes this trainer, or that ends its part.
        go: False while joiners of `membership` still boot: a joiner gets ready and waits, an old
            member continues as before. True: old members switch after a common step, joiners join.
        checkpoint_path: a local checkpoint file to start from when `membership.restore` is set.
        profile: whether a joiner times its own virtual nodes while it gets ready; see `ready`.
        peers: hosts whose trainers may connect besides those of `membership`: those of a generation
            in preparation that is otherwise unknown to this trainer.
        save_request: number of a request to save the state between two steps, which the leader
            follows once; 0: there is none.
        adopted_path: a local copy of the state of `membership.adoption`, once it is there.
        report_every_s: least time between two reports of steps, but for the first of a membership.
    """

    spec: TrainingSpec
    slot: int
    accelerator: AcceleratorInfo
    membership: Membership
    go: bool
    checkpoint_path: str | None = None
    profile: bool = False
    peers: tuple[str, ...] = ()
    save_request: int = 0
    adopted_path: str | None = None
    report_every_s: float = REPORT_EVERY_S


class ReportKind(StrEnum):
    """Type of a trainer report; see TRAINER_REPORT_DATA in the docs for the data of each."""

    PHASE = "phase"
    READY = "ready"
    SWITCHED = "switched"
    DIGEST = "digest"
    STEPS = "steps"
    EPOCH = "epoch"
    CHECKPOINTED = "checkpointed"
    PART = "part"  # of the predictions
    SELECTION_ENDED = "selection_ended"
    TRIAL = "trial"  # of a tuned job
    LEFT = "left"
    FINISHED = "finished"
    FAILED = "failed"
    STALLED = "stalled"
    EXITED = "exited"  # written by the agent: the process is gone


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerReport:
    """One line of a trainer's `reports.jsonl`.

    Attributes:
        sequence: 0, 1, 2 ... per trainer; the control plane drops repeats by (job, slot, sequence).
        at: seconds since the epoch on the node's clock.
        data: by kind; times in seconds, sizes in bytes.
    """

    job_id: int
    slot: int
    generation: int
    sequence: int
    at: float
    kind: ReportKind
    data: dict[str, Any] = field(default_factory=dict)
