"""One trainer's folder, and the agent's own records of it.

The trainer owns the folder, if jobs have users of their own. What the agent has to rely on is
beside it, in `<job>-<slot>.agent/`, which job code cannot write to then.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agents.state_directory import read_json, write_atomically
from agents.supervision.deletion import folder_delete
from agents.trainer.contract.plain_files import (
    plain_file_read,
    plain_file_size,
    plain_file_touch,
    plain_file_write,
)
from controlplane.core.protocol.wire import ReportKind, TrainerOrders, TrainerReport, decode, encode

log = logging.getLogger("agents")

#: Sequence numbers of reports that the agent writes itself start here.
AGENT_SEQUENCE = 1_000_000_000
_COUNT_LIMIT, _OFFSET_LIMIT = 2**31, 2**62
_OFFSETS = ("reports_offset", "agent_offset", "log_offset")
#: Reports of the agent itself about one trainer are a few lines.
_OWN_LIMIT_BYTES = 1024 * 1024
_RECORDS_SUFFIX = ".agent"
_NAME = re.compile(r"(\d{1,18})-(\d{1,9})")

TrainerKey = tuple[int, int]


@dataclass(slots=True)
class Shipped:
    """Offsets, in bytes, up to which the control plane has accepted a run directory's files."""

    reports_offset: int = 0
    agent_offset: int = 0
    log_offset: int = 0


