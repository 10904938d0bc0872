"""The trainer's side of its run directory: watches `orders.json`, appends `reports.jsonl`."""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from agents.trainer.contract.atomic_write import text_write
from agents.trainer.contract.failures import EXIT_FAILED, TrainerError
from agents.trainer.contract.full_disk import FULL_DISK_POLL_S, is_disk_full
from agents.trainer.contract.plain_files import plain_file_open
from controlplane.core.protocol.wire import ReportKind, TrainerOrders, TrainerReport, decode, encode

#: Poll intervals for new orders: while training, and while waiting for orders.
POLL_S = 0.02
WAITING_POLL_S = 0.002
#: Interval at which the process touches PULSE_FILE and checks whether its agent lives.
PULSE_EVERY_S = 0.5
#: The agent touches ALIVE_FILE every few seconds; the trainer ends if the file is older than this.
ALIVE_LIMIT_S = 900.0
#: Consecutive checks that must find the file too old: after a suspend the agent resumes too.
ALIVE_LOOKS = 60
#: Most bytes of reports that wait for room on the disk.
UNWRITTEN_LIMIT_BYTES = 16 * 1024 * 1024
ORDERS_FILE = "orders.json"
REPORTS_FILE = "reports.jsonl"
PULSE_FILE = "pulse"
ALIVE_FILE = "alive"


