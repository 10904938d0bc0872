"""Files that the leader of a prediction job writes to `outputs/`: parts of the predictions."""

from __future__ import annotations

import json
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from agents.trainer.contract.atomic_write import atomic_write, text_write
from agents.trainer.contract.full_disk import room_awaited
from agents.trainer.contract.run_dir import ReportWriter
from agents.trainer.model.outputs import METRICS_FILE
from agents.trainer.model.progress import Progress
from agents.trainer.model.state import ModelState, state_digest
from agents.trainer.predict.functions import OutputLayout
from controlplane.core.protocol.prediction_parts import PredictionPart
from controlplane.core.protocol.wire import ReportKind

#: A part is closed at this size, in bytes, or at this age of its first batch, in seconds.
PART_BYTES = 32 * 1024**2
PART_S = 10.0


class PartWriter:
    """Collects the predictions of consecutive batches, and writes them as parts.

    Predictions outside a closed part are only in memory and are computed again if this trainer is
    lost; `PART_BYTES` and `PART_S` bound their amount.
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
        """Add the predictions of a batch whose first example is `first`."""
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
        """Write the collected predictions as a part and report it."""
        if not self._batches:
            return
        part = PredictionPart(self._first, self._end)
        joined = {
            name: np.concatenate([batch[name] for batch in self._batches])
            for name in self._batches[0]
        }
        self._batches = []
        self._num_bytes = 0
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / part.name
        room_awaited(lambda: _arrays_write(path, joined))
        self._reports.write(
            ReportKind.PART,
            {
                "first": part.first,
                "end": part.end,
                "file": part.name,
                "bytes": path.stat().st_size,
            },
        )


def _arrays_write(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write what `np.savez` writes, where an output cannot have the name "file"."""
    with atomic_write(path, is_synced=True) as partial, zipfile.ZipFile(partial, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)


def summary_save(
    folder: Path, state: ModelState, layout: OutputLayout, num_examples: int, progress: Progress
) -> dict[str, Any]:
    """Write `metrics.json` of a prediction job; returns the data of the leader's FINISHED report.

    The digest is of the model's state.
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
