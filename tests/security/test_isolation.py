"""Jobs on a node with isolation `uid` reach neither its agent nor each other, and leave nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from agents.state_directory import StateDirectory
from agents.supervision import bound_ports, firewall
from agents.supervision import isolation as isolation_module
from agents.supervision.firewall import Firewall
from agents.supervision.isolation import (
    CAPABILITIES,
    JOB_USER_COMMAND,
    Isolation,
    _leftovers_deletion,
    _shared_folders,
    isolation_check,
    processes_of_user,
)
from agents.trainer.contract.job_user import ipc_objects
from controlplane.core.protocol.wire import (
    AcceleratorInfo,
    ReportKind,
    SlotAddress,
    TrainerOrders,
    TrainerReport,
    ValidationReport,
    WantedTrainer,
)
from jobs.demo.stack.ports import free_port
from tests.agents.builders import (
    agent_settings,
    membership,
    training_spec,
    wanted_trainer,
    wanted_validation,
)
from tests.agents.conftest import wait_until
from tests.agents.control_plane import ENROLMENT_TOKEN, ControlPlane
from tests.agents.trainer.local_jobs import PLAIN_JOB, undisturbed
from tests.security import intruder
from tests.support.cases import pairs
from tests.support.present import present
from tests.support.reachable import reachable_command, root_needed

FAKE, REAL = "tests.agents.agent_process", "agents"
LEAST_ATTEMPTS = 40
#: A real job: the intruder's functions, then a job that trains; what it could do is in its log.
INTRUDING_JOB = (
    Path(intruder.__file__).read_text(encoding="utf-8")
    + PLAIN_JOB.replace("def build(settings):", "def honest_build(settings):")
    + """

def build(settings):
    if "agent" in settings:
        done, num_tried = intrude(settings["state"], settings["agent"], settings["victim"])
        stay_behind(settings["victim"])
        print("intruder", num_tried, done, flush=True)
    return honest_build(settings)
