"""Builds bounded batches for the control plane and processes their acknowledgement."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from agents.session.report_queue import QueuedReport
from agents.session.uploads import Uploads
from agents.supervision.readings import Readings
from agents.supervision.trainer_handle import Stage, TrainerHandle
from agents.supervision.validations import ValidationAttempt
from controlplane.core.protocol.node_messages import LogChunk, ReportBatch
from controlplane.core.protocol.wire import REPORT_EVERY_S, ReportKind, TrainerReport

log = logging.getLogger("agents")

#: Taken in within a second, as the control plane locks a job as long as it reads its reports.
MAX_ITEMS = 100
MAX_REPORT_BYTES = 512 * 1024
MAX_LOG_BYTES = 256 * 1024
#: Longest time that the control plane may ask for between two reports.
REPORT_EVERY_MOST_S = 60.0
#: Reports that wait, as log chunks do, to be sent in one batch; others are sent at once. An epoch
#: may take a tenth of a second. LEFT may wait: the accelerator is free only after the EXITED report
#: that follows.
LINGERING = frozenset({ReportKind.STEPS, ReportKind.EPOCH, ReportKind.PHASE, ReportKind.LEFT})
#: Times in a row that the control plane has to fail over a batch before the batch is halved.
FAILURES_LIMIT = 3
#: Least time between two batches, and after a large one for each item and byte of a report: a node
#: that has much to say does not keep the control plane from others.
SPACING_S, ITEM_SPACING_S, BYTE_SPACING_S = 0.05, 0.005, 1 / (256 * 1024)


@dataclass(slots=True)
class InFlightBatch:
    """A batch under way, and the sources of its items."""

    batch: ReportBatch = field(init=False)
    counts: list[tuple[TrainerHandle, int]] = field(default_factory=list)
    chunks: list[tuple[TrainerHandle, LogChunk]] = field(default_factory=list)
    validations: list[ValidationAttempt] = field(default_factory=list)
    report_bytes: int = 0

    @property
    def num_items(self) -> int:
        """Number of items that the control plane could refuse."""
        reports = sum(count for _, count in self.counts)
        return reports + len(self.chunks) + len(self.validations)


class Outbox:
    """Makes batches of waiting items, oldest first within a trainer, trainers in round-robin.

    Attributes:
        report_every_s: least time between two batches of reports that may wait, as the control
            plane asked for with its last answer.
    """

    def __init__(self, boot_id: str, uploads: Uploads, readings: Readings) -> None:
        self.report_every_s = REPORT_EVERY_S
        self._boot_id = boot_id
        self._uploads = uploads
        self._readings = readings
        self._item_limit = MAX_ITEMS
        self._num_failures = 0
        self._is_narrowing = False  # the same trainers come first until an item is found
        self._is_alone = False  # a batch without items was accepted just before
        self._turn = 0
        self._last_sent_at = float("-inf")
        self._spacing_s = SPACING_S
        self._accepted_version: str | None = None

    def is_due(
        self,
        now: float,
        heartbeat_s: float,
        trainers: Sequence[TrainerHandle],
        validations: Sequence[ValidationAttempt],
        wanted_version: str,
    ) -> bool:
        """Return whether a batch should be sent now."""
        waited_s = now - self._last_sent_at
        if waited_s < min(self._spacing_s, heartbeat_s):
            return False
        if waited_s >= heartbeat_s or wanted_version != self._accepted_version:
            return True
        if any(validation.report and not validation.is_accepted for validation in validations):
            return True
        heads = [next(iter(self._ready(trainer, 1)), None) for trainer in trainers]
        if any(head is not None for head in heads):
            return waited_s >= self.report_every_s or any(
                queued.report.kind not in LINGERING
                for trainer in trainers
                for queued in self._ready(trainer, MAX_ITEMS)
            )
        return waited_s >= self.report_every_s and any(map(_next_chunk, trainers))

    def next_batch(
        self,
        now: float,
        trainers: Sequence[TrainerHandle],
        validations: Sequence[ValidationAttempt],
        wanted_version: str,
    ) -> InFlightBatch:
        """Make the next batch, within the size limits."""
        self._last_sent_at = now
        self._turn += not self._is_narrowing
        start = self._turn % len(trainers) if trainers else 0
        in_turn = [*trainers[start:], *trainers[:start]]
        in_flight = InFlightBatch()
        self._take_validations(in_flight, validations)
        reports = self._take_reports(in_flight, in_turn)
        self._take_logs(in_flight, in_turn)
        self._spacing_s = max(
            SPACING_S, ITEM_SPACING_S * in_flight.num_items, BYTE_SPACING_S * in_flight.report_bytes
        )
        in_flight.batch = ReportBatch(
            boot_id=self._boot_id,
            sent_at=time.time(),
            trainers=tuple(item.state for item in trainers if item.stage is not Stage.GONE),
            reports=tuple(reports),
            logs=tuple(chunk for _, chunk in in_flight.chunks),
            validations=tuple(item.report for item in in_flight.validations if item.report),
            wanted_version=wanted_version,
            readings=self._readings.take(),
        )
        return in_flight

    def is_acknowledged(self, wanted_version: str) -> bool:
        """Return whether a batch made under this desired state has been acknowledged."""
        return self._accepted_version == wanted_version

    def accept(self, in_flight: InFlightBatch, report_every_s: float = REPORT_EVERY_S) -> None:
        """Process the acknowledgement of all of `in_flight`, and the pace that came with it."""
        self.report_every_s = min(max(REPORT_EVERY_S, report_every_s), REPORT_EVERY_MOST_S)
        self._is_narrowing = self._is_alone = self._item_limit == 0
        self._item_limit = min(MAX_ITEMS, self._item_limit * 2 or 1)
        self._num_failures = 0
        self._accepted_version = in_flight.batch.wanted_version
        self._mark_accepted(in_flight)

    def refuse(self, in_flight: InFlightBatch) -> bool:
        """Halve the next batch, or drop a single refused item; returns False if it was empty."""
        if in_flight.num_items == 0:
            return False
        self._item_limit = max(1, in_flight.num_items // 2)
        if in_flight.num_items == 1:
            self._is_narrowing = False
            log.error("dropped what the control plane does not take: %r", in_flight.batch)
            self._mark_accepted(in_flight)
        return True

    def note_failure(self, in_flight: InFlightBatch) -> None:
        """Halve the next batch if the control plane fails over `in_flight` repeatedly.

        A single item is dropped only if a batch without any was accepted just before it: a control
        plane without its database fails over every batch.
        """
        self._num_failures += 1
        self._is_narrowing = True
        if self._num_failures < FAILURES_LIMIT or in_flight.num_items == 0:
            return
        self._num_failures = 0
        if in_flight.num_items > 1 or self._is_alone:
            self.refuse(in_flight)
        else:
            self._item_limit = 0

    def _mark_accepted(self, in_flight: InFlightBatch) -> None:
        for report in in_flight.batch.reports:
            self._uploads.forget(report)
        for trainer, count in in_flight.counts:
            trainer.queue.accept(count)
        for trainer, chunk in in_flight.chunks:
            trainer.log_tail.accept(chunk)
        for validation in in_flight.validations:
            validation.is_accepted = True
        for trainer in {
            trainer.key: trainer for trainer, _ in in_flight.counts + in_flight.chunks
        }.values():
            trainer.directory.write_shipped()

    def _take_reports(
        self, in_flight: InFlightBatch, trainers: Sequence[TrainerHandle]
    ) -> list[TrainerReport]:
        reports: list[TrainerReport] = []
        num_trainers = max(1, len(trainers))
        room = self._item_limit - in_flight.num_items
        # Equal shares, less a place each for a piece of the log.
        share, share_bytes = max(1, room // num_trainers - 1), MAX_REPORT_BYTES // num_trainers
        for trainer in trainers:
            count = own_bytes = 0
            for queued in self._ready(trainer, min(share, room - len(reports))):
                own_bytes += queued.size_bytes
                size_bytes = in_flight.report_bytes + queued.size_bytes
                if (count and own_bytes > share_bytes) or (
                    reports and size_bytes > MAX_REPORT_BYTES
                ):
                    break
                reports.append(trainer.masked(self._with_remarks(queued.report)))
                in_flight.report_bytes = size_bytes
                count += 1
            if count:
                in_flight.counts.append((trainer, count))
        return reports

    def _take_validations(
        self, in_flight: InFlightBatch, validations: Sequence[ValidationAttempt]
    ) -> None:
        for validation in validations:
            if in_flight.num_items >= self._item_limit:
                return
            if validation.report and not validation.is_accepted:
                in_flight.validations.append(validation)

    def _take_logs(self, in_flight: InFlightBatch, trainers: Sequence[TrainerHandle]) -> None:
        size_bytes = 0
        for trainer in trainers:
            if in_flight.num_items >= self._item_limit or size_bytes >= MAX_LOG_BYTES:
                return
            chunk = _next_chunk(trainer)
            if chunk is not None:
                in_flight.chunks.append((trainer, chunk))
                size_bytes += len(chunk.text)

    def _ready(self, trainer: TrainerHandle, limit: int) -> Iterator[QueuedReport]:
        """Yield the next reports up to the first whose files are not uploaded yet."""
        with trainer.watched():
            trainer.queue.fill()
        for queued in trainer.queue.head(max(0, limit)):
            if not self._uploads.is_over(queued.report):
                return
            yield queued

    def _with_remarks(self, report: TrainerReport) -> TrainerReport:
        remarks = self._uploads.remarks(report)
        return dataclasses.replace(report, data={**report.data, **remarks}) if remarks else report


def _next_chunk(trainer: TrainerHandle) -> LogChunk | None:
    with trainer.watched():
        return trainer.log_tail.next_chunk(is_writer_gone=trainer.stage is Stage.GONE)
