"""Process groups that the agent starts, adopts, watches and ends.

A trainer leads a session and a process group of its own. It is gone when its leader and everything
that the leader started are gone: what stays in the group, and what left the group but still carries
the trainer's `VIRTUALFLOW_RUN_DIR`. User code that hides from both (a new session *and* a cleared
environment) is not found; see docs/node-agents.md on what is not isolated.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from agents.trainer.contract.environment import FILTER_VARIABLE, QUIET_ENVIRONMENT
from agents.trainer.contract.standby import ROOM_VARIABLE, take_over_line

RUN_DIR_VARIABLE = "VIRTUALFLOW_RUN_DIR"
#: psutil derives start times from the boot time, which moves a little when the clock is set.
CREATE_TIME_TOLERANCE_S = 2.0
#: What a dead leader left behind gets between SIGTERM and SIGKILL.
ORPHAN_GRACE_S = 1.0

#: Variables that trainers take over from the agent; everything else (tokens!) stays out.
KEPT_VARIABLES = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "SSL_CERT_FILE",
    *QUIET_ENVIRONMENT,
)
PROJECT_ROOT = Path(__file__).resolve().parents[2]


def trainer_environment(
    environment: Mapping[str, str],
    run_dir: Path,
    accelerator: Mapping[str, str],
    kept: Sequence[str] = (),
    *,
    filters_peers: bool = True,
) -> dict[str, str]:
    """Build the whole environment of a trainer: little of the agent's, nothing secret.

    A fixed hash seed makes the user's sets iterate alike in all trainers of a job.
    """
    names = [*KEPT_VARIABLES, *kept]
    inherited = {name: environment[name] for name in names if name in environment}
    python_path = [str(PROJECT_ROOT), *environment.get("PYTHONPATH", "").split(os.pathsep)]
    return {
        **QUIET_ENVIRONMENT,
        "KERAS_BACKEND": "tensorflow",
        **inherited,
        "PYTHONPATH": os.pathsep.join(path for path in python_path if path),
        "PYTHONHASHSEED": "0",
        "PYTHONUNBUFFERED": "1",
        FILTER_VARIABLE: str(int(filters_peers)),
        **accelerator,
        RUN_DIR_VARIABLE: str(run_dir),
    }


def standby_environment(trainer: Mapping[str, str], folder: Path, longest: Path) -> dict[str, str]:
    """Make a trainer's environment that of a standby, with room for the path that it will have.

    The two variables come last, side by side: the standby writes over them there.
    """
    room = "." * len(str(longest))
    return {**trainer, RUN_DIR_VARIABLE: str(folder), ROOM_VARIABLE: room}


class OwnedProcess:
    """A trainer's process group, from its start (or adoption) until nothing of it is left.

    Attributes:
        pid: of the leader, which is also the group's id.
        create_time: of the leader, seconds since the epoch as psutil gives it.
        exit_code: the leader's, negative for a signal; None while it lives or when nobody saw it.
    """

    def __init__(self, pid: int, create_time: float, run_dir: Path) -> None:
        self.pid = pid
        self.create_time = create_time
        self.exit_code: int | None = None
        self._run_dir = run_dir
        self._child: subprocess.Popen[bytes] | None = None
        self._group: int | None = None
        self._is_leader_gone = False
        self._is_gone = False
        self._kill_at: float | None = None

    @classmethod
    def start(
        cls,
        command: Sequence[str],
        environment: Mapping[str, str],
        run_dir: Path,
        working_dir: Path,
        *,
        is_standby: bool = False,
    ) -> OwnedProcess:
        """Start `command` in a session of its own, its output appended to `run_dir`/log.txt.

        A standby's input is a pipe of ours, which ends when we do; others have none.

        Raises:
            OSError: the command or a folder is not there, or there is no room for a process.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        log = os.open(run_dir / "log.txt", flags, 0o600)
        try:
            child = subprocess.Popen(
                list(command),
                env=dict(environment),
                cwd=working_dir,
                stdin=subprocess.PIPE if is_standby else subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        finally:
            os.close(log)
        # Not reaped yet, so it is there to be asked, even if it has ended by now.
        process = cls(child.pid, psutil.Process(child.pid).create_time(), run_dir)
        process._child = child
        process._group = child.pid
        return process

    @classmethod
    def adopt(cls, run_dir: Path, pid: int, create_time: float) -> OwnedProcess | None:
        """Take over what an agent before this one started; None when all of it is gone.

        The leader counts as the same when process id, start time and run directory match: a copy
        of a state directory must not lead to the processes of the agent that it was copied from.
        """
        process = cls(pid, create_time, run_dir)
        process._is_leader_gone = process._leader() is None
        if not process._is_leader_gone:
            process._group = pid
        elif not any(process._members()):
            return None
        return process

    def take_over(self, run_dir: Path) -> None:
        """Tell a standby to become the trainer of `run_dir`, and end its input.

        Raises:
            OSError: it is dead.
        """
        assert self._child is not None, "only a standby of this agent can be told"
        assert self._child.stdin is not None, "only a standby can be told"
        self._run_dir = run_dir
        with self._child.stdin as pipe:
            pipe.write(take_over_line(run_dir))

    @property
    def is_ending(self) -> bool:
        """True once it was told to end."""
        return self._kill_at is not None

    def end(self, now: float, grace_s: float) -> None:
        """Ask the group to end, and kill it when `grace_s` are over; repeated calls do nothing."""
        if self._kill_at is None:
            self._kill_at = now + grace_s
            self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the group without asking."""
        self._kill_at = self._kill_at or 0.0
        self._signal(signal.SIGKILL)

    def is_gone(self, now: float) -> bool:
        """Look at the group, drive its ending on, and say whether nothing of it is left."""
        if self._is_gone:
            return True
        was_led = not self._is_leader_gone
        self._is_leader_gone = self._is_leader_gone or self._has_leader_ended()
        if self._is_leader_gone:
            left = list(self._members())
            self._is_gone = not left
            if was_led and left:
                # Children of a leader that has ended have nobody to work for.
                deadline = now + ORPHAN_GRACE_S
                self._kill_at = deadline if self._kill_at is None else min(self._kill_at, deadline)
                _signal_each(left, signal.SIGTERM)
        if not self._is_gone and self._kill_at is not None and now >= self._kill_at:
            self._signal(signal.SIGKILL)
        return self._is_gone

    def _has_leader_ended(self) -> bool:
        if self._child is None:
            return self._leader() is None
        self.exit_code = self._child.poll()
        return self.exit_code is not None

    def _leader(self) -> psutil.Process | None:
        try:
            leader = psutil.Process(self.pid)
            if leader.status() == psutil.STATUS_ZOMBIE:
                return None
            if self._child is None and leader.environ().get(RUN_DIR_VARIABLE) != str(self._run_dir):
                return None
            apart_s = abs(leader.create_time() - self.create_time)
        except (psutil.Error, OSError):
            return None
        return leader if apart_s <= CREATE_TIME_TOLERANCE_S else None

    def _signal(self, number: signal.Signals) -> None:
        """Signal the group while its leader holds the group's id, and everything found besides."""
        if not self._is_leader_gone:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)
        _signal_each(self._members(), number)

    def _members(self) -> Iterator[psutil.Process]:
        found = processes_of(self._run_dir, self._group)
        return (member for member in found if member.pid != self.pid)


def _signal_each(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        # psutil compares start times first: a process id used anew is left alone.
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            process.send_signal(number)


def processes_of(run_dir: Path, group: int | None = None) -> Iterator[psutil.Process]:
    """Find living processes of the process group or with this run directory in their environment.

    `group` is given only while it is known to be ours: its number may be used anew later. An
    accelerator is free only when this finds nothing, so only what is found is looked at closely.
    """
    mark = f"{RUN_DIR_VARIABLE}={run_dir}".encode()
    for pid in psutil.pids():
        try:
            is_ours = group is not None and os.getpgid(pid) == group
            if is_ours or mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                process = psutil.Process(pid)
                if process.status() != psutil.STATUS_ZOMBIE:
                    yield process
        except (psutil.Error, OSError):
            continue  # gone meanwhile, or somebody else's
