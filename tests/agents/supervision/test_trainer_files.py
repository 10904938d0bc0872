"""Files of trainers through the agent: fetched before use, sent before a report names them."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from agents.supervision.trainer_handle import Stage
from controlplane.core.protocol.fork import Adoption
from controlplane.core.protocol.wire import ReportKind
from tests.agents.builders import membership, wanted_trainer
from tests.agents.conftest import Drive, orders_of
from tests.agents.control_plane import ControlPlane


def test_a_state_to_adopt_is_fetched_before_the_trainer_is_told_where_it_is(
    plane: ControlPlane, drive: Drive, state_dir: Path
) -> None:
    driven = drive()
    plane.want(wanted_trainer(plane, 0))
    driven.until(lambda: ReportKind.SWITCHED in plane.kinds(1, 0))
    for number, content in ((1, b"a trial's variables"), (2, b"those of a later one")):
        plane.refuse_with["jobs/1/adopted/"] = 503
        plane.files["jobs/1/adopted/"] = content
        adoption = Adoption(number=number, sha256=hashlib.sha256(content).hexdigest())
        later = membership(1 + number, 0, source=0)
        plane.want(replace(wanted_trainer(plane, 0, generation=later), adoption=adoption))
        driven.until(lambda wanted=later: orders_of(state_dir).membership == wanted)
        assert plane.owned()[0].adoption == number - 1
        assert orders_of(state_dir).adopted_path is None
        plane.refuse_with.clear()
        driven.until(lambda: orders_of(state_dir).adopted_path is not None)
        path = Path(orders_of(state_dir).adopted_path or "")
        assert path.read_bytes() == content
        assert [one.name for one in path.parent.glob("adopted*")] == [f"adopted-{number}.npz"]
        driven.until(lambda number=number: plane.owned()[0].adoption == number)


@pytest.mark.parametrize(
    ("play", "kind", "files"),
    [
        ("finish", ReportKind.FINISHED, {"model.keras": b"weights", "metrics.json": b"{}"}),
        ("nonfinite", ReportKind.FAILED, {"history.csv": b"epoch"}),
    ],
)
def test_files_arrive_before_the_report_that_names_them(
    plane: ControlPlane, drive: Drive, play: str, kind: ReportKind, files: dict[str, bytes]
) -> None:
    driven = drive()
    plane.refuse_with["jobs/1/files/"] = 503
    plane.want(wanted_trainer(plane, play=play))
    driven.until(lambda: ReportKind.SWITCHED in plane.kinds(1, 0))
    driven.until(plane.sees(4))
    assert not {kind, ReportKind.EXITED} & {*plane.kinds(1, 0)}

    plane.refuse_with.clear()
    driven.until(lambda: ReportKind.EXITED in plane.kinds(1, 0))
    last = plane.told(1, 0, kind)
    assert plane.uploads == {(1, name): content for name, content in files.items()}
    assert list(last.data["upload_errors"]) == ["secrets.txt"]
    uploaded = max(index for index, call in enumerate(plane.calls) if call[0] == "PUT")
    batch = next(b for b in plane.batches if last in b.reports)
    told = [i for i, call in enumerate(plane.calls) if call[1] == "reports/"]
    assert uploaded < told[plane.batches.index(batch)]


@pytest.mark.parametrize("status", [400, 404, 409, 413])
def test_a_file_refused_for_good_does_not_hold_up_the_report(
    plane: ControlPlane, drive: Drive, status: int
) -> None:
    driven = drive()
    plane.refuse_with["jobs/1/files/"] = status
    plane.want(wanted_trainer(plane, play="finish"))
    driven.until(lambda: ReportKind.EXITED in plane.kinds(1, 0))
    finished = plane.told(1, 0, ReportKind.FINISHED)
    is_named = "model.keras" in finished.data["upload_errors"]
    assert is_named == (status != 409)  # stale: nobody wants the file, nothing is wrong with it


def test_preemption_saves_a_checkpoint_that_a_later_trainer_starts_from(
    plane: ControlPlane, drive: Drive
) -> None:
    driven = drive()
    plane.want(wanted_trainer(plane, 0))
    driven.until(lambda: ReportKind.SWITCHED in plane.kinds(1, 0))
    plane.want(wanted_trainer(plane, 0, generation=membership(2, source=0)))
    driven.until(lambda: ReportKind.EXITED in plane.kinds(1, 0))
    assert plane.uploads == {(1, "checkpoint.npz"): b"all variables"}

    sha256 = plane.add_checkpoint(1, plane.uploads[1, "checkpoint.npz"])
    plane.want(wanted_trainer(plane, 2, generation=membership(3, 2), checkpoint_sha256=sha256))
    booted = driven.told(1, 2, ReportKind.PHASE)
    assert booted.data["restored"] == "all variables"


def test_code_that_is_not_what_was_announced_fails_the_trainer(
    plane: ControlPlane, drive: Drive, state_dir: Path
) -> None:
    driven = drive()
    wanted = wanted_trainer(plane)
    plane.files["jobs/1/code/"] = b"import something_else\n"
    plane.want(wanted)
    driven.until(lambda: ReportKind.EXITED in plane.kinds(1, 0))
    failed, exited = plane.reports(1, 0)
    assert (failed.kind, failed.data["code"]) == (ReportKind.FAILED, "internal")
    assert "SHA-256" in failed.data["message"]
    assert exited.data["exit_code"] is None
    assert not list((state_dir / "cache").iterdir())


def test_checkpoints_beside_the_training_arrive_while_it_goes_on(
    plane: ControlPlane, drive: Drive
) -> None:
    driven = drive()
    plane.want(wanted_trainer(plane, play="save", saves=1))
    driven.until(lambda: ReportKind.CHECKPOINTED in plane.kinds(1, 0))
    assert plane.uploads == {(1, "checkpoint.npz"): b"step 1"}
    saved = plane.told(1, 0, ReportKind.CHECKPOINTED)
    assert saved.data == {
        "step": 1, "epoch": 0, "file": "checkpoint-1.npz", "is_last": False
    }  # fmt: skip
    assert ReportKind.EXITED not in plane.kinds(1, 0)


def test_a_checkpoint_that_a_newer_one_replaced_raises_no_alarm(
    plane: ControlPlane, drive: Drive, state_dir: Path
) -> None:
    driven = drive()
    plane.refuse_with["jobs/1/files/"] = 503
    plane.want(wanted_trainer(plane, play="save", saves=5))
    newest = state_dir / "trainers" / "1-0" / "outputs" / "checkpoint-5.npz"
    driven.until(newest.exists)
    plane.refuse_with.clear()
    driven.until(lambda: plane.kinds(1, 0).count(ReportKind.CHECKPOINTED) == 5)
    assert plane.uploads == {(1, "checkpoint.npz"): b"step 5"}
    reports = [item for item in plane.reports(1, 0) if item.kind is ReportKind.CHECKPOINTED]
    superseded = [item.data.get("superseded", False) for item in reports]
    # An upload of the first that is under way when the refusals end is accepted.
    assert superseded[1:] == [True] * 2 + [False] * 2
    assert not any("upload_errors" in item.data for item in reports)


def test_a_checkpoint_without_room_at_the_site_holds_up_no_report(
    plane: ControlPlane, drive: Drive
) -> None:
    """Its trainer's end would wait behind it, and the accelerator with that."""
    driven = drive()
    plane.refuse_with["jobs/1/files/"] = 507
    plane.want(wanted_trainer(plane, play="save", saves=2))
    driven.until(lambda: plane.kinds(1, 0).count(ReportKind.CHECKPOINTED) == 2)
    assert plane.uploads == {}
    reports = [item for item in plane.reports(1, 0) if item.kind is ReportKind.CHECKPOINTED]
    assert [item.data.get("superseded", False) for item in reports] == [True, True]
    assert not any("upload_errors" in item.data for item in reports)


