"""Rules for the batch size bounds of a submission."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from controlplane.core.estimates.batch_size import batch_bounds
from controlplane.core.protocol.wire import StopKind

if TYPE_CHECKING:
    from jobs.services.submission.rules import Submission

#: Fields that the rules involve.
BATCH_FIELDS = frozenset(
    {"global_batch_size", "batch_size_min", "batch_size_max", "num_virtual_nodes", "stop_kind"}
)


def batch_errors(submission: Submission) -> Iterator[tuple[str, str]]:
    """Yield (field, message) for every rule about batch size bounds that a submission breaks."""
    low, high = submission.batch_size_min, submission.batch_size_max
    if low is None and high is None:
        return
    if low is None or high is None:
        missing = "batch_size_min" if low is None else "batch_size_max"
        yield missing, "Give both batch_size_min and batch_size_max, or neither: a fixed batch."
        return
    batch_size, num_virtual_nodes = submission.global_batch_size, submission.num_virtual_nodes
    if submission.stop.kind is StopKind.STEPS:
        yield (
            "stop_kind",
            "With a batch size that may change a step is no fixed amount of work: stop after "
            "epochs or at a metric, or leave out batch_size_min and batch_size_max.",
        )
    if num_virtual_nodes < 2:
        yield (
            "num_virtual_nodes",
            "Use at least 2: the batch size follows the noise between their gradients.",
        )
    if low > batch_size:
        yield "batch_size_min", f"Give at most {batch_size}, the batch that it begins with."
    if high < batch_size:
        yield "batch_size_max", f"Give at least {batch_size}, the batch that it begins with."
    if low < num_virtual_nodes:
        yield "batch_size_min", f"Give at least {num_virtual_nodes}, one example a virtual node."
    elif low <= high and batch_bounds(low, high, num_virtual_nodes) is None:
        yield (
            "batch_size_max",
            f"No multiple of the {num_virtual_nodes} virtual nodes lies between {low} and {high}; "
            "give wider bounds.",
        )
