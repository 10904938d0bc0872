"""Whose files are uploaded next, without an agent around it."""

from __future__ import annotations

import dataclasses
import threading
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from agents.session import client as clients
from agents.session.background import Background
from agents.session.uploads import CHECKPOINT, Uploads
from agents.settings import AgentSettings
from agents.supervision.trainer_handle import TrainerHandle
from controlplane.core.protocol.wire import ReportKind, TrainerReport

NUM_ROUNDS, NUM_AT_ONCE = 60, 2


class Transfers(SimpleNamespace):
    """Calls that end one a round, the oldest first; two at a time at most."""

    def start(self, _name: str, call: Callable[[], None]) -> Future[None] | None:
        if len(self.open) == NUM_AT_ONCE:
            return None
        future: Future[None] = Future()
        self.open.append((future, call))
        return future

    def end_one(self) -> None:
        future, call = self.open.popleft()
        future.set_result(call())


class Saving(SimpleNamespace):
    """A trainer that has always saved something."""

    def __init__(self, folder: Path, job_id: int) -> None:
        outputs = folder / str(job_id) / "outputs"
        outputs.mkdir(parents=True)
        (outputs / CHECKPOINT).write_bytes(b"all variables")
        self.num_sent = 0
        super().__init__(
            key=(job_id, 0),
            queue=SimpleNamespace(head=lambda _limit: iter([SimpleNamespace(report=self.report)])),
            directory=SimpleNamespace(outputs=outputs),
        )

    @property
    def report(self) -> TrainerReport:
        data = {"file": CHECKPOINT, "is_last": True}
        return TrainerReport(
            job_id=self.key[0], slot=0, generation=1, sequence=self.num_sent, at=1.0,
            kind=ReportKind.CHECKPOINTED, data=data,
        )  # fmt: skip


def test_trainers_upload_in_turn_whatever_others_save(tmp_path: Path) -> None:
    sent: Counter[int] = Counter()
    client = SimpleNamespace(upload=lambda job_id, *_: sent.update([job_id]))
    transfers = Transfers(open=deque())
    settings = AgentSettings(server="http://127.0.0.1:9", node="a", state_dir=tmp_path)
    uploads = Uploads(cast(Any, client), cast(Any, transfers), settings)
    saving = [Saving(tmp_path, job_id) for job_id in range(1, 6)]
    for number in range(NUM_ROUNDS):
        uploads.step(float(number), cast(list[TrainerHandle], saving))
        assert len(transfers.open) == 1  # the next one begins later
        assert uploads.is_spacing
        transfers.end_one()
        uploads.step(float(number), cast(list[TrainerHandle], saving))
        for trainer in saving:
            if uploads.is_over(trainer.report):
                uploads.forget(trainer.report)
                trainer.num_sent += 1
    assert len(sent) == len(saving)
    assert max(sent.values()) - min(sent.values()) <= NUM_AT_ONCE


@pytest.mark.parametrize(
    ("kind", "name"),
    [(ReportKind.PART, "predictions-0-8.npz"), (ReportKind.CHECKPOINTED, "checkpoint-5.npz")],
)
def test_a_folder_that_cannot_be_looked_into_holds_no_report_back(
    kind: ReportKind, name: str, tmp_path: Path
) -> None:
    """A name that is too long gives the same kind of error as a folder without permissions."""
    trainer = Saving(tmp_path, 1)
    trainer.directory.outputs = tmp_path / ("a" * 300) / "outputs"
    report = dataclasses.replace(trainer.report, kind=kind, data={"file": name, "is_last": False})
    trainer.queue.head = lambda _limit: iter([SimpleNamespace(report=report)])
    transfers = Transfers(open=deque())
    settings = AgentSettings(server="http://127.0.0.1:9", node="a", state_dir=tmp_path)
    uploads = Uploads(cast(Any, None), cast(Any, transfers), settings)
    for _ in range(2):
        uploads.step(0.0, cast(list[TrainerHandle], [trainer]))
        while transfers.open:
            transfers.end_one()
    assert uploads.is_over(report)


def test_a_large_file_may_take_long_to_be_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer comes after that; one that is not waited for would never do."""
    limits: dict[str, float] = {}

    def answer(request: httpx.Request) -> httpx.Response:
        limits.update(request.extensions["timeout"])
        return httpx.Response(204)

    client = clients.ControlPlaneClient("http://127.0.0.1:9", 15.0)
    client._http = httpx.Client(base_url="http://a", transport=httpx.MockTransport(answer))
    (tmp_path / "model.keras").write_bytes(b"x" * 100)
    monkeypatch.setattr(clients, "STORED_BYTES_A_SECOND", 10)
    client.upload(1, 0, 1, "model.keras", tmp_path / "model.keras", tmp_path)
    assert (limits["connect"], limits["write"], limits["read"]) == (15.0, 15.0, 25.0)


def test_a_machine_without_threads_left_costs_no_later_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    background = Background(1, lambda: None)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        assert background.start("heartbeat", lambda: 1) is None
    call = background.start("heartbeat", lambda: 1)
    assert call is not None
    assert call.result(10) == 1
