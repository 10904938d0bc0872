"""An agent goes on while job code changes everything in its folders, at random and all the time."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from controlplane.core.protocol.wire import ReportKind
from tests.agents.builders import wanted_trainer, wanted_validation
from tests.agents.conftest import DrivenAgent
from tests.agents.control_plane import ControlPlane
from tests.agents.supervision.test_deletion import deep, wide
from tests.security.test_hostile_files import FILES, RECORDS, texts

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]

NUM_TURNS = 40
#: The own processes of the job would follow a link there.
WRITTEN = frozenset({"reports.jsonl", "log.txt", "pulse", "validation.json", "outputs", "code"})
OTHERS = ("outputs", "outputs/model.keras", "code", "code/job.py", "scratch", "adopted-1.npz")


class Vandal:
    """Job code that puts something else in the place of its files, and of a validation's."""

    def __init__(self, seed: int, state_dir: Path, folder: Path) -> None:
        self.random = random.Random(seed)
        self._state_dir = state_dir
        self._outside = folder / "outside"
        self._outside.mkdir()
        (self._outside / "kept").write_text("kept")
        self._contents = texts()
        self._ways: Sequence[Callable[[Path], None]] = [
            os.mkfifo, self._write, self._huge, self._listen, self._deep, self._wide, self._leave,
        ]  # fmt: skip
        self._links: Sequence[Callable[[Path], None]] = [
            lambda path: path.symlink_to(self._outside),
            lambda path: path.symlink_to(self._outside / "kept"),
            lambda path: path.symlink_to(path),
            lambda path: path.symlink_to("/proc/self"),
            lambda path: path.hardlink_to(self._outside / "kept"),
        ]

    def act(self) -> str:
        """Replace a file; return its name and what became of it."""
        own = self._state_dir / "trainers" / "1-0"
        paths = [own / name for name in (*FILES, *OTHERS) if name not in RECORDS]
        for validation in (self._state_dir / "validations").glob("3-*"):
            paths += [validation / name for name in ("validation.json", "log.txt", "code")]
        path = self.random.choice([path for path in paths if not path.parent.is_symlink()])
        subprocess.run(["rm", "-rf", path], check=True)
        ways = self._ways if path.name in WRITTEN else [*self._ways, *self._links]
        try:
            self.random.choice(ways)(path)
        except OSError as error:  # such as of a folder that is missing
            return f"{path.name}: {error}"
        return f"{path.name}: {path.lstat().st_mode:o}" if os.path.lexists(path) else path.name

    def outside(self) -> dict[str, str]:
        """Read what is outside the folders, where links lead."""
        return {path.name: path.read_text() for path in self._outside.iterdir()}

    def _leave(self, path: Path) -> None:
        """Let it be missing."""

    def _write(self, path: Path) -> None:
        path.write_bytes(self.random.choice(self._contents))

    def _huge(self, path: Path) -> None:
        path.touch()
        os.truncate(path, 2**40)  # takes no room

    def _listen(self, path: Path) -> None:
        folder = os.open(path.parent, os.O_PATH)  # its path is too long for an address
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"/proc/self/fd/{folder}/{path.name}")
        os.close(folder)

    def _deep(self, path: Path) -> None:
        path.mkdir()
        deep(path, self._outside)

    def _wide(self, path: Path) -> None:
        path.mkdir()
        wide(path, self._outside)


@pytest.mark.parametrize("seed", range(10))
def test_an_agent_goes_on_whatever_job_code_makes_of_its_folders(
    seed: int,
    plane: ControlPlane,
    drive: Callable[..., DrivenAgent],
    state_dir: Path,
    tmp_path: Path,
) -> None:
    driven = drive(kept_run_directories=1)
    vandal, done = Vandal(seed, state_dir, tmp_path), []
    own, honest = wanted_trainer(plane), wanted_trainer(plane, slot=1, job_id=2)
    plane.want(own, honest)
    driven.until(lambda: plane.reports(1, 0) and plane.reports(2, 1))
    for _ in range(NUM_TURNS):
        for _ in range(vandal.random.randrange(1, 6)):
            done.append(vandal.act())
            driven.agent.run_once(time.monotonic())
        if vandal.random.random() < 0.3:
            trainers = [honest, own][: vandal.random.randrange(1, 3)]
            plane.want(*trainers, validations=[wanted_validation(plane, 3, play="fine")])
        if vandal.random.random() < 0.1:
            driven.vanish()
            driven = drive(kept_run_directories=1)
        before = len(plane.reports(2, 1))
        driven.until(lambda count=before: len(plane.reports(2, 1)) > count)
    plane.want(honest)
    driven.until(lambda: (1, 0) not in driven.agent.trainers)
    assert ReportKind.EXITED in plane.kinds(1, 0)
    assert vandal.outside() == {"kept": "kept"}, done