"""
)


@dataclasses.dataclass
class IsolatedAgents:
    """Agent processes of one state directory that other users can pass through."""

    plane: ControlPlane
    folder: Path
    uids: range

    def __post_init__(self) -> None:
        self.state = self.folder / "state"
        self.made: list[subprocess.Popen[str]] = []

    def start(self, module: str, *options: str, prefix: tuple[str, ...] = ()) -> int:
        """Start an agent; return its process id."""
        command = [
            *prefix, sys.executable, "-m", module, "--server", self.plane.address,
            "--node", "node-a", "--state-dir", str(self.state), "--gpus", "none",
            "--emulate", "3", "--grace-s", "0.5", *options,
        ]  # fmt: skip
        passing = self.folder / "mounts"
        agent = subprocess.Popen(
            reachable_command(command, passing),
            env={**os.environ, "VIRTUALFLOW_ENROLMENT_TOKEN": ENROLMENT_TOKEN},
            stderr=subprocess.PIPE,
            text=True,
        )
        self.made.append(agent)
        return agent.pid

    def start_isolated(self, module: str, *options: str, **more: Any) -> int:
        ids = f"{self.uids[0]}-{self.uids[-1]}"
        return self.start(module, "--isolation", "uid", "--job-uids", ids, *options, **more)

    def kill(self) -> None:
        """Kill the newest agent; its trainers go on."""
        self.made[-1].kill()
        self.made[-1].communicate()

    def stop(self) -> str:
        """Stop the newest agent and its trainers; return what it logged."""
        self.made[-1].send_signal(signal.SIGTERM)
        _, errors = self.made[-1].communicate(timeout=60)
        return errors

    def run_dir(self, job_id: int, slot: int) -> Path:
        return self.state / "trainers" / f"{job_id}-{slot}"

    def left(self) -> list[int]:
        """Give all processes of users for jobs."""
        return [pid for uid in self.uids for pid in processes_of_user(uid)]


@pytest.fixture
def agents(plane: ControlPlane) -> Iterator[IsolatedAgents]:
    root_needed()
    # The folders of pytest are closed to other users.
    folder = Path(tempfile.mkdtemp(prefix="isolation-"))
    folder.chmod(0o755)
    first = 300_000 + os.getpid() % 4_000_000 * 10
    made = IsolatedAgents(plane, folder, range(first, first + 10))
    yield made
    for agent in made.made:
        if agent.poll() is None:
            agent.terminate()
            agent.communicate(timeout=60)
    left = made.left()
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    subprocess.run(["rm", "-rf", folder], check=True)  # it has folders of many levels
    assert not left


def ready(plane: ControlPlane, job_id: int, slot: int) -> TrainerReport | None:
    return plane.report(job_id, slot, ReportKind.READY)


def judgements(plane: ControlPlane) -> list[ValidationReport]:
    return [report for batch in plane.batches for report in batch.validations]


def steps(plane: ControlPlane, job_id: int, slot: int) -> int:
    return plane.kinds(job_id, slot).count(ReportKind.STEPS)


def goes_on(plane: ControlPlane, job_id: int, slot: int) -> None:
    before = steps(plane, job_id, slot)
    wait_until(lambda: steps(plane, job_id, slot) > before + 3)


@pytest.mark.parametrize(
    ("agent", "way"), pairs(["container", "unit"], ["--fork-servers", "--no-fork-servers"])
)
def test_a_job_reaches_nothing_and_leaves_nothing(
    agents: IsolatedAgents, plane: ControlPlane, way: str, agent: str
) -> None:
    """The agent is root, or a user of its own, with the capabilities that it asks for alone."""
    some = ",".join(["-all", *(f"+{name.lower()}" for name in CAPABILITIES)])
    prefix = ["setpriv", "--bounding-set", some, "--inh-caps", some, "--ambient-caps", some]
    if agent == "unit":
        ids = [f"{name}={agents.uids[-1] + 1}" for name in ("--reuid", "--regid")]
        prefix += [*ids, "--clear-groups"]
        os.chown(agents.folder, agents.uids[-1] + 1, -1)
    pid = agents.start_isolated(FAKE, way, prefix=tuple(prefix))
    victim, intruding = agents.run_dir(1, 0), agents.run_dir(2, 1)
    facts = {"state": str(agents.state), "agent": pid, "victim": str(victim)}
    restore = plane.add_checkpoint(1, b"secret")
    honest = wanted_trainer(plane, 0, job_id=1, checkpoint_sha256=restore)
    wait_until(lambda: plane.hellos)
    assert plane.hellos[-1].isolation == plane.enrolments[-1].isolation == "uid"
    plane.want(honest)
    wait_until(lambda: steps(plane, 1, 0))
    evil = wanted_trainer(plane, 1, job_id=2, play="intrude", **facts)
    trial = wanted_validation(plane, 3, play="intrude", **facts)
    plane.want(honest, evil, validations=[trial])
    wait_until(lambda: ready(plane, 2, 1))
    wait_until(lambda: judgements(plane))
    told, judged = ready(plane, 2, 1), judgements(plane)[0]
    assert told is not None
    assert (told.data["done"], judged.facts["done"]) == ([], []), judged
    assert min(told.data["num_tried"], judged.facts["num_tried"]) > LEAST_ATTEMPTS
    uid = intruding.stat().st_uid
    assert {uid, victim.stat().st_uid} <= set(agents.uids)
    assert uid != victim.stat().st_uid
    assert (intruding.stat().st_mode & 0o777, agents.state.stat().st_mode & 0o777) == (0o700, 0o711)
    goes_on(plane, 1, 0)

    # Another job's process claims to be the victim's, which ends all the same.
    assert len(list(processes_of_user(uid))) >= 3
    plane.want(evil)
    wait_until(lambda: ReportKind.EXITED in plane.kinds(1, 0))
    assert (Path(tempfile.gettempdir()) / f"left-by-{uid}").exists()
    assert {kind for kind, _ in ipc_objects(uid)} == {"shm", "msg", "sem"}
    plane.want()
    wait_until(lambda: ReportKind.EXITED in plane.kinds(2, 1))
    assert not agents.left()
    assert not (Path(tempfile.gettempdir()) / f"left-by-{uid}").exists()
    assert not list(ipc_objects(uid))
    assert not (agents.state / "made-by-the-agent").exists()
    assert intruding.stat().st_uid == agents.folder.stat().st_uid
    assert "no trainer is left" in agents.stop()


def test_without_isolation_the_same_job_reaches_everything(
    agents: IsolatedAgents, plane: ControlPlane
) -> None:
    pid = agents.start(FAKE, "--no-fork-servers")
    facts = {"state": str(agents.state), "agent": pid, "victim": str(agents.run_dir(1, 0))}
    honest, trial = wanted_trainer(plane), wanted_validation(plane, 3, play="intrude", **facts)
    plane.want(honest)
    wait_until(lambda: steps(plane, 1, 0))
    plane.want(honest, validations=[trial])
    wait_until(lambda: judgements(plane))
    done = judgements(plane)[0].facts["done"]
    missing = {
        "list the state directory", "write into the cache", "read credentials.json",
        "link credentials.json", "read the victim's code/job.py", "write the victim's orders.json",
        f"read environ of {pid}", f"read memory of {pid}", f"signal {pid}", f"trace {pid}",
    } - {*done}  # fmt: skip
    assert not missing
    assert plane.hellos[-1].isolation == "none"
    assert "use only where all users trust each other" in agents.stop()


def test_trainers_of_a_job_share_a_user_over_resizes_and_restarts(
    agents: IsolatedAgents, plane: ControlPlane
) -> None:
    def want(generation: int, *slots: int, source: int | None = None) -> None:
        group = membership(generation, *slots, source=source)
        held = {*slots, *([] if source is None else [source])}
        plane.want(*(wanted_trainer(plane, s, generation=group, play="parent") for s in held))

    def switched(slot: int, generation: int) -> bool:
        found = (row for row in plane.reports(1, slot) if row.kind is ReportKind.SWITCHED)
        return any(row.generation == generation for row in found)

    agents.start_isolated(FAKE, "--fork-servers")
    want(1, 0)
    wait_until(lambda: switched(0, 1))
    uid = agents.run_dir(1, 0).stat().st_uid
    want(2, 0, 1, source=0)
    wait_until(lambda: switched(0, 2) and switched(1, 2))
    assert agents.run_dir(1, 1).stat().st_uid == uid
    pid = next(state.pid for state in plane.owned() if state.slot == 1)
    want(3, 1, source=0)
    wait_until(lambda: ReportKind.EXITED in plane.kinds(1, 0) and switched(1, 3))
    assert psutil.pid_exists(pid)

    agents.kill()
    agents.start_isolated(FAKE, "--fork-servers")
    goes_on(plane, 1, 1)
    assert [state.pid for state in plane.owned()] == [pid]
    want(4, 1, 2, source=1)
    wait_until(lambda: switched(1, 4) and switched(2, 4))
    assert agents.run_dir(1, 2).stat().st_uid == uid

    agents.kill()
    os.kill(pid, signal.SIGKILL)  # the end of one does not take the other along
    agents.start_isolated(FAKE, "--fork-servers")
    wait_until(lambda: ReportKind.EXITED in plane.kinds(1, 1))
    goes_on(plane, 1, 2)
    plane.want()
    wait_until(lambda: ReportKind.EXITED in plane.kinds(1, 2))
    assert not agents.left()


def test_what_a_dead_agent_left_is_ended_by_the_next(
    agents: IsolatedAgents, plane: ControlPlane
) -> None:
    pid = agents.start_isolated(FAKE, "--fork-servers")
    facts = {"state": str(agents.state), "agent": pid, "victim": str(agents.run_dir(1, 0))}
    plane.want(wanted_trainer(plane, 1, job_id=2, play="intrude", **facts))
    wait_until(lambda: steps(plane, 2, 1))
    agents.kill()
    (leader,) = {state.pid for state in plane.owned()}
    os.kill(leader, signal.SIGKILL)
    assert len(agents.left()) >= 2
    plane.want()
    agents.start(FAKE)  # without isolation: users of the earlier one are cleared all the same
    wait_until(lambda: ReportKind.EXITED in plane.kinds(2, 1))
    wait_until(lambda: not agents.left())


@pytest.mark.timeout(300)
def test_a_real_job_trains_as_without_isolation(
    agents: IsolatedAgents, plane: ControlPlane, tmp_path: Path
) -> None:
    pid = agents.start_isolated(REAL)
    victim = {"state": str(agents.state), "agent": pid, "victim": str(agents.run_dir(9, 9))}
    wanted = wanted_for_real(plane, 1, **victim)
    plane.want(wanted)
    wait_until(lambda: ReportKind.EXITED in plane.kinds(1, 0), 120)
    finished = plane.report(1, 0, ReportKind.FINISHED)
    assert finished is not None, plane.log(1, 0)
    assert not agents.left()
    agents.stop()
    words = plane.log(1, 0).partition("intruder ")[2].partition("\n")[0].split(maxsplit=1)
    assert words[1] == "[]", plane.log(1, 0)
    assert int(words[0]) > LEAST_ATTEMPTS - 20  # there is no victim here
    spec = dataclasses.replace(wanted.spec, settings={})
    expected = undisturbed(tmp_path / "undisturbed", spec, INTRUDING_JOB)
    assert expected["digest"] == finished.data["digest"]


def wanted_for_real(plane: ControlPlane, job_id: int, **settings: Any) -> WantedTrainer:
    """Want ten steps of the intruding job on a port that the agent watches."""
    wanted = wanted_trainer(plane, 0, job_id=job_id, **settings)
    address = SlotAddress(slot=0, address=f"127.0.0.1:{free_port(21_500)}")
    sha256 = plane.add_code(job_id, INTRUDING_JOB.encode())
    return dataclasses.replace(
        wanted,
        spec=dataclasses.replace(wanted.spec, code_sha256=sha256, global_batch_size=20),
        membership=dataclasses.replace(membership(1, 0), cluster_addresses=(address,)),
    )


def test_an_agent_says_which_right_is_missing(agents: IsolatedAgents) -> None:
    prefix = ("setpriv", "--bounding-set", "-setuid,-kill", "--inh-caps", "-all")
    agents.start_isolated(FAKE, prefix=prefix)
    _, errors = agents.made[-1].communicate(timeout=60)
    assert agents.made[-1].returncode == 2
    assert "needs root, or CAP_KILL, CAP_SETUID besides" in errors
    assert "--isolation none" in errors


def test_agents_of_a_machine_do_not_share_users(
    agents: IsolatedAgents, plane: ControlPlane
) -> None:
    agents.start_isolated(FAKE)
    wait_until(lambda: plane.hellos)
    others = f"{agents.uids[-1]}-{agents.uids[-1] + 5}"
    folder = str(agents.folder / "other")
    agents.start(FAKE, "--isolation", "uid", "--job-uids", others, "--state-dir", folder)
    _, errors = agents.made[-1].communicate(timeout=60)
    assert agents.made[-1].returncode == 2
    assert "another agent of this machine uses a part of --job-uids" in errors


def test_users_that_have_an_account_are_not_given_to_jobs(tmp_path: Path) -> None:
    root_needed()
    settings = agent_settings(
        "http://127.0.0.1:9", tmp_path / "state", job_uids=range(65500, 65600)
    )
    state = StateDirectory(settings.state_dir)
    with pytest.raises(ValueError, match=r"65534, the id of the account or group n"):
        isolation_check(settings, state)
    state.close()


def test_a_check_that_hangs_is_refused_with_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang(*_: object, timeout: float, **__: object) -> None:
        raise subprocess.TimeoutExpired("python", timeout)

    monkeypatch.setattr(isolation_module, "_capabilities_missing", list)
    monkeypatch.setattr(isolation_module, "_range_lock", lambda _: None)
    monkeypatch.setattr(isolation_module.subprocess, "run", hang)
    uids = range(300_000, 300_002)
    settings = agent_settings("http://127.0.0.1:9", tmp_path / "state", job_uids=uids)
    state = StateDirectory(settings.state_dir)
    with pytest.raises(OSError, match=r"did not end within 10 s; .* start the agent again"):
        isolation_check(settings, state)
    state.close()


def test_a_user_is_shared_by_a_job_alone_and_not_while_it_is_cleared(tmp_path: Path) -> None:
    root_needed()
    first = 300_000 + os.getpid() % 4_000_000 * 10
    settings = agent_settings("http://127.0.0.1:9", tmp_path, job_uids=range(first, first + 4))
    isolation = Isolation(settings, 1)

    def entered(owner: str, name: str) -> int:
        (tmp_path / name).mkdir()
        user = present(isolation.enter(owner, tmp_path / name))
        assert (tmp_path / name).stat().st_uid == user.uid
        return user.uid

    def clear(name: str) -> None:
        wait_until(lambda: isolation.is_cleared(tmp_path / name))
        assert (tmp_path / name).stat().st_uid == os.geteuid()

    assert entered("job 1", "1-0") == entered("job 1", "1-1") == first + 1
    assert entered("job 2", "2-0") == first + 2
    isolation.kill_begin(tmp_path / "2-0")
    assert not isolation.pids  # it has no process
    assert isolation.is_cleared(tmp_path / "1-0")
    assert not isolation.is_cleared(tmp_path / "1-1")  # one that kills its processes was started
    assert entered("job 1", "1-2") == first + 3
    (tmp_path / "9-0").mkdir()
    with pytest.raises(OSError, match="all 3 users of --job-uids are in use"):
        isolation.enter("job 9", tmp_path / "9-0")
    clear("1-1")
    assert entered("job 3", "3-0") == first + 1
    for name in ("1-2", "2-0", "3-0"):
        clear(name)


def test_the_port_of_a_trainer_that_is_gone_is_closed_to_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The port may be that of another job's trainer next."""
    root_needed()
    first = 300_000 + os.getpid() % 4_000_000 * 10
    monkeypatch.setattr(Firewall, "check", lambda _: None)
    rules: list[str] = []
    monkeypatch.setattr(firewall, "_nft", lambda text, *_: rules.append(text))
    settings = agent_settings(
        "http://127.0.0.1:9", tmp_path, job_uids=range(first, first + 4), job_networks=()
    )
    isolation = Isolation(settings, 1)
    orders = TrainerOrders(
        spec=training_spec("0" * 64),
        slot=0,
        accelerator=AcceleratorInfo(index=0, kind="cpu", name="one", memory_bytes=0, threads=1),
        membership=membership(1, 0, 1),
        go=True,
    )
    for slot in (0, 1):
        (tmp_path / f"1-{slot}").mkdir()
        isolation.reach(tmp_path / f"1-{slot}", dataclasses.replace(orders, slot=slot))
        isolation.enter("job 1", tmp_path / f"1-{slot}")
    assert " . 21001" in rules[-1].partition("reject")[0]
    assert isolation.is_cleared(tmp_path / "1-1")
    isolation.reach(tmp_path / "1-0", orders)
    reached = rules[-1].partition("reject")[0]
    assert " . 21000" in reached
    assert " . 21001" not in reached
    wait_until(lambda: isolation.is_cleared(tmp_path / "1-0"))


