"""Trainers forked from a process that has imported TensorFlow, which takes most of a start.

The fork server is the standard library's; it ends with the test process. A forked trainer differs
from one that `python -m agents.trainer` starts in two ways: it shares its seed of hashes with its
peers, and its log has none of TensorFlow's start-up lines. Tests about either use real starts.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing import reduction
from multiprocessing.context import ForkServerProcess
from typing import Any, BinaryIO
from unittest import mock

from agents.trainer.contract.environment import QUIET_ENVIRONMENT, heap_environment
from agents.trainer.local.local_trainer import REPOSITORY
from tests.support.starts import count_start

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.support.warm_imports"])


class ForkedTrainer:
    """The part of `subprocess.Popen` that local jobs use, for a forked trainer."""

    def __init__(self, process: ForkServerProcess) -> None:
        assert process.pid is not None
        self.pid: int = process.pid
        self._process = process

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("a forked trainer", timeout or 0.0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self._process.exitcode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _File:
    """An open file by number; unpickled in a forked process as the number that it has there."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return _detached, (reduction.DupFd(self._number),)


def _detached(duplicate: Any) -> int:
    return int(duplicate.detach())


def trainer_fork(
    command: Sequence[str], environment: dict[str, str], files: Sequence[int], log: BinaryIO
) -> ForkedTrainer:
    """Start `python -m MODULE ...` in a forked process; stands for `LocalJob.spawn`."""
    count_start("trainers")
    handed = [_File(number) for number in (log.fileno(), *files)]
    arguments = (list(command), environment, list(files), handed, os.getpid())
    process = _CONTEXT.Process(target=_run, args=arguments, daemon=True)
    quiet = {**QUIET_ENVIRONMENT, "KERAS_BACKEND": "tensorflow", "PYTHONPATH": str(REPOSITORY)}
    with mock.patch.dict(os.environ, {**quiet, **heap_environment(1)}):
        process.start()  # the first start also starts the fork server, with this environment
    return ForkedTrainer(process)


def _run(
    command: list[str],
    environment: dict[str, str],
    files: list[int],
    handed: list[int],
    parent_pid: int,
) -> None:
    """Become the trainer of a command: session, folder, environment, stdio, arguments."""
    os.setsid()
    os.chdir(REPOSITORY)
    os.environ.clear()
    os.environ.update(environment)
    log, *own_files = handed
    os.dup2(log, 1)
    os.dup2(log, 2)
    module, *arguments = command[command.index("-m") + 1 :]
    renamed = dict(zip(map(str, files), map(str, own_files), strict=True))
    for place, argument in enumerate(arguments):
        before = arguments[place - 1] if place else ""
        if before == "--parent" and argument == str(parent_pid):
            arguments[place] = str(os.getppid())  # the fork server, which ends with its parent
        elif "--held-port" in arguments[max(place - 2, 0) : place]:
            arguments[place] = renamed[argument]
    sys.argv = [module, *arguments]
    sys.modules.pop(f"{module}.__main__", None)  # of `warm_imports`; the log would warn of it
    runpy.run_module(module, run_name="__main__", alter_sys=True)
