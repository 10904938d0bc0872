"""Process groups that the agent starts, adopts, watches and ends.

A trainer leads a session and a process group of its own. A trainer is gone when its leader and all
descendants are gone: processes in the group, and processes that left the group but still have the
trainer's `VIRTUALFLOW_RUN_DIR`. Processes of user code that evade both (a new session *and* a
cleared environment) are found by their user alone, if jobs have users of their own (`isolation`).
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import signal
import subprocess
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import psutil

from agents.trainer.contract.environment import FILTER_VARIABLE, HASH_ENVIRONMENT, QUIET_ENVIRONMENT
from agents.trainer.contract.fork_server import RUN_DIR_VARIABLE
from agents.trainer.contract.plain_files import plain_file_append

#: Time between SIGTERM and SIGKILL for children of a dead leader.
ORPHAN_GRACE_S = 1.0
#: Time after SIGKILL in which even a process that frees much memory has ended.
KILL_LIMIT_S = 10.0

#: Variables that trainers inherit from the agent; all others, such as tokens, are excluded.
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
_PR_SET_CHILD_SUBREAPER = 36
_REAPED_AT_ONCE = 100
#: Most bytes of a process's environment that are searched for its run directory. Code can give
#: each of its processes megabytes, and all are searched in one round of the agent's loop.
ENVIRONMENT_BYTES = 256 * 1024
PROJECT_ROOT = Path(__file__).resolve().parents[2]


def trainer_environment(
    environment: Mapping[str, str],
    run_dir: Path,
    accelerator: Mapping[str, str],
    kept: Sequence[str] = (),
    *,
    filters_peers: bool = True,
) -> dict[str, str]:
    """Build the complete environment of a trainer: few of the agent's variables, no secrets."""
    names = [*KEPT_VARIABLES, *kept]
    inherited = {name: environment[name] for name in names if name in environment}
    python_path = [str(PROJECT_ROOT), *environment.get("PYTHONPATH", "").split(os.pathsep)]
    return {
        **QUIET_ENVIRONMENT,
        "KERAS_BACKEND": "tensorflow",
        **inherited,
        "PYTHONPATH": os.pathsep.join(path for path in python_path if path),
        **HASH_ENVIRONMENT,
        "PYTHONNOUSERSITE": "1",
        "PYTHONUNBUFFERED": "1",
        FILTER_VARIABLE: str(int(filters_peers)),
        **accelerator,
        RUN_DIR_VARIABLE: str(run_dir),
    }


class _ForkedChild:
    """Child process that a fork server has handed to this process: `poll` as of `Popen`."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._exit_code: int | None = None

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal; None while it runs.

        Raises:
            ChildProcessError: it is no child of this process, which is no child subreaper then.
        """
        if self._exit_code is None:
            found, status = os.waitpid(self._pid, os.WNOHANG)
            if found:
                self._exit_code = os.waitstatus_to_exitcode(status)
        return self._exit_code


