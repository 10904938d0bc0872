"""Saves periodic checkpoints in the background, in case all trainers are lost."""

from __future__ import annotations

import logging
import re
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from agents.trainer.contract.run_dir import ReportWriter
from agents.trainer.model.outputs import state_save
from agents.trainer.model.progress import Progress
from agents.trainer.model.state import ModelState
from controlplane.core.protocol.wire import ReportKind

Tensor = Any
logger = logging.getLogger(__name__)

#: Number of newest files kept; the agent may still be uploading the last but one.
KEPT_FILES = 2
FILE_PATTERN = re.compile(r"checkpoint-(\d+)\.npz")


class AsyncCheckpointer:
    """Periodic checkpoints of a running job, written by its leader.

    A checkpoint holds the state between two steps. Capturing it costs only the copies that
    TensorFlow makes of variables that are written while their captured values are still in use.
    """

    def __init__(
        self, folder: Path, every_s: float, state: ModelState, reports: ReportWriter
    ) -> None:
        """Save into `folder` every `every_s` seconds; 0: never."""
        self._folder = folder
        self._every_s = every_s
        self._state = state
        self._reports = reports
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None
        self._saved_at = time.monotonic()
        self._followed = 0

    def after_step(self, progress: Progress, request: int = 0) -> None:
        """Start saving if it is time, or requested, and the previous file is complete.

        Args:
            request: number of a request to save; each is followed once. 0: there is none.
        """
        is_time = self._every_s and time.monotonic() - self._saved_at >= self._every_s
        if not is_time and request in (0, self._followed):
            return
        if self._writing is not None and not self._writing.done():
            return
        self._followed = request
        self.save(progress, self._state.capture_whole())

    def save(self, progress: Progress, values: list[Tensor]) -> None:
        """Start saving a state that was captured between two steps."""
        self._saved_at = time.monotonic()
        self._writing = self._writer.submit(self._save, progress, values)

    def settle(self) -> None:
        """Wait until the file under way, if any, is written."""
        if self._writing is not None:
            self._writing.result()

    def _save(self, progress: Progress, values: list[Tensor]) -> None:
        name = f"checkpoint-{progress.step}.npz"
        try:
            saved = state_save(self._folder, self._state, values, progress, name)
        except OSError as error:  # a full disk must not end a running job
            logger.warning("checkpoint at step %d was not saved: %s", progress.step, error)
            return
        self._reports.write(ReportKind.CHECKPOINTED, saved | {"is_last": False})
        for old in _by_step(self._folder)[:-KEPT_FILES]:
            old.unlink(missing_ok=True)


def _by_step(folder: Path) -> list[Path]:
    """List the periodic checkpoints, oldest first."""
    found = [(FILE_PATTERN.fullmatch(path.name), path) for path in folder.iterdir()]
    return [path for _, path in sorted((int(match[1]), path) for match, path in found if match)]
