"""When a batch is due, without an agent around it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from agents.session.outbox import Outbox
from agents.session.report_queue import ReportQueue
from agents.supervision.trainer_handle import TrainerHandle
from controlplane.core.protocol.wire import ReportKind
from tests.agents.builders import run_directory

#: Uploads and readings that have nothing to do.
NOTHING = cast(Any, SimpleNamespace(is_over=lambda report: True, take=lambda: ()))


class Reporting(SimpleNamespace):
    """A trainer that reports, and has no log."""

    def __init__(self, folder: Path) -> None:
        self.directory = run_directory(folder)
        self.queue = ReportQueue(self.directory)
        silent = SimpleNamespace(next_chunk=lambda *, is_writer_gone: None)
        super().__init__(log_tail=silent, stage=None)

    def say(self, kind: ReportKind) -> None:
        self.directory.add_own_report(1, kind, {})


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
