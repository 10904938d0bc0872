"""Number of virtual nodes with which a slice of a job's batch fits into an accelerator's memory.

A trainer runs its virtual nodes one after another, so it needs memory for one slice, however many
there are. The need is measured on real steps with slices of several sizes, which make a line:

    bytes(slice) = base_bytes + bytes_per_example * slice
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: Part of an accelerator's memory that is left free: fragments, threads' scratch space, noise.
MARGIN = 0.1
#: The same for a GPU, whose libraries allocate workspaces that a measurement on a CPU cannot show.
GPU_MARGIN = 0.25
#: Memory of a trainer's RPC server beside the measured process (seen: 41 MB), and of its
#: checkpoints' buffers and prefetched data.
TRAINER_BYTES = 64 * 1024**2
#: Memory that the driver keeps on a GPU for each process.
GPU_CONTEXT_BYTES = 1024**3
#: Examples of a slice when an example needs next to no memory.
_LARGEST_SLICE = 10**12


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Measured memory of a job's steps.

    Attributes:
        process_bytes: the process with the model built and the data loaded, before any step.
        base_bytes: additional memory of a step for any slice: gradients, sums, scratch space.
        bytes_per_example: activations of one example.
        state_bytes: variables and optimizer state, part of `process_bytes`.
        num_kept_states: states beside that one, in a job that is tuned.
    """

    process_bytes: float
    base_bytes: float
    bytes_per_example: float
    state_bytes: float = 0.0
    num_kept_states: int = 0

    @property
    def kept_bytes(self) -> float:
        return self.num_kept_states * self.state_bytes

    def fixed_bytes(self, is_gpu: bool) -> float:
        """Return the part of a trainer's memory on an accelerator that is independent of the slice.

        On a GPU the program and the data stay in the host's memory; variables are on the device.
        """
        if is_gpu:
            return GPU_CONTEXT_BYTES + self.state_bytes + self.kept_bytes + self.base_bytes
        return TRAINER_BYTES + self.process_bytes + self.kept_bytes + self.base_bytes


@dataclass(frozen=True, slots=True)
class Fit:
    """Fit of a job on one kind of accelerator.

    Attributes:
        memory_bytes: memory of the smallest accelerator of the kind.
        usable_bytes: part of it that a trainer may use; the rest is margin.
        num_virtual_nodes: least number with which a slice fits; None: not even one example does.
        slice_bytes: memory of a trainer with the requested number of virtual nodes.
        is_enough: whether the requested number suffices.
    """

    kind: str
    memory_bytes: int
    usable_bytes: float
    num_virtual_nodes: int | None
    slice_bytes: float
    is_enough: bool


def memory_need_read(facts: Mapping[str, Any]) -> MemoryNeed | None:
    """Read a validation's facts; None when memory was not measured, or not in a known format."""
    found = facts.get("memory")
    if not isinstance(found, Mapping):
        return None
    names = ("process_bytes", "base_bytes", "bytes_per_example")
    values = [found.get(name) for name in names] + [facts.get("state_bytes", 0)]
    numbers = [float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numbers) != len(values) or not all(math.isfinite(n) and n >= 0 for n in numbers):
        return None
    process_bytes, base_bytes, bytes_per_example, state_bytes = numbers
    return MemoryNeed(process_bytes, base_bytes, bytes_per_example, state_bytes)


def line_fit(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Draw the steepest line through the last of some points (slice, bytes above the process).

    The same step holds one buffer more or less, depending on the timing of threads. The steepest
    line is the careful one where a smaller slice was seen with more of them than the largest.

    Args:
        points: at least one; slices ascend.

    Returns:
        Base and bytes per example, neither below zero; where no line rises, or its base would be
        negative, the line through zero to the most bytes of all at the last slice.
    """
    slices = [examples for examples, _ in points]
    if not slices or slices[0] < 1 or slices != sorted(set(slices)):
        raise ValueError(f"slices must ascend from 1, got {slices}")
    many, many_bytes = points[-1]
    slope = max(
        ((many_bytes - few_bytes) / (many - few) for few, few_bytes in points[:-1]), default=0.0
    )
    base = many_bytes - slope * many
    if slope <= 0 or base < 0:
        return 0.0, max(0.0, *(few_bytes for _, few_bytes in points)) / many
    return base, slope


def usable_bytes(memory_bytes: int, is_gpu: bool) -> float:
    """Return the part of an accelerator's memory that a trainer may use."""
    return memory_bytes * (1.0 - (GPU_MARGIN if is_gpu else MARGIN))


def largest_slice(need: MemoryNeed, memory_bytes: int, is_gpu: bool) -> int:
    """Return the largest number of examples of a slice; 0 when not even one fits."""
    usable = usable_bytes(memory_bytes, is_gpu) - need.fixed_bytes(is_gpu)
    if usable <= 0:
        return 0
    if need.bytes_per_example <= usable / _LARGEST_SLICE:
        return _LARGEST_SLICE
    return int(usable // need.bytes_per_example)


def virtual_nodes_needed(
    need: MemoryNeed, memory_bytes: int, is_gpu: bool, global_batch_size: int
) -> int | None:
    """Return the least number of virtual nodes whose slices fit; None when there is none.

    The largest of V slices of a batch of B examples has ceil(B / V).
    """
    if global_batch_size < 1:
        raise ValueError(f"global_batch_size must be at least 1, got {global_batch_size}")
    limit = largest_slice(need, memory_bytes, is_gpu)
    return None if limit < 1 else -(-global_batch_size // limit)


def fit_of(
    need: MemoryNeed,
    kind: str,
    memory_bytes: int,
    is_gpu: bool,
    global_batch_size: int,
    num_virtual_nodes: int,
) -> Fit:
    """Compare a job with one kind of accelerator."""
    needed = virtual_nodes_needed(need, memory_bytes, is_gpu, global_batch_size)
    examples = -(-global_batch_size // num_virtual_nodes)
    return Fit(
        kind=kind,
        memory_bytes=memory_bytes,
        usable_bytes=usable_bytes(memory_bytes, is_gpu),
        num_virtual_nodes=needed,
        slice_bytes=need.fixed_bytes(is_gpu) + need.bytes_per_example * examples,
        is_enough=needed is not None and needed <= num_virtual_nodes,
    )
