"""Job code that tries all that isolation is to prevent. Also read as text, as a job's own file.

What it tries is harmless where it succeeds: the tests must be able to fail.
"""

import ctypes
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

#: Goes on from process to process, so that whoever looks for it by its number comes too late.
HOPPER = """
import os, time
end = time.monotonic() + 100
while time.monotonic() < end:
    time.sleep(0.005)
    if os.fork():
        os._exit(0)
    os.setsid()
"""

NUM_LEVELS = 1500


def uid_of(pid):
    try:
        return int(Path(f"/proc/{pid}/status").read_text().partition("\nUid:")[2].split()[0])
    except OSError:
        return os.getuid()


def readable(path):
    return bool(Path(path).read_bytes() or True)


def memory_readable(pid):
    maps = Path(f"/proc/{pid}/maps").read_text()
    with Path(f"/proc/{pid}/mem").open("rb") as file:
        file.seek(int(maps.partition("-")[0], 16))
        return len(file.read(16)) == 16


def traceable(pid):
    libc = ctypes.CDLL(None, use_errno=True)
    return libc.ptrace(0x4206, pid, None, None) == 0  # PTRACE_SEIZE, which does not stop it


def writable(path):
    os.close(os.open(path, os.O_WRONLY | os.O_APPEND))
    return True


def listed(path):
    return bool(list(Path(path).iterdir()) or True)


def attempts(state, agent, victim):
    """Give what is tried, by name: each is a call that fails, or returns something false."""
    own = Path(os.environ["VIRTUALFLOW_RUN_DIR"])
    state, victim = Path(state), Path(victim)
    others = [int(p.name) for p in Path("/proc").iterdir() if p.name.isdecimal()]
    others = [agent, *(pid for pid in others if uid_of(pid) >= 1000 and uid_of(pid) != os.getuid())]
    tried = {
        "list the state directory": lambda: listed(state),
        "list run directories": lambda: listed(victim.parent),
        "lock the agent out": lambda: os.open(state / "agent.lock", os.O_RDONLY),
        "write into the cache": lambda: (state / "cache" / ("0" * 64)).touch() or True,
        "list the cache": lambda: listed(state / "cache"),
        "make a run directory": lambda: (victim.parent / "9-9").mkdir() or True,
        "replace the own directory": lambda: os.access(own.parent, os.W_OK),
        "give the own directory away": lambda: os.chown(own, 0, 0) or True,
        "write into the product": lambda: writable(Path(__import__("agents").__file__)),
        "become root": lambda: os.setuid(0) or True,
        "keep a group": lambda: [group for group in os.getgroups() if group != os.getgid()],
        "gain rights by a program": lambda: (
            "NoNewPrivs:\t0" in Path("/proc/self/status").read_text()
        ),
        "keep a capability": lambda: (
            "CapPrm:\t0000000000000000" not in Path("/proc/self/status").read_text()
        ),
        "leave a key": lambda: (
            ctypes.CDLL(None).syscall(
                {"x86_64": 248}.get(os.uname().machine, 217), b"user", b"left", b"x", 1, -4
            )
            > 0
        ),
        "call the host of the machine": lambda: socket.socket(40, socket.SOCK_STREAM).fileno(),
        "open sockets unseen": lambda: ctypes.CDLL(None).syscall(425, 1, bytes(120)) >= 0,
        "leave a core": lambda: __import__("resource").getrlimit(4)[1],
        "use the home of the agent": lambda: Path.home() != own / "scratch",
        "share temporary files": lambda: Path(tempfile.gettempdir()) != own / "scratch",
    }
    for path in (state / "credentials.json", own.with_name(own.name + ".agent") / "process.json"):
        tried[f"read {path.name}"] = lambda path=path: readable(path)
        tried[f"write {path.name}"] = lambda path=path: writable(path)
        tried[f"link {path.name}"] = lambda path=path: os.link(path, own / path.name) or True
    for name in ("orders.json", "code/job.py", "restore.npz", "reports.jsonl", "log.txt", "new"):
        tried[f"read the victim's {name}"] = lambda name=name: readable(victim / name)
        tried[f"write the victim's {name}"] = lambda name=name: writable(victim / name)
    for pid in others:
        tried[f"read environ of {pid}"] = lambda pid=pid: readable(f"/proc/{pid}/environ")
        tried[f"read memory of {pid}"] = lambda pid=pid: memory_readable(pid)
        tried[f"trace {pid}"] = lambda pid=pid: traceable(pid)
        tried[f"look into {pid}"] = lambda pid=pid: listed(f"/proc/{pid}/fd")
        tried[f"signal {pid}"] = lambda pid=pid: os.kill(pid, 0) or True
    return tried


def intrude(state, agent, victim):
    """Return the names of the attempts that succeeded, and the number of all."""
    done = []
    tried = attempts(state, agent, victim)
    for name, attempt in tried.items():
        try:
            if attempt():
                done.append(name)
        except OSError:
            continue
    return done, len(tried)


def stay_behind(victim):
    """Leave processes that claim the victim's run directory, or nothing; files; shared memory."""
    own = Path(os.environ["VIRTUALFLOW_RUN_DIR"])
    for environment in ({"VIRTUALFLOW_RUN_DIR": str(victim)}, {}):
        subprocess.Popen(["/bin/sleep", "1000"], env=environment, start_new_session=True)
    subprocess.Popen([sys.executable, "-I", "-c", HOPPER], env={}, start_new_session=True)
    (own / "alive").unlink(missing_ok=True)
    (own / "alive").symlink_to(own.parents[1] / "made-by-the-agent")
    os.mkfifo(own / "validation.json")
    (own / "shipped.json").symlink_to(own.parents[1] / "credentials.json")
    left = Path(f"/tmp/left-by-{os.getuid()}")
    left.mkdir(mode=0o700)
    for folder in (left, own):  # in more levels than a program can walk
        inner = os.open(folder, os.O_PATH)
        for _ in range(NUM_LEVELS):
            os.mkdir("a", dir_fd=inner)
            outer, inner = inner, os.open("a", os.O_PATH, dir_fd=inner)
            os.close(outer)
        os.close(os.open("for the next one", os.O_CREAT, dir_fd=inner))
        os.close(inner)
    libc = ctypes.CDLL(None)
    libc.shmget(0, 4096, 0o1600), libc.msgget(0, 0o1600), libc.semget(0, 1, 0o1600)
