"""Batches of agent reports: passive transitions, which record the actual state and decide nothing.

A batch is split by job; each job's part is one transaction that begins by locking the job's row.
Repeated reports are dropped by (job, slot, sequence), so a batch may be sent again, also in part.
Text in reports comes from job code and is converted to plain text first.
"""

from __future__ import annotations

import datetime
import logging
import math
import threading
import time
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby

from django.conf import settings
from django.db import InterfaceError, OperationalError, transaction

from controlplane.core.protocol.node_messages import (
    BatchReply,
    ReportBatch,
    TrainerState,
    ValidationReport,
)
from controlplane.core.protocol.reported_values import is_addressed, report_read, validation_read
from controlplane.core.protocol.wire import REPORT_EVERY_S, ReportKind, TrainerReport
from jobs import counters
from jobs.exceptions import TooLargeError
from jobs.models import Allocation, Node
from jobs.selectors.desired_state.state import wanted_state
from jobs.selectors.prepared import PreparedObjects
from jobs.services.failures.exits import exited_take, losses_settle
from jobs.services.failures.quarantine import node_judge
from jobs.services.lifecycle.events import event_add, job_fields
from jobs.services.lifecycle.report_context import ReportContext, behind_s
from jobs.services.lifecycle.transitions import allocation_release, job_lock, job_settle
from jobs.services.reports.handlers import HANDLERS, unknown_switch_take
from jobs.services.reports.log_chunks import log_chunks_store, logs_file
from jobs.services.reports.progress import epochs_settle
from jobs.services.reports.readings import readings_take
from jobs.services.submission.validations import validation_take, validations_extend

#: Kinds of reports that do not affect the assignment of trainers.
_PROGRESS_KINDS = frozenset(
    {
        ReportKind.PHASE,
        ReportKind.STEPS,
        ReportKind.EPOCH,
        ReportKind.DIGEST,
        ReportKind.PART,
        ReportKind.SELECTION_ENDED,
        ReportKind.TRIAL,
    }
)

#: Items of each kind in a batch, some times what an agent sends. Each takes a millisecond or more.
ITEMS_LIMIT = 1000
_NUMBER_LIMIT = 2**31 - 1
#: Most reports of steps a second: two thirds of what a process can take (docs/benchmarks.md).
REPORTS_A_SECOND = 100
#: Longest time that a trainer is told to leave between two of them.
LONGEST_S = 8.0
#: Several heartbeats: after so many seconds a job that is not heard of no longer counts.
_HEARD_S = 10.0
#: Stand-in of `_open_query`.
_NODE = -1

logger = logging.getLogger(__name__)


