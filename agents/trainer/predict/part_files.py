"""What the leader of a job that predicts leaves in `outputs/`: parts of the predictions."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from agents.trainer.contract.run_dir import ReportWriter
from agents.trainer.model.outputs import METRICS_FILE, text_write
from agents.trainer.model.progress import Progress
from agents.trainer.model.state import ModelState, state_digest
from agents.trainer.predict.functions import OutputLayout
from controlplane.core.protocol.prediction_parts import Part
from controlplane.core.protocol.wire import ReportKind

#: A part is closed when it holds so many bytes, or when its first batch is so old.
PART_BYTES = 32 * 1024**2
PART_S = 10.0


class PartWriter:
    """Collects the predictions of batches that follow each other, and writes them as parts.

    What is not in a closed part is in memory only and is computed again when this trainer is lost;
    the bounds above say how much that can be.
    """

    def __init__(
        self,
        folder: Path,
        reports: ReportWriter,
        part_bytes: int = PART_BYTES,
        part_s: float = PART_S,
    ) -> None:
        self._folder = folder
        self._reports = reports
        self._part_bytes = part_bytes
        self._part_s = part_s
        self._batches: list[Mapping[str, np.ndarray]] = []
        self._num_bytes = 0
        self._first = 0
        self._end = 0
        self._begun_at = 0.0

    def add(self, first: int, arrays: Mapping[str, np.ndarray], num_examples: int) -> None:
        """Take the predictions of a batch whose first example is `first`."""
        if first != self._end:
            self.close()
        if not self._batches:
            self._first = first
            self._begun_at = time.monotonic()
        self._batches.append(arrays)
        self._num_bytes += sum(array.nbytes for array in arrays.values())
        self._end = first + num_examples
        is_old = time.monotonic() - self._begun_at >= self._part_s
        if is_old or self._num_bytes >= self._part_bytes:
            self.close()

    def close(self) -> None:
        """Write what was collected as a part and report it."""
        if not self._batches:
            return
        part = Part(self._first, self._end)
        joined = {
            name: np.concatenate([batch[name] for batch in self._batches])
            for name in self._batches[0]
        }
        self._batches = []
        self._num_bytes = 0
        self._folder.mkdir(parents=True, exist_ok=True)
        partial = self._folder / f".{part.name}.partial"
        with partial.open("wb") as stream:
            np.savez(stream, allow_pickle=False, **joined)
            stream.flush()
            os.fsync(stream.fileno())
        path = self._folder / part.name
        partial.replace(path)
        self._reports.write(
            ReportKind.PART,
            {
                "first": part.first,
                "end": part.end,
                "file": part.name,
                "bytes": path.stat().st_size,
            },
        )


def summary_save(
    folder: Path, state: ModelState, layout: OutputLayout, num_examples: int, progress: Progress
) -> dict[str, Any]:
    """Write `metrics.json` of a job that predicted; returns what the leader's `finished` reports.

    The digest is that of the model's state.
    """
    digest = state_digest(state.specs, state.capture())
    summary = {
        "num_examples": num_examples,
        "outputs": {
            output.name: {"shape": list(output.shape), "dtype": output.dtype.name}
            for output in layout.outputs
        },
        "digest": digest,
        "steps": progress.step,
        "seconds": progress.training_s,
    }
    folder.mkdir(parents=True, exist_ok=True)
    text_write(folder / METRICS_FILE, json.dumps(summary, indent=2) + "\n")
    return {
        "metrics": {},
        "digest": digest,
        "files": [METRICS_FILE],
        "num_examples": num_examples,
    }
