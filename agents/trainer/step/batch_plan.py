"""Plans one trainer's part in a step: its examples, and the order in which sums are reduced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from controlplane.core.protocol.wire import Membership, ReductionMode, TrainingSpec
from controlplane.core.virtual_nodes.mapping import even_bounds
from controlplane.core.virtual_nodes.reduction_tree import (
    ReductionPrograms,
    Schedule,
    plan_reduction,
    running_sum,
)


@dataclass(frozen=True)
class BatchPlan:
    """One trainer's part in a batch of `num_examples`.

    Attributes:
        virtual_nodes: its virtual nodes that have examples; ascending in the exact mode.
        positions: int64 [n_local], places in the batch, virtual node by virtual node.
        program: int32 [L, 4], per virtual node: offset and length in the local examples, merges
            after it, and 1 for the lowest virtual node of the whole batch.
        weights: float32 [L], each virtual node's share of the batch's examples.
        num_rows: number of this trainer's sums (0 without examples).
        rows_per_worker: number of rows to which every trainer pads.
        across: int32 [K, 2], program over all gathered rows: row and merges after it.
        examples_per_worker: most examples of a full batch that any trainer has.
    """

    num_examples: int
    virtual_nodes: tuple[int, ...]
    positions: np.ndarray
    program: np.ndarray
    weights: np.ndarray
    num_rows: int
    rows_per_worker: int
    across: np.ndarray
    examples_per_worker: int = 0


#: Plans kept of one membership. A job that tunes its batch size has a short last batch of another
#: size in each epoch.
PLANS_LIMIT = 64


class Planner:
    """Plans batches for one trainer in one membership; caches a plan per batch size."""

    def __init__(
        self, spec: TrainingSpec, membership: Membership, ranked_slots: Sequence[int], slot: int
    ) -> None:
        by_slot = {member.slot: member.virtual_nodes for member in membership.members}
        self.owned = [by_slot[ranked] for ranked in ranked_slots]
        self.rank = list(ranked_slots).index(slot)
        self.num_virtual_nodes = spec.num_virtual_nodes
        self.reduction = spec.reduction
        bounds = even_bounds(spec.global_batch_size, spec.num_virtual_nodes)
        everything = [1] * spec.num_virtual_nodes
        self.rows_per_worker = self._reduce(everything, None).rows_per_worker
        self.examples_per_worker = max(
            sum(bounds[leaf][1] - bounds[leaf][0] for leaf in leaves) for leaves in self.owned
        )
        self._plans: dict[int, BatchPlan] = {}

    def plan(self, num_examples: int) -> BatchPlan:
        """Plan a batch of `num_examples`, at least one."""
        if num_examples not in self._plans:
            if len(self._plans) == PLANS_LIMIT:
                del self._plans[next(iter(self._plans))]  # the oldest
            self._plans[num_examples] = self._make(num_examples)
        return self._plans[num_examples]

    def _reduce(self, sizes: Sequence[int], rows_per_worker: int | None) -> ReductionPrograms:
        """Plan the additions over virtual nodes with `sizes` examples.

        If the order is free (fast mode), virtual nodes of one size are adjacent.
        """
        present = [size > 0 for size in sizes]
        if self.reduction is ReductionMode.EXACT:
            return plan_reduction(self.num_virtual_nodes, present, self.owned, rows_per_worker)
        local = tuple(
            running_sum(
                sorted(
                    (leaf for leaf in leaves if present[leaf]), key=lambda leaf: (sizes[leaf], leaf)
                )
            )
            for leaves in self.owned
        )
        return ReductionPrograms(local=local, rows_per_worker=1, across=Schedule((), ()))

    def _make(self, num_examples: int) -> BatchPlan:
        bounds = even_bounds(num_examples, self.num_virtual_nodes)
        sizes = [high - low for low, high in bounds]
        reduction = self._reduce(sizes, self.rows_per_worker)
        mine = reduction.local[self.rank]
        lengths = np.array([sizes[leaf] for leaf in mine.items], np.int32)
        first = next(leaf for leaf, size in enumerate(sizes) if size)
        program = np.stack(
            [
                np.cumsum(lengths, dtype=np.int32) - lengths,
                lengths,
                np.array(mine.merges, np.int32),
                np.array([leaf == first for leaf in mine.items], np.int32),
            ],
            axis=1,
        )
        across = reduction.across
        positions = [np.arange(*bounds[leaf], dtype=np.int64) for leaf in mine.items]
        return BatchPlan(
            num_examples=num_examples,
            virtual_nodes=mine.items,
            positions=np.concatenate([np.zeros(0, np.int64), *positions]),
            program=program,
            weights=(lengths / num_examples).astype(np.float32),
            num_rows=mine.num_rows,
            rows_per_worker=reduction.rows_per_worker,
            across=np.array([across.items, across.merges], np.int32).reshape(2, -1).T.copy(),
            examples_per_worker=self.examples_per_worker,
        )


#: Separate streams of random numbers for training and validation steps, and for selection passes.
TRAINING_STREAM = 0
VALIDATION_STREAM = 1
SELECTION_STREAM = 2


def step_seeds(
    seed: int,
    stream: int,
    step: int,
    virtual_nodes: Sequence[int],
    num_virtual_nodes: int,
    num: int,
) -> np.ndarray:
    """Draw the states of `num` random generators for some virtual nodes in one step.

    The states depend on (job seed, stream, step, virtual node, generator) alone, not on mapping or
    process. Philox is counter-based: every step has its own stream.

    Returns int64 [len(virtual_nodes), num, 2] in [0, 2**31).
    """
    sequence = np.random.SeedSequence(entropy=(seed % 2**64, stream, step))
    generator = np.random.Generator(np.random.Philox(sequence))
    drawn = generator.integers(0, 2**31, size=(num_virtual_nodes, num, 2), dtype=np.int64)
    return drawn[np.array(virtual_nodes, np.int64)]