class ReportPace:
    """Counts the jobs that this process hears of; a lost count only makes reports frequent."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._heard_at: dict[int, float] = {}
        self._counted_at = 0.0

    def every_s(self, job_ids: Iterable[int], now_s: float | None = None) -> float:
        """Return how many seconds a trainer should leave between two reports of steps.

        It is doubled with the number of jobs, so that agents are seldom told another one.

        Args:
            job_ids: jobs with trainers on the node that is heard of.
            now_s: monotonic seconds.
        """
        now_s = time.monotonic() if now_s is None else now_s
        with self._lock:
            self._heard_at.update(dict.fromkeys(job_ids, now_s))
            if now_s - self._counted_at >= 1.0:
                since_s, self._counted_at = now_s - _HEARD_S, now_s
                self._heard_at = {id_: at for id_, at in self._heard_at.items() if at > since_s}
            num_jobs = len(self._heard_at)
        times = num_jobs / REPORTS_A_SECOND / REPORT_EVERY_S
        doubled = 2.0 ** math.ceil(math.log2(max(times, 1.0)))
        return min(REPORT_EVERY_S * doubled, LONGEST_S)


_pace = ReportPace()


@dataclass(slots=True)
class BatchOutcome:
    """Result of taking a batch.

    Attributes:
        changed_jobs: jobs with a visible change.
        is_order_change: the agents' desired state may have changed; a cycle may be useful.
        stalled_jobs: jobs with stalled trainers; check them again after the grace period.
    """

    reply: BatchReply
    changed_jobs: set[int] = field(default_factory=set)
    is_order_change: bool = False
    stalled_jobs: set[int] = field(default_factory=set)


def batch_take(node: Node, batch: ReportBatch, now: datetime.datetime) -> BatchOutcome:
    """Take a whole batch of a node that holds its lease; a repeated call changes nothing.

    Args:
        node: as it was read before this batch's heartbeat was written.

    Raises:
        TooLargeError: it has more than `ITEMS_LIMIT` items of a kind.
    """
    if max(len(batch.reports), len(batch.logs), len(batch.validations)) > ITEMS_LIMIT:
        raise TooLargeError(f"At most {ITEMS_LIMIT} items of a kind in a batch.")
    outcome = BatchOutcome(BatchReply(stale=()))
    taken = [_validation_take(node, received, now, outcome) for received in batch.validations]
    if any(taken):
        validations_extend(node, now)
    addressed = (
        report
        for report in batch.reports
        if is_addressed(report.job_id, report.slot, sequence=report.sequence)
    )
    reports = sorted(addressed, key=lambda report: report.job_id)
    behind = behind_s(batch.sent_at, now)
    for job_id, group in groupby(reports, key=lambda report: report.job_id):
        _job_reports_take(node, job_id, list(group), now, outcome, behind=behind)
    logs = [
        chunk for chunk in batch.logs if is_addressed(chunk.job_id, chunk.slot, offset=chunk.offset)
    ]
    if logs:
        with _refusing(f"the logs of node {node.pk}", node=node.name):
            outcome.changed_jobs |= log_chunks_store(node, logs, now)
    if batch.readings:
        with _refusing(f"the readings of node {node.pk}", node=node.name):
            readings_take(node, batch.readings, now)
    _trainers_compare(node, batch, now, outcome)
    reporting_jobs = {chunk.job_id for chunk in logs}
    reporting_jobs |= {report.job_id for report in reports if report.kind is ReportKind.EXITED}
    if reporting_jobs:
        with _refusing(f"the log files of node {node.pk}", node=node.name):
            outcome.changed_jobs |= logs_file(node, reporting_jobs, now)
    return outcome


def _job_reports_take(
    node: Node,
    job_id: int,
    reports: Sequence[TrainerReport],
    now: datetime.datetime,
    outcome: BatchOutcome,
    *,
    behind: float,
) -> None:
    slots = {report.slot for report in reports}
    with transaction.atomic():
        # Without an open allocation on this node all reports of the job are stale.
        if not _allocations(node, job_id, slots):
            return
        job = job_lock(job_id)
        allocations = _allocations(node, job_id, slots)
        silent_s = (now - node.last_seen_at).total_seconds()
        away_s = silent_s if silent_s > settings.LEASE_S else 0.0
        context = ReportContext(job=job, node=node, now=now, away_s=away_s, behind_s=behind)
        for report in _without_past_phases(reports):
            allocation = allocations.get(report.slot)
            if allocation is not None and allocation.released_at is None:
                if report.kind not in _PROGRESS_KINDS:
                    _epochs_settle(context)
                _report_take(context, allocation, report, outcome)
        _epochs_settle(context)
        for allocation in allocations.values():
            Allocation.objects.filter(id=allocation.pk).update(
                last_sequence=allocation.last_sequence
            )
        if context.is_loss_due or context.is_settle_due:
            with _refusing(f"the losses of job {job_id}", **job_fields(job)):
                losses_settle(context)
    outcome.changed_jobs.add(job_id)
    if context.is_stalled:
        outcome.stalled_jobs.add(job_id)
    if context.is_loss_due:
        node_judge(node.pk, now)


def _epochs_settle(context: ReportContext) -> None:
    if context.epochs:
        with _refusing(f"the epochs of job {context.job.pk}", **job_fields(context.job)):
            epochs_settle(context)


def _without_past_phases(reports: Sequence[TrainerReport]) -> Iterator[TrainerReport]:
    """Leave out the phases of a trainer that have ended: one that evaluates each epoch has many."""
    phases = [report for report in reports if report.kind is ReportKind.PHASE]
    newest = {report.slot: report.sequence for report in phases}
    for report in reports:
        if report.kind is not ReportKind.PHASE or report.sequence == newest[report.slot]:
            yield report


def _allocations(node: Node, job_id: int, slots: Container[int]) -> dict[int, Allocation]:
    """Return a job's open allocations on a node, by slot."""
    rows = _open_query().all({_NODE: node.pk})
    return {row.slot: row for row in rows if row.job_id == job_id and row.slot in slots}


@cache
def _open_query() -> PreparedObjects[Allocation]:
    return PreparedObjects(Allocation.objects.filter(accelerator__node=_NODE, released_at=None))


