"""Branches of a job's training state, kept in memory beside the present one.

A branch is a whole training state between two steps: the values of all variables of `ModelState`.
They are the tensors that the variables held: TensorFlow copies a variable when it is written while
such a tensor is alive, so that a fork costs no copy, and what is never written is shared by all
branches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Tensor = Any


class Branches:
    """The parked branches of one job in one trainer.

    All trainers of a membership change them after the same steps, so they have the same ones.

    Attributes:
        parked: number -> values in the order of `ModelState.variables`.
    """

    def __init__(
        self,
        capture: Callable[[], Sequence[Tensor]],
        put: Callable[[Sequence[Tensor]], None],
    ) -> None:
        """Keep branches of the state that `capture` reads without a copy and `put` assigns."""
        self.parked: dict[int, tuple[Tensor, ...]] = {}
        self._capture = capture
        self._put = put

    def fork(self, number: int) -> None:
        """Park the present state as branch `number`; the training goes on unchanged."""
        self.parked[number] = tuple(self._capture())

    def switch(self, number: int) -> None:
        """Go on from branch `number`, which stays parked.

        The state that was present is lost unless it was forked.
        """
        self._put(self.parked[number])

    def free(self, number: int) -> None:
        """Forget a branch, and with it the memory that only it uses."""
        del self.parked[number]