def test_results_wait_for_room_at_the_site(plane: ControlPlane, drive: Drive) -> None:
    driven = drive()
    plane.refuse_with["jobs/1/files/"] = 507
    plane.want(wanted_trainer(plane, play="finish"))
    trainers = driven.agent.trainers
    driven.until(lambda: (1, 0) in trainers and trainers[1, 0].stage is Stage.GONE)
    assert ReportKind.FINISHED not in plane.kinds(1, 0)
    plane.refuse_with.clear()
    driven.until(lambda: ReportKind.EXITED in plane.kinds(1, 0))
    assert plane.kinds(1, 0)[-2:] == [ReportKind.FINISHED, ReportKind.EXITED]
    assert plane.uploads


def test_a_prediction_gets_its_model_and_its_parts_are_sent_and_deleted(
    plane: ControlPlane, drive: Drive, state_dir: Path
) -> None:
    content = b"another job's model"
    plane.files["jobs/1/source/"] = content
    wanted = wanted_trainer(plane, play="predict")
    spec = replace(wanted.spec, model_sha256=hashlib.sha256(content).hexdigest())
    driven = drive()
    plane.refuse_with["jobs/1/files/"] = 503
    plane.want(replace(wanted, spec=spec))
    part = state_dir / "trainers" / "1-0" / "outputs" / "predictions-0-4.npz"
    driven.until(part.exists)
    plane.refuse_with.clear()
    driven.until(lambda: ReportKind.PART in plane.kinds(1, 0))
    assert plane.uploads == {(1, "predictions-0-4.npz"): b"made by another job's model"}
    assert not part.exists()
    report = plane.told(1, 0, ReportKind.PART)
    assert "upload_errors" not in report.data
