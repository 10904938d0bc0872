"""When a batch is due, without an agent around it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from agents.session.outbox import ITEM_SPACING_S, MAX_ITEMS, Outbox
from agents.session.report_queue import ReportQueue
from agents.supervision.trainer_handle import Stage, TrainerHandle
from controlplane.core.protocol.wire import ReportKind, TrainerReport, encode
from tests.agents.builders import run_directory

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
    """A trainer that reports, and has no log."""

    num_said = 0

    def __init__(self, folder: Path) -> None:
        self.directory = run_directory(folder)
        self.queue = ReportQueue(self.directory)
        silent = SimpleNamespace(next_chunk=lambda *, is_writer_gone: None)
        super().__init__(
            key=(4, 2), log_tail=silent, stage=Stage.GONE, masked=lambda report: report
        )

    def say(self, *kinds: ReportKind) -> None:
        for number, kind in enumerate(kinds, start=self.num_said):
            report = TrainerReport(
                job_id=4, slot=2, generation=1, sequence=number, at=1.0, kind=kind
            )
            with self.directory.reports.open("a") as file:
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
    outbox.accept(outbox.parcel(100.0, (), (), "w1"), every_s)
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
    parcel = outbox.parcel(100.0, trainers, (), "w1")
    assert parcel.num_items == MAX_ITEMS
    outbox.accept(parcel)
    trainer.say(ReportKind.SWITCHED)
    spacing_s = ITEM_SPACING_S * MAX_ITEMS
    assert not outbox.is_due(100.0 + 0.9 * spacing_s, 60.0, trainers, (), "w1")
    assert outbox.is_due(100.0 + spacing_s, 60.0, trainers, (), "w1")
    assert outbox.is_due(100.0 + 0.5 * spacing_s, 0.5 * spacing_s, trainers, (), "w1")