@pytest.fixture
def ported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Isolation]:
    """Isolation that looks for ports in each call, with a directory of job 1 and one of job 2."""
    root_needed()
    monkeypatch.setattr(bound_ports, "ports_at_risk", lambda *_: set())
    monkeypatch.setattr(bound_ports, "LOOK_EVERY_S", 0.0)
    first = 300_000 + os.getpid() % 4_000_000 * 10
    uids, ports = range(first, first + 4), {"first_port": 1024, "last_port": 65535}
    isolation = Isolation(agent_settings("http://127.0.0.1:9", tmp_path, job_uids=uids, **ports), 1)
    for name in ("1-0", "2-0"):
        (tmp_path / name).mkdir()
        isolation.enter(name.partition("-")[0], tmp_path / name)
    yield isolation
    for name in ("1-0", "2-0"):
        wait_until(lambda name=name: isolation.is_cleared(tmp_path / name))


def orders_at(port: int) -> TrainerOrders:
    declared = SlotAddress(slot=0, address=f"127.0.0.1:{port}")
    return TrainerOrders(
        spec=training_spec("0" * 64),
        slot=0,
        accelerator=AcceleratorInfo(index=0, kind="cpu", name="one", memory_bytes=0, threads=1),
        membership=dataclasses.replace(membership(1, 0), cluster_addresses=(declared,)),
        go=True,
    )


