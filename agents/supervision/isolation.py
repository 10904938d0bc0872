"""Isolation of jobs from the agent and from each other: a user id for each job of this node.

Trainers of one job share a user, because NCCL exchanges shared memory between the processes of one
user only; a validation has one of its own. A user is given to another job once none of its
processes is left, as the last of its holders to end has them all killed, and none of its files in
folders that all share.
"""

from __future__ import annotations

import contextlib
import fcntl
import grp
import logging
import os
import pwd
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from agents.settings import AgentSettings
from agents.state_directory import StateDirectory
from agents.supervision.bound_ports import BoundPorts
from agents.supervision.cgroups import Cgroups
from agents.supervision.firewall import Caller, Firewall, FirewallError, Peer
from agents.supervision.leftovers import Leftovers
from agents.supervision.processes import PROJECT_ROOT, uids_of
from agents.trainer.contract import job_user
from agents.trainer.contract.job_user import JobUser
from agents.trainer.contract.ports import declared_address
from controlplane.core.protocol.wire import TrainerOrders

log = logging.getLogger("agents")

#: Capabilities that an agent needs to isolate jobs, with their bits. DAC_OVERRIDE: to read and
#: delete what a job leaves in its own folder; FOWNER: in folders that all share.
CAPABILITIES = {"CHOWN": 0, "DAC_OVERRIDE": 1, "FOWNER": 3, "KILL": 5, "SETGID": 6, "SETUID": 7}
NUM_FILES = 16384
#: Processes and threads of a job on this node: some hundred per trainer, more with more cores.
NUM_PROCESSES = max(4096, 64 * (os.cpu_count() or 1))
#: Home and temporary folder of a job's processes, in the run directory.
SCRATCH_FOLDER = "scratch"
#: Its bytes are locked by agents, one for each user.
RANGE_LOCK = "/run/virtualflow-job-uids.lock"
_HELPER_LIMIT_S = 10.0
#: Least time between two tries to kill all processes of a user.
KILL_AGAIN_S = 1.0
JOB_USER_COMMAND = (sys.executable, "-I", job_user.__file__)

OPEN_WARNING = (
    "jobs on this node run as the agent's own user; use only where all users trust each other "
    "(--isolation none)"
)


def isolation_check(settings: AgentSettings, state: StateDirectory) -> None:
    """Check that this process can isolate jobs as `settings` say, and open their way to folders.

    Raises:
        ValueError: a right is missing, or a user or path is in the way; the message has the fix.
    """
    if settings.job_uids is None:
        return
    missing = _capabilities_missing()
    if missing:
        raise ValueError(
            f"--isolation uid needs root, or {', '.join(f'CAP_{name}' for name in missing)} "
            "besides what the agent has; add them (AmbientCapabilities= of systemd, cap_add of a "
            "container), or choose --isolation none if all users trust each other"
        )
    names = {row.pw_uid: row.pw_name for row in pwd.getpwall()}
    names |= {row.gr_gid: row.gr_name for row in grp.getgrall()}
    taken = next((uid for uid in settings.job_uids if uid in names), None)
    if taken is not None:
        raise ValueError(
            f"--job-uids contains {taken}, the id of the account or group {names[taken]}; give a "
            "range without accounts and groups"
        )
    _range_lock(settings.job_uids)
    for folder in (state.path, state.trainers, state.validations):
        folder.chmod(0o711)  # to be passed through: what is inside belongs to the agent, or a job
    for folder in (state.cache, state.fork_servers):
        folder.chmod(0o700)
    paths = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    paths |= {sys.executable, str(PROJECT_ROOT / "agents"), str(state.trainers)}
    closed = _helper_run("--check", str(settings.job_uids[0]), *paths)
    if closed:
        raise ValueError(
            f"jobs would run as users that cannot reach {', '.join(sorted(closed.split()))}; make "
            "the folders above passable for all (chmod a+x), or install Python and the project "
            "elsewhere, such as in /opt"
        )


