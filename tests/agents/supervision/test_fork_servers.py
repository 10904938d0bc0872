"""Fork servers: what they fork is a trainer like any other, and they are never in the way."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from agents.supervision import fork_servers
from agents.supervision.devices import VALIDATION_ENVIRONMENT
from agents.supervision.processes import OwnedProcess, orphans_reap
from controlplane.core.protocol.node_messages import ValidationReport
from controlplane.core.protocol.wire import ReportKind
from tests.agents.builders import (
    agent_settings,
    membership,
    wanted_trainer,
    wanted_validation,
)
from tests.agents.conftest import Drive, Spawn, run_dirs_below, trainers_below, wait_until
from tests.agents.control_plane import ENROLMENT_TOKEN, ControlPlane


def servers(state_dir: Path) -> list[psutil.Process]:
    return trainers_below(state_dir / "fork_servers")


def warm_servers(state_dir: Path) -> list[psutil.Process]:
    found = run_dirs_below(state_dir / "fork_servers")
    return [process for process, run_dir in found if (run_dir / "warm").exists()]


def booted_in(plane: ControlPlane, job_id: int, slot: int) -> int:
    return next(s.pid for s in plane.owned() if (s.job_id, s.slot) == (job_id, slot))


def validated(plane: ControlPlane) -> list[ValidationReport]:
    with plane.lock:
        return [report for batch in plane.batches for report in batch.validations]


def is_forked(pid: int) -> bool:
    return "--fork-server" in psutil.Process(pid).cmdline()


def test_a_forked_trainer_keeps_its_contract(
    plane: ControlPlane, drive: Drive, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://secret")
    driven = drive(fork_servers=True)
    plane.want(wanted_trainer(plane, 0, play="parent"))
    driven.until(lambda: ReportKind.SWITCHED in plane.kinds(1, 0))
    pid = booted_in(plane, 1, 0)
    assert is_forked(pid)
    assert (os.getpgid(pid), os.getsid(pid)) == (pid, pid)
    booted = plane.told(1, 0, ReportKind.PHASE)
    environment = booted.data["environment"]
    run_dir = state_dir / "trainers" / "1-0"
    assert environment["VIRTUALFLOW_RUN_DIR"] == str(run_dir)
    assert environment["CUDA_VISIBLE_DEVICES"] == "-1"
    assert environment["PYTHONHASHSEED"] == "0"
    assert "DATABASE_URL" not in environment
    assert "VIRTUALFLOW_ROOM" not in environment
    assert booted.data["code"] == ["job.py"]
    assert len(trainers_below(run_dir)) == 3  # itself, a child, and a child in its own session
    assert len(warm_servers(state_dir)) == 1  # emulated accelerators and validations share it
    plane.want(wanted_trainer(plane, 0, play="parent", generation=membership(2, source=0)))
    exited = driven.told(1, 0, ReportKind.EXITED)
    assert exited.data["exit_code"] == 0
    assert not trainers_below(run_dir)
    assert len(warm_servers(state_dir)) == 1


def test_it_holds_nothing_of_its_server(plane: ControlPlane, drive: Drive, state_dir: Path) -> None:
    driven = drive(fork_servers=True)
    plane.want(wanted_trainer(plane, 1, play="noisy", characters=100))
    driven.until(lambda: plane.log(1, 1) == "ä" * 100)
    pid = booted_in(plane, 1, 1)
    assert is_forked(pid)
    run_dir = state_dir / "trainers" / "1-1"
    held = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed just now
            held.add(str(path.readlink()))
    orders = {str(run_dir / "orders.json")}  # opened from time to time
    assert held - orders == {"/dev/null", str(run_dir / "log.txt"), str(run_dir / "reports.jsonl")}


@pytest.mark.parametrize(("play", "exit_code"), [("parent", -15), ("stubborn", -9), ("crash", 7)])
def test_its_exit_status_is_known(
    plane: ControlPlane, drive: Drive, state_dir: Path, play: str, exit_code: int
) -> None:
    driven = drive(fork_servers=True, grace_s=0.2)
    plane.want(wanted_trainer(plane, 0, play=play))
    driven.until(lambda: ReportKind.READY in plane.kinds(1, 0))
    if play != "crash":
        plane.want()
    exited = driven.told(1, 0, ReportKind.EXITED)
    assert exited.data["exit_code"] == exit_code
    assert not trainers_below(state_dir / "trainers")


def test_a_validation_is_forked_too(plane: ControlPlane, drive: Drive, state_dir: Path) -> None:
    driven = drive(fork_servers=True)
    driven.until(lambda: warm_servers(state_dir))
    plane.want(validations=[wanted_validation(plane, 1, play="hang")])
    driven.until(lambda: trainers_below(state_dir / "validations"))
    assert any(is_forked(row.pid) for row in trainers_below(state_dir / "validations"))
    plane.want(validations=[wanted_validation(plane, 2, play="fine")])
    driven.until(lambda: any(row.validation_id == 2 and row.ok for row in validated(plane)))
    assert not trainers_below(state_dir / "validations")


def test_a_start_waits_for_a_server_that_warms_up(
    plane: ControlPlane, drive: Drive, state_dir: Path
) -> None:
    driven = drive(fork_servers=True)
    plane.want(wanted_trainer(plane, 0), wanted_trainer(plane, 1))
    driven.until(lambda: len(trainers_below(state_dir / "trainers")) == 2)
    assert all(is_forked(row.pid) for row in trainers_below(state_dir / "trainers"))


@pytest.mark.parametrize("way", ["dead", "deaf", "stopped", "forgetful"])
def test_a_server_that_does_not_fork_is_replaced_by_a_cold_start(
    plane: ControlPlane, drive: Drive, state_dir: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr(fork_servers, "REPLY_LIMIT_S", 0.5)
    if way in ("deaf", "forgetful"):
        monkeypatch.setenv("FAKE_FORK_SERVER", way)
    driven = drive(fork_servers=True, kept_environment=("FAKE_FORK_SERVER",))
    driven.until(lambda: warm_servers(state_dir))
    (server,) = servers(state_dir)
    plane.want(wanted_trainer(plane))
    if way == "stopped":
        server.suspend()
    if way == "dead":
        server.kill()
    driven.until(lambda: ReportKind.SWITCHED in plane.kinds(1, 0))
    assert not server.is_running() or server.status() == psutil.STATUS_ZOMBIE
    assert plane.kinds(1, 0).count(ReportKind.PHASE) == 1


class LateServer:
    """A warm server that replies at its end, if at all."""

    pid = 0

    def __init__(self, reply: bytes | None) -> None:
        (_, requests), (replies, self.reply_end) = os.pipe(), os.pipe()
        self.pipes = os.fdopen(requests, "wb"), os.fdopen(replies, "rb")
        self._reply = reply

    def kill(self) -> None:
        if self._reply is not None:
            os.write(self.reply_end, self._reply)
            os.close(self.reply_end)


@pytest.mark.parametrize(
    ("reply", "cold"),
    [(b"%d\n" % os.getpid(), 0), (b"", 1), (b"0\n", 1), (None, 0)],
    ids=["its id", "nothing", "failure", "no end"],
)
def test_nothing_is_started_beside_what_a_late_server_forks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reply: bytes | None, cold: int
) -> None:
    monkeypatch.setattr(fork_servers, "REPLY_LIMIT_S", 0.005)
    settings = agent_settings("http://127.0.0.1:9", tmp_path)
    servers, late = fork_servers.ForkServers(settings, [], tmp_path), LateServer(reply)
    server = fork_servers._Server(late, tmp_path, 0.0, is_warm=True)  # type: ignore[arg-type]
    servers._servers[servers._key(VALIDATION_ENVIRONMENT)] = server
    starts: list[object] = []
    monkeypatch.setattr(OwnedProcess, "start", lambda *values, **_: starts.append(values))
    arguments = ("--validate", tmp_path, VALIDATION_ENVIRONMENT, None, {})
    if reply is None:
        with pytest.raises(OSError, match="a fork server that was killed has not ended"):
            servers.start(*arguments)
        with pytest.raises(BrokenPipeError):  # the forked process ends over it
            os.write(late.reply_end, b"1\n")
    else:
        process = servers.start(*arguments)
        assert (process is None) == bool(cold)
        assert cold or process.pid == os.getpid()
    assert len(starts) == cold


def test_broken_servers_are_not_tried_without_end(
    plane: ControlPlane, drive: Drive, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_FORK_SERVER", "broken")
    monkeypatch.setattr(fork_servers, "FAILED_FIRST_S", 60.0)
    driven = drive(fork_servers=True, kept_environment=("FAKE_FORK_SERVER",))
    driven.until(lambda: servers(state_dir))
    driven.until(lambda: not servers(state_dir))
    driven.until(plane.sees(3))
    assert not servers(state_dir)
    plane.want(wanted_trainer(plane))
    driven.until(lambda: ReportKind.SWITCHED in plane.kinds(1, 0))


def test_a_killed_agents_server_goes_with_it_and_the_trainer_is_adopted(
    plane: ControlPlane, spawn: Spawn, state_dir: Path
) -> None:
    killed = spawn("--fork-servers", VIRTUALFLOW_ENROLMENT_TOKEN=ENROLMENT_TOKEN)
    plane.want(wanted_trainer(plane))
    wait_until(lambda: ReportKind.SWITCHED in plane.kinds(1, 0))
    (trainer,) = trainers_below(state_dir / "trainers")
    assert is_forked(trainer.pid)
    assert trainer.ppid() == killed.process.pid
    killed.send(signal.SIGKILL)
    killed.ended()
    wait_until(lambda: not servers(state_dir))
    steps = plane.kinds(1, 0).count(ReportKind.STEPS)

    second = spawn("--fork-servers")
    wait_until(lambda: plane.kinds(1, 0).count(ReportKind.STEPS) > steps + 5)
    assert trainers_below(state_dir / "trainers") == [trainer]
    wait_until(lambda: warm_servers(state_dir))
    second.send(signal.SIGTERM)
    assert second.ended()[0] == 0
    assert not trainers_below(state_dir)
    assert plane.kinds(1, 0)[-1] is ReportKind.EXITED


def test_orphans_of_trainers_do_not_pile_up(
    plane: ControlPlane, spawn: Spawn, state_dir: Path
) -> None:
    agent = spawn("--fork-servers", VIRTUALFLOW_ENROLMENT_TOKEN=ENROLMENT_TOKEN)
    plane.want(wanted_trainer(plane, 0, play="parent"))
    wait_until(lambda: ReportKind.SWITCHED in plane.kinds(1, 0))
    processes = trainers_below(state_dir / "trainers")
    assert len(processes) == 3
    leader = next(row for row in processes if row.ppid() == agent.process.pid)
    leader.kill()  # its two children, which ignore SIGTERM, are killed a second later
    wait_until(lambda: not any(row.is_running() for row in processes))
    agent.send(signal.SIGTERM)
    assert agent.ended()[0] == 0


def test_an_owned_child_is_left_to_its_owner() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(3)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    orphans_reap({pid})
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3


def test_no_server_is_started_where_none_is_wanted_or_memory_is_short(
    plane: ControlPlane, drive: Drive, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_servers, "EXPECTED_BYTES", 2**60)
    driven = drive(fork_servers=True)
    driven.until(plane.sees(3))
    assert not servers(state_dir)
    monkeypatch.undo()
    driven.agent.end(0.0)
    driven.until_nothing_runs()
    driven.vanish()
    second = drive(fork_servers=False)
    second.until(plane.sees(3))
    assert not servers(state_dir)
