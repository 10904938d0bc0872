"""Standbys: warm processes that become trainers, so that a growing job does not wait for imports.

The settings limit their number and total memory. Standbys are started one after the other, and
only while no trainer boots. A standby belongs to no job and holds no accelerator: it fits every
accelerator for which trainers get the same environment.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from agents.session.backoff import Backoff
from agents.settings import AgentSettings
from agents.supervision.devices import accelerator_environment
from agents.supervision.processes import (
    OwnedProcess,
    processes_of,
    standby_environment,
    trainer_environment,
)
from agents.trainer.contract.standby import WARM_FILE
from controlplane.core.protocol.wire import AcceleratorInfo

log = logging.getLogger("agents")

#: Time limit for a standby to become warm.
WARM_LIMIT_S = 300.0
#: Interval of measuring memory sizes.
MEASURE_EVERY_S = 5.0
#: Assumed memory of a standby before the first measurement: TensorFlow and Keras, imported.
EXPECTED_BYTES = 700 * 1024 * 1024
SHARE_OF_MEMORY = 0.25
#: Standbys are ended when less than this share of the machine's memory is available.
LEAST_AVAILABLE_SHARE = 0.1
FAILED_FIRST_S, FAILED_CAP_S = 5.0, 300.0


@dataclass(slots=True)
class Standby:
    """One process: warming up, or warm and waiting."""

    process: OwnedProcess
    accelerator: Mapping[str, str]
    folder: Path
    started_at: float
    is_warm: bool = False


class Standbys:
    """All standbys of an agent. Call `step` in every round and `close` at the end."""

    def __init__(
        self, settings: AgentSettings, accelerators: Sequence[AcceleratorInfo], state: Path
    ) -> None:
        """Remove standbys of an earlier agent process from `state`, the folder for standbys."""
        self._settings = settings
        self._parent = state
        wanted = [accelerator_environment(accelerator) for accelerator in accelerators]
        limit = len(wanted) if settings.standbys is None else settings.standbys
        self._wanted = wanted[: 0 if settings.once else limit]
        self._limit_bytes = (
            int(SHARE_OF_MEMORY * psutil.virtual_memory().total)
            if settings.standby_memory_bytes is None
            else settings.standby_memory_bytes
        )
        self._standbys: list[Standby] = []
        self._ending: list[Standby] = []
        self._largest_bytes = 0
        self._num_started = 0
        self._measured_at = float("-inf")
        self._backoff = Backoff(FAILED_FIRST_S, FAILED_CAP_S)
        self._not_before = float("-inf")
        _sweep(state)

    @property
    def num_warm(self) -> int:
        """Number of standbys that could take over now."""
        return sum(standby.is_warm for standby in self._standbys)

    @property
    def folders(self) -> list[Path]:
        """Folders of all standby processes left, except standbys that were taken."""
        return [standby.folder for standby in [*self._standbys, *self._ending]]

    def take(self, accelerator: Mapping[str, str]) -> OwnedProcess | None:
        """Hand out a warm process for trainers with that environment; None if there is none.

        A standby still warming up is ended: the starting trainer needs its processor time.
        """
        for standby in list(self._standbys):
            if not standby.is_warm:
                self._end(standby)
        for standby in self._standbys:
            if standby.accelerator == accelerator:
                self._standbys.remove(standby)
                shutil.rmtree(standby.folder, ignore_errors=True)
                return standby.process
        return None

    def step(self, now: float, *, may_start: bool) -> None:
        """Check the standbys, and start the next one if it is due; never blocks."""
        self._look(now)
        if now - self._measured_at >= MEASURE_EVERY_S:
            self._measured_at = now
            self._shed()
        is_one_warming = any(not standby.is_warm for standby in self._standbys)
        if may_start and not is_one_warming and not self._ending and now >= self._not_before:
            self._start_next(now)

    def close(self) -> None:
        """Kill all standbys; they have nothing to save."""
        self._wanted = []
        for standby in list(self._standbys):
            self._end(standby)

    def _look(self, now: float) -> None:
        for standby in list(self._standbys):
            if standby.process.is_gone(now):
                self._failed(standby, now, f"ended with status {standby.process.exit_code}")
            elif not standby.is_warm:
                standby.is_warm = (standby.folder / WARM_FILE).exists()
                if standby.is_warm:
                    self._backoff.reset()
                    log.debug("a standby was warm after %.1f s", now - standby.started_at)
                elif now - standby.started_at > WARM_LIMIT_S:
                    self._failed(standby, now, f"was not warm after {WARM_LIMIT_S:g} s")
        for standby in [item for item in self._ending if item.process.is_gone(now)]:
            self._ending.remove(standby)
            shutil.rmtree(standby.folder, ignore_errors=True)

    def _failed(self, standby: Standby, now: float, how: str) -> None:
        delay_s = self._backoff.next_delay_s()
        self._not_before = now + delay_s
        log.warning(
            "a standby %s, the next one comes in %.0f s\n%s",
            how,
            delay_s,
            _log_tail(standby.folder),
        )
        self._end(standby)

    def _end(self, standby: Standby) -> None:
        standby.process.kill()
        self._standbys.remove(standby)
        self._ending.append(standby)

    def _start_next(self, now: float) -> None:
        held = Counter(_key(standby.accelerator) for standby in self._standbys)
        for accelerator in self._wanted:
            held[_key(accelerator)] -= 1
            if held[_key(accelerator)] < 0:
                if self._has_room():
                    self._start(now, accelerator)
                return

    def _start(self, now: float, accelerator: Mapping[str, str]) -> None:
        settings = self._settings
        self._num_started += 1
        folder = self._parent / str(self._num_started)
        environment = trainer_environment(
            os.environ,
            folder,
            accelerator,
            settings.kept_environment,
            filters_peers=settings.peer_filter,
        )
        longest = self._parent.parent / "trainers" / f"{10**18}-{10**9}"
        try:
            folder.mkdir(mode=0o700)
            process = OwnedProcess.start(
                (*settings.trainer_command, "--standby", str(folder)),
                standby_environment(environment, folder, longest),
                folder,
                folder,
                is_standby=True,
            )
        except OSError as error:
            self._not_before = now + self._backoff.next_delay_s()
            log.warning("a standby does not start: %s", error)
            return
        self._standbys.append(Standby(process, accelerator, folder, now))

    def _has_room(self) -> bool:
        """Return whether one more standby would stay within the memory limits."""
        sizes = [_size_bytes(standby) for standby in self._standbys]
        self._largest_bytes = max([self._largest_bytes, *sizes])
        more_bytes = self._largest_bytes or EXPECTED_BYTES
        memory = psutil.virtual_memory()
        least_bytes = LEAST_AVAILABLE_SHARE * memory.total
        return (
            sum(sizes) + more_bytes <= self._limit_bytes
            and memory.available - more_bytes >= least_bytes
        )

    def _shed(self) -> None:
        """End the newest standby if the limit is exceeded or the machine's memory is scarce."""
        if not self._standbys:
            return
        sizes = [_size_bytes(standby) for standby in self._standbys]
        self._largest_bytes = max([self._largest_bytes, *sizes])
        memory = psutil.virtual_memory()
        is_scarce = memory.available < LEAST_AVAILABLE_SHARE * memory.total
        if sum(sizes) > self._limit_bytes or is_scarce:
            log.info("ending a standby of %d MiB for lack of memory", sizes[-1] >> 20)
            self._end(self._standbys[-1])


def _key(accelerator: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(accelerator.items()))


def _size_bytes(standby: Standby) -> int:
    """Return the resident memory of a standby; shared pages count in full."""
    try:
        return int(psutil.Process(standby.process.pid).memory_info().rss)
    except psutil.Error:
        return 0


def _log_tail(folder: Path) -> str:
    try:
        return (folder / "log.txt").read_text(errors="replace")[-2000:]
    except OSError:
        return ""


def _sweep(parent: Path) -> None:
    """Kill and delete standbys of an earlier agent process, except ones that became trainers.

    Standbys end by themselves when their agent ends; this removes any that did not.
    """
    for folder in list(parent.iterdir()):
        for process in processes_of(folder):
            process.kill()
        shutil.rmtree(folder, ignore_errors=True)
