"""Real trainers that drop what comes from elsewhere; `test_packet_filter` has the details."""

from __future__ import annotations

import json
import select
import socket
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agents.trainer.contract.environment import FILTER_VARIABLE
from agents.trainer.local.local_cluster import LocalJob
from controlplane.core.protocol.wire import StopCondition, StopKind
from tests.agents.trainer.filtered_trainer import FILTERED_PROGRAM, FILTERS_FILE
from tests.agents.trainer.local_jobs import local_job, prepared, training_spec
from tests.agents.trainer.peers.socket_filters import needs_filters

#: A packet on the loopback has arrived, or was dropped, long before.
SILENCE_S = 0.3


def filters(job: LocalJob, slot: int) -> list[list[Any]]:
    path = job.trainers[slot].run_dir / FILTERS_FILE
    return list(json.loads(path.read_text())) if path.exists() else []


def gets_through(job: LocalJob, slot: int, source: str) -> bool:
    """Try to connect to a trainer from an address of this machine."""
    port = int(job.cluster_addresses[slot].address.rpartition(":")[2])
    with closing(socket.socket()) as caller:
        caller.bind((source, 0))
        caller.setblocking(False)
        caller.connect_ex(("127.0.0.1", port))
        is_answered = bool(select.select([], [caller], [], SILENCE_S)[1])
        return is_answered and caller.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0


@needs_filters
def test_a_job_grows_and_recovers_behind_its_filters(tmp_path: Path) -> None:
    spec = training_spec(stop=StopCondition(kind=StopKind.STEPS, limit=100_000))
    with local_job(tmp_path, spec) as job:
        job.program = FILTERED_PROGRAM
        alone = job.plan(1, None)
        grown = job.plan(2, alone)
        prepared(job, [alone, grown])
        job.go(alone)
        job.wait(lambda: len(filters(job, 0)) >= 2, "the beacon's filter", 20.0)
        kinds = {(kind, is_listening) for kind, is_listening, _ in filters(job, 0)}
        assert kinds >= {("SOCK_STREAM", 1), ("SOCK_DGRAM", 0)}
        assert len({length for *_, length in filters(job, 0)} - {0}) == 1
        assert not any(length == 0 for *_, length in filters(job, 0))
        assert gets_through(job, 0, "127.0.0.1")
        assert not gets_through(job, 0, "127.0.0.2")

        job.go(grown)
        job.wait_switched(grown)
        assert not gets_through(job, 1, "127.0.0.3")
        job.wait_step(job.step() + 10)
        job.kill(0)
        job.wait_switched(job.recover([1]))
        assert not gets_through(job, 1, "127.0.0.3")
        assert gets_through(job, 1, "127.0.0.1")
        assert job.finished() is None


def test_none_where_the_operator_wants_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FILTER_VARIABLE, "0")
    spec = training_spec(stop=StopCondition(kind=StopKind.STEPS, limit=100_000))
    with local_job(tmp_path, spec) as job:
        job.program = FILTERED_PROGRAM
        job.resize(1)
        assert gets_through(job, 0, "127.0.0.2")
        assert not filters(job, 0)
