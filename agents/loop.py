"""The agent's loop: reconciles the running trainers with the desired state ("wanted state").

The loop is level-triggered. A round compares the newest desired state with the existing trainers,
so a lost message, a repeated round or a restarted agent has no effect on the result. No call in a
round blocks: requests and downloads run in the background, and processes of a job for which a round
has to wait are killed (`Watchdog`).
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from agents.session.background import Background
from agents.session.client import ControlPlaneClient
from agents.session.contact import EXIT_REMOVED, Contact, Fatal
from agents.session.outbox import Outbox
from agents.session.poller import WantedPoller
from agents.session.registration import Registration
from agents.session.uploads import Uploads
from agents.settings import AgentSettings
from agents.state_directory import StateDirectory
from agents.supervision.agent_context import AgentContext
from agents.supervision.cache import FileCache
from agents.supervision.deletion import deletions_resume
from agents.supervision.fork_servers import ForkServers
from agents.supervision.isolation import Isolation
from agents.supervision.readings import AcceleratorReader, Readings
from agents.supervision.run_directory import RunDirectory, TrainerKey
from agents.supervision.trainer_handle import Stage, TrainerHandle
from agents.supervision.validations import ValidationAttempt, ValidationKey, validations_sweep
from agents.supervision.watchdog import Watchdog
from agents.trainer.contract.full_disk import is_disk_full
from controlplane.core.protocol.node_messages import TrainerState, WantedState
from controlplane.core.protocol.wire import AcceleratorInfo

log = logging.getLogger("agents")

#: Intervals between rounds while processes run, and while none does.
BUSY_TICK_S = 0.02
IDLE_TICK_S = 0.5
ALIVE_EVERY_S = 5.0


class Agent:
    """The state of one agent. One thread calls `run_once` repeatedly.

    Attributes:
        wake: set when a background call has ended; the driver waits on it between rounds.
        trainers: trainers that exist, or have reports not yet acknowledged.
    """

    def __init__(
        self,
        settings: AgentSettings,
        state: StateDirectory,
        accelerators: Sequence[AcceleratorInfo],
        host: str,
    ) -> None:
        self.wake = threading.Event()
        self.trainers: dict[TrainerKey, TrainerHandle] = {}
        self._settings = settings
        self._state = state
        self._client = ControlPlaneClient(settings.server, settings.request_timeout_s)
        self._watchdog = Watchdog()
        isolation = Isolation(settings, len(accelerators))
        self._fork_servers = ForkServers(
            settings, accelerators, state.fork_servers, has_firewall=isolation.has_firewall
        )
        transfers = Background(settings.max_transfers, self.wake.set)
        self._around = AgentContext(
            settings,
            {accelerator.index: accelerator for accelerator in accelerators},
            self._client,
            FileCache(state.cache, settings.cache_bytes),
            transfers,
            self._fork_servers,
            isolation,
            self._make_room,
            self._watchdog,
        )
        self._registration = Registration(settings, state, self._client, host, accelerators)
        uploading = Background(settings.max_transfers, self.wake.set)
        self._uploads = Uploads(self._client, uploading, settings)
        self._readings = Readings(AcceleratorReader(accelerators), self.wake.set)
        self._outbox = Outbox(self._registration.boot_id, self._uploads, self._readings)
        background = Background(1, self.wake.set)
        self._poller = WantedPoller(self._client, settings, self.wake.set)
        self._contact = Contact(
            self._client,
            self._registration,
            self._outbox,
            background,
            settings,
            self._poller.hurry,
        )
        self._validations: dict[ValidationKey, ValidationAttempt] = {}
        self._foreign: list[TrainerHandle] = []
        self._closed: deque[RunDirectory] = deque()
        self._faulty: set[Path] = set()
        self._alive_at = float("-inf")
        self._is_ending = False
        self._adopt()

    @property
    def fatal(self) -> Fatal | None:
        """The reason why the agent has to end now, if there is one."""
        if self._poller.is_removed:
            return Fatal("this node was removed from the control plane", EXIT_REMOVED)
        return self._contact.fatal

    @property
    def tick_s(self) -> float:
        """Time, in seconds, that the driver may sleep before the next round."""
        is_busy = any(trainer.stage is not Stage.GONE for trainer in self.trainers.values())
        is_busy = is_busy or self._uploads.is_spacing or self._around.isolation.is_deleting
        return BUSY_TICK_S if is_busy or self._validations or self._foreign else IDLE_TICK_S

    @property
    def running(self) -> list[Path]:
        """Folders for which processes of this agent still run.

        Fork servers, which belong to no job, count only while the agent is ending.
        """
        trainers = [*self.trainers.values(), *self._foreign]
        validations = self._validations.values()
        return [
            *(trainer.directory.path for trainer in trainers if trainer.stage is Stage.RUNNING),
            *(validation.path for validation in validations if validation.is_running),
            *self._around.isolation.leaving,
            *(self._fork_servers.folders if self._is_ending else ()),
        ]

    @property
    def pids(self) -> set[int]:
        """Ids of the processes whose exit status the agent collects."""
        trainers = {item.state.pid for item in [*self.trainers.values(), *self._foreign]}
        validations = {item.pid for item in self._validations.values()}
        others = self._fork_servers.pids | self._around.isolation.pids
        return trainers | validations | others

    @property
    def is_all_acknowledged(self) -> bool:
        """True once the control plane has acknowledged all reports."""
        return self._contact.is_idle and all(
            item.is_acknowledged for item in self.trainers.values()
        )

    @property
    def has_settled(self) -> bool:
        """True once the newest desired state is in place and a report of that acknowledged."""
        newest = self._poller.newest
        is_starting = any(item.stage is Stage.FETCHING for item in self.trainers.values())
        return (
            newest is not None and not is_starting and self._outbox.is_acknowledged(newest.version)
        )

    def run_once(self, now: float) -> bool:
        """Run one round.

        Args:
            now: monotonic seconds.

        Returns:
            Whether another round should follow at once.
        """
        if self._contact.reply is not None:
            self._take_over_node(now)
            self._poller.start()
        wanted = self._poller.newest
        if wanted is not None and not self._is_ending and not self._foreign:
            self._reconcile_trainers(now, wanted)
            self._reconcile_validations(wanted)
        stages = [trainer.stage for trainer in self.trainers.values()]
        with self._contained(self._state.fork_servers):
            self._fork_servers.step(now)
        self._step(now)
        with self._contained(self._state.path):
            self._around.isolation.step()
        self._uploads.step(now, self.trainers.values())
        self._readings.step(now, self._pids_by_accelerator())
        version = wanted.version if wanted and not self._foreign else ""
        trainers, validations = list(self.trainers.values()), list(self._validations.values())
        for state in self._contact.step(now, trainers, validations, version):
            self._end_stale(now, state)
        self._touch_alive(now)
        if wanted is not None:
            with self._contained(self._state.trainers):
                self._clean(wanted)
        return stages != [trainer.stage for trainer in self.trainers.values()]

    def end(self, now: float) -> None:
        """Begin to end all processes; keep calling `run_once` until `running` is empty."""
        self._is_ending = True
        for trainer in self.trainers.values():
            trainer.end(now)
        for validation in self._validations.values():
            validation.end()
        self._fork_servers.close()

    def close(self, *, keep_trainers: bool) -> None:
        """Stop polling and close connections. Validations are never left running."""
        self._poller.stop()
        self._fork_servers.close()
        if keep_trainers:
            for validation in self._validations.values():
                validation.end()
        self._client.close()
        self._watchdog.close()

    def _adopt(self) -> None:
        """Adopt trainers of an earlier agent process from the state directory."""
        deletions_resume(self._state.trainers)
        validations_sweep(self._state.validations, self._around.isolation)
        directories = RunDirectory.all_in(self._state.trainers)
        for directory in directories:
            # All first: the last one of a user takes all processes of the user along.
            self._around.isolation.adopt(directory.owner, directory.path)
        for directory in directories:
            trainer = TrainerHandle(directory, self._around)
            with self._contained(directory.path):
                if trainer.adopt():
                    self.trainers[trainer.key] = trainer

    def _take_over_node(self, now: float) -> None:
        """After an enrolment, end and delete the trainers of this agent's former node."""
        if self._registration.is_new_node:
            self._registration.is_new_node = False
            self._poller.newest = None
            self._foreign.extend(self.trainers.values())
            self.trainers.clear()
            for trainer in self._foreign:
                trainer.end(now)
        for trainer in [item for item in self._foreign if item.stage is Stage.GONE]:
            trainer.directory.delete()
            self._foreign.remove(trainer)

    def _reconcile_trainers(self, now: float, wanted: WantedState) -> None:
        by_key = {(item.spec.job_id, item.slot): item for item in wanted.trainers}
        for key, trainer in self.trainers.items():
            if key not in by_key:
                with self._contained(trainer.directory.path), trainer.watched():
                    trainer.end(now)
        for key, item in by_key.items():
            if key not in self.trainers:
                # A reused folder must not be deleted as an old one.
                self._closed = deque(old for old in self._closed if old.key != key)
                directory = RunDirectory(self._state.trainers, key)
                self.trainers[key] = TrainerHandle(directory, self._around)
            trainer = self.trainers[key]
            with self._contained(trainer.directory.path), trainer.watched():
                trainer.report_every_s = self._outbox.report_every_s
                trainer.follow(item)

    def _reconcile_validations(self, wanted: WantedState) -> None:
        by_key = {(item.validation_id, item.attempt): item for item in wanted.validations}
        for key in [key for key in self._validations if key not in by_key]:
            with self._contained(self._validations[key].path):
                self._validations[key].end()
                if self._validations[key].is_over:
                    self._validations.pop(key).delete()
        for key, item in by_key.items():
            num_active = sum(not other.is_over for other in self._validations.values())
            if key not in self._validations and num_active < self._settings.max_validations:
                self._validations[key] = ValidationAttempt(
                    item, self._state.validations, self._around
                )

    def _step(self, now: float) -> None:
        """Advance all; trainers that hold accelerators come first, so that these become free."""
        mine = sorted(self.trainers.values(), key=lambda item: item.stage is Stage.FETCHING)
        for trainer in [*mine, *self._foreign]:
            with self._contained(trainer.directory.path), trainer.watched():
                trainer.step(now, self._is_accelerator_free)
        for validation in self._validations.values():
            with self._contained(validation.path), validation.watched():
                validation.step(now)

    @contextmanager
    def _contained(self, folder: Path) -> Iterator[None]:
        """Log an error over one trainer or validation: the loop goes on with all others."""
        try:
            yield
        except Exception as error:
            if is_disk_full(error):
                self._make_room()
            level = logging.DEBUG if folder in self._faulty else logging.ERROR
            self._faulty.add(folder)
            log.log(level, "%s cannot be handled, trying again", folder, exc_info=True)
        else:
            self._faulty.discard(folder)

    def _make_room(self) -> None:
        """Give up the folders of trainers that are over, and files that can be fetched again."""
        while self._closed:
            self._closed.popleft().delete()
        self._around.cache.clear()

    def _is_accelerator_free(self, index: int) -> bool:
        accelerator = self._around.accelerators[index]
        trainers = [*self.trainers.values(), *self._foreign]
        return not any(trainer.holds(accelerator) for trainer in trainers)

    def _pids_by_accelerator(self) -> dict[int, int]:
        return {
            trainer.accelerator_index: trainer.state.pid
            for trainer in self.trainers.values()
            if trainer.stage is Stage.RUNNING
        }

    def _end_stale(self, now: float, state: TrainerState) -> None:
        """End a trainer of an old generation, unless it has newer orders by now."""
        trainer = self.trainers.get((state.job_id, state.slot))
        if trainer is not None and trainer.state.generation <= state.generation:
            trainer.end(now)

    def _touch_alive(self, now: float) -> None:
        if now - self._alive_at < ALIVE_EVERY_S:
            return
        self._alive_at = now
        for trainer in self.trainers.values():
            if trainer.stage is Stage.RUNNING:
                with trainer.watched():
                    trainer.directory.touch_alive()

    def _clean(self, wanted: WantedState) -> None:
        """Drop trainers that are gone, fully reported and not wanted; keep a few folders."""
        wanted_keys = {(item.spec.job_id, item.slot) for item in wanted.trainers}
        gone = [
            key
            for key, trainer in self.trainers.items()
            if trainer.stage is Stage.GONE and key not in wanted_keys and trainer.is_acknowledged
        ]
        for key in gone:
            self.trainers[key].directory.forget_secrets()
            self._closed.append(self.trainers.pop(key).directory)
        while len(self._closed) > self._settings.kept_run_directories:
            self._closed.popleft().delete()
