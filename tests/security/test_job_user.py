"""Rights of a process of a job's user, and what the agent reads of that user's processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from agents.supervision import processes
from agents.supervision.isolation import JOB_USER_COMMAND
from agents.trainer.contract.job_user import OOM_SCORE, JobUser
from tests.support.reachable import reachable_command, root_needed

#: Asks for a namespace of users in each way, then makes a thread, a process and another namespace.
ASKING = """
import ctypes, errno, os, platform, subprocess, threading
libc = ctypes.CDLL(None, use_errno=True)
clone, unshare = {"x86_64": (56, 272), "aarch64": (220, 97)}[platform.machine()]
def answer(*call):
    number = libc.syscall(*call, 0, 0, 0, 0)
    if number == 0 and call[0] == clone:
        os._exit(0)
    return "done" if number >= 0 else errno.errorcode[ctypes.get_errno()]
users, network, files, child = 0x10000000, 0x40000000, 0x400, 17
print(answer(unshare, users), answer(unshare, users | network), answer(unshare, files))
print(answer(clone, users | child), answer(clone, child), answer(435, 0))
thread = threading.Thread(target=print, args=("thread",))
thread.start()
thread.join()
print(subprocess.run(["echo", "process"], capture_output=True, text=True, check=True).stdout)
"""


def test_a_job_becomes_root_of_no_namespace(tmp_path: Path) -> None:
    root_needed()
    user = JobUser(300_000, num_processes=500, num_files=500)
    command = [*JOB_USER_COMMAND, user.text(), sys.executable, "-I", "-c", ASKING]
    shown = subprocess.run(
        reachable_command(command, tmp_path / "mounts"), capture_output=True, text=True, check=True
    )
    answers = ["EPERM EPERM done", "EPERM done ENOSYS", "thread", "process"]
    assert shown.stdout.split("\n") == [*answers, "", ""]


@pytest.mark.parametrize(
    ("user", "num_before", "is_found"),
    [
        pytest.param(300_000, 0, True, id="its user's"),
        pytest.param(300_000, 40, False, id="behind a long environment"),
        pytest.param(300_001, 0, False, id="another user's"),
        pytest.param(0, 0, False, id="the agent's"),
    ],
)
def test_environments_are_read_of_a_jobs_processes_and_not_for_long(
    user: int, num_before: int, is_found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root_needed()
    has_variable = processes._has_variable
    read = []

    def reading(pid: int, variable: bytes) -> bool:
        read.append(pid)
        return has_variable(pid, variable)

    monkeypatch.setattr(processes, "_has_variable", reading)
    environment = {f"A{number}": "a" * 10_000 for number in range(num_before)}
    environment["VIRTUALFLOW_RUN_DIR"] = str(tmp_path)
    command = ["/bin/sleep", "100"]
    with subprocess.Popen(command, env=environment, user=user, start_new_session=True) as process:
        try:
            found = [item.pid for item in processes.processes_of(tmp_path, uid=300_000)]
        finally:
            process.kill()
    assert found == ([process.pid] if is_found else [])
    assert (process.pid in read) is (user == 300_000)


@pytest.mark.parametrize(("before", "then"), [("300:300", "300"), ("900:900", "500")])
def test_limits_are_lowered_and_never_raised(before: str, then: str) -> None:
    root_needed()
    user = JobUser(300_000, num_processes=500, num_files=500)
    command = ["prlimit", f"--nproc={before}", f"--nofile={before}", *JOB_USER_COMMAND, user.text()]
    shown = subprocess.run(
        [*command, "/bin/sh", "-c", "cat /proc/self/limits /proc/self/oom_score_adj"],
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
    )
    limits = {line[:26].strip(): line[26:].split()[:2] for line in shown.stdout.splitlines()}
    assert limits["Max processes"] == limits["Max open files"] == [then, then]
    assert limits["Max core file size"] == ["0", "0"]
    assert shown.stdout.endswith(f"\n{OOM_SCORE}\n")
