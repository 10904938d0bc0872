"""Messages and settings for agent tests, with every value that a test does not care about."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from agents.settings import AgentSettings
from agents.supervision.isolation import Isolation
from agents.supervision.run_directory import RunDirectory
from controlplane.core.protocol.node_messages import WantedTrainer, WantedValidation
from controlplane.core.protocol.wire import (
    Member,
    Membership,
    ReductionMode,
    SlotAddress,
    StopCondition,
    StopKind,
    TrainingSpec,
)
from controlplane.core.virtual_nodes.mapping import even_mapping
from tests.agents.control_plane import ENROLMENT_TOKEN, ControlPlane
from tests.support.reachable import root_needed

CODE = b"def build(settings):\n    return None\n"
FAKE_TRAINER = (sys.executable, "-P", "-m", "tests.agents.fake_trainer")


def agent_settings(plane_address: str, state_dir: Path, **changes: Any) -> AgentSettings:
    """Give an agent two emulated accelerators and fake trainers."""
    values: dict[str, Any] = {
        "server": plane_address,
        "node": "node-a",
        "state_dir": state_dir,
        "enrolment_token": ENROLMENT_TOKEN,
        "gpus": "none",
        "emulated": 2,
        "trainer_command": FAKE_TRAINER,
        "grace_s": 0.5,
        "fork_servers": False,
        "long_poll_s": 5.0,
        "request_timeout_s": 3.0,
        "backoff_first_s": 0.02,
        "backoff_cap_s": 0.1,
        "refused_for_s": 0.5,
    }
    return AgentSettings(**(values | changes))


def job_uids(number: int) -> range:
    """Give users for jobs that no other test process has; at most 10."""
    first = 300_000 + os.getpid() % 4_000_000 * 10
    return range(first, first + number)


def isolation_make(folder: Path, num_uids: int, **changes: Any) -> Isolation:
    """Give the directories of a folder users of their own; skip the test without root."""
    root_needed()
    uids = job_uids(num_uids)
    return Isolation(agent_settings("http://127.0.0.1:9", folder, job_uids=uids, **changes), 1)


def training_spec(code_sha256: str, job_id: int = 1, **settings: Any) -> TrainingSpec:
    return TrainingSpec(
        job_id=job_id,
        name=f"job-{job_id}",
        entry_file="job.py",
        code_sha256=code_sha256,
        settings=settings,
        global_batch_size=64,
        num_virtual_nodes=4,
        seed=3,
        reduction=ReductionMode.EXACT,
        stop=StopCondition(kind=StopKind.STEPS, limit=10),
    )


def membership(generation: int, *slots: int, source: int | None = None) -> Membership:
    """Make a generation whose members sit in `slots`, slot i on accelerator i of node 7."""
    mapping = even_mapping(4, len(slots)) if slots else ()
    members = tuple(
        Member(slot=slot, node_id=7, accelerator_index=slot % 2, virtual_nodes=mapping[place])
        for place, slot in enumerate(slots)
    )
    return Membership(
        generation=generation,
        members=members,
        leader_slot=slots[0] if slots else None,
        source_slot=source,
        cluster_addresses=tuple(
            SlotAddress(slot=slot, address=f"127.0.0.1:{21000 + slot}") for slot in range(8)
        ),
    )


def wanted_trainer(
    plane: ControlPlane,
    slot: int = 0,
    *,
    job_id: int = 1,
    generation: Membership | None = None,
    go: bool = True,
    checkpoint_sha256: str | None = None,
    **settings: Any,
) -> WantedTrainer:
    """Want a trainer in `slot` on accelerator `slot % 2`; its code is put on the control plane."""
    return WantedTrainer(
        spec=training_spec(plane.add_code(job_id, CODE), job_id, **settings),
        slot=slot,
        accelerator_index=slot % 2,
        membership=generation or membership(1, slot),
        go=go,
        code_name="job.py",
        checkpoint_sha256=checkpoint_sha256,
    )


def wanted_validation(
    plane: ControlPlane, job_id: int = 1, timeout_s: float = 20.0, **settings: Any
) -> WantedValidation:
    return WantedValidation(
        validation_id=job_id,
        spec=training_spec(plane.add_code(job_id, CODE), job_id, **settings),
        attempt=1,
        code_name="job.py",
        timeout_s=timeout_s,
    )


def run_directory(tmp_path: Path, slot: int = 2) -> RunDirectory:
    """Make an empty run directory for a slot of job 4."""
    directory = RunDirectory(tmp_path, (4, slot))
    directory.prepare()
    return directory