def orders_read(run_dir: Path) -> TrainerOrders:
    """Read the orders from a run directory.

    Raises:
        ValueError: the orders are missing or not valid.
    """
    try:
        value = json.loads((run_dir / ORDERS_FILE).read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise ValueError(f"{ORDERS_FILE} cannot be read: {error}") from error
    return decode(TrainerOrders, value)


def orders_write(run_dir: Path, orders: TrainerOrders) -> None:
    """Write orders atomically, as an agent does."""
    text_write(run_dir / ORDERS_FILE, json.dumps(encode(orders)))


def whole_lines(path: Path, offset: int, limit: int = -1) -> Iterator[tuple[bytes, int]]:
    """Yield the lines from byte `offset` on that end in a newline, with the offset after each.

    Args:
        limit: largest number of bytes to read, -1: all; a longer line is split.
    """
    try:
        with plain_file_open(path) as file:
            file.seek(offset)
            block = file.read(limit)
    except OSError:
        return
    if len(block) == limit and b"\n" not in block:
        yield b"", offset + len(block)
    start = 0
    while (end := block.find(b"\n", start)) >= 0:
        yield block[start:end], offset + end + 1
        start = end + 1


class OrderWatcher:
    """Polls for new orders in a thread, which also touches the pulse file."""

    def __init__(self, run_dir: Path, parent_pid: int | None = None) -> None:
        """Read the first orders and start watching.

        Args:
            parent_pid: end this process at once when its parent process is a different one.

        Raises:
            ValueError: there are no valid orders.
        """
        self._run_dir = run_dir
        self._parent_pid = parent_pid
        orders_read(run_dir)  # raises the clearest error if there are none
        self._stamp = self._file_stamp()  # before reading: orders that come between are seen later
        self._orders = orders_read(run_dir)
        self._changed = threading.Condition()
        self._is_waiting = False
        self._on_recovery: Callable[[int], None] | None = None
        self._on_change: Callable[[TrainerOrders], None] | None = None
        self._pulsed_at = -math.inf
        self._num_late_looks = 0
        thread = threading.Thread(target=self._watch, name="orders", daemon=True)
        thread.start()

    @property
    def orders(self) -> TrainerOrders:
        return self._orders

    def next_after(self, generation: int) -> TrainerOrders | None:
        """Return the orders to switch away from `generation`, once they may be followed."""
        orders = self._orders
        is_next = orders.go and orders.membership.generation > generation
        return orders if is_next else None

    def recovery_after(self, generation: int) -> TrainerOrders | None:
        """Return the orders to recover in a later generation than `generation`, if any."""
        orders = self.next_after(generation)
        return orders if orders is not None and orders.membership.recover else None

    def on_recovery(self, notify: Callable[[int], None]) -> None:
        """Call `notify` in the watching thread with the generation of orders to recover."""
        with self._changed:
            self._on_recovery = notify
        self._notify_recovery()  # such orders may have arrived before

    def on_change(self, notify: Callable[[TrainerOrders], None]) -> None:
        """Call `notify` with the present orders, and in the watching thread with all later ones."""
        with self._changed:
            self._on_change = notify
            notify(self._orders)

    def wait_for_change(self, seen: TrainerOrders) -> TrainerOrders:
        """Wait without limit for orders other than `seen`."""
        return self.wait_for(lambda orders: orders is not seen)

    def wait_for(self, is_wanted: Callable[[TrainerOrders], bool]) -> TrainerOrders:
        """Wait, as long as the agent lives, for orders that `is_wanted` accepts."""
        with self._changed:
            self._is_waiting = True
            while not is_wanted(self._orders):
                self._changed.wait(timeout=1.0)
            self._is_waiting = False
            return self._orders

    def _file_stamp(self) -> tuple[int, int]:
        status = (self._run_dir / ORDERS_FILE).stat()
        return status.st_ino, status.st_mtime_ns

    def _watch(self) -> None:
        while True:
            self._pulse()
            time.sleep(WAITING_POLL_S if self._is_waiting else POLL_S)
            if self._parent_pid is not None and os.getppid() != self._parent_pid:
                os._exit(EXIT_FAILED)  # the launcher, this process's only supervisor, is gone
            try:
                stamp = self._file_stamp()
                if stamp == self._stamp:
                    continue
                orders = orders_read(self._run_dir)
            except (OSError, ValueError):
                continue  # an incomplete file, not written atomically; read again
            self._stamp = stamp
            with self._changed:
                self._orders = orders
                self._changed.notify_all()
                if self._on_change is not None:
                    self._on_change(orders)
            self._notify_recovery()

    def _notify_recovery(self) -> None:
        membership = self._orders.membership
        if self._on_recovery is not None and self._orders.go and membership.recover:
            self._on_recovery(membership.generation)

    def _pulse(self) -> None:
        """Touch the pulse file at intervals; end the process when its agent is long gone."""
        now = time.monotonic()
        if now - self._pulsed_at < PULSE_EVERY_S:
            return
        self._pulsed_at = now
        try:
            (self._run_dir / PULSE_FILE).touch()
        except OSError:
            return  # a full disk or a folder being removed; try again
        try:
            silence_s = time.time() - (self._run_dir / ALIVE_FILE).stat().st_mtime
        except OSError:
            return  # started manually, without an agent
        self._num_late_looks = self._num_late_looks + 1 if silence_s > ALIVE_LIMIT_S else 0
        if self._num_late_looks >= ALIVE_LOOKS:
            os._exit(EXIT_FAILED)


class ReportWriter:
    """Appends numbered reports, each line in one write, from any thread.

    Reports that find no room on the disk are kept, and written in their order once there is some.

    Attributes:
        generation: default generation of reports.
        last_step: the newest step that this trainer has reported as the leader.
    """

    def __init__(self, run_dir: Path, job_id: int, slot: int) -> None:
        self.generation = 0
        self.last_step = 0
        self._job_id = job_id
        self._slot = slot
        self._sequence = 0
        self._changed = threading.Condition()
        self._unwritten = b""
        path = run_dir / REPORTS_FILE
        self._stream = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(
        self, kind: ReportKind, data: Mapping[str, Any], generation: int | None = None
    ) -> None:
        """Report `kind` with `data` (plain JSON values) for the current or a given generation.

        Raises:
            OSError: the file cannot be written; on a full disk only beyond UNWRITTEN_LIMIT_BYTES.
        """
        with self._changed:
            report = TrainerReport(
                job_id=self._job_id,
                slot=self._slot,
                generation=self.generation if generation is None else generation,
                sequence=self._sequence,
                at=time.time(),
                kind=kind,
                data=dict(data),
            )
            self._sequence += 1
            was_stuck = bool(self._unwritten)
            self._unwritten += (json.dumps(encode(report)) + "\n").encode()
            error = self._append()
            if error is not None and len(self._unwritten) > UNWRITTEN_LIMIT_BYTES:
                raise error
            if error is not None and not was_stuck:
                thread = threading.Thread(target=self._append_later, name="reports", daemon=True)
                thread.start()

    def settle(self, limit_s: float) -> None:
        """Wait for room on the disk until all reports are written, for `limit_s` at most."""
        with self._changed:
            self._changed.wait_for(lambda: not self._unwritten, limit_s)

    def _append(self) -> OSError | None:
        """Append what is not written; return the error of a full disk. The lock is held."""
        try:
            while self._unwritten:
                self._unwritten = self._unwritten[os.write(self._stream, self._unwritten) :]
        except OSError as error:
            if not is_disk_full(error):
                raise
            return error
        self._changed.notify_all()
        return None

    def _append_later(self) -> None:
        """Try again until there is room; a thread that ends with the process.

        What waits is bounded: `write` raises above `UNWRITTEN_LIMIT_BYTES`.
        """
        is_stuck = True
        while is_stuck:
            time.sleep(FULL_DISK_POLL_S)
            with self._changed:
                is_stuck = self._append() is not None

    def phase(self, name: str) -> None:
        self.write(ReportKind.PHASE, {"phase": name})

    def failed(self, failure: TrainerError, facts: Mapping[str, Any] | None = None) -> None:
        """Report the failure that ends this trainer; `facts` are added to the data."""
        reason = {
            "code": failure.code,
            "message": failure.message,
            "traceback": failure.traceback,
        }
        self.write(ReportKind.FAILED, reason | dict(facts or {}))
