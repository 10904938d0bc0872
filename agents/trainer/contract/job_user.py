"""The operating system user of a job's processes: how a process gives up all others' rights.

As a program (`python -I job_user.py USER COMMAND...`, USER in JSON) it becomes that user and then
runs the command; `--kill UID GUARD` kills every process of a user; `--delete-ipc UID` deletes a
user's System V objects; `--check UID PATH...` writes the paths that a user can neither search nor
execute. It imports the standard library alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import platform
import resource
import signal
import socket
import struct
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

#: Of variables that get the rest of their name when the process has become the user: before, they
#: could steer a process that has rights (LD_PRELOAD).
LATER_PREFIX = "VIRTUALFLOW_LATER_"
#: Added, in thousandths of the memory, to what the kernel compares when memory runs out: it ends
#: jobs first, also where the agent is protected from that, and neither a database nor the agent.
OOM_SCORE = 500
_PR_SET_DUMPABLE = 4
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_CAPABILITIES_VERSION_3 = 0x20080522
_IPC_RMID = 0
#: Of each machine: AUDIT_ARCH_*, and the numbers of add_key (request_key and keyctl follow),
#: socket, clone, unshare and seccomp.
_CALLS = {
    "x86_64": (0xC000003E, 248, 41, 56, 272, 317),
    "aarch64": (0xC00000B7, 217, 198, 220, 97, 277),
}
_IO_URING_SETUP, _CLONE3 = 425, 435
_CLONE_NEWUSER = 0x10000000
_SECCOMP_SET_MODE_FILTER, _SECCOMP_FILTER_FLAG_SPEC_ALLOW = 1, 4
_SECCOMP_RET_ALLOW, _SECCOMP_RET_ERRNO = 0x7FFF0000, 0x00050000
#: Bit in the numbers of calls by the x32 ABI of x86_64.
_X32_BIT = 0x40000000


@dataclass(frozen=True, slots=True)
class JobUser:
    """A user id, which is also the group id, and the limits of its processes.

    Attributes:
        num_processes: of processes and threads, all of this user's together.
        num_files: that each process may have open.
        cgroup: folder of the cgroup (version 2) to enter; empty: none.
    """

    uid: int
    num_processes: int
    num_files: int
    cgroup: str = ""

    def text(self) -> str:
        """Return the user as `python job_user.py` reads it."""
        return json.dumps(asdict(self))


def job_user_become(user: JobUser) -> None:
    """Give up all rights but the user's, for good, in this process and all that it starts.

    Raises:
        OSError: the kernel refuses a step. The process must end then.
    """
    if user.cgroup:
        (Path(user.cgroup) / "cgroup.procs").write_text("0")
    os.umask(0o077)
    with contextlib.suppress(OSError):  # a read-only /proc
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE))
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_MSGQUEUE, 0)  # POSIX queues would stay, unseen where none is mounted
    _limit(resource.RLIMIT_NOFILE, user.num_files)
    _limit(resource.RLIMIT_NPROC, user.num_processes)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _calls_refuse()
    os.setgroups([])
    os.setresgid(user.uid, user.uid, user.uid)
    os.setresuid(user.uid, user.uid, user.uid)
    _capabilities_clear()
    _check([user.uid] * 4, [user.uid] * 4)
    # A process that has changed its user cannot read its own files in /proc otherwise.
    _prctl(_PR_SET_DUMPABLE, 1)


def _limit(kind: int, most: int) -> None:
    """Set both limits of a resource, or leave a lower one, which takes a capability to raise."""
    _, hard = resource.getrlimit(kind)
    value = most if hard < 0 else min(hard, most)
    resource.setrlimit(kind, (value, value))


def _capabilities_clear() -> None:
    """Clear all sets: the kernel does so only for a process that was root."""
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION_3, 0)
    if ctypes.CDLL(None, use_errno=True).capset(header, (ctypes.c_uint32 * 6)()) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def _calls_refuse() -> None:
    """Refuse calls from now on that isolation does not reach, and all of 32-bit programs.

    add_key, request_key and keyctl: the kernel's keyrings of a user would outlive the job, as would
    those that a job makes unchangeable. Sockets other than Unix's, the Internet's and netlink's: no
    firewall sees where those of the kind VSOCK lead, to the host of a virtual machine. io_uring,
    which opens sockets past this filter.

    Namespaces of users: in one, a process has all capabilities, and with them parts of the kernel
    that have had most of its faults. clone3 hides what it asks for from filters; it is missing for
    a job, so that the C library uses clone.

    Raises:
        OSError: the kernel has no such filters, or the machine is none of `_CALLS`.
    """
    if platform.machine() not in _CALLS:
        raise OSError(errno.ENOSYS, f"isolation uid is not made for {platform.machine()}")
    architecture, add_key, open_socket, clone, unshare, seccomp = _CALLS[platform.machine()]
    load, is_equal, is_greater, has_bits, end = 0x20, 0x15, 0x25, 0x45, 0x06
    kinds, namespaces, refuse, allow, missing = 11, 16, 18, 19, 20
    #: Instruction, where it goes on if true and if false (0: at the next one), and its value.
    steps = (
        (load, 0, 0, 4),  # of struct seccomp_data: arch
        (is_equal, 0, refuse, architecture),
        (load, 0, 0, 0),  # nr
        (has_bits, refuse, 0, _X32_BIT),
        (is_equal, refuse, 0, _IO_URING_SETUP),
        (is_equal, missing, 0, _CLONE3),
        (is_equal, namespaces, 0, unshare),
        (is_equal, namespaces, 0, clone),
        (is_equal, kinds, 0, open_socket),
        (is_greater, allow, 0, add_key + 2),
        (is_greater, refuse, allow, add_key - 1),
        (load, 0, 0, 16),  # kinds: the first argument
        (is_equal, allow, 0, socket.AF_UNIX),
        (is_equal, allow, 0, socket.AF_INET),
        (is_equal, allow, 0, socket.AF_INET6),
        (is_equal, allow, refuse, socket.AF_NETLINK),
        (load, 0, 0, 16),  # namespaces: the first argument
        (has_bits, refuse, allow, _CLONE_NEWUSER),
        (end, 0, 0, _SECCOMP_RET_ERRNO | errno.EPERM),  # refuse
        (end, 0, 0, _SECCOMP_RET_ALLOW),
        (end, 0, 0, _SECCOMP_RET_ERRNO | errno.ENOSYS),  # missing
    )
    instructions = [
        (code, max(true - place - 1, 0), max(false - place - 1, 0), value)
        for place, (code, true, false, value) in enumerate(steps)
    ]
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("@HP", len(instructions), ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    # Without the flag older kernels slow the whole process down, against Spectre.
    flag = _SECCOMP_FILTER_FLAG_SPEC_ALLOW
    if libc.syscall(seccomp, _SECCOMP_SET_MODE_FILTER, flag, program) != 0:
        raise OSError(ctypes.get_errno(), "seccomp")


def user_kill_all(uid: int, guard: int) -> None:
    """Kill every process of user `uid`, at once and none else, from a process that ends soon.

    Its real and saved user is `guard`, which must have no other process: so it cannot be stopped or
    killed by those that it kills (see kill(2)).

    Raises:
        OSError: the kernel refuses a step; nothing is killed then.
    """
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    os.setgroups([])
    os.setresgid(guard, guard, guard)
    os.setresuid(guard, uid, guard)
    _capabilities_clear()
    _check([guard, uid, guard, uid], [guard] * 4)
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)


def ipc_objects(uid: int) -> Iterator[tuple[str, int]]:
    """Yield kind (shm, msg, sem) and id of System V objects that a user owns or has created."""
    for kind in ("shm", "msg", "sem"):
        with contextlib.suppress(FileNotFoundError):  # a kernel without them
            names, *rows = Path("/proc/sysvipc", kind).read_text().splitlines()
            for row in rows:
                fields = dict(zip(names.split(), map(int, row.split()), strict=True))
                if uid in (fields["uid"], fields["cuid"]):
                    yield kind, fields["msqid" if kind == "msg" else f"{kind}id"]


def user_delete_ipc(uid: int) -> None:
    """Delete a user's System V objects; root's right to do so is one that agents need not have.

    Raises:
        OSError: an object stays.
    """
    job_user_become(JobUser(uid, num_processes=256, num_files=256))
    libc = ctypes.CDLL(None, use_errno=True)
    for kind, number in ipc_objects(uid):
        more = (0, _IPC_RMID) if kind == "sem" else (_IPC_RMID, None)
        if getattr(libc, f"{kind}ctl")(number, *more) != 0:
            raise OSError(ctypes.get_errno(), f"{kind}ctl")


def _check(uids: list[int], gids: list[int]) -> None:
    """Check what the kernel says of this process.

    Raises:
        PermissionError: it has another user, a group or a capability.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    has_rights = any(int(fields[f"Cap{kind}"][0], 16) for kind in ("Inh", "Prm", "Eff", "Amb"))
    is_it = [int(uid) for uid in fields["Uid"]] == uids and not fields["Groups"]
    is_it = is_it and [int(gid) for gid in fields["Gid"]] == gids
    if has_rights or not is_it or 0 in (*uids, *gids) or fields["NoNewPrivs"] != ["1"]:
        raise PermissionError(f"the process has not become user {uids[1]}")


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def main(arguments: list[str]) -> int:
    """Run a mode: --kill UID GUARD, --delete-ipc UID, --check UID PATH..., or USER COMMAND.

    The last one does not return.
    """
    if arguments[0] == "--kill":
        user_kill_all(int(arguments[1]), int(arguments[2]))
        return 0
    if arguments[0] == "--delete-ipc":
        user_delete_ipc(int(arguments[1]))
        return 0
    if arguments[0] == "--check":
        uid = int(arguments[1])
        job_user_become(JobUser(uid, num_processes=256, num_files=256))
        closed = [path for path in arguments[2:] if not os.access(path, os.X_OK)]
        sys.stdout.write("\n".join(closed))
        return 0
    job_user_become(JobUser(**json.loads(arguments[0])))
    environment = {name.removeprefix(LATER_PREFIX): os.environ[name] for name in os.environ}
    return os.execvpe(arguments[1], arguments[1:], environment)  # noqa: S606  # does not return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
