"""Programs of the reduction tree, run on plain values."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from controlplane.core.virtual_nodes.reduction_tree import Schedule

Item = TypeVar("Item")


def execute(
    schedule: Schedule, item: Callable[[int], Item], add: Callable[[Item, Item], Item]
) -> list[Item]:
    """Run a program; the reference for the tensor version in the trainer."""
    stack: list[Item] = []
    for index, merges in zip(schedule.items, schedule.merges, strict=True):
        stack.append(item(index))
        for _ in range(merges):
            right = stack.pop()
            stack.append(add(stack.pop(), right))
    return stack
