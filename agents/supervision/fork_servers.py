"""Fork servers: start trainers and validations from processes that have TensorFlow imported.

There is one server for each environment of trainers and validations, whatever GPU they see. Where
there is none (disabled, broken, or memory is short) a process is started from nothing.
"""

from __future__ import annotations

import logging
import os
import select
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from agents.session.backoff import Backoff
from agents.settings import AgentSettings
from agents.supervision.deletion import folder_delete
from agents.supervision.devices import VALIDATION_ENVIRONMENT, accelerator_environment
from agents.supervision.isolation import JOB_USER_COMMAND, SCRATCH_FOLDER
from agents.supervision.processes import OwnedProcess, processes_of, trainer_environment
from agents.trainer.contract.fork_server import (
    ROOM_VARIABLE,
    RUN_DIR_VARIABLE,
    WARM_FILE,
    ForkRequest,
)
from agents.trainer.contract.job_user import LATER_PREFIX, JobUser
from controlplane.core.protocol.wire import AcceleratorInfo

log = logging.getLogger("agents")

#: Time limit for a server to become warm. Meanwhile starts wait for it.
WARM_LIMIT_S = 60.0
#: Time limit for a reply; forking takes some 10 ms. Once more for what a killed server has forked.
REPLY_LIMIT_S = 2.0
#: Assumed memory of a server: TensorFlow and Keras, imported.
EXPECTED_BYTES = 700 * 1024 * 1024
#: No server is started when less than this share of the machine's memory would be available.
LEAST_AVAILABLE_SHARE = 0.1
FAILED_FIRST_S, FAILED_CAP_S = 5.0, 300.0

#: Variables that a forked process may have of its own: this one is read when it opens its device,
#: not when modules are imported.
_OWN_VARIABLES = frozenset({"CUDA_VISIBLE_DEVICES"})

Key = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class _Server:
    """One process: warming up, or warm and ready for requests."""

    process: OwnedProcess
    folder: Path
    started_at: float
    is_warm: bool = False


