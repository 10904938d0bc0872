"""A job with attempts to reach other users' data and processes in `build`; see `from_jobs`.

`settings`: `mode` chooses what is tried, `stack` is the folder of all processes of the site, and
`ports` are those of the site. What it could do stands in its log, as a line of JSON behind MARK.
"""

import contextlib
import json
import os
import socket
import sys
import time
from pathlib import Path

import keras
import numpy as np

MARK = "COULD "
#: More than the jobs, slots and processes that the benchmark has.
NUM_JOBS, NUM_SLOTS = 60, 40
CONNECT_LIMIT_S = 3.0
LINGER_S = 600.0

RUN_DIR = Path(os.environ["VIRTUALFLOW_RUN_DIR"])
STATE = RUN_DIR.parent.parent


def can_read(path):
    """Return whether a file has content for this process."""
    with Path(path).open("rb") as stream:
        return bool(stream.read(1))


def can_write(folder):
    """Return whether a file can be made in a folder."""
    probe = Path(folder) / f"of-{os.getpid()}"
    probe.write_text("x")
    probe.unlink()
    return True


def others():
    """List the run directories of other jobs and validations on this node, by their usual names."""
    names = [f"trainers/{job}-{slot}" for job in range(NUM_JOBS) for slot in range(NUM_SLOTS)]
    names += [f"validations/{number}" for number in range(NUM_JOBS)]
    own_job = RUN_DIR.name.partition("-")[0]
    found = []
    for name in names:
        path = STATE / name
        with contextlib.suppress(OSError):
            if path.name.partition("-")[0] != own_job and path.stat():
                found.append(path)
    return found


def strangers():
    """List processes of agents, of the site and of other jobs by what /proc shows of all."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) in (os.getpid(), 1):
            continue
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            is_ours = any(word in words for word in (b"agents", b"agents.trainer"))
            is_site = any(b"controlplane" in word for word in words)
            if (is_ours or is_site) and os.getpgid(int(entry.name)) != os.getpgrp():
                found.append(int(entry.name))
    return found


def any_of(attempt, targets):
    """Return whether the attempt succeeds for one of the targets."""
    for target in targets:
        with contextlib.suppress(Exception):
            if attempt(target):
                return True
    return False


def reads_memory(pid):
    start = int(Path(f"/proc/{pid}/maps").read_text().partition("-")[0], 16)
    with Path(f"/proc/{pid}/mem").open("rb") as memory:
        memory.seek(start)
        return bool(memory.read(8))


def signals(pid):
    os.kill(pid, 0)
    return True


def listening_ports():
    """List all TCP ports that are listened on, without this process's own."""
    orders = json.loads((RUN_DIR / "orders.json").read_text())
    slot, rows = orders["slot"], orders["membership"]["cluster_addresses"]
    own = {int(row["address"].rpartition(":")[2]) for row in rows if row["slot"] == slot}
    ports = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A":
                ports.add(int(words[1].rpartition(":")[2], 16))
    return sorted(ports - own)


def connects(port):
    socket.create_connection(("127.0.0.1", port), CONNECT_LIMIT_S).close()
    return True


def talks_grpc(port):
    """Return whether a server answers to the first bytes of HTTP/2, as a trainer's does."""
    with socket.create_connection(("127.0.0.1", port), CONNECT_LIMIT_S) as caller:
        caller.settimeout(CONNECT_LIMIT_S)
        caller.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")
        return caller.recv(9)[3:4] == b"\4"  # a SETTINGS frame