class Isolation:
    """Users of an agent's jobs: `enter` before a start, `is_cleared` after the leader's end.

    With isolation `none` no user is given; users of an earlier agent process are still cleared.
    Files are deleted by `step`, some time of each round, when nothing waits for their user: a job
    that leaves millions of them delays no other.

    Attributes:
        leaving: run directories that `leave` was called for and that are not cleared yet; they must
            not be entered again meanwhile.
    """

    def __init__(self, settings: AgentSettings, num_accelerators: int) -> None:
        self._uids = settings.job_uids
        self._cgroups = Cgroups.find() if self._uids is not None else None
        self._memory_bytes = psutil.virtual_memory().total // max(1, num_accelerators)
        self._firewall = Firewall.find(settings)
        self._peers: dict[Path, frozenset[Peer]] = {}  # of run directories
        self._callers: dict[Path, frozenset[Caller]] = {}
        self._own: dict[Path, frozenset[Peer]] = {}  # where a trainer itself is reached
        self._former: dict[int, frozenset[Peer]] = {}  # the same of those that are gone, by user
        self._ports: dict[Path, int] = {}  # of trainers
        self._bound = BoundPorts(settings.first_port, settings.last_port)
        self._users: dict[Path, int] = {}  # of run directories
        self._owners: dict[int, str] = {}  # of users that are held
        self._killers: dict[int, tuple[subprocess.Popen[bytes], float]] = {}
        self._leftovers = Leftovers(self._uids or ())
        self.leaving: list[Path] = []
        self._next = 0
        if self._uids is None:
            log.warning("%s", OPEN_WARNING)
            return
        limits = "cgroups (memory, processes, CPU)" if self._cgroups else "resource limits only"
        log.info("jobs run as users %d to %d, with %s", self._uids[0], self._uids[-1], limits)

    def enter(self, owner: str, run_dir: Path) -> JobUser | None:
        """Give a prepared run directory to a user; None: to the agent's own.

        Args:
            owner: directories of the same owner have the same user.

        Raises:
            OSError: no user is free, or the directory cannot be given.
        """
        if self._uids is None:
            return None
        assert run_dir not in self.leaving, f"{run_dir} is not cleared yet"
        # Not one whose processes are about to be killed, or whose files are being deleted.
        held = (uid for uid, known in self._owners.items() if known == owner)
        left = {*self._killers, *self._leftovers.uids}
        uid = next((uid for uid in held if uid not in left), None) or self._free_uid()
        self._owners[uid], self._users[run_dir] = owner, uid
        self._former[uid] = self._former.get(uid, frozenset()) - self._own.get(run_dir, frozenset())
        self._wall_up(uid)
        cgroup = ""
        if self._cgroups is not None:
            cgroup = str(self._cgroups.make(run_dir, self._memory_bytes, NUM_PROCESSES))
        (run_dir / SCRATCH_FOLDER).mkdir(mode=0o700, exist_ok=True)
        _give(run_dir, uid)
        return JobUser(uid, NUM_PROCESSES, NUM_FILES, cgroup)

    @property
    def has_firewall(self) -> bool:
        """True if a firewall keeps strangers from the ports of trainers."""
        return self._firewall is not None

    @property
    def is_paused(self) -> bool:
        """True while no user can be given.

        Either the firewall's rules cannot be changed now, or files of all users are being deleted.
        """
        is_walled_off = self._firewall is not None and self._firewall.is_paused
        is_full = self._uids is not None and len(self._owners) >= len(self._uids) - 1
        return is_walled_off or self._leftovers.has_unknown or (is_full and self.is_deleting)

    @property
    def is_deleting(self) -> bool:
        """True while files of users are left to be deleted."""
        return bool(self._leftovers.uids)

    def reach(self, run_dir: Path, orders: TrainerOrders) -> None:
        """Let a trainer and the others of its membership reach each other.

        Those of earlier ones still do: members that leave take part in the switch. One that is gone
        from this node is reached no more: its port may be another job's next.

        Raises:
            OSError: the firewall is as before.
        """
        own = declared_address(orders.membership.cluster_addresses, orders.slot)
        self._ports[run_dir] = int(own.rpartition(":")[2])
        if self._firewall is None:
            return
        addresses, has_gpus = orders.membership.addresses, not orders.accelerator.threads
        peers = self._firewall.peers_at(addresses, has_gpus=has_gpus)
        hosts = orders.membership.hosts | {*orders.peers}
        callers = self._firewall.callers_at(self._ports[run_dir], hosts)
        self._peers[run_dir] = self._peers.get(run_dir, frozenset()) | peers
        self._callers[run_dir] = self._callers.get(run_dir, frozenset()) | callers
        self._own[run_dir] = self._firewall.peers_at([own], has_gpus=False)
        self._wall_up(self._users.get(run_dir))

    def port_fault(self, run_dir: Path) -> str:
        """Say how a job or validation keeps ports from trainers of others, or ""."""
        if (uid := self._users.get(run_dir)) is None:
            return ""
        own = {port for folder, port in self._ports.items() if self._users.get(folder) == uid}
        if strays := self._bound.strays(uid, own):
            return f"it took port {min(strays)}, which is kept for other jobs"
        return "it holds too many sockets on its ports" if self._bound.is_crowd(uid) else ""

    def _wall_up(self, uid: int | None) -> None:
        """Set the firewall for a user: all its trainers on this node, and all their peers."""
        if self._firewall is None or uid is None:
            return
        folders = [folder for folder, known in self._users.items() if known == uid]
        peers = [self._peers.get(folder, frozenset()) for folder in folders]
        callers = [self._callers.get(folder, frozenset()) for folder in folders]
        reached = frozenset().union(*peers) - self._former.get(uid, frozenset())
        self._firewall.follow(uid, reached, frozenset().union(*callers))

    def adopt(self, owner: str, run_dir: Path) -> int | None:
        """Return the job user that an earlier agent process has given the directory to, if any."""
        try:
            uid = run_dir.lstat().st_uid
        except FileNotFoundError:
            return None
        if uid == os.geteuid() or _is_account(uid):
            return None
        self._owners[uid], self._users[run_dir] = owner, uid
        self._leftovers.keep(uid)
        return uid

    def is_cleared(self, run_dir: Path) -> bool:
        """Take the user back from a run directory; return whether nothing of it runs any more.

        The user's last directory has all processes of the user killed, whatever session or
        environment they have given themselves. Call again until it is True.
        """
        uid = self._users.get(run_dir)
        if uid is None:
            return True
        if self._cgroups is not None:
            self._cgroups.kill(run_dir)
            if not self._cgroups.remove(run_dir):
                return False
        if list(self._users.values()).count(uid) == 1:
            if not self._is_killed(uid) or not _ipc_deleted(uid):
                return False
            self._leftovers.add(uid)
            self._former.pop(uid, None)
            if self._firewall is not None:
                self._firewall.forget(uid)
        else:
            own = self._own.get(run_dir, frozenset())
            self._former[uid] = self._former.get(uid, frozenset()) | own
            self._wall_up(uid)
        del self._users[run_dir]
        for known in (self._peers, self._callers, self._own, self._ports):
            known.pop(run_dir, None)
        with contextlib.suppress(FileNotFoundError):
            # Closed for the next job of this user, down to its deletion.
            os.chown(run_dir, os.geteuid(), os.getegid(), follow_symlinks=False)
        return True

    def leave(self, run_dir: Path) -> None:
        """Take the user back as soon as `is_cleared`; `step` goes on with it."""
        if not self._is_left(run_dir):
            self.leaving.append(run_dir)

    def kill(self, run_dir: Path) -> None:
        """Kill all processes of a run directory's user; may be called on any thread, and waits."""
        uid = self._users.get(run_dir)
        if uid is not None:
            _helper_run(*self._kill_arguments(uid))

    def kill_begin(self, run_dir: Path) -> None:
        """Have all processes of a run directory's user killed; call again until it is cleared.

        Nothing is done if there is none, such as while a debugger of another user keeps a status.
        """
        uid = self._users.get(run_dir)
        if uid is not None and any(True for _ in processes_of_user(uid)):
            self._is_killed(uid)

    def _kill_arguments(self, uid: int) -> tuple[str, str, str]:
        return "--kill", str(uid), str(uid if self._uids is None else self._uids[0])

    @property
    def pids(self) -> set[int]:
        """Process ids of helpers."""
        return {killer.pid for killer, _ in self._killers.values()}

    def step(self) -> None:
        """Go on clearing, and for a while with deleting files; call in every round."""
        self.leaving = [run_dir for run_dir in self.leaving if not self._is_left(run_dir)]
        for uid in self._leftovers.step():
            self._owners.pop(uid, None)

    def _is_left(self, run_dir: Path) -> bool:
        """Return `is_cleared`; a firewall that fails for one folder keeps none of the others."""
        try:
            return self.is_cleared(run_dir)
        except FirewallError as error:
            log.debug("%s is not cleared yet: %s", run_dir, error)
            return False

    def _is_killed(self, uid: int) -> bool:
        """Kill all processes of a user, whether any is seen or not; True once none is left.

        A process that goes on from fork to fork is not always seen, nor caught by its id. The one
        that kills is not waited for.
        """
        killer, started_at = self._killers.get(uid, (None, 0.0))
        if killer is None:
            command = (*JOB_USER_COMMAND, *self._kill_arguments(uid))
            self._killers[uid] = subprocess.Popen(command, env={}, cwd="/"), time.monotonic()
            return False
        if killer.poll() is None:
            return False
        is_killed = killer.returncode == 0 and not any(True for _ in processes_of_user(uid))
        if is_killed or time.monotonic() > started_at + KILL_AGAIN_S:
            del self._killers[uid]
        return is_killed

    def _free_uid(self) -> int:
        assert self._uids is not None, "without a range no user is given"
        in_use = {uid for pid in psutil.pids() for uid in uids_of(pid)}
        uids = self._uids[1:]
        for offset in range(len(uids)):
            place = (self._next + offset) % len(uids)
            uid = uids[place]
            if uid not in self._owners and uid not in in_use:
                self._next = place + 1
                return uid
        raise OSError(f"all {len(uids)} users of --job-uids are in use; give a longer range")


