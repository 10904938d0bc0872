"""One trainer of a local job: its process, and the reports that it has written."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from agents.trainer.contract.run_dir import REPORTS_FILE, whole_lines
from controlplane.core.protocol.wire import ReportKind, TrainerReport, decode

REPOSITORY = Path(__file__).resolve().parents[3]


#: Starts a command with an environment, inherited file numbers and a log.
Spawn = Callable[
    [Sequence[str], dict[str, str], Sequence[int], BinaryIO], "subprocess.Popen[bytes]"
]


def trainer_spawn(
    command: Sequence[str], environment: dict[str, str], files: Sequence[int], log: BinaryIO
) -> subprocess.Popen[bytes]:
    """Start a trainer as a child process in a session of its own."""
    return subprocess.Popen(
        command,
        pass_fds=files,
        env=environment,
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


@dataclass
class LocalTrainer:
    """One child process and its reports so far."""

    slot: int
    run_dir: Path
    process: subprocess.Popen[bytes]
    reports: list[TrainerReport] = field(default_factory=list)
    offset: int = 0

    def read(self) -> None:
        """Read reports that were written since the last call."""
        for line, end_offset in whole_lines(self.run_dir / REPORTS_FILE, self.offset):
            self.offset = end_offset
            self.reports.append(decode(TrainerReport, json.loads(line)))

    def last(self, kind: ReportKind, generation: int | None = None) -> TrainerReport | None:
        """Return the newest report of a kind, of any or one generation."""
        for report in reversed(self.reports):
            if report.kind is kind and generation in (None, report.generation):
                return report
        return None
