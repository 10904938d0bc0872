"""Batches of agent reports: passive transitions, which record the actual state and decide nothing.

A batch is split by job; each job's part is one transaction that begins by locking the job's row.
Repeated reports are dropped by (job, slot, sequence), so a batch may be sent again, also in part.
Text in reports comes from job code and is converted to plain text first.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from django.db import transaction

from controlplane.core.protocol.plain_text import plain_values
from controlplane.core.protocol.wire import (
    BatchReply,
    ReportBatch,
    ReportKind,
    TrainerReport,
    TrainerState,
    ValidationReport,
    decode,
    encode,
)
from jobs.models import Allocation, Job, Node
from jobs.selectors.desired_state.state import wanted_state
from jobs.services.failures.exits import exited_take, losses_settle
from jobs.services.failures.quarantine import node_judge
from jobs.services.lifecycle.report_context import ReportContext
from jobs.services.lifecycle.transitions import allocation_release, job_lock, job_settle
from jobs.services.reports.handlers import HANDLERS
from jobs.services.reports.log_chunks import log_chunks_store, logs_file
from jobs.services.submission.validations import validation_take

#: Kinds of reports that do not affect the assignment of trainers.
_PROGRESS_KINDS = frozenset(
    {ReportKind.PHASE, ReportKind.STEPS, ReportKind.EPOCH, ReportKind.DIGEST, ReportKind.PART}
)

logger = logging.getLogger(__name__)


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
    """Take a whole batch of a node that holds its lease; a repeated call changes nothing."""
    outcome = BatchOutcome(BatchReply(stale=()))
    for received in batch.validations:
        report = decode(ValidationReport, plain_values(encode(received)))
        if validation := validation_take(node, report, now):
            outcome.is_order_change = True
            if validation.job_id is not None:
                outcome.changed_jobs.add(validation.job_id)
    plain = (replace(report, data=plain_values(report.data)) for report in batch.reports)
    reports = sorted(plain, key=lambda report: report.job_id)
    for job_id, group in groupby(reports, key=lambda report: report.job_id):
        _job_reports_take(node, job_id, list(group), now, outcome)
    if batch.logs:
        outcome.changed_jobs |= log_chunks_store(node, batch.logs, now)
    _trainers_compare(node, batch, now, outcome)
    reporting_jobs = {chunk.job_id for chunk in batch.logs}
    reporting_jobs |= {
        report.job_id for report in batch.reports if report.kind is ReportKind.EXITED
    }
    outcome.changed_jobs |= logs_file(reporting_jobs, now)
    return outcome


def _job_reports_take(
    node: Node,
    job_id: int,
    reports: Sequence[TrainerReport],
    now: datetime.datetime,
    outcome: BatchOutcome,
) -> None:
    slots = {report.slot for report in reports}
    with transaction.atomic():
        known = Allocation.objects.filter(
            job_id=job_id, slot__in=slots, accelerator__node=node, released_at=None
        )
        # Without an open allocation on this node all reports of the job are stale.
        job = job_lock(job_id) if known.exists() else None
        if job is None:
            return
        allocations = {row.slot: row for row in known.select_related("accelerator")}
        context = ReportContext(job=job, node=node, now=now)
        for report in reports:
            allocation = allocations.get(report.slot)
            if allocation is not None and allocation.released_at is None:
                _report_take(context, allocation, report, outcome)
        for allocation in allocations.values():
            Allocation.objects.filter(id=allocation.pk).update(
                last_sequence=allocation.last_sequence
            )
        losses_settle(context)
    outcome.changed_jobs.add(job_id)
    if context.is_stalled:
        outcome.stalled_jobs.add(job_id)
    if context.is_loss_due:
        node_judge(node.pk, now)


def _report_take(
    context: ReportContext, allocation: Allocation, report: TrainerReport, outcome: BatchOutcome
) -> None:
    if report.sequence <= allocation.last_sequence:
        return
    allocation.last_sequence = report.sequence
    if report.kind is ReportKind.EXITED:
        exited_take(context, allocation, report)
    elif allocation.stop_requested_at is None:
        try:
            with transaction.atomic():
                HANDLERS[report.kind](context, allocation, report)
        except (KeyError, TypeError, ValueError) as error:
            # One malformed report must not block the other reports of a node.
            logger.warning(
                "job %s slot %s: a %s report is not understood: %r",
                context.job.pk,
                allocation.slot,
                report.kind,
                error,
            )
    if report.kind not in _PROGRESS_KINDS:
        outcome.is_order_change = True
        # A handler may have stopped other trainers of this job.
        allocation.refresh_from_db(fields=["stop_requested_at", "released_at"])


def _trainers_compare(
    node: Node, batch: ReportBatch, now: datetime.datetime, outcome: BatchOutcome
) -> None:
    """Report stale trainers to the agent, and release allocations that ended without a report."""
    open_rows = list(
        Allocation.objects.filter(accelerator__node=node, released_at=None).select_related("job")
    )
    wanted = {(row.job_id, row.slot) for row in open_rows if row.stop_requested_at is None}
    owned = {(state.job_id, state.slot) for state in batch.trainers}
    outcome.reply = BatchReply(
        stale=tuple(state for state in batch.trainers if _key(state) not in wanted)
    )
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
        job: Job | None = job_lock(row.job_id)
        if job is None or not allocation_release(row, now, exit_code=None):
            return False
        job_settle(job, now)
        return True


def _key(state: TrainerState) -> tuple[int, int]:
    return state.job_id, state.slot