class RunDirectory:
    """`<state dir>/trainers/<job>-<slot>/`, with the layout of docs/protocol.md.

    Attributes:
        owner: run directories of the same owner belong to the same user (`isolation`).
    """

    def __init__(self, parent: Path, key: TrainerKey) -> None:
        self.key = key
        self.owner = f"job {key[0]}"
        self.path = parent / f"{key[0]}-{key[1]}"
        self.code = self.path / "code"
        self.outputs = self.path / "outputs"
        self.log = self.path / "log.txt"
        self.restore = self.path / "restore.npz"
        self._orders = self.path / "orders.json"
        self.records = parent / f"{self.path.name}{_RECORDS_SUFFIX}"
        self.own_reports = self.records / "agent.jsonl"
        self.reports = self.path / "reports.jsonl"
        self.pulse = self.path / "pulse"
        self._alive = self.path / "alive"
        self.shipped = self._read_shipped()
        #: Own reports that could not be written. The next agent finds out anew what they say.
        self.unwritten: list[TrainerReport] = []
        self._num_own = 0

    @classmethod
    def all_in(cls, parent: Path) -> list[RunDirectory]:
        """List the run directories in `parent`, sorted by key; of some only records are left."""
        names = [entry.name for entry in parent.iterdir() if entry.is_dir()]
        matches = [_NAME.fullmatch(name.removesuffix(_RECORDS_SUFFIX)) for name in names]
        keys = sorted({(int(match[1]), int(match[2])) for match in matches if match})
        return [cls(parent, key) for key in keys]

    def prepare(self) -> None:
        """Create the folder from scratch, with empty subfolders."""
        self.delete()
        self.path.mkdir(mode=0o700)
        self.records.mkdir(mode=0o700)
        self.code.mkdir()
        self.outputs.mkdir()
        self.shipped = Shipped()

    def delete(self) -> None:
        """Remove the folder and the records, with everything in them."""
        folder_delete(self.path)
        folder_delete(self.records)

    @property
    def has_traces(self) -> bool:
        """True if a trainer ever wrote a log, a report or a pulse here."""
        return plain_file_size(self.log) > 0 or self.reports.exists() or self.pulse.exists()

    def adopted(self, number: int) -> Path:
        """Return the trainer's copy of the state of an adoption."""
        return self.path / f"adopted-{number}.npz"

    def read_orders(self) -> TrainerOrders | None:
        """Read the newest orders; None if missing or not valid."""
        try:
            orders = decode(TrainerOrders, read_json(self.records / "orders.json"))
        except ValueError:
            return None
        return orders if 0 <= orders.membership.generation < _COUNT_LIMIT else None

    def write_orders(self, orders: TrainerOrders) -> None:
        """Replace the orders, each copy atomically: the trainer's and then the agent's own.

        An agent that is killed in between, or finds no room, tells the trainer once more.
        """
        text = json.dumps(encode(orders))
        plain_file_write(self._orders, text.encode())
        write_atomically(self.records / "orders.json", text)

    def write_process(self, pid: int, started_at: float) -> None:
        """Record the process, for adoption by a later agent process."""
        text = json.dumps({"pid": pid, "started_at": started_at})
        write_atomically(self.records / "process.json", text)

    def read_process(self) -> tuple[int, float] | None:
        """Read the recorded process id and start, in seconds since the machine's start."""
        noted = read_json(self.records / "process.json")
        try:
            pid, started_at = int(noted["pid"]), float(noted["started_at"])
        except (TypeError, KeyError, ValueError, OverflowError):
            return None
        return (pid, started_at) if 1 < pid < _COUNT_LIMIT else None

    def write_secrets(self, secrets: Mapping[str, str]) -> None:
        """Record the secrets of the trainer, for the mask of a later agent process."""
        if secrets:
            write_atomically(self.records / "secrets.json", json.dumps(dict(secrets)))

    def read_secrets(self) -> dict[str, str]:
        """Read the recorded secrets; none if there are none, or they were forgotten."""
        noted = read_json(self.records / "secrets.json")
        if not isinstance(noted, dict):
            return {}
        return {name: value for name, value in noted.items() if isinstance(value, str)}

    def forget_secrets(self) -> None:
        """Delete the recorded secrets; nothing of the trainer is to be masked any more."""
        with contextlib.suppress(OSError):
            (self.records / "secrets.json").unlink(missing_ok=True)

    def touch_alive(self) -> None:
        """Signal to the trainer that its agent is alive."""
        with contextlib.suppress(OSError):  # a full disk, a folder that user code deleted
            plain_file_touch(self._alive)

    def write_shipped(self) -> None:
        """Store `shipped` for a restart of the agent."""
        shipped = self.shipped
        values = {name: getattr(shipped, name) for name in Shipped.__slots__}
        with contextlib.suppress(OSError):  # only causes repeats after a restart
            write_atomically(self.records / "shipped.json", json.dumps(values))

    def add_own_report(self, generation: int, kind: ReportKind, data: Mapping[str, Any]) -> None:
        """Append a report written by the agent, with the next sequence number.

        While the disk takes nothing it is kept in `unwritten`.
        """
        try:
            lines = plain_file_read(self.own_reports, _OWN_LIMIT_BYTES).decode().splitlines()
        except (OSError, ValueError):  # none yet, or job code has written there (isolation none)
            lines = []
        self._num_own = max(self._num_own, len(lines)) + 1
        report = TrainerReport(
            job_id=self.key[0],
            slot=self.key[1],
            generation=generation,
            sequence=AGENT_SEQUENCE + self._num_own - 1,
            at=time.time(),
            kind=kind,
            data=dict(data),
        )
        lines += [json.dumps(encode(one)) for one in (*self.unwritten, report)]
        try:
            self._records_ensure()
            if self.own_reports.is_dir() and not self.own_reports.is_symlink():
                folder_delete(self.own_reports)
            write_atomically(self.own_reports, "".join(f"{line}\n" for line in lines))
        except OSError as error:
            log.warning("a report of %s is in memory only: %s", self.path.name, error)
            self.unwritten.append(report)
        else:
            self.unwritten = []

    def _records_ensure(self) -> None:
        """Create the folder of records if job code has deleted, closed or replaced it."""
        if self.records.is_symlink() or self.records.is_file():
            self.records.unlink()
        self.records.mkdir(exist_ok=True, mode=0o700)
        self.records.chmod(0o700)

    def _read_shipped(self) -> Shipped:
        noted = read_json(self.records / "shipped.json")
        try:
            offsets = [int(noted[name]) for name in _OFFSETS]
        except (KeyError, TypeError, ValueError, OverflowError):
            return Shipped()  # everything is sent again; the control plane drops repeats
        if not all(0 <= offset < _OFFSET_LIMIT for offset in offsets):
            return Shipped()
        return Shipped(*offsets)
