"""Real trainers whose guard ends the selection: as a run whose submission ends it there.

No membership up to the decision has the passes of the guard's two windows: epochs 0 and 1, twelve
steps, train on everything; then a step comes after two or three passes.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controlplane.core.protocol.codec import decode
from controlplane.core.protocol.selection import EndReason, SelectionEnd, SelectionMethod
from controlplane.core.protocol.wire import ReportKind, TrainingSpec
from tests.agents.trainer.dying_trainer import Ending
from tests.agents.trainer.local_jobs import FaultyJob, local_job, resized
from tests.agents.trainer.selection.costly_trainer import costly_program
from tests.agents.trainer.selection.test_selected_runs import selecting_spec, undisturbed


def guarded_spec() -> TrainingSpec:
    """Make a spec whose selection has a guard, and no end of its own."""
    spec = selecting_spec(SelectionMethod.SELECTIVE_BACKPROP)
    assert spec.selection is not None
    return replace(spec, selection=replace(spec.selection, guard=True, end=None))


def ended(job: FaultyJob) -> SelectionEnd:
    """Return the decision that the leaders have reported, which is one."""
    told = job.told(ReportKind.SELECTION_ENDED)
    (end,) = {decode(SelectionEnd, report.data) for report in told}
    assert end.reason is EndReason.GUARD
    assert 1.2 < end.ratio < 1.7  # a pass, and 0.45 of a step
    return end


def with_end(spec: TrainingSpec, epoch: int) -> TrainingSpec:
    """Return a spec that ends its selection by itself."""
    assert spec.selection is not None
    return replace(spec, selection=replace(spec.selection, guard=False, end=epoch))


def check_same_bits(result: dict[str, Any], spec: TrainingSpec, epoch: int, folder: Path) -> None:
    """Compare with an undisturbed run whose submission ends the selection at `epoch`."""
    expected = undisturbed(folder, with_end(spec, epoch))
    assert (result["digest"], result["metrics"]) == (expected["digest"], expected["metrics"])
    assert result["step"] == expected["step"]


@pytest.mark.nightly
def test_resized_1_3_2_4_more_often_than_the_window_a_job_decides(tmp_path: Path) -> None:
    spec = guarded_spec()
    with local_job(tmp_path, spec, num_slots=6) as job:
        job.program = costly_program({1: 16, 2: 20, 3: 24})
        result = resized(job, [1, 3, 2, 4], every=0)
        end = ended(job)
    assert 20 < end.step <= 28
    check_same_bits(result, spec, end.epoch, tmp_path / "one")


@pytest.mark.nightly
def test_preempted_within_the_window_a_job_decides(tmp_path: Path) -> None:
    spec = guarded_spec()
    with local_job(tmp_path, spec) as job:
        job.program = costly_program({1: 18})
        job.resize(1)
        job.restore(2, job.preempt())
        result = job.wait_finished()
        end = ended(job)
    assert 18 < end.step <= 26
    check_same_bits(result, spec, end.epoch, tmp_path / "one")


@pytest.mark.parametrize(
    "is_applied",
    [
        pytest.param(False, id="before"),
        pytest.param(True, id="after", marks=pytest.mark.nightly),
    ],
)
def test_resized_within_the_window_and_its_leader_lost_with_the_decision(
    is_applied: bool, tmp_path: Path
) -> None:
    """The survivor has the evidence from the exchange, and reports its end as the next leader."""
    spec = guarded_spec()
    session = "agents.trainer.engine.session:MembershipSession."
    place = session + ("_report_selection_end" if is_applied else "_end_selection")
    with local_job(tmp_path, spec) as job:
        # Each switch calls the report too.
        ending = Ending(slot=0, place=place, generation=2, call=2 if is_applied else 1)
        job.program = costly_program({1: 18}, [ending])
        job.resize(1)
        job.resize(2)
        job.wait_lost(0)
        job.recover([1])
        result = job.wait_finished()
        end = ended(job)
    assert 18 < end.step <= 26
    check_same_bits(result, spec, end.epoch, tmp_path / "one")
