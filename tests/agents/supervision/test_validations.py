"""Code that is built once, in a process that is thrown away."""

from __future__ import annotations

import dataclasses
import errno
import itertools
import json
import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from agents.settings import AgentSettings
from agents.supervision import starvation, validations
from agents.supervision.agent_context import AgentContext
from agents.supervision.isolation import Isolation
from agents.supervision.processes import OwnedProcess
from agents.supervision.starvation import Starvation
from agents.trainer.contract.job_user import JobUser
from controlplane.core.protocol.node_messages import BUSY_FACTOR, ValidationReport, WantedValidation
from tests.agents.builders import training_spec, wanted_validation
from tests.agents.conftest import Drive, run_dirs_below, trainers_below, wait_until
from tests.agents.control_plane import ControlPlane


def results(plane: ControlPlane) -> list[ValidationReport]:
    with plane.lock:
        return [report for batch in plane.batches for report in batch.validations]


def test_what_the_process_found_is_passed_on_once(
    plane: ControlPlane, drive: Drive, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driven = drive()
    monkeypatch.setattr(Isolation, "is_paused", True)  # a firewall that does not answer
    plane.want(validations=[wanted_validation(plane, play="fine")])
    driven.until(lambda: (state_dir / "validations" / "1-1" / "orders.json").exists())
    rounds = iter(range(5))
    driven.until(lambda: next(rounds) == 4)
    assert not trainers_below(state_dir)
    assert not results(plane)
    monkeypatch.setattr(Isolation, "is_paused", False)
    driven.until(lambda: results(plane))
    driven.until(plane.sees(3))
    (report,) = results(plane)
    assert report.ok
    assert (report.validation_id, report.attempt) == (1, 1)
    assert report.facts == {"num_parameters": 12}

    plane.want()
    driven.until(lambda: not list((state_dir / "validations").iterdir()))


def test_code_that_finds_no_room_is_built_once_there_is_some(
    plane: ControlPlane, drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A validation waits for room on the node; the code is not refused for it."""
    fetch, enter, tries = validations.code_fetch, Isolation.enter, []

    def cramped(*arguments: Any) -> None:
        tries.append(1)
        if len(tries) < 3:
            raise OSError(errno.EDQUOT, "Disk quota exceeded")
        fetch(*arguments)

    def cramped_start(*arguments: Any) -> JobUser | None:
        if len(tries) < 4:
            raise OSError(errno.EDQUOT, "Disk quota exceeded")
        return enter(*arguments)

    monkeypatch.setattr(validations, "code_fetch", cramped)
    monkeypatch.setattr(Isolation, "enter", cramped_start)
    driven = drive()
    plane.want(validations=[wanted_validation(plane, play="fine")])
    driven.until(lambda: results(plane))
    assert [report.ok for report in results(plane)] == [True]
    assert len(tries) == 4


def test_a_refusal_carries_what_the_code_printed_and_its_traceback(
    plane: ControlPlane, drive: Drive
) -> None:
    driven = drive()
    plane.want(validations=[wanted_validation(plane, play="refuse")])
    driven.until(lambda: results(plane))
    (report,) = results(plane)
    assert (report.ok, report.code) == (False, "user_code")
    assert report.traceback == "what build printed\n\nin code"


def test_no_text_of_a_job_begins_a_line_of_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = WantedValidation(
        validation_id=1, spec=training_spec("0" * 64, 1), attempt=1, code_name="a.py", timeout_s=1.0
    )
    settings = AgentSettings(server="http://127.0.0.1:9", node="a", state_dir=tmp_path)
    around = cast(AgentContext, SimpleNamespace(settings=settings))
    attempt = validations.ValidationAttempt(wanted, tmp_path, around)
    attempt.path.mkdir()
    told = {"ok": False, "code": f"odd\nERROR agents {'x' * 1000}"}
    (attempt.path / "validation.json").write_text(json.dumps(told))
    with caplog.at_level("INFO"):
        attempt._take_result(0)
    (record,) = caplog.records
    assert "odd\\nERROR" in record.getMessage()
    assert len(record.getMessage()) < 100


def test_a_build_that_takes_too_long_is_ended_with_its_children(
    plane: ControlPlane, drive: Drive, state_dir: Path
) -> None:
    driven = drive()
    plane.want(validations=[wanted_validation(plane, timeout_s=5.0, play="hang")])
    driven.until(lambda: len(trainers_below(state_dir)) == 2)
    driven.until(lambda: results(plane))
    (report,) = results(plane)
    assert (report.ok, report.code, report.field) == (False, "timeout", "code")
    assert "longer than 5 s" in report.message
    assert "building for ever" in report.traceback
    assert not trainers_below(state_dir)


def test_a_build_that_takes_ports_of_trainers_is_ended(
    plane: ControlPlane, drive: Drive, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Isolation, "port_fault", lambda *_: "it took port 21005")
    driven = drive()
    plane.want(validations=[wanted_validation(plane, play="hang")])
    driven.until(lambda: results(plane))
    (report,) = results(plane)
    assert (report.code, report.field) == ("crashed", "code")
    assert "was ended: it took port 21005" in report.message
    assert not trainers_below(state_dir)


def test_time_without_a_processor_does_not_count(
    plane: ControlPlane, drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits_s = itertools.count(step=1000.0)
    monkeypatch.setattr(starvation, "thread_waits_s", lambda _: {1: next(waits_s)})
    driven = drive()
    began = time.monotonic()
    plane.want(validations=[wanted_validation(plane, timeout_s=0.4, play="hang")])
    driven.until(lambda: results(plane))
    assert results(plane)[0].code == "timeout"
    assert time.monotonic() - began >= 4 * 0.4
    # The first look is at the start. However slow this machine is, another one follows.
    assert next(waits_s) >= 2000.0


def test_a_process_that_gets_no_processor_starves_and_a_stopped_one_does_not(
    tmp_path: Path,
) -> None:
    processor = min(os.sched_getaffinity(0))
    spin = f"import os; os.sched_setaffinity(0, {{{processor}}})\nwhile True: pass"
    command = [sys.executable, "-S", "-c", spin]
    both = [OwnedProcess.start(command, {}, tmp_path, tmp_path) for _ in range(2)]
    try:
        starving = [Starvation(process.pid) for process in both]
        wait_until(lambda: all(one.extended(1.0) > 1.1 for one in starving))
        os.kill(both[0].pid, signal.SIGSTOP)
        wait_until(lambda: psutil.Process(both[0].pid).status() == psutil.STATUS_STOPPED)
        stopped, running = (Starvation(process.pid) for process in both)
        rival = OwnedProcess.start(command, {}, tmp_path, tmp_path)
        both.append(rival)
        wait_until(lambda: running.extended(0.1) == BUSY_FACTOR * 0.1)
        assert stopped.extended(0.1) == 0.1
    finally:
        for process in both:
            process.kill()
    wait_until(lambda: all(process.is_gone(time.monotonic()) for process in both))
    assert Starvation(both[0].pid).extended(1.0) == 1.0


@pytest.mark.parametrize(
    ("play", "said", "log"),
    [("die", "status 42", "Killed in native code"), ("leave", "os._exit(0)", "")],
)
def test_a_crash_is_told_with_the_end_of_the_log(
    plane: ControlPlane, drive: Drive, play: str, said: str, log: str
) -> None:
    driven = drive()
    plane.want(validations=[wanted_validation(plane, play=play)])
    driven.until(lambda: results(plane))
    (report,) = results(plane)
    assert (report.ok, report.code) == (False, "crashed")
    assert said in report.message
    assert log in report.traceback


def test_code_that_cannot_be_unpacked_is_refused(plane: ControlPlane, drive: Drive) -> None:
    driven = drive()
    wanted = wanted_validation(plane)
    sha256 = plane.add_code(1, b"PK\x03\x04 this is no archive")
    spec = dataclasses.replace(wanted.spec, code_sha256=sha256)
    broken = dataclasses.replace(wanted, spec=spec, code_name="job.zip")
    plane.want(validations=[broken])
    driven.until(lambda: results(plane))
    (report,) = results(plane)
    assert (report.ok, report.code, report.field) == (False, "bad_archive", "code")


@pytest.mark.parametrize(("most", "jobs"), [(1, [1, 2]), (2, [1, 2, 3])])
def test_no_more_than_the_bound_run_at_a_time(
    plane: ControlPlane, drive: Drive, state_dir: Path, most: int, jobs: list[int]
) -> None:
    driven = drive(max_validations=most)
    plane.want(
        validations=[wanted_validation(plane, job, timeout_s=0.8, play="hang") for job in jobs]
    )
    seen = set()

    def observe() -> bool:
        seen.add(len({run_dir for _, run_dir in run_dirs_below(state_dir)}))
        return len(results(plane)) == len(jobs)

    driven.until(observe)
    assert max(seen) == most


def test_a_validation_that_is_not_wanted_any_more_is_ended_without_a_word(
    plane: ControlPlane, drive: Drive, state_dir: Path
) -> None:
    driven = drive()
    plane.want(validations=[wanted_validation(plane, play="hang")])
    driven.until(lambda: len(trainers_below(state_dir)) == 2)
    plane.want()
    driven.until(lambda: not list((state_dir / "validations").iterdir()))
    assert not trainers_below(state_dir)
    assert not results(plane)


def test_a_new_agent_runs_again_what_the_one_before_did_not_finish(
    plane: ControlPlane, drive: Drive, state_dir: Path
) -> None:
    first = drive()
    plane.want(validations=[wanted_validation(plane, play="hang")])
    first.until(lambda: len(trainers_below(state_dir)) == 2)
    first.state.close()  # as if killed: the process goes on
    before = {process.pid for process in trainers_below(state_dir)}

    plane.want(validations=[wanted_validation(plane, timeout_s=1.0, play="hang")])
    second = drive()
    second.until(lambda: results(plane))
    assert results(plane)[0].code == "timeout"
    deadline = time.monotonic() + 5
    while before & {process.pid for process in trainers_below(state_dir)}:
        assert time.monotonic() < deadline