class ForkServers:
    """All fork servers of an agent. Call `step` in every round and `close` at the end."""

    def __init__(
        self,
        settings: AgentSettings,
        accelerators: Sequence[AcceleratorInfo],
        state: Path,
        *,
        has_firewall: bool = False,
    ) -> None:
        """Remove servers of an earlier agent process from `state`, the folder for servers.

        Args:
            has_firewall: it guards the ports of trainers, so these need no socket filter.
        """
        self._settings = settings
        self._filters_peers = settings.peer_filter and not has_firewall
        self._parent = state
        limits = [accelerator_environment(accelerator) for accelerator in accelerators]
        keys = [self._key(limit) for limit in [*limits, VALIDATION_ENVIRONMENT]]
        is_wanted = settings.fork_servers and not settings.once
        self._wanted: list[Key] = list(dict.fromkeys(keys)) if is_wanted else []
        self._servers: dict[Key, _Server] = {}
        self._ending: list[_Server] = []
        self._num_started = 0
        self._backoff = Backoff(FAILED_FIRST_S, FAILED_CAP_S)
        self._not_before = float("-inf")
        _sweep(state)

    @property
    def folders(self) -> list[Path]:
        """Folders of all servers left."""
        return [server.folder for server in [*self._servers.values(), *self._ending]]

    @property
    def pids(self) -> set[int]:
        """Process ids of all servers left."""
        return {server.process.pid for server in [*self._servers.values(), *self._ending]}

    def is_warming(self, limits: Mapping[str, str]) -> bool:
        """Return whether a start with these limits had better wait for a server."""
        server = self._servers.get(self._key(limits))
        return server is not None and not server.is_warm

    def start(
        self,
        option: str,
        run_dir: Path,
        limits: Mapping[str, str],
        user: JobUser | None,
        secrets: Mapping[str, str],
    ) -> OwnedProcess:
        """Start `python -m agents.trainer` with `option` in `run_dir`.

        Args:
            option: --run-dir or --validate.
            limits: variables that limit the process to its accelerator.
            user: that the process becomes; None: it stays the agent's own.
            secrets: further variables, which change none of the others.

        Raises:
            OSError: the process cannot be started, or a killed server may still start it.
        """
        key = self._key(limits)
        server = self._servers.get(key)
        home = {} if user is None else _home(run_dir)
        uid = None if user is None else user.uid
        environment = self._environment(run_dir, limits) | home
        added = {name: value for name, value in secrets.items() if name not in environment}
        if server is not None and server.is_warm:
            own = {name: value for name, value in limits.items() if name in _OWN_VARIABLES} | home
            own |= added
            text = None if user is None else user.text()
            pid = _ask(server.process, ForkRequest(option, str(run_dir), own, text))
            if not pid:
                self._end(key)
                pid = _late_reply(server.process)
            if pid:
                log.debug("process %d was forked for %s", pid, run_dir.name)
                return OwnedProcess.forked(pid, run_dir, uid)
            log.warning("a fork server has forked nothing; %s is started without it", run_dir.name)
        command = (*self._settings.trainer_command, option, str(run_dir))
        if user is not None:
            command = (*JOB_USER_COMMAND, user.text(), *command)
            # Until it has become that user, no variable of a job's owner may steer it.
            added = {f"{LATER_PREFIX}{name}": value for name, value in added.items()}
        environment |= added
        return OwnedProcess.start(command, environment, run_dir, run_dir / "code", uid=uid)

    def step(self, now: float) -> None:
        """Check the servers, and start the next one if it is due; never blocks."""
        for key, server in list(self._servers.items()):
            self._look(now, key, server)
        for server in [item for item in self._ending if item.process.is_gone(now)]:
            self._ending.remove(server)
            folder_delete(server.folder)
        is_one_warming = any(not server.is_warm for server in self._servers.values())
        missing = [key for key in self._wanted if key not in self._servers]
        if missing and not is_one_warming and now >= self._not_before and _has_room():
            self._start_server(now, missing[0])

    def close(self) -> None:
        """Kill all servers; they have nothing to save."""
        self._wanted = []
        for key in list(self._servers):
            self._end(key)

    def _environment(self, run_dir: Path, limits: Mapping[str, str]) -> dict[str, str]:
        settings = self._settings
        return trainer_environment(
            os.environ,
            run_dir,
            limits,
            settings.kept_environment,
            filters_peers=self._filters_peers,
        )

    def _key(self, limits: Mapping[str, str]) -> Key:
        """Return the variables of a process with these limits that its server has to share."""
        excluded = {RUN_DIR_VARIABLE, *_OWN_VARIABLES}
        environment = self._environment(self._parent, limits)
        return tuple((name, value) for name, value in environment.items() if name not in excluded)

    def _look(self, now: float, key: Key, server: _Server) -> None:
        if server.process.is_gone(now):
            self._failed(now, key, f"ended with status {server.process.exit_code}")
        elif not server.is_warm:
            server.is_warm = (server.folder / WARM_FILE).exists()
            if server.is_warm:
                self._backoff.reset()
                log.debug("a fork server was warm after %.1f s", now - server.started_at)
            elif now - server.started_at > WARM_LIMIT_S:
                self._failed(now, key, f"was not warm after {WARM_LIMIT_S:g} s")

    def _failed(self, now: float, key: Key, how: str) -> None:
        delay_s = self._backoff.next_delay_s()
        self._not_before = now + delay_s
        last = _log_tail(self._servers[key].folder)
        log.warning("a fork server %s, the next one comes in %.0f s\n%s", how, delay_s, last)
        self._end(key)

    def _end(self, key: Key) -> None:
        server = self._servers.pop(key)
        server.process.kill()
        self._ending.append(server)

    def _start_server(self, now: float, key: Key) -> None:
        self._num_started += 1
        folder = self._parent / str(self._num_started)
        longest = self._parent.parent / "validations" / f"{10**18}-{10**9}"
        # The last two, side by side: a forked process overwrites them in place.
        environment = {**dict(key), RUN_DIR_VARIABLE: str(folder), ROOM_VARIABLE: str(longest)}
        try:
            folder.mkdir(mode=0o700)
            process = OwnedProcess.start(
                (*self._settings.trainer_command, "--fork-server", str(folder)),
                environment,
                folder,
                folder,
                has_pipes=True,
            )
        except OSError as error:
            self._not_before = now + self._backoff.next_delay_s()
            log.warning("a fork server does not start: %s", error)
            return
        self._servers[key] = _Server(process, folder, now)


def _ask(process: OwnedProcess, request: ForkRequest) -> int:
    """Return the process id that a server replies; 0 if it fails or does not reply in time."""
    requests, replies = process.pipes
    try:
        requests.write(request.line())
        requests.flush()
        if not select.select([replies], [], [], REPLY_LIMIT_S)[0]:
            return 0
        return int(replies.readline())
    except (OSError, ValueError):
        return 0


def _late_reply(process: OwnedProcess) -> int:
    """Return the process id that a killed server's last fork replies; 0 if none is left to reply.

    Raises:
        OSError: neither comes in time. The fork ends when it replies.
    """
    with process.pipes[1] as replies:
        if select.select([replies], [], [], REPLY_LIMIT_S)[0]:
            try:
                return int(replies.readline() or 0)
            except ValueError:
                return 0
    raise OSError("a fork server that was killed has not ended")


def _home(run_dir: Path) -> dict[str, str]:
    """Return the variables that name the own folders of a job's user."""
    scratch = str(run_dir / SCRATCH_FOLDER)
    return {"HOME": scratch, "TMPDIR": scratch}


def _has_room() -> bool:
    memory = psutil.virtual_memory()
    return memory.available - EXPECTED_BYTES >= LEAST_AVAILABLE_SHARE * memory.total


def _log_tail(folder: Path) -> str:
    try:
        return (folder / "log.txt").read_text(errors="replace")[-2000:]
    except OSError:
        return ""


def _sweep(parent: Path) -> None:
    """Kill and delete servers of an earlier agent process; their trainers have other folders."""
    for folder in list(parent.iterdir()):
        for process in processes_of(folder):
            process.kill()
        folder_delete(folder)
