"""The control plane away, refusing, or listening to somebody else."""

from __future__ import annotations

import dataclasses
import itertools
import resource
import shutil
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from agents.session.client import ConnectionSettingsError, ControlPlaneClient
from agents.session.contact import EXIT_REFUSED, EXIT_REMOVED
from agents.session.outbox import MAX_ITEMS
from agents.session.registration import Registration
from agents.settings import AgentSettings
from agents.state_directory import StateDirectory, StateDirectoryBusyError
from controlplane.core.protocol.node_messages import EnrolReply
from controlplane.core.protocol.wire import ReportKind
from tests.agents.builders import membership, wanted_trainer
from tests.agents.conftest import Drive, trainers_below
from tests.agents.control_plane import ENROLMENT_TOKEN, ControlPlane
from tests.support.cases import pairs


def count_lines(state_dir: Path) -> int:
    return (state_dir / "trainers" / "1-0" / "reports.jsonl").read_bytes().count(b"\n")


def test_trainers_go_on_while_the_control_plane_is_away_and_nothing_is_lost(
    plane: ControlPlane, drive: Drive, state_dir: Path
) -> None:
    driven = drive()
    plane.want(wanted_trainer(plane))
    driven.until(lambda: ReportKind.SWITCHED in plane.kinds(1, 0))
    plane.refuse_with[""] = 503
    before = len(plane.batches)
    driven.until(lambda: count_lines(state_dir) > 30)
    assert len(plane.batches) == before
    assert driven.agent.fatal is None

    plane.refuse_with.clear()
    driven.until(lambda: len(plane.reports(1, 0)) > 30)
    assert [report.sequence for report in plane.reports(1, 0)][:31] == list(range(31))
    assert max(len(batch.reports) for batch in plane.batches[before:]) <= MAX_ITEMS


@pytest.mark.parametrize(
    ("path", "answer"),
    pairs(
        ["hello/", "reports/", "wanted/", "jobs/1/code/", "jobs/1/files/"],
        itertools.product([429, 503], ["3600", "9" * 400]),
    ),
)
def test_no_proxy_makes_an_agent_wait_for_longer_than_it_does_by_itself(
    plane: ControlPlane, drive: Drive, path: str, answer: tuple[int, str]
) -> None:
    """A wait of an hour would cost the node its lease, and jobs what they train there."""
    plane.refuse_with[path], plane.retry_after = answer
    plane.want(wanted_trainer(plane))
    driven = drive()
    if path == "jobs/1/files/":
        driven.until(lambda: ReportKind.SWITCHED in plane.kinds(1, 0))
        plane.want(wanted_trainer(plane, generation=membership(2, source=0)))
    driven.until(lambda: plane.refused)
    plane.refuse_with.clear()
    driven.until(lambda: ReportKind.SWITCHED in plane.kinds(1, 0))
    plane.want(wanted_trainer(plane, generation=membership(2, source=0)))
    driven.until(lambda: ReportKind.EXITED in plane.kinds(1, 0))
    assert plane.uploads == {(1, "checkpoint.npz"): b"all variables"}


def test_an_answer_that_is_lost_costs_a_repeat_and_nothing_else(
    plane: ControlPlane, drive: Drive
) -> None:
    driven = drive()
    plane.want(wanted_trainer(plane, play="noisy", characters=40_000))
    driven.until(lambda: plane.reports(1, 0))
    plane.lost_answers = 5
    driven.until(lambda: not plane.lost_answers and len(plane.log(1, 0)) >= 40_000)
    driven.until(lambda: len(plane.reports(1, 0)) > 10)
    assert plane.log(1, 0) == "ä" * 40_000
    taken = [report for batch in plane.batches for report in batch.reports]
    by_sequence = {report.sequence: report for report in taken}
    assert sorted(by_sequence) == list(range(len(by_sequence)))
    assert len(taken) > len(by_sequence)
    assert all(by_sequence[report.sequence] == report for report in taken)


def test_an_agent_waits_for_a_control_plane_that_is_not_there_yet(
    plane: ControlPlane, drive: Drive
) -> None:
    plane.refuse_with[""] = 502
    driven = drive()
    rounds = iter(range(20))
    driven.until(lambda: next(rounds) == 19)
    plane.refuse_with.clear()
    driven.until(lambda: plane.batches)


