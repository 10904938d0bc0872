"""Classification of lost trainers, and texts for the reasons."""

from __future__ import annotations

import datetime
import signal
from collections.abc import Sequence
from typing import Any

from controlplane.core.values.lifecycle import NodeStatus
from jobs.models import Allocation

#: Code of a joiner whose process is fine, but every holder of the job's state was lost first.
STATE_LOST = "state_lost"
#: Code of a trainer that its node did not have, though the control plane had heard of it.
MISSING = "missing"
#: Texts of losses that an exit status does not explain.
_TEXTS = {
    "node_lost": "its node is not heard of any more",
    "unreachable": "the others could not reach it",
    "timeout": "it did not get ready or follow in time",
    "port_in_use": "its port was taken",
    "internal": "it failed",
    "memory_kill": "the kernel ended it because the node's memory ran out",
    "peer_lost": "it gave up when another one was lost",
    MISSING: "its node no longer has it, as after a restored backup",
    STATE_LOST: "nobody was left who had the job's state",
    "stopped": "it was told to stop",
}


def is_lost(row: Allocation) -> bool:
    """Return whether a trainer with work left is certainly gone."""
    node = row.accelerator.node
    return bool(
        row.released_at
        or row.stop_requested_at
        or row.lost_code
        or node.removed_at
        or node.status == NodeStatus.LOST
    )


def loss_text(row: Allocation) -> str:
    """Describe which trainer was lost and why; needs the row's accelerator and node."""
    where = f"the trainer in slot {row.slot} on {row.accelerator.node.name}"
    if row.lost_code in _TEXTS:
        return f"{where}: {_TEXTS[row.lost_code]}"
    return f"{where} ended{exit_text(row.exit_code)}"


def exit_text(exit_code: int | None) -> str:
    """Describe how a process ended; signals by name."""
    if exit_code is None:
        return ""
    try:
        name = f" ({signal.Signals(-exit_code).name})" if exit_code < 0 else ""
    except ValueError:
        name = ""
    return f" with status {exit_code}{name}"


def losses_text(rows: Sequence[Allocation]) -> str:
    """Describe several losses in one sentence; at most three in full."""
    texts = [loss_text(row) for row in rows[:3]]
    if len(rows) > 3:
        texts.append(f"and {len(rows) - 3} more")
    return "; ".join(texts)


def loss_facts(row: Allocation, now: datetime.datetime) -> dict[str, Any]:
    """Return one loss in the form stored in events and generations."""
    return {
        "slot": row.slot,
        "node": row.accelerator.node.name,
        "code": row.lost_code or "stopped",
        "exit_code": row.exit_code,
        "noticed_at": now.isoformat(),
    }