def _report_take(
    context: ReportContext, allocation: Allocation, report: TrainerReport, outcome: BatchOutcome
) -> None:
    if report.sequence <= allocation.last_sequence:
        return
    allocation.last_sequence = report.sequence
    context.forget_generations()
    with _undoing() as refusal:
        report = report_read(report)
        if report.kind is ReportKind.EXITED:
            exited_take(context, allocation, report)
        elif allocation.stop_requested_at is None:
            unknown_switch_take(context, allocation, report)
            HANDLERS[report.kind](context, allocation, report)
    if refusal:
        _refusal_note(context, allocation, report, refusal[0])
    if report.kind not in _PROGRESS_KINDS:
        outcome.is_order_change = True
        # A handler may have stopped other trainers of this job.
        allocation.refresh_from_db(fields=["stop_requested_at", "released_at"])


@contextmanager
def _refusing(name: str, **fields: object) -> Iterator[None]:
    """Undo and log an error, so that one part of a batch does not keep out the others.

    The line of the log has `fields`.
    """
    with _undoing() as refusal:
        yield
    for error in refusal:
        logger.warning("%s is refused: %r", name, error, exc_info=error, extra=fields)


@contextmanager
def _undoing() -> Iterator[list[Exception]]:
    """Undo, count and list an error.

    Errors of the connection to the database are raised: the whole batch is sent again.
    """
    errors: list[Exception] = []
    try:
        with transaction.atomic():
            yield errors
    except (OperationalError, InterfaceError):
        raise
    except Exception as error:
        counters.count("reports_refused")
        errors.append(error)


def _refusal_note(
    context: ReportContext, allocation: Allocation, report: TrainerReport, error: Exception
) -> None:
    """Log a job's first refused report, with an event, and forget what its handler changed."""
    job = context.job
    job.refresh_from_db()
    if not job.events.filter(kind="report_refused").exists():
        text = f"A {report.kind} report of slot {allocation.slot} is not accepted: {error!s:.500}"
        event_add("report_refused", text, now=context.now, job=job)
        fields = {"slot": allocation.slot, **job_fields(job)}
        name = f"a {report.kind} report of job {job.pk}, slot {allocation.slot}"
        logger.warning("%s is refused: %r", name, error, exc_info=error, extra=fields)


def _validation_take(
    node: Node, report: ValidationReport, now: datetime.datetime, outcome: BatchOutcome
) -> bool:
    """Take a validation's result; return whether it was awaited."""
    taken = None
    with _refusing(f"the result of validation {report.validation_id}"):
        taken = validation_take(node, validation_read(report), now)
    if taken is None:
        return False
    outcome.is_order_change = True
    if taken.job_id is not None:
        outcome.changed_jobs.add(taken.job_id)
    return True


def _trainers_compare(
    node: Node, batch: ReportBatch, now: datetime.datetime, outcome: BatchOutcome
) -> None:
    """Report stale trainers to the agent, and release allocations that ended without a report."""
    open_rows = _open_query().all({_NODE: node.pk})
    wanted = {(row.job_id, row.slot) for row in open_rows if row.stop_requested_at is None}
    owned = {(state.job_id, state.slot) for state in batch.trainers}
    outcome.reply = BatchReply(
        stale=tuple(state for state in batch.trainers if _key(state) not in wanted),
        report_every_s=_pace.every_s(job_id for job_id, _ in wanted),
    )
    # Which trainers have the state that their job is to go on with.
    held = {_key(state): min(max(state.adoption, 0), _NUMBER_LIMIT) for state in batch.trainers}
    for row in open_rows:
        number = held.get((row.job_id, row.slot), 0)
        if number != row.adoption_held:
            Allocation.objects.filter(id=row.pk).update(adoption_held=number)
    unowned = [
        row
        for row in open_rows
        if row.stop_requested_at is not None and (row.job_id, row.slot) not in owned
    ]
    # Only an agent that has read the desired state without these trainers can confirm their end.
    if not unowned or batch.wanted_version != wanted_state(node).version:
        return
    for row in unowned:
        if _released_unseen(row, now):
            outcome.changed_jobs.add(row.job_id)
            outcome.is_order_change = True


def _released_unseen(row: Allocation, now: datetime.datetime) -> bool:
    with transaction.atomic():
        job = job_lock(row.job_id)
        if not allocation_release(row, now, exit_code=None):
            return False
        job_settle(job, now)
        return True


def _key(state: TrainerState) -> tuple[int, int]:
    return state.job_id, state.slot