def test_the_file_of_an_enrolment_token_is_deleted_once_it_was_used(
    plane: ControlPlane, drive: Drive, tmp_path: Path
) -> None:
    path = tmp_path / "token"
    path.write_text(ENROLMENT_TOKEN)
    plane.refuse_with["enrol/"] = 503
    driven = drive(enrolment_token_file=path)
    rounds = iter(range(20))
    driven.until(lambda: next(rounds) == 19)
    assert path.exists()
    plane.refuse_with.clear()
    driven.until(lambda: plane.batches)
    assert not path.exists()


def test_a_new_token_of_a_hello_is_kept_and_used(
    plane: ControlPlane, drive: Drive, state_dir: Path
) -> None:
    driven = drive(enrolment_token="")
    driven.state.keep_credentials(plane.address, plane.reply)
    plane.reply = dataclasses.replace(plane.reply, agent_token="the-next-one")
    driven.until(lambda: plane.hellos)
    plane.token = "the-next-one"
    driven.until(lambda: plane.batches)
    assert "the-next-one" in (state_dir / "credentials.json").read_text()


def test_a_new_token_that_cannot_be_stored_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its use would end the old one, and with it the node at the agent's next start."""
    settings = AgentSettings(server="http://127.0.0.1:9", node="a", state_dir=tmp_path)
    old = EnrolReply(node_id=7, agent_token="old", heartbeat_s=0.3, lease_s=0.4)
    new = dataclasses.replace(old, agent_token="new", lease_s=0.5)
    state = StateDirectory(tmp_path)
    state.keep_credentials(settings.server, old)
    client = Mock(hello=Mock(return_value=new))
    registration = Registration(settings, state, client, "127.0.0.1", ())
    full = Mock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr("agents.state_directory.write_atomically", full)
    assert registration.register() == new
    monkeypatch.undo()
    assert registration.register() == new
    assert [call.args for call in client.authorise.mock_calls] == [("old",), ("old",), ("new",)]
    state.close()


@pytest.mark.parametrize("told_by", ["reports/", "wanted/"])
def test_a_removed_node_stops(told_by: str, plane: ControlPlane, drive: Drive) -> None:
    driven = drive()
    driven.until(lambda: plane.batches)
    plane.refuse_with[told_by] = 410
    driven.until(lambda: driven.agent.fatal is not None)
    assert driven.agent.fatal.exit_code == EXIT_REMOVED
    driven.agent.end(time.monotonic())
    for _ in range(3):  # further rounds, in which trainers would end
        driven.agent.run_once(time.monotonic())
        time.sleep(0.01)


def test_a_forgotten_token_is_tried_for_a_while(
    plane: ControlPlane, drive: Drive, state_dir: Path
) -> None:
    driven = drive(refused_for_s=0.4)
    plane.want(wanted_trainer(plane))
    driven.until(lambda: ReportKind.READY in plane.kinds(1, 0))
    plane.refuse_with["reports/"] = 401
    lines = count_lines(state_dir)
    driven.until(lambda: count_lines(state_dir) > lines + 5)
    assert driven.agent.fatal is None
    assert trainers_below(state_dir)
    driven.until(lambda: driven.agent.fatal is not None)
    assert driven.agent.fatal.exit_code == EXIT_REFUSED
    assert "enrol it anew" in driven.agent.fatal.message


def test_an_agent_with_a_new_token_enrols_anew_when_it_is_forgotten(
    plane: ControlPlane, drive: Drive, state_dir: Path
) -> None:
    first = drive()
    first.until(lambda: plane.batches)
    first.vanish()
    text = (state_dir / "credentials.json").read_text()
    (state_dir / "credentials.json").write_text(text.replace("agent-token", "forgotten-token"))
    second = drive()
    second.until(lambda: len(plane.enrolments) == 2)


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"enrolment_token": ""}, "is not enrolled yet"), ({"enrolment_token": "x"}, "new token")],
)
def test_an_agent_that_cannot_enrol_says_what_to_do(
    plane: ControlPlane, drive: Drive, changes: dict[str, str], words: str
) -> None:
    driven = drive(**changes)
    driven.until(lambda: driven.agent.fatal is not None)
    assert words in driven.agent.fatal.message
    assert driven.agent.fatal.exit_code == EXIT_REFUSED


def test_a_state_directory_of_another_control_plane_is_refused(
    plane: ControlPlane, drive: Drive, state_dir: Path
) -> None:
    first = drive()
    first.until(lambda: plane.batches)
    first.vanish()
    text = (state_dir / "credentials.json").read_text()
    (state_dir / "credentials.json").write_text(text.replace(plane.address, "http://other"))
    second = drive()
    second.until(lambda: second.agent.fatal is not None)
    assert "enrolled at http://other" in second.agent.fatal.message