def found(isolation: Isolation, run_dir: Path) -> int | None:
    """Return what is found once a port was seen often enough."""
    return [isolation.foreign_port(run_dir) for _ in range(4)][-1]


def test_a_job_that_takes_ports_of_others_is_seen(ported: Isolation, tmp_path: Path) -> None:
    """A foreign port keeps trainers of other jobs from starting."""
    own, others, unknown = (tmp_path / name for name in ("1-0", "2-0", "3-0"))
    for family, kind, use in itertools.product(
        (socket.AF_INET, socket.AF_INET6),
        (socket.SOCK_STREAM, socket.SOCK_DGRAM),
        ("bound", "listening", "connected"),
    ):
        if (kind, use) == (socket.SOCK_STREAM, "bound") and not shows_bound_sockets():
            continue
        with taken_port(own.stat().st_uid, family, kind, use) as port:
            assert ported.foreign_port(own) is None  # its trainer may just have ended
            assert found(ported, own) == port, (family, kind, use)
            assert found(ported, others) is None
            assert found(ported, unknown) is None
            ported.reach(own, orders_at(port))
            assert found(ported, own) is None


@contextlib.contextmanager
def taken_port(
    uid: int, family: socket.AddressFamily, kind: socket.SocketKind, use: str
) -> Iterator[int]:
    """Have a port taken by a user."""
    host = "127.0.0.1" if family is socket.AF_INET else "::1"
    with (
        contextlib.closing(socket.socket(family, kind)) as taken,
        contextlib.closing(socket.socket(family, kind)) as peer,
    ):
        os.fchown(taken.fileno(), uid, uid)
        taken.bind((host, 0))
        peer.bind((host, 0))
        server = peer if use == "connected" else taken
        if kind is socket.SOCK_STREAM and use != "bound":
            server.listen()
        if use == "connected":
            taken.connect(peer.getsockname()[:2])
        yield taken.getsockname()[1]


