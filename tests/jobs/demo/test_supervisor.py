"""The demo's supervisor, with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from jobs.demo.stack.supervisor import PartFailedError, SitePart, Supervisor
from tests.support.waiting import DEADLINE_S, wait_until

WAIT_FOREVER = "import signal; signal.pause()"


def python(name: str, code: str, **options: object) -> SitePart:
    return SitePart(name=name, command=[sys.executable, "-c", code], **options)  # type: ignore[arg-type]


def test_parts_start_in_order_and_end_by_stage(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    ready = [tmp_path / name for name in ("first", "second")]
    code = (
        "import pathlib, signal, sys\n"
        "name, trace = sys.argv[1:]\n"
        "def say(word):\n"
        "    with open(trace, 'a') as file: file.write(f'{name} {word}\\n')\n"
        "signal.signal(signal.SIGTERM, lambda *_: (say('ends'), sys.exit(0)))\n"
        "say('starts')\n"
        "pathlib.Path(trace).with_name(name).touch()\n"
        "signal.pause()\n"
    )
    parts = [
        SitePart(
            name=path.name,
            command=[sys.executable, "-c", code, path.name, str(trace)],
            is_ready=path.exists,
            stage=stage,
        )
        for stage, path in enumerate(ready)
    ]
    supervisor = Supervisor(parts, tmp_path / "logs", announce=lambda _line: None)
    supervisor.start()
    supervisor.stop()
    assert trace.read_text().splitlines() == [
        "first starts",
        "second starts",
        "second ends",
        "first ends",
    ]


def test_a_part_that_dies_is_named_and_started_again_after_its_backoff(tmp_path: Path) -> None:
    said: list[str] = []
    supervisor = Supervisor([python("worker", WAIT_FOREVER)], tmp_path, announce=said.append)
    supervisor.start()
    try:
        first = supervisor.pids()["worker"]
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: "worker" not in supervisor.pids())
        supervisor.run_once(now=time.monotonic())
        assert "worker ended with status -9; starting it again in 1 s" in said[0]
        died_at = time.monotonic()
        supervisor.run_once(now=died_at + 0.5)
        assert supervisor.pids() == {}
        supervisor.run_once(now=died_at + 1.5)
        assert supervisor.pids()["worker"] != first
        assert said[1] == "worker is running again"
    finally:
        supervisor.stop()


def test_backoff_doubles_up_to_its_cap_and_starts_anew_after_a_steady_run(tmp_path: Path) -> None:
    said: list[str] = []
    supervisor = Supervisor([python("worker", "")], tmp_path, announce=said.append)
    supervisor.start()
    now = time.monotonic()
    for _ in range(7):
        wait_until(lambda: not supervisor.pids())
        supervisor.run_once(now=now)
        now += 31
        supervisor.run_once(now=now)
    wait_until(lambda: not supervisor.pids())
    supervisor.run_once(now=now + 61)
    supervisor.stop()
    waits = [int(line.split(" again in ")[1].split(" s")[0]) for line in said if "ended" in line]
    assert waits == [1, 2, 4, 8, 16, 30, 30, 1]


def test_a_part_that_does_not_come_up_shows_its_log(tmp_path: Path) -> None:
    part = python("web", "raise SystemExit('port 1 is taken')", is_ready=lambda: False)
    supervisor = Supervisor([part], tmp_path, announce=lambda _line: None)
    with pytest.raises(PartFailedError, match="web ended with status 1:\nport 1 is taken"):
        supervisor.start()
    supervisor.stop()


def test_a_part_that_ignores_sigterm_is_killed_with_its_children(tmp_path: Path) -> None:
    code = (
        "import pathlib, signal, subprocess, sys\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"child = subprocess.Popen([sys.executable, '-c', {WAIT_FOREVER!r}])\n"
        f"pathlib.Path({str(tmp_path / 'child')!r}).write_text(str(child.pid) + '.')\n"
        "signal.pause()\n"
    )
    written = tmp_path / "child"
    part = python(
        "stubborn",
        code,
        is_ready=lambda: written.exists() and written.read_text().endswith("."),
        grace_s=0.2,
    )
    supervisor = Supervisor([part], tmp_path, announce=lambda _line: None)
    supervisor.start()
    pids = [supervisor.pids()["stubborn"], int(written.read_text().rstrip("."))]
    supervisor.stop()
    wait_until(lambda: not any(is_alive(pid) for pid in pids))


def test_parts_end_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    code = (
        "import pathlib, signal, sys\n"
        "from jobs.demo.stack.supervisor import SitePart, Supervisor\n"
        f"part = SitePart(name='part', command=[sys.executable, '-c', {WAIT_FOREVER!r}])\n"
        "supervisor = Supervisor([part], pathlib.Path(sys.argv[1]), announce=print)\n"
        "supervisor.start()\n"
        "print(supervisor.pids()['part'], flush=True)\n"
        "signal.pause()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    with parent.stdout:
        pid = int(parent.stdout.readline())
    assert is_alive(pid)
    parent.kill()
    parent.wait(timeout=DEADLINE_S)
    wait_until(lambda: not is_alive(pid))


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