def test_a_copy_of_a_living_agent_is_refused_without_harm(
    plane: ControlPlane, drive: Drive, state_dir: Path, tmp_path: Path
) -> None:
    first = drive()
    plane.want(wanted_trainer(plane))
    first.until(lambda: ReportKind.SWITCHED in plane.kinds(1, 0))
    plane.lease_holder = plane.batches[-1].boot_id
    copied = tmp_path / "copy"
    shutil.copytree(state_dir, copied)
    (trainer,) = trainers_below(state_dir)
    second = drive(state_dir=copied)
    second.until(lambda: second.agent.fatal is not None)
    assert "another agent of this node is alive" in second.agent.fatal.message
    second.agent.end(time.monotonic())  # as the program does then
    second.until_nothing_runs()
    assert trainers_below(state_dir) == [trainer]
    assert {batch.boot_id for batch in plane.batches} == {plane.lease_holder}
    steps = plane.kinds(1, 0).count(ReportKind.STEPS)
    first.until(lambda: plane.kinds(1, 0).count(ReportKind.STEPS) > steps)


def test_a_lost_lease_is_taken_back_or_ends_the_agent(plane: ControlPlane, drive: Drive) -> None:
    driven = drive()
    driven.until(lambda: plane.batches)
    plane.refuse_with["reports/"] = 409  # the lease ran out, nobody else has it
    driven.until(lambda: len(plane.hellos) > 2)
    plane.refuse_with.clear()
    driven.until(plane.sees(1))
    assert driven.agent.fatal is None

    plane.lease_holder = "another-boot"
    driven.until(lambda: driven.agent.fatal is not None)
    assert driven.agent.fatal.exit_code == EXIT_REFUSED


def test_one_report_that_is_refused_does_not_hold_up_the_others(
    plane: ControlPlane, drive: Drive
) -> None:
    plane.refuse_report = lambda report: report.kind is ReportKind.READY
    driven = drive()
    plane.want(wanted_trainer(plane))
    driven.until(lambda: len(plane.reports(1, 0)) > 10)
    sequences = [report.sequence for report in plane.reports(1, 0)]
    assert sequences[:5] == [0, 2, 3, 4, 5]


def test_a_proxy_that_is_not_supported_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "ftp://127.0.0.1:9")
    with pytest.raises(ConnectionSettingsError, match=r"ALL_PROXY.*scheme"):
        ControlPlaneClient("https://site.example", 1.0)


def test_boot_id_stays_with_the_folder(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path / "one")
    before = state.boot_id()
    state.close()
    again, other = StateDirectory(tmp_path / "one"), StateDirectory(tmp_path / "two")
    assert again.boot_id() == before != other.boot_id()
    again.close()
    other.close()


def test_a_folder_on_a_full_disk_is_locked(tmp_path: Path) -> None:
    StateDirectory(tmp_path).close()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))  # nothing can be written
    try:
        state = StateDirectory(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with pytest.raises(StateDirectoryBusyError, match="unknown"):
        StateDirectory(tmp_path)
    state.close()


def test_enrolment_sends_what_the_node_has(plane: ControlPlane, drive: Drive) -> None:
    drive(first_port=30000, last_port=30009, kind="slow").until(lambda: plane.enrolments)
    (request,) = plane.enrolments
    assert request.token == ENROLMENT_TOKEN
    assert (request.host, request.first_port, request.last_port) == ("127.0.0.1", 30000, 30009)
    assert {item.kind for item in request.accelerators} == {"slow"}


def test_a_control_plane_that_was_away_for_long_is_found_and_obeyed_at_once(
    plane: ControlPlane, drive: Drive
) -> None:
    driven = drive(backoff_cap_s=600.0)
    driven.until(lambda: plane.batches)
    backoffs = [driven.agent._contact._backoff, driven.agent._poller._backoff]
    plane.refuse_with[""] = 503
    driven.until(lambda: all(backoff.failures for backoff in backoffs))
    for backoff in backoffs:
        backoff.failures = 30
    driven.until(lambda: all(backoff.failures > 30 for backoff in backoffs))
    plane.refuse_with.clear()
    before = len(plane.batches)
    driven.until(lambda: len(plane.batches) > before)
    plane.want(wanted_trainer(plane))
    driven.until(lambda: ReportKind.SWITCHED in plane.kinds(1, 0))
