"""A job on this machine without a control plane: trainers are child processes.

The trainers get orders as from an agent.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from agents.trainer.contract.environment import HASH_ENVIRONMENT, heap_environment
from agents.trainer.contract.ports import PortHolder
from agents.trainer.contract.run_dir import orders_write
from agents.trainer.local.local_trainer import LocalTrainer, Spawn, trainer_spawn
from agents.trainer.local.predictions import resume_at
from controlplane.core.protocol.nonfinite import NONFINITE_CODES
from controlplane.core.protocol.wire import (
    REPORT_EVERY_S,
    AcceleratorInfo,
    Member,
    Membership,
    ReportKind,
    SlotAddress,
    TrainerOrders,
    TrainingSpec,
)
from controlplane.core.virtual_nodes.mapping import even_mapping

Mapping = Sequence[Sequence[int]]
POLL_S = 0.02
STOP_GRACE_S = 5.0
TRAINER_PROGRAM = (sys.executable, "-m", "agents.trainer")


class LocalJobError(Exception):
    """A local run cannot continue: a trainer failed, died or did not answer in time."""


class NonfiniteJobError(LocalJobError):
    """The job stopped at a loss or metric that is not finite.

    Attributes:
        data: the leader's report.
        outputs: the folder with the files that the report names.
    """

    def __init__(self, data: dict[str, Any], outputs: Path) -> None:
        super().__init__(data["message"])
        self.data = data
        self.outputs = outputs


class LocalJob:
    """Trainers of one job on this machine, resized by writing orders.

    Attributes:
        program: starts a trainer; the run directory is appended. May change between starts.
        spawn: starts the process of a command; a test may fork it instead.
        report_every_s: as in the orders; read when they are written.
        checkpoint: state from which trainers start that are ordered now.
        lost: slots whose trainers may fail without failing the run.
    """

    def __init__(
        self, spec: TrainingSpec, code: Path, folder: Path, num_slots: int = 16, threads: int = 1
    ) -> None:
        """Prepare a job whose code is the file or folder `code`; starts no process."""
        self.spec = spec
        self.folder = folder
        self.threads = threads
        self.trainers: dict[int, LocalTrainer] = {}
        self.membership: Membership | None = None
        self.wants_profile = False
        self.report_every_s = REPORT_EVERY_S
        self.parent_pid = os.getpid()
        self.program: Sequence[str] = TRAINER_PROGRAM
        self.spawn: Spawn = trainer_spawn
        self.checkpoint: Path | None = None
        self.lost: set[int] = set()
        self._code = code
        self._next_slot = 0
        self._generation = 0
        self._ports = PortHolder(num_slots)
        self.cluster_addresses = tuple(
            SlotAddress(slot=slot, address=f"127.0.0.1:{port}")
            for slot, port in enumerate(self._ports.numbers)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ---- memberships ---------------------------------------------------------------------------

    def plan(
        self,
        num_workers: int,
        after: Membership | None,
        mapping: Mapping | None = None,
        keep: Sequence[int] | None = None,
        restore: bool = False,
    ) -> Membership:
        """Plan the membership after `after`; senior trainers stay, slots are never reused.

        Args:
            mapping: virtual nodes of each worker; even by default.
            keep: slots that stay, the most senior by default.
        """
        held = [] if after is None else [member.slot for member in after.members]
        stay = list(keep if keep is not None else held)[:num_workers]
        fresh = range(self._next_slot, self._next_slot + num_workers - len(stay))
        self._next_slot += len(fresh)
        slots = [*stay, *fresh]
        if slots and max(slots) >= len(self.cluster_addresses):
            raise LocalJobError(f"slot {max(slots)} was not declared; allow more slots")
        return self._membership(
            slots,
            mapping,
            source_slot=held[0] if held else None,
            restore=restore,
            resume_at=None if held else resume_at(self.spec, self.folder),
        )

    def _membership(
        self, slots: Sequence[int], mapping: Mapping | None, **others: Any
    ) -> Membership:
        """Make the membership of the next generation; `others` are further fields of it."""
        self._generation += 1
        even = even_mapping(self.spec.num_virtual_nodes, len(slots)) if slots else ()
        return Membership(
            generation=self._generation,
            members=tuple(
                Member(slot=slot, node_id=0, accelerator_index=slot, virtual_nodes=tuple(share))
                for slot, share in zip(slots, mapping or even, strict=True)
            ),
            leader_slot=slots[0] if slots else None,
            cluster_addresses=self.cluster_addresses,
            **others,
        )

    def prepare(self, membership: Membership) -> None:
        """Start the joiners of a membership, which boot and wait for orders to join."""
        for member in membership.members:
            if member.slot not in self.trainers:
                self._start(member.slot, membership)

    def wait_ready(self, membership: Membership, timeout_s: float = 180.0) -> None:
        """Wait until every joiner of a membership is ready."""
        slots = [member.slot for member in membership.members]
        self.wait(
            lambda: all(self.trainers[slot].last(ReportKind.READY) for slot in slots),
            f"trainers {slots} to get ready",
            timeout_s,
        )

    def go(self, membership: Membership) -> None:
        """Order old members and joiners to switch, without waiting."""
        slots = {member.slot for member in membership.members}
        if self.membership is not None:
            slots |= {member.slot for member in self.membership.members}
        for slot in sorted(slots):
            self._order(slot, membership, True)
        self.membership = membership

    def wait_switched(self, membership: Membership) -> None:
        """Wait until every member has switched, or the job has finished before the switch."""
        slots = [member.slot for member in membership.members]

        def is_done() -> bool:
            has_switched = all(
                self.trainers[slot].last(ReportKind.SWITCHED, membership.generation)
                for slot in slots
            )
            return has_switched or self.finished() is not None

        self.wait(is_done, f"generation {membership.generation} to switch", 120.0)

    # ---- reports -------------------------------------------------------------------------------

    def step(self) -> int:
        """Return the last step that any trainer has reported."""
        kinds = (ReportKind.STEPS, ReportKind.SWITCHED)
        steps = [
            report.data.get("last_step", report.data.get("step", 0))
            for trainer in self.trainers.values()
            for report in trainer.reports
            if report.kind in kinds
        ]
        return max(steps, default=0)

    def finished(self) -> dict[str, Any] | None:
        """Return the data of the leader's FINISHED report, if there is one."""
        for trainer in self.trainers.values():
            report = trainer.last(ReportKind.FINISHED)
            if report is not None and "digest" in report.data:
                return report.data
        return None

    def wait_step(self, step: int, timeout_s: float = 300.0) -> None:
        """Wait until a step is reported, or the job has finished."""
        self.wait(
            lambda: self.step() >= step or self.finished() is not None,
            f"step {step}",
            timeout_s,
        )

    def wait_finished(self, timeout_s: float = 600.0) -> dict[str, Any]:
        """Wait for the job's end; returns the data of the leader's FINISHED report."""
        self.wait(lambda: self.finished() is not None, "the job to finish", timeout_s)
        result = self.finished()
        assert result is not None
        return result

    def output_folder(self) -> Path:
        """Return the folder with the leader's results."""
        for trainer in self.trainers.values():
            report = trainer.last(ReportKind.FINISHED)
            if report is not None and "digest" in report.data:
                return trainer.run_dir / "outputs"
        raise LocalJobError("the job has not finished")

    def wait(self, is_done: Callable[[], bool], what: str, timeout_s: float) -> None:
        """Read reports until a condition holds.

        Raises:
            NonfiniteJobError: the job stopped at a loss or metric that is not finite.
            LocalJobError: a trainer failed or died, or the wait timed out.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            for trainer in self.trainers.values():
                trainer.read()
            if is_done():
                return
            self._check()
            if time.monotonic() > deadline:
                raise LocalJobError(f"waited {timeout_s:.0f} s for {what}\n{self._logs()}")
            time.sleep(POLL_S)

    def _check(self) -> None:
        for trainer in self.trainers.values():
            status = trainer.process.poll()
            if not status or trainer.slot in self.lost:
                continue
            trainer.read()
            failure = trainer.last(ReportKind.FAILED)
            if failure is None and self.finished() is not None:
                continue
            what = failure.data if failure else {}
            if what.get("code") in NONFINITE_CODES:
                raise NonfiniteJobError(what, trainer.run_dir / "outputs")
            message = what.get("message", f"died with status {status}")
            raise LocalJobError(
                f"trainer {trainer.slot}: {what.get('code', 'crash')}: {message}\n"
                f"{what.get('traceback', '')}\n{self._logs()}"
            )

    def _logs(self) -> str:
        tails = []
        for trainer in self.trainers.values():
            text = (trainer.run_dir / "log.txt").read_text(errors="replace")
            tails.append(f"--- log of trainer {trainer.slot}\n{text[-2000:]}")
        return "\n".join(tails)

    # ---- processes -----------------------------------------------------------------------------

    def _order(self, slot: int, membership: Membership, go: bool, **others: Any) -> None:
        """Write a trainer's orders; `others` are further fields of them."""
        orders = TrainerOrders(
            spec=self.spec,
            slot=slot,
            accelerator=AcceleratorInfo(
                index=slot,
                kind="cpu",
                name=f"emulated {slot}",
                memory_bytes=0,
                threads=self.threads,
            ),
            membership=membership,
            go=go,
            checkpoint_path=None if self.checkpoint is None else str(self.checkpoint),
            profile=self.wants_profile,
            report_every_s=self.report_every_s,
            **others,
        )
        orders_write(self.folder / f"{self.spec.job_id}-{slot}", orders)

    def _start(self, slot: int, membership: Membership) -> None:
        run_dir = self.folder / f"{self.spec.job_id}-{slot}"
        (run_dir / "code").mkdir(parents=True)
        if self._code.is_dir():
            shutil.copytree(self._code, run_dir / "code", dirs_exist_ok=True)
        else:
            shutil.copy(self._code, run_dir / "code" / self.spec.entry_file)
        self._order(slot, membership, False)
        files = self._ports.files(slot)
        command = [*self.program, "--run-dir", str(run_dir), "--parent", str(self.parent_pid)]
        command += ["--held-port", *map(str, files)] if files else []
        # Unbuffered, so that a trainer that is killed leaves all that its job has printed.
        environment = {
            **os.environ,
            **heap_environment(self.threads),
            **HASH_ENVIRONMENT,
            "PYTHONUNBUFFERED": "1",
        }
        with (run_dir / "log.txt").open("wb") as log:
            process = self.spawn(command, environment, files, log)
        self.free_port(slot)
        self.trainers[slot] = LocalTrainer(slot, run_dir, process)

    def free_port(self, slot: int) -> None:
        """Release a slot's port; its trainer, if started, still holds the port."""
        self._ports.release(slot)

    def stop(self) -> None:
        """End every trainer that still runs."""
        running = [t.process for t in self.trainers.values() if t.process.poll() is None]
        for process in running:
            process.terminate()
            process.send_signal(signal.SIGCONT)  # a suspended process cannot end
        for process in running:
            try:
                process.wait(STOP_GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._ports.close()
