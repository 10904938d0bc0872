"""Jobs on a node with isolation `uid` reach neither its agent nor each other, and leave nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from agents.supervision.isolation import CAPABILITIES, processes_of_user
from agents.trainer.contract.job_user import ipc_objects
from controlplane.core.protocol.node_messages import ValidationReport, WantedTrainer
from controlplane.core.protocol.wire import ReportKind, SlotAddress, TrainerReport
from jobs.demo.stack.ports import free_port
from tests.agents.builders import job_uids, membership, wanted_trainer, wanted_validation
from tests.agents.conftest import wait_until
from tests.agents.control_plane import ENROLMENT_TOKEN, ControlPlane
from tests.agents.trainer.local_jobs import PLAIN_JOB, undisturbed
from tests.security import intruder
from tests.support.cases import pairs
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

    def refusal(self) -> str:
        """Wait until the newest agent has ended as it cannot run; return what it logged."""
        _, errors = self.made[-1].communicate(timeout=60)
        assert self.made[-1].returncode == 2
        return errors

    def left(self) -> list[int]:
        """Give all processes of users for jobs."""
        return [pid for uid in self.uids for pid in processes_of_user(uid)]


@pytest.fixture
def agents(plane: ControlPlane) -> Iterator[IsolatedAgents]:
    root_needed()
    # The folders of pytest are closed to other users.
    folder = Path(tempfile.mkdtemp(prefix="isolation-"))
    folder.chmod(0o755)
    made = IsolatedAgents(plane, folder, job_uids(10))
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
    errors = agents.refusal()
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
    assert "another agent of this machine uses a part of --job-uids" in agents.refusal()


def test_an_agent_says_which_folder_is_closed(agents: IsolatedAgents) -> None:
    agents.folder.chmod(0o700)
    agents.start_isolated(FAKE)
    errors = agents.refusal()
    agents.folder.chmod(0o755)
    assert f"cannot reach {agents.state / 'trainers'};" in errors
