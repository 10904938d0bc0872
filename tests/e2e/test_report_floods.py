"""A job that writes reports itself, as fast as it can, holds up neither the site nor other jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from controlplane.core.protocol.wire import ReportKind
from tests.e2e.stack import Stack
from tests.e2e.submitted import START_DEADLINE_S, Submitted, undisturbed_digest
from tests.security.hostile_reports import SOUND

# `make test` has the parts: tests/agents/session, tests/jobs/reports.
pytestmark = [pytest.mark.nightly, pytest.mark.whole_stack, pytest.mark.timeout(600)]

CODE = (Path(__file__).parent / "flooding_job.py").read_text()
#: An agent sends all of the first 16 MiB.
BEGUN_BYTES, FLOOD_BYTES = 2**20, 24 * 2**20
COUNTED = {"step", "first_step", "last_step", "epoch", "number"}
KINDS = ("phase", "steps", "epoch", "trial", "stalled", "checkpointed", "switched")


def data_of(kind: str) -> dict[str, Any]:
    """Make the data of reports that say something else each."""
    sound = SOUND[ReportKind(kind)]
    return {name: "#" if name in COUNTED else value for name, value in sound.items()}


FLOODS: dict[str, tuple[str, dict[str, Any]]] = {
    **{kind: (kind, data_of(kind)) for kind in KINDS},
    "long": ("epoch", {**data_of("epoch"), "logs": {f"metric_{i}": 0.5 for i in range(2000)}}),
    "nonsense": ("nonsense", {"text": "x" * 1000}),
}


@pytest.mark.parametrize("name", FLOODS)
def test_other_jobs_start_train_and_end_beside_a_flood(stack: Stack, name: str) -> None:
    digest = undisturbed_digest(stack)
    kind, data = FLOODS[name]
    flooding = Submitted(
        stack,
        f"flood-{name}",
        code=CODE,
        settings={"kind": kind, "data": data},
        stop={"kind": "epochs", "limit": 1_000_000},
        max_accelerators=1,
    )
    stack.wait_for("the flood", lambda: written_bytes(flooding) > BEGUN_BYTES, START_DEADLINE_S)
    # Two, as one is validated on the other node.
    beside = [Submitted(stack, f"beside-{name}-{i}", max_accelerators=1) for i in range(2)]
    for job in beside:
        job.wait_until_trains_on(1, START_DEADLINE_S)
    stack.wait_for("all of it", lambda: written_bytes(flooding) > FLOOD_BYTES, START_DEADLINE_S)
    for job in beside:
        job.go()
        assert job.wait_until_finished()["digest"] == digest
        assert stack.get(f"jobs/{job.id}/logs/")["text"]
    assert {node["status"] for node in stack.get("nodes/")["results"]} == {"online"}
    assert flooding.state()["status"] in ("starting", "running")
    flooding.do("cancel")
    flooding.wait_until_holds_nothing("cancelled", START_DEADLINE_S)


def written_bytes(job: Submitted) -> int:
    """Return the size of the largest file of reports of a job's trainers."""
    found = job.stack.directory.glob(f"node-*/trainers/{job.id}-*/reports.jsonl")
    return max((path.stat().st_size for path in found), default=0)