def shows_bound_sockets() -> bool:
    major, minor = os.uname().release.split(".")[:2]
    return (int(major), int(minor)) >= (6, 8)


def test_what_a_trainer_leaves_on_its_port_is_not_held_against_its_job(
    ported: Isolation, tmp_path: Path
) -> None:
    """Connections that wait for their peers outlive it, and others of the job go on."""
    uid = (tmp_path / "1-0").stat().st_uid
    (tmp_path / "1-1").mkdir()
    ported.enter("1", tmp_path / "1-1")
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        os.fchown(server.fileno(), uid, uid)
        ported.reach(tmp_path / "1-1", orders_at(server.getsockname()[1]))
        with contextlib.closing(socket.create_connection(server.getsockname())):
            accepted, _ = server.accept()
            os.fchown(accepted.fileno(), uid, uid)
            assert found(ported, tmp_path / "1-0") is None
            wait_until(lambda: ported.is_cleared(tmp_path / "1-1"))
            assert ported.foreign_port(tmp_path / "1-0") is None  # its socket is about to close
            server.close()
            accepted.close()
            assert found(ported, tmp_path / "1-0") is None


def test_an_agent_without_isolation_spares_trainers_of_one_that_had_it(
    ported: Isolation, tmp_path: Path
) -> None:
    later = Isolation(
        agent_settings("http://127.0.0.1:9", tmp_path, first_port=1024, last_port=65535), 1
    )
    uid = later.adopt("1", tmp_path / "1-0")
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        os.fchown(server.fileno(), present(uid), present(uid))
        later.reach(tmp_path / "1-0", orders_at(server.getsockname()[1]))
        assert found(later, tmp_path / "1-0") is None


