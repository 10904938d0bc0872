"""A trainer that is stopped or stuck is killed; one that is not never is."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from agents.supervision import starvation
from agents.supervision.heartbeat import Pulse
from agents.supervision.isolation import Isolation
from controlplane.core.protocol.wire import ReportKind
from tests.agents.builders import wanted_trainer
from tests.agents.conftest import Drive, trainers_below
from tests.agents.control_plane import ControlPlane


def touched(path: Path, at_s: float) -> None:
    path.touch()
    os.utime(path, (at_s, at_s))


def test_silence_counts_from_the_last_touch(tmp_path: Path) -> None:
    path = tmp_path / "pulse"
    pulse = Pulse(path, limit_s=3.0, boot_limit_s=100.0)
    touched(path, 50.0)
    assert [pulse.is_lost(now, 0) for now in (0.0, 1.0, 2.0, 3.0)] == [False] * 4
    touched(path, 50.5)
    assert [pulse.is_lost(now, 0) for now in (4.0, 5.0, 6.0, 7.0, 7.5)] == [False] * 4 + [True]
    assert pulse.silent_s == 3.5


def test_before_the_first_touch_the_longer_bound_holds(tmp_path: Path) -> None:
    pulse = Pulse(tmp_path / "pulse", limit_s=1.0, boot_limit_s=4.0)
    assert [pulse.is_lost(now, 0) for now in (0.0, 1.0, 2.0, 3.0, 4.0, 5.0)] == [False] * 5 + [True]


def test_an_agent_that_was_asleep_blames_nobody(tmp_path: Path) -> None:
    path = tmp_path / "pulse"
    pulse = Pulse(path, limit_s=3.0, boot_limit_s=100.0)
    touched(path, 50.0)
    assert not pulse.is_lost(0.0, 0)
    assert not pulse.is_lost(3600.0, 0)  # an hour in which neither side ran counts as one second
    assert not pulse.is_lost(3601.0, 0)
    assert not pulse.is_lost(3602.0, 0)
    assert pulse.is_lost(3602.1, 0)


def test_a_clock_that_is_set_matters_to_nobody(tmp_path: Path) -> None:
    path = tmp_path / "pulse"
    pulse = Pulse(path, limit_s=1.5, boot_limit_s=100.0)
    for now, clock in enumerate((5000.0, 100.0, 100.5, 9000.0)):
        touched(path, clock)
        assert not pulse.is_lost(float(now), 0)
    assert not pulse.is_lost(4.0, 0)
    assert pulse.is_lost(5.0, 0)


def test_time_without_a_processor_is_no_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a trainer that is silent for other reasons it may be four times the limit at most."""
    path = tmp_path / "pulse"
    pulse = Pulse(path, limit_s=4.0, boot_limit_s=100.0)
    waits = {1: 500.0, 2: 0.0}
    monkeypatch.setattr(starvation, "thread_waits_s", lambda _: dict(waits))

    def silence_s(starved_of_1_s: float) -> int:
        touched(path, path.stat().st_mtime + 1.0)
        for second in range(100):
            if pulse.is_lost(float(second), 0):
                return second
            waits[2] += starved_of_1_s
        raise AssertionError("never lost")

    touched(path, 50.0)
    assert [silence_s(share) for share in (0.0, 0.75, 1.0)] == [5, 8, 17]


def test_a_stopped_trainer_is_killed_and_reported_with_the_reason(
    plane: ControlPlane, drive: Drive, state_dir: Path
) -> None:
    driven = drive(pulse_limit_s=2.0, grace_s=30.0)
    plane.want(wanted_trainer(plane, 0), wanted_trainer(plane, 1, job_id=2))
    driven.until(lambda: ReportKind.SWITCHED in plane.kinds(1, 0))
    driven.until(lambda: ReportKind.SWITCHED in plane.kinds(2, 1))
    stopped = next(state.pid for state in plane.owned() if state.job_id == 1)
    driven.until(lambda: (state_dir / "trainers" / "1-0" / "pulse").exists())
    psutil.Process(stopped).suspend()
    exited = driven.told(1, 0, ReportKind.EXITED)
    assert exited.data["exit_code"] == -9
    assert exited.data["reason"].startswith("no sign of life for 2.")
    assert len(trainers_below(state_dir)) == 1
    assert ReportKind.EXITED not in plane.kinds(2, 1)


def test_a_trainer_that_takes_ports_of_other_jobs_is_killed(
    plane: ControlPlane, drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    driven = drive()
    plane.want(wanted_trainer(plane, 0))
    driven.until(lambda: ReportKind.SWITCHED in plane.kinds(1, 0))
    monkeypatch.setattr(Isolation, "port_fault", lambda *_: "it took port 21005")
    exited = driven.told(1, 0, ReportKind.EXITED)
    assert exited.data["exit_code"] == -9
    assert exited.data["reason"] == "it took port 21005"


def test_a_trainer_that_never_gives_a_sign_is_killed_after_the_longer_bound(
    plane: ControlPlane, drive: Drive
) -> None:
    driven = drive(pulse_limit_s=2.0, boot_pulse_limit_s=0.5)
    plane.want(wanted_trainer(plane, play="silent"))
    exited = driven.told(1, 0, ReportKind.EXITED)
    assert exited.data["exit_code"] == -9
