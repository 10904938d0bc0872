"""Batch sizes of the trials of a job that tunes its batch size."""

from __future__ import annotations

from itertools import takewhile

from controlplane.core.protocol.tuning import TunableRange
from controlplane.core.protocol.wire import StopKind

#: Most sizes of a search: each has kernels and plans of its own in every trainer.
SIZES_LIMIT = 24


def batch_sizes(span: TunableRange, num_virtual_nodes: int) -> tuple[int, ...]:
    """List the sizes that trials may have, ascending: multiples of the number of virtual nodes.

    With `log` each one is twice the one before it, otherwise they are equally far apart.

    Raises:
        ValueError: there are fewer than two.
    """
    first, last = -(-int(span.low) // num_virtual_nodes), int(span.high) // num_virtual_nodes
    if span.log:
        doubled = (first << exponent for exponent in range(SIZES_LIMIT))
        multiples = list(takewhile(lambda multiple: multiple <= last, doubled))
    else:
        multiples = list(range(first, last + 1, max(1, -(-(last - first) // (SIZES_LIMIT - 1)))))
    if len(multiples) < 2:
        doubling = ", each twice the one before it," if span.log else ""
        raise ValueError(
            f"tuning.space.batch_size leaves fewer than two sizes: they are multiples of the "
            f"{num_virtual_nodes} virtual nodes{doubling} from {span.low:g} to {span.high:g}; give "
            "wider bounds"
        )
    return tuple(multiple * num_virtual_nodes for multiple in multiples)


def batch_size_conflict(
    span: TunableRange,
    num_virtual_nodes: int,
    stop_kind: StopKind,
    *,
    selects: bool,
    is_parallel: bool,
) -> str | None:
    """Return why a job cannot tune its batch size in this range, and the fix; None if it can."""
    if stop_kind is StopKind.STEPS:
        return (
            "tuning.space.batch_size makes a step no fixed amount of work; stop after epochs or at "
            "a metric, or leave batch_size out"
        )
    if selects:
        return (
            "tuning.space.batch_size cannot be searched with a selection, whose passes and queue "
            "are made for one size; leave out batch_size, or selection"
        )
    if is_parallel:
        return (
            "tuning.space.batch_size cannot be searched with tuning.parallel, whose trials take as "
            "many steps as the job does; leave out one of them"
        )
    try:
        batch_sizes(span, num_virtual_nodes)
    except ValueError as error:
        return str(error)
    return None