#: Leaves an object of each kind behind, and a file in each folder; the number is what was made.
LEAVING = """
import ctypes, os, pathlib, platform, sys
libc = ctypes.CDLL(None, use_errno=True)
made = [libc.shmget(0, 4096, 0o1600), libc.msgget(0, 0o1600), libc.semget(0, 1, 0o1600)]
made += [pathlib.Path(folder, f"left-by-{os.getuid()}").write_text("x") for folder in sys.argv[1:]]
add_key = {"x86_64": 248, "aarch64": 217}[platform.machine()]
keys = [libc.syscall(add_key, b"user", b"left", b"x", 1, keyring) for keyring in (-3, -4, -5)]
keys += [libc.syscall(add_key + 2, 22, -1, -2)]  # KEYCTL_GET_PERSISTENT
queue = libc.mq_open(b"/left", 0o102, 0o600, None)
print(sum(number >= 0 for number in made), queue, {*keys})
"""


def test_what_a_user_shares_does_not_outlive_it(tmp_path: Path) -> None:
    root_needed()
    first = 300_000 + os.getpid() % 4_000_000 * 10
    settings = agent_settings("http://127.0.0.1:9", tmp_path, job_uids=range(first, first + 2))
    isolation = Isolation(settings, 1)
    run_dir = tmp_path / "1-0"
    run_dir.mkdir()
    user = present(isolation.enter("job 1", run_dir))
    folders = [folder for folder in _shared_folders() if Path(folder).is_dir()]
    command = [*JOB_USER_COMMAND, user.text(), sys.executable, "-I", "-c", LEAVING, *folders]
    left = subprocess.run(
        reachable_command(command, tmp_path / "mounts"), capture_output=True, text=True, check=True
    )
    assert left.stdout.split() == [str(3 + len(folders)), "-1", "{-1}"]
    assert f" {user.uid}: " not in Path("/proc/key-users").read_text()
    assert {kind for kind, _ in ipc_objects(user.uid)} == {"shm", "msg", "sem"}
    files = [Path(folder, f"left-by-{user.uid}") for folder in folders]
    assert all(file.exists() for file in files)
    wait_until(lambda: isolation.is_cleared(run_dir))
    assert not list(ipc_objects(user.uid))
    assert not any(file.exists() for file in files)


