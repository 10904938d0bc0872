"""Boots a trainer process: collective runtime, job, traced functions. No training step is run."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from agents.trainer.collectives.devices import configure_devices
from agents.trainer.collectives.groups import training_group
from agents.trainer.collectives.runtime import CollectiveRuntime
from agents.trainer.contract.failures import EXIT_FAILED, PEER_LOST, TrainerError
from agents.trainer.contract.ports import HeldPort
from agents.trainer.contract.run_dir import OrderWatcher, ReportWriter
from agents.trainer.engine.profiling import profile_measure
from agents.trainer.engine.tasks import Predicting, TaskRunner, Training
from agents.trainer.engine.workload import BuiltJob, workload_build
from agents.trainer.peers.liveness import PeerWatch
from agents.trainer.peers.socket_filter import PeerFilter, hosts_allowed, peer_filter_prepare
from agents.trainer.predict.part_files import PartWriter
from agents.trainer.step.batch_plan import Planner
from controlplane.core.protocol.wire import Task, TrainerOrders


@dataclass(frozen=True)
class BootResult:
    """A trainer that is ready to join.

    Attributes:
        readiness: fields of its READY report.
        peer_filter: filter on the open sockets of its port; None: no filtering.
    """

    runtime: CollectiveRuntime
    task: TaskRunner
    readiness: dict[str, object]
    peer_filter: PeerFilter | None


def trainer_boot(
    run_dir: Path,
    watcher: OrderWatcher,
    reports: ReportWriter,
    started_at: float,
    held: HeldPort | None,
) -> BootResult:
    """Boot the runtime, build the job and run each function once.

    Raises:
        JobCodeError: the job's own code or data is at fault.
        TrainerError: any other failure.
    """
    orders = watcher.orders
    reports.phase("booting")
    peer_filter = peer_filter_prepare(orders, lambda failure: _end(reports, failure))
    configure_devices(orders.accelerator)
    runtime = CollectiveRuntime(orders.slot, orders.accelerator, held)
    PeerWatch(runtime).start()
    runtime.connect(orders.membership)
    if peer_filter is not None:
        peer_filter.start()
        follow = peer_filter.follow
        watcher.on_change(lambda changed: follow(hosts_allowed(changed)))
    watcher.on_recovery(runtime.abort_before)
    boot_s = time.monotonic() - started_at
    work = workload_build(run_dir, orders.spec, reports)
    traced_from = time.monotonic()
    parts = PartWriter(run_dir / "outputs", reports)
    reports.phase("tracing")
    task = _warm_task(orders, runtime, work, parts)
    work = task.work
    readiness: dict[str, object] = {
        "boot_s": boot_s,
        "build_s": work.build_s,
        "trace_s": time.monotonic() - traced_from,
    }
    own = orders.membership.member(orders.slot)
    if orders.profile and own is not None:
        functions = task.stepper.functions
        measured = profile_measure(work, functions, orders.spec, len(own.virtual_nodes))
        readiness["profile"] = {str(number): s for number, s in measured.items()}
    return BootResult(runtime, task, readiness, peer_filter)


def _end(reports: ReportWriter, failure: TrainerError) -> NoReturn:
    """End this process at once, from any thread, as one that strangers can reach."""
    reports.failed(failure)
    os._exit(EXIT_FAILED)


def _warm_task(
    orders: TrainerOrders, runtime: CollectiveRuntime, work: BuiltJob, parts: PartWriter
) -> TaskRunner:
    """Trace and run each function once, so that no step waits for it; restores the state."""
    membership = orders.membership
    group = training_group(membership)
    task: TaskRunner
    if orders.spec.task is Task.PREDICT:
        task = Predicting(work, runtime, group, parts)
    else:
        task = Training(work, orders.spec, runtime, group, orders.accelerator.memory_bytes)
    planner = Planner(orders.spec, membership, group.slots, orders.slot)
    if membership.source_slot is not None or membership.leader_slot == orders.slot:
        try:
            task.stepper.warm_up(planner.rows_per_worker)
        except TrainerError as failure:  # the leader, which resolves groups, is gone
            if failure.code != PEER_LOST:
                raise
            if not runtime.is_superseded:  # orders to recover initialise it later anyway
                runtime.connect(membership, reinitialize=True)
    task.warm_up(planner, lambda: True)
    return task
