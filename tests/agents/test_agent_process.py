"""`python -m agents` as a process: signals, lock, one round, what it says if it cannot run."""

from __future__ import annotations

import signal
import socket
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from agents.__main__ import main
from controlplane.core.protocol.wire import ReportKind
from tests.agents.builders import wanted_trainer, wanted_validation
from tests.agents.conftest import Spawn, trainers_below, wait_until
from tests.agents.control_plane import ENROLMENT_TOKEN, ControlPlane


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_agent_leaves_nothing_and_says_so(
    plane: ControlPlane, spawn: Spawn, state_dir: Path, number: signal.Signals
) -> None:
    agent = spawn(VIRTUALFLOW_ENROLMENT_TOKEN=ENROLMENT_TOKEN)
    plane.want(
        wanted_trainer(plane, 0, play="parent"),
        wanted_trainer(plane, 1, job_id=2, play="stubborn"),
        validations=[wanted_validation(plane, 3, play="hang")],
    )
    wait_until(lambda: ReportKind.READY in plane.kinds(1, 0))
    wait_until(lambda: ReportKind.READY in plane.kinds(2, 1))
    wait_until(lambda: len(trainers_below(state_dir)) == 6)
    agent.send(number)
    exit_code, errors = agent.ended()
    assert exit_code == 0
    assert "no trainer is left" in errors
    assert not trainers_below(state_dir)
    assert plane.kinds(1, 0)[-1] is plane.kinds(2, 1)[-1] is ReportKind.EXITED


def test_a_download_that_hangs_does_not_keep_the_agent_from_stopping(
    plane: ControlPlane, spawn: Spawn
) -> None:
    plane.held_up.add("jobs/1/code/")
    plane.want(wanted_trainer(plane))
    agent = spawn(VIRTUALFLOW_ENROLMENT_TOKEN=ENROLMENT_TOKEN)
    wait_until(lambda: [state.pid for state in plane.owned()] == [0])
    agent.send(signal.SIGTERM)
    exit_code, errors = agent.ended(deadline_s=10)
    assert exit_code == 0
    assert "no trainer is left" in errors


def test_trainers_can_be_kept_over_a_restart(
    plane: ControlPlane, spawn: Spawn, state_dir: Path
) -> None:
    agent = spawn("--keep-trainers", VIRTUALFLOW_ENROLMENT_TOKEN=ENROLMENT_TOKEN)
    plane.want(wanted_trainer(plane))
    wait_until(lambda: ReportKind.SWITCHED in plane.kinds(1, 0))
    agent.send(signal.SIGTERM)
    assert agent.ended()[0] == 0
    assert len(trainers_below(state_dir)) == 1

    second = spawn()
    wait_until(lambda: len(plane.hellos) == 2 and plane.owned())
    second.send(signal.SIGTERM)
    assert second.ended()[0] == 0
    assert not trainers_below(state_dir)
    assert ReportKind.EXITED in plane.kinds(1, 0)


def test_one_agent_a_state_directory(plane: ControlPlane, spawn: Spawn, state_dir: Path) -> None:
    first = spawn(VIRTUALFLOW_ENROLMENT_TOKEN=ENROLMENT_TOKEN)
    wait_until(lambda: plane.batches)
    exit_code, errors = spawn().ended()
    assert exit_code == 3
    assert f"another agent (process {first.process.pid}) holds {state_dir}" in errors


def test_once_does_one_round_and_keeps_the_trainers(
    plane: ControlPlane, spawn: Spawn, state_dir: Path
) -> None:
    plane.want(wanted_trainer(plane))
    agent = spawn("--once", VIRTUALFLOW_ENROLMENT_TOKEN=ENROLMENT_TOKEN)
    assert agent.ended()[0] == 0
    assert len(trainers_below(state_dir)) == 1
    plane.want()
    assert spawn("--once").ended()[0] == 0
    wait_until(lambda: not trainers_below(state_dir))


def test_a_removed_node_ends_its_trainers_and_itself(
    plane: ControlPlane, spawn: Spawn, state_dir: Path
) -> None:
    agent = spawn(VIRTUALFLOW_ENROLMENT_TOKEN=ENROLMENT_TOKEN)
    plane.want(wanted_trainer(plane))
    wait_until(lambda: ReportKind.SWITCHED in plane.kinds(1, 0))
    plane.refuse_with[""] = 410
    exit_code, errors = agent.ended()
    assert exit_code == 5
    assert "this node was removed" in errors
    assert not trainers_below(state_dir)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--server", "127.0.0.1:8000"], "--server must be an address like"),
        (["--emulate", "two"], "--emulate must be a whole number"),
        (["--isolation", "jail"], "--isolation must be uid or none"),
        (["--job-uids", "200000"], "--job-uids must look like 200000-200999"),
        (["--job-uids", "0-999"], "--job-uids must be two or more ids within 1000-"),
        (["--job-uids", "2000-2000"], "--job-uids must be two or more ids"),
        (["--ports", "80-90"], "--ports must be a range within 1024-65535"),
        (["--node", "two words"], "--node must be 1 to 63 lower-case letters"),
        (["--grace-s", "soon"], "--grace-s must be a number of seconds"),
        (["--state-dir", ""], "--state-dir is missing (or set VIRTUALFLOW_STATE_DIR)"),
    ],
)
def test_wrong_options_are_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
) -> None:
    fine = ["--server", "http://127.0.0.1:9", "--node", "a", "--state-dir", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["agents", *fine, *arguments])
    monkeypatch.setenv("VIRTUALFLOW_STATE_DIR", "")
    assert main() == 2
    assert words in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("place", "error", "words"),
    [
        ("socket.getaddrinfo", socket.gaierror(-2, "Name or service"), "correct --server"),
        ("agents.__main__.StateDirectory", PermissionError(13, "Denied", "/x"), "--state-dir"),
        ("agents.__main__.Agent", OSError(5, "Input/output error"), "--state-dir"),
    ],
)
def test_an_error_of_the_system_at_the_start_is_told_with_the_fix(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    place: str,
    error: OSError,
    words: str,
) -> None:
    options = ["--server", "http://127.0.0.1:9", "--node", "a", "--state-dir", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["agents", *options, "--emulate", "1"])
    monkeypatch.setattr("agents.__main__.subreaper_set", lambda: None)
    monkeypatch.setattr(place, Mock(side_effect=error))
    assert main() == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert str(error) in told
    assert words in told