def test_all_of_a_user_is_killed_at_once_and_nothing_else(tmp_path: Path) -> None:
    root_needed()
    first = 300_000 + os.getpid() % 4_000_000 * 10
    settings = agent_settings("http://127.0.0.1:9", tmp_path, job_uids=range(first, first + 3))
    isolation = Isolation(settings, 1)
    sleeping = []
    for job in (1, 2):
        run_dir = tmp_path / f"{job}-0"
        run_dir.mkdir()
        user = present(isolation.enter(f"job {job}", run_dir))
        # A session of its own, and nothing in its environment.
        command = ["/bin/sleep", "100"]
        process = subprocess.Popen(command, env={}, user=user.uid, start_new_session=True)
        sleeping.append(process)
    try:
        isolation.kill(tmp_path / "3-0")
        isolation.kill(tmp_path / "1-0")
        assert sleeping[0].wait(timeout=60) == -signal.SIGKILL
        assert sleeping[1].poll() is None
        isolation.kill_begin(tmp_path / "2-0")
        assert sleeping[1].wait(timeout=60) == -signal.SIGKILL
    finally:
        for process in sleeping:
            process.kill()
            process.wait()
    for job in (1, 2):
        wait_until(lambda name=f"{job}-0": isolation.is_cleared(tmp_path / name))


def test_what_a_user_leaves_deeper_in_shared_folders_does_not_outlive_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root_needed()
    monkeypatch.setattr("agents.supervision.isolation._shared_folders", lambda: {str(tmp_path)})
    uid = 4_300_000
    shared, own = tmp_path / ".X11-unix", tmp_path / "own"
    for folder, mode in ((shared, 0o1777), (own, 0o755)):
        folder.mkdir()
        folder.chmod(mode)
        os.mknod(folder / "left")
        os.chown(folder / "left", uid, uid)
    (shared / "of another").touch()
    list(_leftovers_deletion(uid))
    assert [path.name for path in shared.iterdir()] == ["of another"]
    assert (own / "left").exists()  # given to it by somebody: no user can leave a file there


def test_every_file_system_in_memory_that_all_can_write_to_is_shared() -> None:
    root_needed()
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-m", "true"]).returncode:
        pytest.skip("there are no mount namespaces")
    places = ["/mnt/open", "/mnt/read", "/mnt/closed", "/mnt/closed/open", "/mnt/queues"]
    mounts = ["tmpfs 1777", "tmpfs 755", "tmpfs 711", "tmpfs 1777", "mqueue"]
    script = ["set -e; mount -t tmpfs -o mode=755 none /mnt"]
    for place, (kind, *mode) in zip(places, (mount.split() for mount in mounts), strict=True):
        options = f"-o mode={mode[0]}" if mode else ""
        script.append(f"mkdir {place}; mount -t {kind} {options} none {place}")
    script += ["chmod 700 /mnt/closed", 'exec "$@"']
    show = "from agents.supervision.isolation import _shared_folders as f; print(*f())"
    command = ["unshare", "-m", "sh", "-c", "\n".join(script), "sh", sys.executable, "-c", show]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert {place for place in shown if place.startswith("/mnt")} == {"/mnt/open", "/mnt/queues"}


def test_the_directory_of_an_account_is_no_jobs(tmp_path: Path) -> None:
    root_needed()
    os.chown(tmp_path, 65534, 65534)  # a former agent's user; its other processes are none of ours
    isolation = Isolation(agent_settings("http://127.0.0.1:9", tmp_path), 1)
    assert isolation.adopt("job 1", tmp_path) is None
    assert isolation.is_cleared(tmp_path)


def test_an_agent_says_which_folder_is_closed(agents: IsolatedAgents) -> None:
    agents.folder.chmod(0o700)
    agents.start_isolated(FAKE)
    _, errors = agents.made[-1].communicate(timeout=60)
    agents.folder.chmod(0o755)
    assert agents.made[-1].returncode == 2
    assert f"cannot reach {agents.state / 'trainers'};" in errors