class OwnedProcess:
    """A trainer's process group, from its start (or adoption) until nothing of it is left.

    Attributes:
        uid: its user, if that is not the agent's; processes of other users are none of it.
        pid: the leader's process id, which is also the group's id.
        started_at: the leader's start, as of `started_at_of`.
        exit_code: the leader's, negative for a signal; None while running or if not observed.
    """

    def __init__(self, pid: int, started_at: float, run_dir: Path, uid: int | None = None) -> None:
        self.uid = uid
        self.pid = pid
        self.started_at = started_at
        self.exit_code: int | None = None
        self._run_dir = run_dir
        self._child: subprocess.Popen[bytes] | _ForkedChild | None = None
        self._group: int | None = None
        self._is_leader_gone = False
        self._is_gone = False
        self._kill_at: float | None = None
        self._killed_at = math.inf

    @classmethod
    def start(
        cls,
        command: Sequence[str],
        environment: Mapping[str, str],
        run_dir: Path,
        working_dir: Path,
        *,
        has_pipes: bool = False,
        uid: int | None = None,
    ) -> OwnedProcess:
        """Start `command` in a session of its own, its output appended to `run_dir`/log.txt.

        Args:
            has_pipes: standard input and output are `pipes`, which close when the agent ends.
            uid: the user that the command becomes, if any.

        Raises:
            OSError: the command or a folder is missing, or no process can be created.
        """
        log = plain_file_append(run_dir / "log.txt")
        try:
            child = subprocess.Popen(
                list(command),
                env=dict(environment),
                cwd=working_dir,
                stdin=subprocess.PIPE if has_pipes else subprocess.DEVNULL,
                stdout=subprocess.PIPE if has_pipes else log,
                stderr=log,
                start_new_session=True,
            )
        finally:
            os.close(log)
        # The child is not reaped yet, so it is found even if it has ended by now.
        process = cls(child.pid, started_at_of(child.pid), run_dir, uid)
        process._child = child
        process._group = child.pid
        return process

    @classmethod
    def adopt(
        cls, run_dir: Path, pid: int, started_at: float, uid: int | None = None
    ) -> OwnedProcess | None:
        """Adopt a process group of an earlier agent process; None if all of it is gone.

        The leader is identified by process id, start time and run directory (or user): a copy of a
        state directory must not lead to the processes of the original's agent.
        """
        process = cls(pid, started_at, run_dir, uid)
        process._is_leader_gone = process._leader() is None
        if not process._is_leader_gone:
            process._group = pid
        elif not any(process._members()):
            return None
        return process

    @classmethod
    def forked(cls, pid: int, run_dir: Path, uid: int | None = None) -> OwnedProcess:
        """Own a process that a fork server has just forked; it leads a session.

        Raises:
            OSError: it is gone, and its status was collected by another process.
        """
        process = cls(pid, started_at_of(pid), run_dir, uid)
        process._child = _ForkedChild(pid)
        process._group = pid
        return process

    @property
    def pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        """Standard input and output of a process that was started with `has_pipes`."""
        assert isinstance(self._child, subprocess.Popen), "no pipes"
        assert self._child.stdin is not None, "no pipes"
        assert self._child.stdout is not None, "no pipes"
        return self._child.stdin, self._child.stdout

    @property
    def is_ending(self) -> bool:
        """True after `end` or `kill`."""
        return self._kill_at is not None

    def end(self, now: float, grace_s: float) -> None:
        """Send SIGTERM to the group, and SIGKILL after `grace_s`; repeated calls do nothing."""
        if self._kill_at is None:
            self._kill_at = now + grace_s
            self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to the group."""
        self._kill_at = self._kill_at or 0.0
        self._signal(signal.SIGKILL)

    def is_gone(self, now: float) -> bool:
        """Check the group, send due signals, and return whether no process is left."""
        if self._is_gone:
            return True
        was_led = not self._is_leader_gone
        self._is_leader_gone = self._is_leader_gone or self._has_leader_ended()
        if self._is_leader_gone:
            left = list(self._members())
            self._is_gone = not left
            if was_led and left:
                # Children of a leader that has ended are of no use.
                deadline = now + ORPHAN_GRACE_S
                self._kill_at = deadline if self._kill_at is None else min(self._kill_at, deadline)
                _signal_each(left, signal.SIGTERM)
        if not self._is_gone and self._kill_at is not None and now >= self._kill_at:
            self._signal(signal.SIGKILL)
            self._killed_at = min(self._killed_at, now)
        return self._is_gone

    def outlives_kill(self, now: float) -> bool:
        """Return whether `is_gone` has sent SIGKILL long ago, and something is left all the same.

        The leader's status stays with a process that traces it, and processes that fork all the
        time are not all found.
        """
        return now - self._killed_at > KILL_LIMIT_S

    def _has_leader_ended(self) -> bool:
        if self._child is not None:
            try:
                self.exit_code = self._child.poll()
            except ChildProcessError:
                self._child = None
            else:
                return self.exit_code is not None
        return self._leader() is None

    def _leader(self) -> psutil.Process | None:
        try:
            leader = psutil.Process(self.pid)
            if leader.status() == psutil.STATUS_ZOMBIE:
                return None
            if self._child is None and not self._is_marked(leader):
                return None
            return leader if started_at_of(self.pid) == self.started_at else None
        except (psutil.Error, OSError):
            return None

    def _is_marked(self, leader: psutil.Process) -> bool:
        """Return whether a process that is no child belongs to the run directory or its user."""
        if self.uid is not None:
            return set(uids_of(leader.pid)) == {self.uid}
        return leader.environ().get(RUN_DIR_VARIABLE) == str(self._run_dir)

    def _signal(self, number: signal.Signals) -> None:
        """Signal the group, while its leader lives, and all other members found."""
        if not self._is_leader_gone:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)
        _signal_each(self._members(), number)

    def _members(self) -> Iterator[psutil.Process]:
        found = processes_of(self._run_dir, self._group, self.uid)
        return (member for member in found if member.pid != self.pid)


def started_at_of(pid: int) -> float:
    """Return when a process started, in seconds since the machine's start.

    The time of day is of no use: it changes for all processes when the clock is set.

    Raises:
        OSError: it is gone.
    """
    fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")


def subreaper_set() -> None:
    """Make this process the parent of its orphaned descendants; see prctl(2).

    Raises:
        OSError: the kernel refuses.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def orphans_reap(owned: Container[int]) -> None:
    """Collect the status of ended children of this process that are not `owned`."""
    for _ in range(_REAPED_AT_ONCE):
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if found is None or found.si_pid in owned:
            return
        os.waitpid(found.si_pid, os.WNOHANG)


