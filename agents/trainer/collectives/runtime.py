"""Every use of TensorFlow's internal modules: the multi-client collective runtime.

TensorFlow 2.21 is pinned; an upgrade affects this file only. A process enables collective
operations once, before any variable exists. A group of processes is identified by its group key:
`group_size`, `group_key` and `instance_key` are tensors, so one traced function serves every
membership. The runtime is re-initialised only if the declared addresses or the leader change;
this keeps all variables and drops the compiled functions.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import tensorflow_server_pb2
from tensorflow.python.eager import context
from tensorflow.python.ops import collective_ops

from agents.trainer.collectives.devices import is_emulated
from agents.trainer.collectives.groups import TrainerGroup
from agents.trainer.contract.failures import PEER_LOST, TrainerError
from agents.trainer.contract.ports import HeldPort, declared_address
from controlplane.core.protocol.wire import AcceleratorInfo, Membership, SlotAddress

Tensor = Any
logger = logging.getLogger(__name__)

#: Time limit of a collective. The longest legitimate wait is for a peer whose step takes that long.
COLLECTIVE_LIMIT_S = 300.0
GUARD_EVERY_S = 1.0
JOB_NAME = "worker"
NO_GENERATION = -1
#: Delay between a failure and re-initialisation. TensorFlow's threads still propagate the failure
#: through objects that initialisation frees. A process that initialised at once crashed in a test;
#: this cause is likely, not proven.
SETTLE_S = 0.05
#: Time limit and poll interval of waiting for aborted collectives in other threads to end.
OTHERS_LIMIT_S, OTHERS_EVERY_S = 5.0, 0.002
CAUSE = "Collective ops is aborted by: "
CAUSE_LENGTH = 300

#: Errors that mean "a peer is gone, or the group was given up", not "the model is wrong".
PEER_ERRORS = (
    tf.errors.UnavailableError,
    tf.errors.DeadlineExceededError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.FailedPreconditionError,
    tf.errors.UnknownError,
    tf.errors.InternalError,  # the requested data was dropped when the peer re-initialised
)


class CollectiveRuntime:
    """A process's part in the collective runtime: its slot, and the addresses in force."""

    def __init__(
        self, slot: int, accelerator: AcceleratorInfo, held: HeldPort | None = None
    ) -> None:
        """Prepare without connecting.

        Args:
            held: this trainer's own port; None: `connect` takes the port.
        """
        self.slot = slot
        self._held = held
        self.hint = "auto" if is_emulated(accelerator) else "nccl"
        self._cluster_addresses: tuple[SlotAddress, ...] = ()
        self._leader_slot: int | None = None
        #: The present membership; None during boot, when peers may not be reachable yet.
        self.membership: Membership | None = None
        #: By thread: start and deadline (monotonic) of the collective that runs there.
        self._spans: dict[int, tuple[float, float]] = {}
        #: Makes an abort atomic with the check of the generation that it is meant for.
        self._lock = threading.Lock()
        self._generation = NO_GENERATION
        self._min_generation = 0
        self._is_renewed = False
        self._is_given_up = False
        self._failed_at = -math.inf
        threading.Thread(target=self._guard, name="guard", daemon=True).start()

    def connect(self, membership: Membership, reinitialize: bool = False) -> bool:
        """Use a membership's addresses and leader; return whether the runtime is initialised.

        Args:
            reinitialize: initialise in any case, as after a failed collective. Variables are kept.

        Raises:
            TrainerError: `port_in_use`, this trainer's own port is taken by another process;
                `peer_lost`, there are orders to recover in a later generation.
        """
        with self._lock:
            if membership.generation < self._min_generation:
                raise TrainerError(PEER_LOST, f"generation {membership.generation} is over")
            is_new_runtime = reinitialize or self._is_renewed or self.needs_connect(membership)
            if self._cluster_addresses:  # not the first call, which is part of the boot
                self.membership = membership
            if self.needs_connect(membership) or (reinitialize and not self._is_renewed):
                if not self._cluster_addresses:
                    self._port_hold(declared_address(membership.cluster_addresses, self.slot))
                self._enable(membership)
                self.port.hand_on()
            self._is_renewed = False
            self._generation = membership.generation
            return is_new_runtime

    def renew(self, membership: Membership) -> None:
        """Initialise the runtime after a failure, before the orders to recover arrive.

        If the orders name the addresses and leader of `membership`, `connect` keeps the runtime and
        the functions compiled meanwhile. Until then no collective can run.
        """
        with self._lock:
            self._enable(membership)
            self._generation = NO_GENERATION  # no collective is under way that could be aborted
            self._is_renewed = True

    @property
    def port(self) -> HeldPort:
        """The trainer's own port; available once the runtime has connected."""
        assert self._held is not None, "a runtime that has connected has a port"
        return self._held

    @property
    def is_superseded(self) -> bool:
        """Return whether the generation of the last `connect` was aborted."""
        return self._generation < self._min_generation

    def abort_before(self, generation: int) -> None:
        """Fail the collectives of all generations before `generation`, from another thread.

        The lock is held while a generation is entered, so a late call cannot hit the next one.
        """
        with self._lock:
            if generation <= self._min_generation:
                return
            self._min_generation = generation
            if NO_GENERATION < self._generation < generation:
                self._abort(f"generation {self._generation} is over")

    def needs_connect(self, membership: Membership) -> bool:
        """Return whether `connect` with `membership` initialises the runtime (again)."""
        leader_slot = self._leader(membership)
        wanted = membership.cluster_addresses, leader_slot
        return wanted != (self._cluster_addresses, self._leader_slot)

    def _port_hold(self, address: str) -> None:
        """Hold this trainer's own port and let TensorFlow's server, and no other, listen there."""
        try:
            self._held = self._held or HeldPort.take(address)
        except OSError as error:
            raise TrainerError(
                "port_in_use",
                f"port {address.rpartition(':')[2]} of this trainer is taken: "
                f"{os.strerror(error.errno or 0)}",
            ) from error
        self._held.share()

    def _leader(self, membership: Membership) -> int | None:
        return self._leader_slot if membership.leader_slot is None else membership.leader_slot

    def _enable(self, membership: Membership) -> None:
        self._let_others_out()
        time.sleep(max(0.0, self._failed_at + SETTLE_S - time.monotonic()))
        leader_slot = self._leader(membership)
        definition = tensorflow_server_pb2.ServerDef(
            protocol="grpc", job_name=JOB_NAME, task_index=self.slot
        )
        job = definition.cluster.job.add()
        job.name = JOB_NAME
        for declared in membership.cluster_addresses:
            job.tasks[declared.slot] = declared.address
        leader = f"/job:{JOB_NAME}/replica:0/task:{leader_slot}"
        definition.default_session_config.experimental.collective_group_leader = leader
        try:
            context.context().enable_collective_ops(definition)
            context.ensure_initialized()
        except tf.errors.OpError as error:
            address = declared_address(membership.cluster_addresses, self.slot)
            raise TrainerError(
                "port_in_use", f"the collective server cannot listen on {address}: {error.message}"
            ) from error
        self._is_given_up = False
        self._cluster_addresses = membership.cluster_addresses
        self._leader_slot = leader_slot

    def _let_others_out(self) -> None:
        """Abort collectives of other threads and wait for their end, at most `OTHERS_LIMIT_S`.

        Initialising the runtime frees objects that they use, so continuing before they end can
        crash this process. The runtime continues nevertheless, with a warning: the peers survive a
        crash, and the agent detects it at once. A trainer that kept waiting would block all peers
        until the control plane gave it up, and would be lost as well.
        """
        if not self._spans:
            return
        self._abort("the runtime begins anew")
        until = time.monotonic() + OTHERS_LIMIT_S
        while self._spans and time.monotonic() < until:
            time.sleep(OTHERS_EVERY_S)
        if self._spans:
            logger.warning(
                "%d collectives in other threads have not ended %g s after they were aborted; "
                "the runtime begins anew under them",
                len(self._spans),
                OTHERS_LIMIT_S,
            )

    @contextmanager
    def collective(self, limit_s: float = COLLECTIVE_LIMIT_S) -> Iterator[None]:
        """Run a collective inside the block, with a time limit; converts errors to `TrainerError`.

        The thread `guard` enforces the limit: with the operations' own `timeout` TensorFlow keeps
        a sleeping thread per operation until the time has passed, hundreds within seconds.

        Raises:
            TrainerError: `peer_lost`, or `internal` if no peer is the cause.
        """
        if self.is_superseded or self._is_renewed:
            raise TrainerError(PEER_LOST, f"generation {self._generation} is over")
        thread, now = threading.get_ident(), time.monotonic()
        self._spans[thread] = now, now + limit_s
        try:
            yield
        except PEER_ERRORS as error:
            self._failed_at = time.monotonic()
            raise TrainerError(PEER_LOST, f"a peer is gone: {_cause(error.message)}") from error
        except tf.errors.OpError as error:
            raise TrainerError(
                "internal", f"a collective failed: {_cause(error.message)}"
            ) from error
        finally:
            del self._spans[thread]

    @property
    def waiting_since(self) -> float | None:
        """Start (monotonic) of the oldest collective under way; None without any."""
        return min((began_at for began_at, _ in list(self._spans.values())), default=None)

    def give_up(self, membership: Membership, message: str) -> None:
        """Abort, from another thread, collectives under way if they belong to `membership`."""
        with self._lock:
            is_current = self._generation == membership.generation
            if is_current and self._spans and not self._is_given_up:
                self._is_given_up = True
                self._abort(message)

    def _guard(self) -> None:
        while True:
            time.sleep(GUARD_EVERY_S)
            with self._lock:
                is_late = any(at < time.monotonic() for _, at in list(self._spans.values()))
                if is_late and not self._is_given_up:
                    self._is_given_up = True
                    self._abort("the peers did not answer in time")

    def _abort(self, message: str) -> None:
        """Abort every collective under way in this process, and all later ones until `_enable`."""
        context.context().abort_collective_ops(tf.errors.ABORTED, message)
        self._failed_at = time.monotonic()


