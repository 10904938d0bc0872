"""Files by which `fated_job` is given places and trainers, and reports what was met."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Met:
    """A fate that was met: by the trainer in `slot`, at wall time `at`, in seconds."""

    slot: int
    at: float


class Fates:
    """Files in one folder that the trainers of one job look at."""

    def __init__(self, folder: Path) -> None:
        """Make the folder."""
        folder.mkdir(parents=True)
        self.folder = folder

    def set(self, place: str, slot: int, number: signal.Signals = signal.SIGKILL) -> None:
        """Let the trainer in `slot` get a signal from itself when it next comes to `place`."""
        self._write(place, str(slot), [], number)

    def set_joiner(self, place: str, spared: Iterable[int]) -> None:
        """Kill whoever comes to `place` first, but not those in the slots `spared`."""
        self._write(place, "joiner", list(spared), signal.SIGKILL)

    def met(self, place: str) -> Met | None:
        """Tell who has met its fate at `place`, once; None while nobody has."""
        for path in self.folder.glob(f"met-{place}@*.at"):
            slot = int(path.stem.partition("@")[2])
            met = Met(slot, float(path.read_text()))
            path.unlink()
            return met
        return None

    def cut(self, slot: int) -> None:
        """Let no packet reach the trainer in `slot` any more."""
        (self.folder / f"cut@{slot}").touch()

    def is_cut(self, slot: int) -> bool:
        """Say whether that has come about."""
        return (self.folder / f"is-cut@{slot}").exists()

    def join(self, slot: int) -> None:
        """Let packets reach it again."""
        (self.folder / f"cut@{slot}").unlink()

    def go(self) -> None:
        """Let the job train as fast as it can from now on."""
        (self.folder / "go").touch()

    def _write(self, place: str, whose: str, spared: list[int], number: signal.Signals) -> None:
        partial = self.folder / "fate.partial"
        partial.write_text(json.dumps({"spared": spared, "signal": int(number)}))
        partial.replace(self.folder / f"{place}@{whose}")
