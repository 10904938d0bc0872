"""Folders of jobs are deleted whatever is in them, and nothing outside."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from agents.settings import AgentSettings
from agents.supervision import deletion, isolation, leftovers
from agents.supervision.deletion import DELETED_PREFIX, deletions_resume, folder_delete
from agents.supervision.isolation import Isolation
from agents.supervision.run_directory import RunDirectory
from agents.supervision.validations import ValidationAttempt, validations_sweep
from controlplane.core.protocol.node_messages import WantedValidation
from tests.agents.builders import training_spec
from tests.agents.conftest import deletions_wait

#: More than Python calls functions in each other, and than a process opens files.
LEVELS = 1200


@pytest.fixture(autouse=True)
def _deletes_what_a_failed_test_leaves(tmp_path: Path) -> Iterator[None]:
    """Delete folders by `rm`, as pytest fails over a thousand levels."""
    yield
    deletions_wait()
    subprocess.run(["rm", "-rf", *tmp_path.iterdir()], check=True)


def deep(folder: Path, _outside: Path) -> None:
    here = os.open(folder, os.O_PATH)
    for _ in range(LEVELS):
        os.mkdir("a", dir_fd=here)
        inner = os.open("a", os.O_PATH, dir_fd=here)
        os.close(here)
        here = inner
    os.close(os.open("last", os.O_CREAT, dir_fd=here))
    os.close(here)


def wide(folder: Path, _outside: Path) -> None:
    for number in range(200):
        (folder / f"folder-{number}").mkdir()
        (folder / f"file-{number}").touch()


def closed(folder: Path, _outside: Path) -> None:
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "b" / "file").touch()
    for path in (folder / "a" / "b", folder / "a", folder):
        path.chmod(0)


def pointing_outside(folder: Path, outside: Path) -> None:
    inner = folder / "inner"
    inner.mkdir()
    for place in (folder, inner):
        (place / "link").symlink_to(outside)
        (place / "link of a file").symlink_to(outside / "kept")
        (place / "second name").hardlink_to(outside / "kept")
        os.mkfifo(place / "pipe")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(place / "s"))
    (folder / f"{DELETED_PREFIX}own").mkdir()


def a_link(folder: Path, outside: Path) -> None:
    folder.rmdir()
    folder.symlink_to(outside)


def a_file(folder: Path, _outside: Path) -> None:
    folder.rmdir()
    folder.touch()


def settings_of(folder: Path) -> AgentSettings:
    return AgentSettings(server="http://127.0.0.1:9", node="a", state_dir=folder)


def by_run_directory(folder: Path) -> None:
    RunDirectory(folder.parent, (4, 2)).prepare()
    assert not list((folder / "code").iterdir())
    RunDirectory(folder.parent, (4, 2)).delete()


def by_validation(folder: Path) -> None:
    spec = training_spec("a" * 64)
    wanted = WantedValidation(
        validation_id=4, attempt=2, spec=spec, code_name="job.py", timeout_s=1.0
    )
    around = cast(Any, SimpleNamespace(settings=settings_of(folder)))
    ValidationAttempt(wanted, folder.parent, around).delete()


def by_sweep(folder: Path) -> None:
    validations_sweep(folder.parent, Isolation(settings_of(folder), 1))


def by_a_later_process(folder: Path) -> None:
    folder.rename(folder.with_name(f"{DELETED_PREFIX}before"))
    deletions_resume(folder.parent)


FILLS = [deep, wide, closed, pointing_outside, a_link, a_file]
DELETERS = [by_run_directory, by_validation, by_sweep, by_a_later_process]


@pytest.mark.parametrize(
    ("delete", "fill"),
    [(folder_delete, fill) for fill in FILLS]
    + [(delete, fill) for delete in DELETERS for fill in (deep, a_link, a_file)],
)
def test_a_folder_is_deleted_with_all_that_is_in_it(
    delete: Callable[[Path], None],
    fill: Callable[[Path, Path], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deletion, "_MOVED_LIMIT", 50)  # far below what is in a wide one
    outside, parent = tmp_path / "outside", tmp_path / "parent"
    for folder in (outside, parent, parent / "4-2"):
        folder.mkdir()
    (outside / "kept").write_text("kept")
    mode = outside.stat().st_mode
    fill(parent / "4-2", outside)
    delete(parent / "4-2")
    assert not os.path.lexists(parent / "4-2")
    deletions_wait()
    assert not list(parent.iterdir())
    assert [path.read_text() for path in outside.iterdir()] == ["kept"]
    assert outside.stat().st_mode == mode


@pytest.mark.parametrize("fill", [deep, wide, pointing_outside])
def test_what_a_user_leaves_in_shared_folders_is_deleted_before_it_is_anothers(
    fill: Callable[[Path, Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside, shared = tmp_path / "outside", tmp_path / "shared"
    for folder in (outside, shared, shared / "left"):
        folder.mkdir()
    (outside / "kept").write_text("kept")
    fill(shared / "left", outside)
    (shared / "file").touch()
    monkeypatch.setattr(leftovers, "shared_folders", lambda: {str(shared)})
    users = Isolation(settings_of(tmp_path), 1)
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    monkeypatch.setattr(users, "_users", {run_dir: os.geteuid()})
    owners = {os.geteuid(): "4"}
    monkeypatch.setattr(users, "_owners", owners)
    monkeypatch.setattr(users, "_is_killed", lambda _uid: True)
    monkeypatch.setattr(isolation, "_ipc_deleted", lambda _uid: True)
    assert users.is_cleared(run_dir)
    rounds = 0
    while users.is_deleting:
        assert owners, "the user is nobody else's yet"
        users.step()
        rounds += 1
        assert rounds < 10_000
    assert not owners
    assert not list(shared.iterdir())
    assert [path.read_text() for path in outside.iterdir()] == ["kept"]
