"""A trainer that was forked from a fork server trains like one started from nothing."""

from __future__ import annotations

import dataclasses
import socket
from pathlib import Path

import pytest

from agents.settings import TRAINER_COMMAND
from controlplane.core.protocol.node_messages import WantedTrainer
from controlplane.core.protocol.wire import ReportKind, SlotAddress
from tests.agents.builders import membership, wanted_trainer
from tests.agents.conftest import Drive
from tests.agents.control_plane import ControlPlane
from tests.agents.trainer.local_jobs import UNEVEN_JOB


def wanted_for_real(plane: ControlPlane, job_id: int) -> WantedTrainer:
    """Want ten steps of a job with dropout and batch statistics, on a port that is free."""
    wanted = wanted_trainer(plane, 0, job_id=job_id)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = SlotAddress(slot=0, address=f"127.0.0.1:{probe.getsockname()[1]}")
    sha256 = plane.add_code(job_id, UNEVEN_JOB.encode())
    return dataclasses.replace(
        wanted,
        spec=dataclasses.replace(wanted.spec, code_sha256=sha256, global_batch_size=20),
        membership=dataclasses.replace(membership(1, 0), cluster_addresses=(address,)),
    )


@pytest.mark.nightly
@pytest.mark.timeout(180)
def test_a_forked_and_a_cold_trainer_end_with_the_same_bits(
    plane: ControlPlane, drive: Drive, state_dir: Path
) -> None:
    driven = drive(fork_servers=True, trainer_command=TRAINER_COMMAND, grace_s=5.0)
    folder = state_dir / "fork_servers"
    driven.until(lambda: list(folder.glob("*/warm")))
    digests = {}
    for job_id, is_forked in ((1, True), (2, False)):
        if not is_forked:
            driven.agent._fork_servers.close()
            driven.until(lambda: not list(folder.iterdir()))
        plane.want(wanted_for_real(plane, job_id))
        driven.until(lambda job=job_id: ReportKind.EXITED in plane.kinds(job, 0))
        finished = plane.report(job_id, 0, ReportKind.FINISHED)
        assert finished is not None, plane.log(job_id, 0)
        assert finished.data["step"] == 10
        digests[is_forked] = finished.data["digest"]
        exited = plane.told(job_id, 0, ReportKind.EXITED)
        assert exited.data["exit_code"] == 0
        lines = [line for line in plane.log(job_id, 0).splitlines() if line]
        assert [line.partition("Z ")[2].partition(":")[0] for line in lines] == [
            "epoch 1, step 6/10",
            "epoch 2, step 10/10",
        ]
    assert digests[True] == digests[False]
