"""Fork server: a process with all modules imported that forks trainers and validations.

A request is one line of JSON on standard input, the reply one line on standard output: the process
id of the forked process, or 0 if forking failed. A forked process replies itself, and ends if it
cannot: where the replies have ended, no process is left that could still go on. At end of input
(the agent is gone) the server ends; what it has forked goes on. Only the forked process reads its
request: every later one gets a copy of the server's memory, which therefore never holds the secrets
of a job. The server has no port, no model and no device: TensorFlow is imported, but its runtime is
not initialised, and CUDA's driver library is not loaded before that.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from agents.trainer.contract.job_user import JobUser, job_user_become
from agents.trainer.contract.plain_files import plain_file_append

RUN_DIR_VARIABLE = "VIRTUALFLOW_RUN_DIR"
#: Padding that the agent places behind RUN_DIR_VARIABLE, to leave room for a longer path.
ROOM_VARIABLE = "VIRTUALFLOW_ROOM"
#: File in the server's folder that marks it as ready for requests.
WARM_FILE = "warm"
LOG_FILE = "log.txt"
EXIT_NOT_FORKED = 5
#: Longest wait for the end of the process in between, which takes milliseconds; the agent waits
#: longer for the reply.
PARENT_LIMIT_S, PARENT_POLL_S = 1.5, 0.001


@dataclass(frozen=True, slots=True)
class ForkRequest:
    """Request for one forked process.

    Attributes:
        option: of `python -m agents.trainer`, --run-dir or --validate.
        run_dir: its value, the folder to take over.
        environment: variables that differ from the server's.
        user: the user to become, encoded; None: the server's own.
    """

    option: str
    run_dir: str
    environment: Mapping[str, str]
    user: str | None = None

    def line(self) -> bytes:
        """Return the request as the server reads it.

        With all secrets that a job may have it fits into a pipe (64 KiB), so that no writer has to
        wait for the server.
        """
        text = json.dumps(asdict(self), ensure_ascii=False)
        return text.encode("utf-8", "surrogatepass") + b"\n"


def fork_server_run(folder: Path, warm_up: Callable[[], object]) -> ForkRequest:
    """Serve requests until the input ends; returns in forked processes only, with their request."""
    requests = select.poll()
    requests.register(sys.stdin.fileno(), select.POLLIN)
    replies = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever imports print is no reply
    warm_up()
    (folder / WARM_FILE).touch()
    while True:
        ((_, event),) = requests.poll()
        if not event & select.POLLIN:
            os._exit(0)
        request = _fork(replies)
        if request is not None:
            os.close(replies)
            return request


def _fork(replies: int) -> ForkRequest | None:
    """Fork a process that is no child of this one; returns the request, in that process only.

    The process in between reads the request and ends at once, so that the agent, a child subreaper,
    becomes the parent: before the reply, as only a parent is told the exit status.
    """
    read_end, write_end = os.pipe()
    between = os.fork()
    if between:
        os.close(write_end)
        os.waitpid(between, 0)
        with os.fdopen(read_end, "rb") as pipe:
            if not pipe.read():
                os.write(replies, b"0\n")
        return None
    try:
        request = ForkRequest(**json.loads(sys.stdin.buffer.readline()))
        between = os.getpid()
        if os.fork():
            os._exit(0)
        os.close(read_end)
        os.setsid()
        _become(request)
        _end_await(between)
        os.write(write_end, b"1")  # fails if the server was killed
        os.close(write_end)
        os.write(replies, b"%d\n" % os.getpid())  # fails if the agent waits no longer
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(EXIT_NOT_FORKED)
    return request


def _end_await(parent: int) -> None:
    """Wait for the end of the parent, which is about to end.

    Raises:
        TimeoutError: it does not end.
    """
    ends_at = time.monotonic() + PARENT_LIMIT_S
    while os.getppid() == parent:
        if time.monotonic() > ends_at:
            raise TimeoutError("the process in between does not end")
        time.sleep(PARENT_POLL_S)


def _become(request: ForkRequest) -> None:
    """Take over the user, then the run directory: cwd, environment, stdio."""
    if request.user is not None:
        job_user_become(JobUser(**json.loads(request.user)))
    run_dir = Path(request.run_dir)
    log = plain_file_append(run_dir / LOG_FILE)
    os.chdir(run_dir / "code")
    os.environ.update(request.environment)
    os.environ[RUN_DIR_VARIABLE] = request.run_dir
    os.environ.pop(ROOM_VARIABLE, None)
    tempfile.tempdir = None  # that of the server is not this user's
    _environment_rewrite(f"{RUN_DIR_VARIABLE}={run_dir}".encode())
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
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
