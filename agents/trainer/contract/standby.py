"""Standby: a process with all modules imported that waits to become a trainer.

A standby reads one JSON line from standard input, which names the run directory to take over.
At end of input (the agent is gone or does not need the standby) the process ends at once.
Until then the standby belongs to no job: it has no port, no model and no device (TensorFlow is
imported, but its runtime is not initialised, so no GPU memory is held).

Modules are imported on a thread of low priority, because an unprivileged process cannot raise its
priority again; the main thread, which later trains, keeps its own. If Linux shares the processor by
session first (autogroups), a thread's priority has no effect outside its own session, and this
process leads one. So the session's priority is lowered as well; raising it needs no privileges.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

RUN_DIR_VARIABLE = "VIRTUALFLOW_RUN_DIR"
#: Padding that the agent places behind RUN_DIR_VARIABLE, to leave room for a longer path.
ROOM_VARIABLE = "VIRTUALFLOW_ROOM"
#: File in the standby's folder that marks it as ready to take over.
WARM_FILE = "warm"
LOG_FILE = "log.txt"
NICENESS = 10
#: Priority of this process's session, as a nice value; see sched(7). All unprivileged processes
#: together may change such values ten times a second. At 10 a standby beside many busy sessions
#: would not get warm within minutes.
SESSION_NICENESS_FILE = Path("/proc/self/autogroup")
SESSION_NICENESS = 5
SESSION_TRIES, SESSION_AGAIN_S = 100, 0.05
EXIT_NOT_WARM = 4


def standby_wait(folder: Path, warm_up: Callable[[], object]) -> Path:
    """Warm up, wait, and become the trainer of a run directory; returns that directory.

    Ends the process if its input ends first or warming up fails.
    """
    warming = threading.Thread(target=_warm, args=(folder, warm_up), name="warming", daemon=True)
    warming.start()
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        os._exit(0)
    run_dir = Path(json.loads(line)["run_dir"])
    _become(run_dir)
    warming.join()
    return run_dir


def take_over_line(run_dir: Path) -> bytes:
    """Return the input line that makes a standby the trainer of `run_dir`."""
    return json.dumps({"run_dir": str(run_dir)}).encode() + b"\n"


def _warm(folder: Path, warm_up: Callable[[], object]) -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
    try:
        with _low_session():
            warm_up()
        (folder / WARM_FILE).touch()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(EXIT_NOT_WARM)


@contextmanager
def _low_session() -> Iterator[None]:
    """Lower the session's priority inside the block, if the kernel shares by session.

    Raises:
        OSError: the priority could not be raised again.
    """
    try:
        _session_nice(SESSION_NICENESS)
    except OSError:  # no such file, or not writable: nothing to restore either
        yield
        return
    yield
    _session_nice(0)


def _session_nice(niceness: int) -> None:
    for _ in range(SESSION_TRIES):
        try:
            SESSION_NICENESS_FILE.write_text(str(niceness))
        except BlockingIOError:  # the rate limit of changes is used up
            time.sleep(SESSION_AGAIN_S)
        else:
            return
    raise BlockingIOError(f"{SESSION_NICENESS_FILE} could not be set to {niceness}")


def _become(run_dir: Path) -> None:
    """Take over the run directory: cwd, environment, stdio.

    The log is redirected last; the agent takes that as "started".
    """
    os.chdir(run_dir / "code")
    os.environ[RUN_DIR_VARIABLE] = str(run_dir)
    os.environ.pop(ROOM_VARIABLE, None)
    _environment_rewrite(f"{RUN_DIR_VARIABLE}={run_dir}".encode())
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    log = os.open(run_dir / LOG_FILE, flags, 0o600)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def _environment_rewrite(entry: bytes) -> None:
    """Overwrite the run directory in `/proc/<pid>/environ`, by which agents find a trainer.

    The file shows the memory of the environment at process start. The agent places the two
    variables of this module last, side by side.

    Raises:
        RuntimeError: the variables are not there, or leave too little room.
    """
    shown = Path("/proc/self/environ").read_bytes()
    start = shown.find(f"\0{RUN_DIR_VARIABLE}=".encode()) + 1
    room = len(shown) - start
    if start == 0 or f"\0{ROOM_VARIABLE}=".encode() not in shown[start:] or len(entry) >= room:
        raise RuntimeError(f"no room for {entry!r} at the end of the environment")
    fields = Path("/proc/self/stat").read_text().rpartition(") ")[2].split()
    env_start = int(fields[_ENV_START_FIELD])
    ctypes.memmove(env_start + start, entry.ljust(room, b"\0"), room)


#: Field 50 of /proc/<pid>/stat, counted from the state, which is field 3.
_ENV_START_FIELD = 50 - 3