def linger(environment):
    """Leave a process behind that has a session and an environment of its own."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            command = [sys.executable, "-c", f"import time; time.sleep({LINGER_S})", "lingering"]
            with contextlib.suppress(OSError):
                os.execve(sys.executable, command, environment)
            time.sleep(LINGER_S)  # it may not start programs; it is still here
        os._exit(0)


def files_of_others(names):
    return [path / name for path in others() for name in names]


def probes(settings):
    """Return name -> attempt, which returns whether it succeeded, or raises."""
    stack = Path(settings["stack"])
    packages = [Path(np.__file__).parents[1], Path(sys.modules["agents"].__path__[0])]
    agents_own = [STATE, STATE / "trainers", STATE / "validations", STATE / "cache"]
    agents_own += [STATE / "fork_servers", RUN_DIR.with_name(f"{RUN_DIR.name}.agent")]
    site = [stack / name for name in ("controlplane.sqlite3", "token", "site/secret-key")]
    site += [stack / "enrolment" / node for node in ("node-a", "node-b")]
    return {
        "C1 reads the agent's token": lambda: can_read(STATE / "credentials.json"),
        "C1 lists other jobs": lambda: any_of(os.listdir, agents_own),
        "C1 reads code of others": lambda: any_of(
            can_read, files_of_others(("code/job.py", "code/model.py"))
        ),
        "C1 reads orders and logs of others": lambda: any_of(
            can_read, files_of_others(("orders.json", "log.txt", "reports.jsonl"))
        ),
        "C1 writes into folders of others": lambda: any_of(can_write, others()),
        "C1 reads environments": lambda: any_of(
            lambda pid: can_read(f"/proc/{pid}/environ"), strangers()
        ),
        "C1 reads memory": lambda: any_of(reads_memory, strangers()),
        "C1 opens files of others": lambda: any_of(
            lambda pid: list(Path(f"/proc/{pid}/fd").iterdir()), strangers()
        ),
        "C1 signals agents and other jobs": lambda: any_of(signals, strangers()),
        "C1 writes where the agent does": lambda: any_of(can_write, agents_own),
        "C1 writes into packages": lambda: any_of(can_write, packages),
        "C1 reads files of the site": lambda: any_of(can_read, site),
        "H7 speaks to trainers of others": lambda: any_of(talks_grpc, listening_ports()),
        "M6 reaches the site": lambda: any_of(connects, settings["ports"]),
        "M6 reaches other servers": lambda: any_of(
            connects, set(listening_ports()) - set(settings["ports"])
        ),
        "low: becomes root": lambda: os.setuid(0) is None and os.getuid() == 0,
    }


def forged_reports():
    """Return malformed reports: each once kept out those of other jobs, or broke a page."""
    orders = json.loads((RUN_DIR / "orders.json").read_text())
    head = {"job_id": orders["spec"]["job_id"], "slot": orders["slot"], "at": time.time()}
    head["generation"] = orders["membership"]["generation"]
    steps = {"first_step": 1, "last_step": 2, "epoch": 0, "examples": 8, "seconds": 1.0}
    steps |= {"loss": 0.5, "num_accelerators": 1, "batch_size": 8}
    bad = [("epoch", {"epoch": 0, "step": 1, "logs": [1]}), ("finished", {"metrics": [1]})]
    changes = [{"first_step": 6, "last_step": 5}, {"last_step": 2**70}, {"loss": 10**400}]
    changes += [{"num_accelerators": 0}, {"seconds": 1e308}, {"seconds": "1"}, {"examples": []}]
    bad += [("steps", steps | change) for change in changes]
    bad += [("switched", {"bytes_moved": 1e300}), ("stalled", {"step": 1e300})]
    for number, (kind, data) in enumerate(bad, start=10_000):
        yield json.dumps({**head, "sequence": number, "kind": kind, "data": data})


def files_replaced():
    """Put links and pipes where the agent reads what this job writes."""
    token = STATE / "credentials.json"
    for name in ("log.txt", "outputs/model.keras", "outputs/history.csv"):
        target = RUN_DIR / name
        with contextlib.suppress(OSError):
            target.parent.mkdir(exist_ok=True)
            target.unlink(missing_ok=True)
            target.symlink_to(token)
    for name in ("pulse", "validation.json", "agent.jsonl", "shipped.json"):
        with contextlib.suppress(OSError):
            (RUN_DIR / name).unlink(missing_ok=True)
            os.mkfifo(RUN_DIR / name)


class PacedExamples:
    """A line's points, each after a pause."""

    def __init__(self, pause_s):
        self.pause_s = pause_s
        self.points = np.random.default_rng(1).normal(size=(64, 4)).astype("float32")

    def __len__(self):
        return len(self.points)

    def __getitem__(self, index):
        time.sleep(self.pause_s)
        return self.points[index], self.points[index, :1]


def build(settings):
    is_trainer = RUN_DIR.parent.name == "trainers"
    mode = settings["mode"]
    if mode == "probe" and is_trainer:
        could = {}
        for name, attempt in probes(settings).items():
            try:
                could[name] = bool(attempt())
            except Exception:
                could[name] = False
        print(MARK + json.dumps(could), flush=True)
    if mode == "linger":
        linger({})
        victim = next(iter(others()), RUN_DIR)
        linger({"VIRTUALFLOW_RUN_DIR": str(victim)})
    if mode == "facts" and not is_trainer:
        facts = {"num_examples": 10**400, "steps_per_epoch": "x"}
        (RUN_DIR / "validation.json").write_text(json.dumps({"facts": facts, "warnings": 5}))
        os._exit(0)
    if mode == "reports" and is_trainer:
        with (RUN_DIR / "reports.jsonl").open("a") as stream:
            stream.write("".join(f"{line}\n" for line in forged_reports()))
    if mode == "files" and is_trainer:
        files_replaced()
        time.sleep(20)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model, PacedExamples(settings.get("pause_s", 0.0)), None
