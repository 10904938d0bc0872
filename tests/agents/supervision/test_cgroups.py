"""Cgroups of version 2, on a folder that looks like a delegated part of the hierarchy."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from agents.supervision.cgroups import OWN_GROUP, Cgroups
from tests.support.present import present


@pytest.fixture
def mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a mount whose group /slice/agent is delegated; the kernel's files are plain ones."""
    root = tmp_path / "mount" / "slice" / "agent"
    root.mkdir(parents=True)
    (root / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    (root / "cgroup.procs").write_text("12\n13\n")
    (tmp_path / "own").write_text("4:memory:/elsewhere\n0::/slice/agent\n")
    # The kernel removes a group together with its files.
    monkeypatch.setattr(Path, "rmdir", shutil.rmtree)
    return tmp_path / "mount"


def found(mount: Path) -> Cgroups | None:
    return Cgroups.find((mount.parent / "none", mount), mount.parent / "own")


def test_jobs_have_groups_with_limits_and_the_agent_one_of_its_own(mount: Path) -> None:
    groups = present(found(mount))
    root = mount / "slice" / "agent"
    assert (root / OWN_GROUP / "cgroup.procs").read_text() == "13"  # one write a process
    assert (root / "cgroup.subtree_control").read_text() == "+memory +pids +cpu"
    trainer, validation = mount / "trainers" / "7-1", mount / "validations" / "7-1"
    group = groups.make(trainer, 2**30, 100)
    assert group.parent == root
    assert groups.make(validation, 2**30, 100) != group
    limits = {path.name: path.read_text() for path in group.iterdir()}
    assert limits == {"memory.max": "1073741824", "pids.max": "100", "cpu.weight": "100"}
    (group / "cgroup.procs").write_text("99\n")
    groups.kill(trainer)
    assert (group / "cgroup.kill").read_text() == "1"
    assert not groups.remove(trainer)
    (group / "cgroup.procs").write_text("")
    assert groups.remove(trainer)
    assert not group.exists()
    groups.kill(trainer)
    assert groups.remove(trainer)
    # The next agent is started in the group of the one before.
    (mount.parent / "own").write_text(f"0::/slice/agent/{OWN_GROUP}\n")
    again = present(found(mount))
    assert again.make(trainer, 2**30, 100) == group


@pytest.mark.parametrize("lack", ["controller", "version", "right"])
def test_without_a_delegated_part_there_are_none(mount: Path, lack: str) -> None:
    root = mount / "slice" / "agent"
    if lack == "controller":
        (root / "cgroup.controllers").write_text("cpu io pids\n")
    elif lack == "version":
        (mount.parent / "own").write_text("4:memory:/slice/agent\n")
    else:
        (root / OWN_GROUP).write_text("")  # no folder can be made
    assert found(mount) is None
