"""The agent's handle of one trainer: fetching files, running, ending, gone, reported."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import signal
from collections.abc import Callable, Mapping, MutableMapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from enum import Enum
from typing import Any

from agents.session.backoff import Backoff
from agents.session.client import is_passing, wished_wait_s
from agents.session.report_queue import ReportQueue, last_report
from agents.supervision.agent_context import AgentContext
from agents.supervision.devices import accelerator_environment
from agents.supervision.fetch import adopted_state_fetch, trainer_prepare
from agents.supervision.heartbeat import Pulse
from agents.supervision.log_tail import LogTail
from agents.supervision.masking import Mask
from agents.supervision.oom_kills import OomKillCounter
from agents.supervision.processes import OwnedProcess, leader_found, processes_of
from agents.supervision.run_directory import RunDirectory, TrainerKey
from agents.trainer.contract.full_disk import is_disk_full
from controlplane.core.protocol.node_messages import TrainerState, WantedTrainer
from controlplane.core.protocol.wire import (
    REPORT_EVERY_S,
    AcceleratorInfo,
    ReportKind,
    TrainerOrders,
    TrainerReport,
)

log = logging.getLogger("agents")

#: Exit statuses of the trainer's contract by last report, for a trainer whose status was not seen.
_EXIT_CODE_AFTER = {
    ReportKind.LEFT: 0,
    ReportKind.CHECKPOINTED: 0,
    ReportKind.FINISHED: 0,
    ReportKind.FAILED: 3,
}

#: Number of tries of a download that is refused or has a wrong digest.
FETCH_ATTEMPTS = 3


class Stage(Enum):
    """Life-cycle stage of a trainer; advances only."""

    FETCHING = "fetching"
    RUNNING = "running"
    GONE = "gone"  # no process of it is left, and its last report is written


class _TrainerLog(logging.LoggerAdapter[logging.Logger]):
    """Adds job, slot and generation of a trainer to the fields of log lines."""

    def __init__(self, trainer: TrainerHandle) -> None:
        super().__init__(log)
        self._trainer = trainer

    def process(
        self, message: str, options: MutableMapping[str, Any]
    ) -> tuple[str, MutableMapping[str, Any]]:
        state = self._trainer.state
        fields = {"job": state.job_id, "slot": state.slot, "generation": state.generation}
        return message, {**options, "extra": fields}


class TrainerHandle:
    """One (job, slot) on this node. Call `follow` or `end` per the desired state, then `step`.

    Attributes:
        report_every_s: time that the trainer is to leave between two reports of steps.
    """

    def __init__(self, directory: RunDirectory, surroundings: AgentContext) -> None:
        settings = surroundings.settings
        self.directory = directory
        self.stage = Stage.FETCHING
        self.accelerator_index = -1
        self.queue = ReportQueue(directory)
        self.log_tail = LogTail(directory, settings.log_beginning_bytes, settings.log_slack_bytes)
        self.report_every_s = REPORT_EVERY_S
        self._around = surroundings
        self._log = _TrainerLog(self)
        self._wanted: WantedTrainer | None = None
        self._orders: TrainerOrders | None = None
        self._process: OwnedProcess | None = None
        self._fetch: Future[None] | None = None
        self._fetch_after = 0.0
        self._num_refused = 0
        self._adopted_fetch: Future[None] | None = None
        self._adopted = 0
        self._backoff = Backoff(settings.backoff_first_s, settings.backoff_cap_s)
        self._is_unwanted = False
        self._is_deaf = False
        self._is_walled_off = False
        self._pulse = Pulse(directory.pulse, settings.pulse_limit_s, settings.boot_pulse_limit_s)
        self._kill_reason: str | None = None
        self._acknowledged_at: float | None = None
        self._memory_kills = OomKillCounter()

    @property
    def key(self) -> TrainerKey:
        """(job, slot) of the trainer."""
        return self.directory.key

    def holds(self, accelerator: AcceleratorInfo) -> bool:
        """Return whether the trainer runs on an accelerator: a GPU is known by its UUID."""
        if self.stage is not Stage.RUNNING or self._orders is None:
            return False
        own = self._orders.accelerator
        is_same_place = bool(own.uuid) or own.index == accelerator.index
        return own.uuid == accelerator.uuid and is_same_place

    @property
    def is_acknowledged(self) -> bool:
        """True once the trainer is gone and the control plane has acknowledged all its reports."""
        if self.stage is not Stage.GONE or not self.queue.is_empty:
            return False
        self.queue.fill()
        return self.queue.is_empty and self.log_tail.next_chunk(is_writer_gone=True) is None

    @property
    def state(self) -> TrainerState:
        """The trainer's state for a heartbeat; pid 0 without a process."""
        return TrainerState(
            job_id=self.key[0],
            slot=self.key[1],
            generation=self._generation(),
            accelerator_index=self.accelerator_index,
            pid=self._process.pid if self._process else 0,
            adoption=self._adopted,
        )

    def watched(self) -> AbstractContextManager[None]:
        """Have the trainer killed if a block that handles its files takes too long."""
        return self._around.watchdog.watching(self._kill_stuck)

    def masked(self, report: TrainerReport) -> TrainerReport:
        """Return a report of the trainer without the values of its secrets."""
        mask = self.log_tail.mask
        return dataclasses.replace(report, data=mask.fields(report.data)) if mask else report

    def follow(self, wanted: WantedTrainer) -> None:
        """Set the desired state; a running trainer gets new orders if they differ."""
        self._wanted = wanted
        if self.stage is Stage.FETCHING:
            self.accelerator_index = wanted.accelerator_index
        elif self.stage is Stage.RUNNING and not self._is_unwanted:
            try:
                self._write_orders(wanted)
                self._is_deaf = False
            except OSError as error:  # retried in the next round
                if not self._is_deaf:
                    self._log.warning(
                        "job %d, slot %d cannot be told anything: %s", *self.key, error
                    )
                self._is_deaf = True

    def end(self, now: float) -> None:
        """End the trainer: not wanted, or of an old generation. Repeated calls do nothing."""
        if self._is_unwanted:
            return
        self._is_unwanted = True
        if self._process is not None and self.stage is Stage.RUNNING:
            self._log.info("ending the trainer of job %d, slot %d", *self.key)
            self._process.end(now, self._around.settings.grace_s)

    def step(self, now: float, is_accelerator_free: Callable[[int], bool]) -> None:
        """Advance as far as possible; never blocks.

        Args:
            now: monotonic seconds.
            is_accelerator_free: whether no other trainer's process holds that accelerator.
        """
        if self.stage is Stage.FETCHING:
            self._step_fetching(now, is_accelerator_free)
        elif self.stage is Stage.RUNNING and self._process is not None:
            self._step_running(now, self._process)
        elif self.stage is Stage.GONE and not self._is_unwanted:
            self._step_gone(now)

    def adopt(self) -> bool:
        """Take over the run directory and process of an earlier agent process.

        Returns False if no trainer ever ran there; the folder is deleted then.
        """
        self._orders = self.directory.read_orders()
        if self._orders is not None:
            self.accelerator_index = self._orders.accelerator.index
        self.log_tail.mask = Mask(self.directory.read_secrets().values())
        if last_report(self.directory, {ReportKind.EXITED}, is_agents_own=True):
            self.stage = Stage.GONE
            self._around.isolation.leave(self.directory.path)
            return True
        uid = self._around.isolation.adopt(self.directory.owner, self.directory.path)
        noted = self.directory.read_process() or leader_found(self.directory.path, uid)
        process = OwnedProcess.adopt(self.directory.path, *noted, uid) if noted else None
        # An agent killed while starting a trainer may leave all files but no process.
        never_ran = process is None and not self.directory.has_traces
        if self._orders is None or never_ran:
            for left in processes_of(self.directory.path, uid=uid):
                left.kill()  # its orders are missing, or damaged by user code
            self._around.isolation.leave(self.directory.path)
            self.directory.delete()
            return False
        self.stage, self._process = Stage.RUNNING, process
        if process is None:
            self._log.warning("the trainer of job %d, slot %d went while no agent ran", *self.key)
            self._close(self._exit_code(None))
        else:
            self._log.info("adopted the trainer of job %d, slot %d", *self.key)
            try:
                self._around.isolation.reach(self.directory.path, self._orders)
            except OSError as error:  # retried with the desired state
                self._is_walled_off = True
                self._log.warning("job %d, slot %d may reach no new peers: %s", *self.key, error)
        return True

    def _step_fetching(self, now: float, is_accelerator_free: Callable[[int], bool]) -> None:
        wanted = self._wanted
        if self._fetch is None:
            if self._is_unwanted or wanted is None:
                self._close(None)
            elif wanted.was_ready:
                self._log.warning("the trainer of job %d, slot %d is wanted but gone", *self.key)
                self.directory.prepare()
                self.queue = ReportQueue(self.directory)
                self._close(None, was_missing=True)
            elif now >= self._fetch_after:
                self._start_fetch(wanted)
            return
        if not self._fetch.done():
            return
        error = self._fetch.exception()
        if self._is_unwanted or wanted is None:
            self._close(None)
        elif error is not None:
            self._fetch_again(now, error)
        elif is_accelerator_free(wanted.accelerator_index) and self._can_start(wanted):
            self._start(now, wanted)

    def _fetch_again(self, now: float, error: BaseException) -> None:
        """Prepare the run directory anew after a pause, at most `FETCH_ATTEMPTS` times in all."""
        self._fetch = None
        self._fetch_after = now + self._backoff.next_delay_s(wished_wait_s(error))
        if is_disk_full(error):
            self.directory.delete()  # what was fetched so far
            self._around.make_room()
        # A refused download may succeed later, such as a checkpoint that was just replaced.
        self._num_refused += not is_passing(error)
        if self._num_refused >= FETCH_ATTEMPTS:
            self._give_up(f"{type(error).__name__}: {error}")

    def _step_running(self, now: float, process: OwnedProcess) -> None:
        if process.is_gone(now):
            if not self._around.isolation.is_cleared(self.directory.path):
                return
            self._report_memory_kill(process)
            self._close(self._exit_code(process))
            return
        if process.outlives_kill(now):
            self._around.isolation.kill_begin(self.directory.path)
        if process.exit_code is None:
            self._memory_kills.note(now)
        self.log_tail.trim()
        self.queue.trim()
        self._watch(now, process)
        if self._wanted is not None and not self._is_unwanted:
            self._step_adopting(now, self._wanted)

    def _step_gone(self, now: float) -> None:
        """Report the exit again while the control plane wants the trainer though it knows of it.

        Its database has been restored from a backup of before.
        """
        if self._wanted is None or not self.is_acknowledged:
            self._acknowledged_at = None
            return
        if self._acknowledged_at is None:
            self._acknowledged_at = now
        if now - self._acknowledged_at < self._around.settings.exit_again_s:
            return
        exited = last_report(self.directory, {ReportKind.EXITED}, is_agents_own=True)
        if exited is not None:
            data = {**exited.data, "was_missing": True}
            self.directory.add_own_report(exited.generation, ReportKind.EXITED, data)
            self.queue.fill()
            self._log.warning("the trainer of job %d, slot %d is gone, told again", *self.key)

    def _step_adopting(self, now: float, wanted: WantedTrainer) -> None:
        """Fetch the state that the job is to go on with, and tell the trainer where it is."""
        adoption, fetch = wanted.adoption, self._adopted_fetch
        if adoption is None or adoption.number == self._adopted:
            return
        if fetch is not None and not fetch.done():
            return
        self._adopted_fetch = None
        error = None if fetch is None else fetch.exception()
        if error is not None:
            self._log.warning("the state to adopt was not fetched: %s", error)
            if is_disk_full(error):
                self._around.make_room()
            self._fetch_after = now + self._backoff.next_delay_s(wished_wait_s(error))
        elif fetch is not None:
            self._adopted = adoption.number
            self.follow(wanted)
        elif now >= self._fetch_after:
            files, directory = self._around.files_of(f"jobs/{wanted.spec.job_id}"), self.directory
            previous = self._adopted
            self._adopted_fetch = self._around.transfers.start(
                f"adopt-{directory.path.name}",
                lambda: adopted_state_fetch(files, adoption, previous, directory),
            )

    def _report_memory_kill(self, process: OwnedProcess) -> None:
        """Report that the kernel killed the trainer because memory ran out.

        Condition: killed, not by the agent, and the kernel counted such a kill in the last
        seconds. The process that used the memory up is not known.
        """
        is_ours = self._is_unwanted or self._kill_reason is not None
        was_killed = process.exit_code == -signal.SIGKILL and not is_ours
        if not was_killed or not self._memory_kills.has_grown():
            return
        message = "the kernel ended the trainer because the node's memory ran out"
        data = {"code": "memory_kill", "message": message, "traceback": ""}
        self.directory.add_own_report(self._generation(), ReportKind.FAILED, data)

    def _watch(self, now: float, process: OwnedProcess) -> None:
        """Kill a process that is suspended or stuck, or takes other jobs' ports: it is lost."""
        if self._kill_reason is not None:
            return
        if self._pulse.is_lost(now, process.pid):
            self._kill(f"no sign of life for {self._pulse.silent_s:.1f} s")
        elif fault := self._around.isolation.port_fault(self.directory.path):
            self._kill(fault)

    def _kill_stuck(self) -> None:
        """Kill the trainer, whose files the loop waits for; called on the watchdog's thread."""
        self._kill("its files could not be read or written")
        self._around.isolation.kill(self.directory.path)

    def _kill(self, why: str) -> None:
        self._kill_reason = why
        self._log.error("killing the trainer of job %d, slot %d: %s", *self.key, why)
        if self._process is not None:
            self._process.kill()

    def _start_fetch(self, wanted: WantedTrainer) -> None:
        if wanted.accelerator_index not in self._around.accelerators:
            self.directory.prepare()
            self._give_up(f"this node has no accelerator {wanted.accelerator_index}")
            return
        files, directory = self._around.files_of(f"jobs/{wanted.spec.job_id}"), self.directory
        self._fetch = self._around.transfers.start(
            f"fetch-{directory.path.name}", lambda: trainer_prepare(files, wanted, directory)
        )

    def _can_start(self, wanted: WantedTrainer) -> bool:
        limits = self._accelerator_environment(wanted)
        isolation = self._around.isolation
        is_waiting = self._around.fork_servers.is_warming(limits) or isolation.is_paused
        return not is_waiting and self.directory.path not in isolation.leaving

    def _start(self, now: float, wanted: WantedTrainer) -> None:
        # The folder may have been an earlier trainer's, as before a backup was restored.
        self.queue = ReportQueue(self.directory)
        self._write_orders(wanted)
        directory = self.directory
        directory.touch_alive()
        self.log_tail.mask = Mask(wanted.secrets.values())
        try:
            directory.write_secrets(wanted.secrets)
            user = self._around.isolation.enter(directory.owner, directory.path)
            limits = self._accelerator_environment(wanted)
            process = self._around.fork_servers.start(
                "--run-dir", directory.path, limits, user, wanted.secrets
            )
        except OSError as error:
            if is_disk_full(error):
                self._around.isolation.leave(directory.path)
                self._orders = None
                self._fetch_again(now, error)
            else:
                self._give_up(f"the trainer does not start: {error}")
            return
        self._process, self.stage = process, Stage.RUNNING
        with contextlib.suppress(OSError):  # the process is also found by its environment
            directory.write_process(process.pid, process.started_at)
        self._log.info(
            "started the trainer of job %d, slot %d as process %d", *self.key, process.pid
        )

    def _accelerator_environment(self, wanted: WantedTrainer) -> Mapping[str, str]:
        return accelerator_environment(self._around.accelerators[wanted.accelerator_index])

    def _write_orders(self, wanted: WantedTrainer) -> None:
        restore, adoption = self.directory.restore, wanted.adoption
        has_adopted = adoption is not None and adoption.number == self._adopted
        orders = TrainerOrders(
            spec=wanted.spec,
            slot=wanted.slot,
            # That of a running trainer stays, though an agent may find it at another index.
            accelerator=self._orders.accelerator
            if self._orders
            else self._around.accelerators[wanted.accelerator_index],
            membership=wanted.membership,
            go=wanted.go,
            checkpoint_path=str(restore) if restore.exists() else None,
            profile=wanted.profile,
            peers=wanted.peers,
            save_request=wanted.save_request,
            adopted_path=str(self.directory.adopted(self._adopted)) if has_adopted else None,
            report_every_s=self.report_every_s,
        )
        if orders != self._orders or self._is_walled_off:
            self._around.isolation.reach(self.directory.path, orders)
            self._is_walled_off = False
            self.directory.write_orders(orders)
            self._orders = orders
            news = orders.membership.generation, orders.go
            self._log.debug("job %d, slot %d is told: generation %d, go %s", *self.key, *news)

    def _give_up(self, message: str) -> None:
        self._log.error("the trainer of job %d, slot %d cannot start: %s", *self.key, message)
        data = {"code": "internal", "message": message, "traceback": ""}
        self.directory.add_own_report(self._generation(), ReportKind.FAILED, data)
        self._close(None)

    def _close(self, exit_code: int | None, *, was_missing: bool = False) -> None:
        """Write the last report. After this the trainer's accelerator may be reassigned."""
        self._around.isolation.leave(self.directory.path)
        why: dict[str, Any] = {} if self._kill_reason is None else {"reason": self._kill_reason}
        why |= {"was_missing": True} if was_missing else {}
        data = {"exit_code": exit_code, "accelerator_index": self.accelerator_index, **why}
        self.directory.add_own_report(self._generation(), ReportKind.EXITED, data)
        self.stage = Stage.GONE
        self._log.info("the trainer of job %d, slot %d is gone, exit code %s", *self.key, exit_code)

    def _exit_code(self, process: OwnedProcess | None) -> int | None:
        if process is not None and process.exit_code is not None:
            return process.exit_code
        last = last_report(self.directory, _EXIT_CODE_AFTER, is_agents_own=False)
        if last is None:
            return None
        # The trainer went on after a checkpoint of an earlier generation, or a periodic one.
        is_last = last.generation == self._generation() and last.data.get("is_last") is not False
        is_unknown = last.kind is ReportKind.CHECKPOINTED and not is_last
        return None if is_unknown else _EXIT_CODE_AFTER[last.kind]

    def _generation(self) -> int:
        if self._orders is not None:
            return self._orders.membership.generation
        return self._wanted.membership.generation if self._wanted else 0