def _signal_each(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        # psutil compares start times first: a reused process id is not signalled.
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            process.send_signal(number)


def processes_of(
    run_dir: Path, group: int | None = None, uid: int | None = None
) -> Iterator[psutil.Process]:
    """Yield living processes in the process group or with this run directory in the environment.

    Pass `group` only while the group is known to exist, because its number may be reused later. An
    accelerator is free only if no process is found. Environments of processes of other users than
    `uid` (None: the agent's) are not read; with `uid`, such processes are left out, which may claim
    the run directory. psutil objects are made for matches only.
    """
    mark = f"{RUN_DIR_VARIABLE}={run_dir}".encode()
    user = os.geteuid() if uid is None else uid
    for pid in psutil.pids():
        try:
            is_users = user in uids_of(pid)
            is_ours = group is not None and os.getpgid(pid) == group and (uid is None or is_users)
            if is_ours or (is_users and _has_variable(pid, mark)):
                process = psutil.Process(pid)
                if process.status() != psutil.STATUS_ZOMBIE:
                    yield process
        except (psutil.Error, OSError):
            continue  # gone meanwhile, or of another user


def leader_found(run_dir: Path, uid: int | None) -> tuple[int, float] | None:
    """Find the leader of a trainer whose agent was killed before it recorded the process."""
    found: list[tuple[float, int]] = []
    for process in processes_of(run_dir, uid=uid):
        with contextlib.suppress(OSError):  # it has just ended
            found.append((started_at_of(process.pid), process.pid))
    return (min(found)[1], min(found)[0]) if found else None


def _has_variable(pid: int, variable: bytes) -> bool:
    """Return whether the first `ENVIRONMENT_BYTES` of a process's environment have a variable."""
    with Path(f"/proc/{pid}/environ").open("rb", buffering=0) as file:
        return b"\0%b\0" % variable in b"\0%b\0" % file.read(ENVIRONMENT_BYTES)


def uids_of(pid: int) -> Sequence[int]:
    """Return the real, effective, saved and file system user of a process; none if it has ended."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
        if status.partition("\nState:")[2].split()[0] not in ("Z", "X"):
            return [int(uid) for uid in status.partition("\nUid:")[2].split("\n")[0].split()]
    return ()