def processes_of_user(uid: int) -> Iterator[int]:
    """Yield the ids of living processes that have this user in any role."""
    return (pid for pid in psutil.pids() if uid in uids_of(pid))


def _helper_run(*arguments: str) -> str:
    """Run a mode of `job_user` and return its output.

    Raises:
        ValueError: it has failed.
        OSError: it does not start, or not end.
    """
    try:
        done = subprocess.run(
            (*JOB_USER_COMMAND, *arguments),
            capture_output=True,
            text=True,
            env={},
            cwd="/",
            timeout=_HELPER_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise OSError(
            f"{Path(job_user.__file__).name} {arguments[0]} did not end within "
            f"{_HELPER_LIMIT_S:g} s; see whether this machine is overloaded, or a disk of its "
            "Python does not answer, and start the agent again"
        ) from None
    if done.returncode:
        raise ValueError(f"no process can become another user: {done.stderr[-500:]}")
    return done.stdout


def _range_lock(uids: range) -> None:
    """Lock a range of users on this machine for as long as this process lives.

    Raises:
        ValueError: another agent has a part of it, and would end the processes of this one's jobs.
    """
    try:
        descriptor = os.open(RANGE_LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError:
        return  # a read-only container, whose processes no other agent sees
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, len(uids), uids[0])
    except OSError:
        os.close(descriptor)
        raise ValueError(
            "another agent of this machine uses a part of --job-uids; give this one other users"
        ) from None


def _is_account(uid: int) -> bool:
    """Return whether a person or a service has this id: such a user is no job's."""
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def _capabilities_missing() -> list[str]:
    status = Path("/proc/self/status").read_text()
    effective = int(status.partition("\nCapEff:")[2].split()[0], 16)
    return [name for name, bit in CAPABILITIES.items() if not effective >> bit & 1]


def _give(folder: Path, uid: int) -> None:
    """Give a folder and all in it to a user, the folder itself last; it is closed until then."""
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            os.chown(Path(parent, name), uid, uid, follow_symlinks=False)
    os.chown(folder, uid, uid)


def _ipc_deleted(uid: int) -> bool:
    """Delete System V objects of a user, as that user; return whether that was possible."""
    if not any(True for _ in job_user.ipc_objects(uid)):
        return True
    try:
        _helper_run("--delete-ipc", str(uid))
    except (OSError, ValueError) as error:
        log.warning("System V objects of user %d are not deleted: %s", uid, error)
        return False
    return True