def all_gather(value: Tensor, group: Tensor, instance: int | Tensor, hint: str) -> Tensor:
    """Gather `value` [n, ...] of every rank into [size * n, ...], in rank order.

    `group` is int32, size and key first. An instance key identifies one shape within a group.
    """
    return collective_ops.all_gather_v2(value, group[0], group[1], instance, hint)


def all_reduce(value: Tensor, group: Tensor, instance: int | Tensor, hint: str) -> Tensor:
    """Sum `value` over all ranks, in an order that the runtime chooses."""
    return collective_ops.all_reduce_v2(
        value, group[0], group[1], instance, communication_hint=hint
    )


def all_to_all(value: Tensor, group: Tensor, instance: int | Tensor, hint: str) -> Tensor:
    """Send row r of `value` [size, ...] to rank r; row s of the result came from rank s."""
    return collective_ops.all_to_all_v2(value, group[0], group[1], instance, hint)


def broadcast_send(value: Tensor, group: TrainerGroup, instance: int, hint: str) -> None:
    """Send `value` to every other rank of `group`."""
    collective_ops.broadcast_send_v2(value, group.size, group.key, instance, hint)


def broadcast_receive(
    shape: tuple[int, ...],
    group: TrainerGroup,
    instance: int,
    hint: str,
    dtype: tf.DType = tf.int32,
) -> Tensor:
    """Receive a tensor of `shape` from the sending rank."""
    return collective_ops.broadcast_recv_v2(
        tf.constant(shape, tf.int32),
        dtype,
        group.size,
        group.key,
        instance,
        hint,
    )


def _cause(message: str) -> str:
    """Extract the innermost cause from a collective's error, which is repeated on each hop."""
    lines = [line for line in message.splitlines() if CAUSE in line] or [message]
    return lines[0].rpartition(CAUSE)[2][:CAUSE_LENGTH]
