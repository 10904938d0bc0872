"""Limits by cgroups, version 2, where a part of the hierarchy is delegated to the agent."""

from __future__ import annotations

import contextlib
from pathlib import Path

PROC_CGROUP = Path("/proc/self/cgroup")
MOUNTS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
CONTROLLERS = ("memory", "pids", "cpu")
#: Group of the agent itself. Where systemd starts it there (DelegateSubgroup=), it can be started
#: again while jobs have groups beside: the kernel lets no process into the group above then.
OWN_GROUP = "virtualflow-agent"
#: Shares of processor time when it is short: the agent's heartbeats come before jobs, which are
#: equal.
AGENT_WEIGHT, JOB_WEIGHT = 1000, 100


class Cgroups:
    """The agent's part of the hierarchy: a group for itself, and one for each run directory."""

    def __init__(self, root: Path) -> None:
        """Move the processes of `root` into a group below it, and give jobs the controllers.

        Raises:
            OSError: the part is not delegated to this process.
        """
        self._root = root
        own = root / OWN_GROUP
        own.mkdir(exist_ok=True)
        # A group whose children have controllers must have no processes of its own.
        for pid in (root / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                (own / "cgroup.procs").write_text(pid)
        enabled = " ".join(f"+{name}" for name in CONTROLLERS)
        (root / "cgroup.subtree_control").write_text(enabled)
        (own / "cpu.weight").write_text(str(AGENT_WEIGHT))

    @classmethod
    def find(cls, mounts: tuple[Path, ...] = MOUNTS, own: Path = PROC_CGROUP) -> Cgroups | None:
        """Find the agent's part; None if it is not writable or lacks a controller."""
        try:
            lines = own.read_text().splitlines()
            place = next(line[3:] for line in lines if line.startswith("0::"))
        except (OSError, StopIteration):
            return None
        for mount in mounts:
            root = mount / place.removesuffix(f"/{OWN_GROUP}").strip("/")
            with contextlib.suppress(OSError):
                if {*CONTROLLERS} <= {*(root / "cgroup.controllers").read_text().split()}:
                    return cls(root)
        return None

    def make(self, run_dir: Path, memory_bytes: int, num_processes: int) -> Path:
        """Make the group of a run directory, with limits.

        Raises:
            OSError: the kernel refuses.
        """
        group = self._group(run_dir)
        group.mkdir(exist_ok=True)
        (group / "memory.max").write_text(str(memory_bytes))
        (group / "pids.max").write_text(str(num_processes))
        (group / "cpu.weight").write_text(str(JOB_WEIGHT))
        return group

    def kill(self, run_dir: Path) -> None:
        """Kill all processes of a group at once; it may be gone already."""
        with contextlib.suppress(OSError):
            (self._group(run_dir) / "cgroup.kill").write_text("1")

    def remove(self, run_dir: Path) -> bool:
        """Remove a group without processes; return False while there are some."""
        group = self._group(run_dir)
        with contextlib.suppress(FileNotFoundError):
            if (group / "cgroup.procs").read_text().split():
                return False
            group.rmdir()
        return True

    def _group(self, run_dir: Path) -> Path:
        # A trainer and a validation, of different users, may have the same numbers.
        return self._root / f"{run_dir.parent.name}-{run_dir.name}"
