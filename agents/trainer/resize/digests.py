"""Computes digests of a state in the background of the training, and reports them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from agents.trainer.contract.run_dir import ReportWriter
from agents.trainer.model.progress import Progress
from agents.trainer.model.state import ModelState, state_digest
from controlplane.core.protocol.wire import ReportKind

Tensor = Any
#: Niceness of the digest thread, so that digests do not slow the first steps after a switch.
DIGEST_NICENESS = 10


class Digests:
    """One thread of low priority that digests states in the order of the calls to `report`."""

    def __init__(
        self, state: ModelState, reports: ReportWriter, wait_for_turn: Callable[[], None]
    ) -> None:
        """Start; `wait_for_turn` blocks until the first step after a switch is done."""
        self._state = state
        self._reports = reports
        self._wait_for_turn = wait_for_turn
        self._beside = ThreadPoolExecutor(
            1, thread_name_prefix="digest", initializer=_lower_priority
        )
        self._pending: list[Future[None]] = []

    def report(self, role: str, progress: Progress, values: list[Tensor]) -> None:
        """Queue a digest of captured values; the report carries the generation of this call.

        Args:
            role: "before" or "after" the change of membership.
        """
        generation = self._reports.generation

        def compute() -> None:
            self._wait_for_turn()
            sha256 = state_digest(self._state.specs, values)
            self._reports.write(
                ReportKind.DIGEST,
                {"step": progress.step, "sha256": sha256, "role": role},
                generation,
            )

        self._pending = [future for future in self._pending if not future.done()]
        self._pending.append(self._beside.submit(compute))

    def settle(self) -> None:
        """Wait until all digests have been reported; raises the error of a failed one."""
        for future in self._pending:
            future.result()
        self._pending.clear()


def _lower_priority() -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), DIGEST_NICENESS)
