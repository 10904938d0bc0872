"""When a batch is due, without an agent around it."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from agents.session.outbox import BYTE_SPACING_S, ITEM_SPACING_S, MAX_ITEMS, Outbox
from agents.session.report_queue import ReportQueue
from agents.supervision.trainer_handle import Stage, TrainerHandle
from controlplane.core.protocol.node_messages import LogChunk, ValidationReport
from controlplane.core.protocol.wire import ReportKind, TrainerReport, encode
from tests.agents.builders import run_directory
from tests.support.cases import pairs

#: Uploads and readings that have nothing to do.
NOTHING = cast(
    Any,
    SimpleNamespace(
        is_over=lambda report: True,
        remarks=lambda report: {},
        forget=lambda report: None,
        take=lambda: (),
    ),
)


class Reporting(SimpleNamespace):
    """A trainer that reports; of its log there is always a next piece, or never."""

    num_said = 0

    def __init__(self, folder: Path, slot: int = 2, *, has_log: bool = False) -> None:
        self.directory = run_directory(folder, slot)
        self.queue = ReportQueue(self.directory)
        chunk = LogChunk(job_id=4, slot=slot, offset=0, text="a line\n") if has_log else None
        tail = SimpleNamespace(next_chunk=lambda *, is_writer_gone: chunk, accept=lambda _: None)
        super().__init__(
            key=(4, slot),
            log_tail=tail,
            stage=Stage.GONE,
            masked=lambda report: report,
            watched=nullcontext,
        )

    def say(self, *kinds: ReportKind, size_bytes: int = 0) -> None:
        data = {"text": "x" * size_bytes}
        with self.directory.reports.open("a") as file:
            for number, kind in enumerate(kinds, start=self.num_said):
                report = TrainerReport(
                    job_id=4, slot=self.key[1], generation=1, sequence=number, at=1.0, kind=kind,
                    data=data,
                )  # fmt: skip
                file.write(json.dumps(encode(report)) + "\n")
        self.num_said += len(kinds)


@pytest.mark.parametrize("every_s", [0.5, 2.0])
@pytest.mark.parametrize("kind", [ReportKind.STEPS, ReportKind.EPOCH, ReportKind.PHASE])
def test_progress_waits_as_long_as_the_control_plane_asked(
    tmp_path: Path, kind: ReportKind, every_s: float
) -> None:
    trainer, outbox = Reporting(tmp_path), Outbox("boot", NOTHING, NOTHING)
    trainers = [cast(TrainerHandle, trainer)]

    def is_due(now: float) -> bool:
        return outbox.is_due(now, 60.0, trainers, (), "w1")

    outbox.report_every_s = 60.0
    outbox.accept(outbox.next_batch(100.0, (), (), "w1"), every_s)
    assert not is_due(100.0 + 2 * every_s)
    trainer.say(kind)
    assert not is_due(100.0 + 0.9 * every_s)
    assert is_due(100.0 + every_s)
    trainer.say(ReportKind.SWITCHED)
    assert is_due(100.1)


def test_a_node_that_has_much_to_say_leaves_time_to_others(tmp_path: Path) -> None:
    """A full batch, and then one that is urgent; a heartbeat does not wait."""
    trainer, outbox = Reporting(tmp_path), Outbox("boot", NOTHING, NOTHING)
    trainers = [cast(TrainerHandle, trainer)]
    trainer.say(*[ReportKind.STEPS] * MAX_ITEMS)
    in_flight = outbox.next_batch(100.0, trainers, (), "w1")
    assert in_flight.num_items == MAX_ITEMS - 1  # and room for a piece of its log
    outbox.accept(in_flight)
    trainer.say(ReportKind.SWITCHED)
    spacing_s = ITEM_SPACING_S * in_flight.num_items
    assert not outbox.is_due(100.0 + 0.9 * spacing_s, 60.0, trainers, (), "w1")
    assert outbox.is_due(100.0 + spacing_s, 60.0, trainers, (), "w1")
    assert outbox.is_due(100.0 + 0.5 * spacing_s, 0.5 * spacing_s, trainers, (), "w1")


@pytest.mark.parametrize(("num_flooding", "size_bytes"), pairs([1, 3, 7], [200_000, 0, 2000]))
def test_a_flood_of_reports_holds_up_nothing_else(
    tmp_path: Path, num_flooding: int, size_bytes: int
) -> None:
    """Every batch has the validation and a piece of each log, many what another trainer says."""
    flooding = [Reporting(tmp_path, slot, has_log=True) for slot in range(num_flooding)]
    quiet = Reporting(tmp_path, 9, has_log=True)
    trainers = [cast(TrainerHandle, trainer) for trainer in [*flooding, quiet]]
    outbox, now, num_heard = Outbox("boot", NOTHING, NOTHING), 100.0, 0
    num_batches = len(trainers)
    for _ in range(num_batches):
        for trainer in flooding:
            count = MAX_ITEMS if size_bytes < 2000 else 10
            trainer.say(*[ReportKind.EPOCH] * count, size_bytes=size_bytes)
        if quiet.queue.is_empty:
            quiet.say(ReportKind.SWITCHED)
        validation = cast(Any, SimpleNamespace(report=ValidationReport(ok=True), is_accepted=False))
        in_flight = outbox.next_batch(now, trainers, [validation], "w1")
        assert in_flight.batch.validations
        assert len(in_flight.batch.logs) == len(trainers)
        num_heard += any(report.slot == 9 for report in in_flight.batch.reports)
        outbox.accept(in_flight)
        spacing_s = 0.99 * max(
            ITEM_SPACING_S * in_flight.num_items, BYTE_SPACING_S * in_flight.report_bytes
        )
        assert not outbox.is_due(now + spacing_s, 60.0, trainers, (), "w1")
        now += 60.0
    assert num_heard >= num_batches // 3
