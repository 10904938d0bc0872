"""The line that the leader writes into the job's log at the end of each epoch."""

from __future__ import annotations

import datetime

from agents.trainer.model.history import EpochRow
from controlplane.core.protocol.wire import StopCondition, StopKind


def epoch_line(
    row: EpochRow, stop: StopCondition, num_accelerators: int, at: datetime.datetime
) -> str:
    """Describe a finished epoch: when it ended, its metrics, its time and its speed."""
    stamp = at.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    is_by_steps = stop.kind is StopKind.STEPS
    epoch = f"epoch {row.epoch + 1}" + ("" if is_by_steps else f"/{stop.limit}")
    step = f"step {row.step}" + (f"/{stop.limit}" if is_by_steps else "")
    facts = [f"{name} {value:.6g}" for name, value in row.logs.items()]
    facts += [
        f"{row.seconds:.2f} s",
        f"{row.examples_per_s:,.0f} examples/s",
        f"{num_accelerators} accelerator" + "s" * (num_accelerators != 1),
    ]
    return f"{stamp} {epoch}, {step}: {', '.join(facts)}"
