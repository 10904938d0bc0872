"""Assignment of examples to virtual nodes, and of virtual nodes to accelerators.

A job's batch is split over its virtual nodes once and for all; the virtual nodes are spread over
the accelerators that the job holds at the moment. Both splits are contiguous and even to within
one, so that block sums in the reduction tree stay as large as possible.
"""

from __future__ import annotations


def even_bounds(total: int, parts: int) -> tuple[tuple[int, int], ...]:
    """Split `range(total)` into `parts` half-open ranges `[i*total//parts, (i+1)*total//parts)`.

    Ranges differ in length by at most one; some are empty when `total < parts`, as slices of the
    last batch of an epoch may be, which can hold fewer examples than there are virtual nodes.

    Raises:
        ValueError: `total` is negative or `parts` is not positive.
    """
    if total < 0:
        raise ValueError(f"total must not be negative, got {total}")
    if parts < 1:
        raise ValueError(f"parts must be at least 1, got {parts}")
    return tuple((i * total // parts, (i + 1) * total // parts) for i in range(parts))


def even_mapping(num_virtual_nodes: int, num_accelerators: int) -> tuple[tuple[int, ...], ...]:
    """Map virtual nodes to accelerators: contiguous runs, lengths equal to within one.

    Raises:
        ValueError: there are fewer virtual nodes than accelerators (an accelerator would idle).
    """
    if num_accelerators > num_virtual_nodes:
        raise ValueError(
            f"{num_virtual_nodes} virtual nodes cannot occupy {num_accelerators} accelerators; "
            "use at most as many accelerators as virtual nodes"
        )
    return tuple(
        tuple(range(low, high)) for low, high in even_bounds(num_virtual_nodes, num_accelerators)
    )
