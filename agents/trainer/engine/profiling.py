"""Times a joiner's virtual nodes before it joins, so that the first split is a good one.

Each measurement covers the local part of a step: running the virtual nodes and the update. Sizes
go from few to many virtual nodes within a time budget; sizes not reached are not reported.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from agents.trainer.engine.workload import BuiltJob
from agents.trainer.model.progress import Progress
from agents.trainer.step.batch_plan import Planner
from agents.trainer.step.functions import StepFunctions
from agents.trainer.step.stepper import local_rows, step_failures
from controlplane.core.protocol.wire import Member, Membership, TrainingSpec

#: Time that a whole profile may take; a size that would not fit is left out.
BUDGET_S = 1.0

#: Most timed runs of one size; the median counts. The first run of each size is discarded.
RUNS = 5


def profile_measure(
    work: BuiltJob, functions: StepFunctions, spec: TrainingSpec, num_virtual_nodes: int
) -> dict[int, float]:
    """Time 1, 2, 4 ... virtual nodes, up to `num_virtual_nodes`; restores the state.

    Returns:
        Seconds of one step's computation by number of virtual nodes; 1 is always present.

    Raises:
        TrainerError: the model or its data failed.
    """
    before = work.state.capture()
    deadline = time.monotonic() + BUDGET_S
    found: dict[int, float] = {}
    try:
        for number in _sizes(num_virtual_nodes):
            last_s = found[max(found)] if found else 0.0
            if found and time.monotonic() + 2.0 * last_s > deadline:
                break
            found[number] = _median_s(work, functions, _planner(spec, number), deadline)
    finally:
        work.state.put(before)
    return found


def _sizes(most: int) -> Iterator[int]:
    number = 1
    while number < most:
        yield number
        number *= 2
    yield most


def _planner(spec: TrainingSpec, number: int) -> Planner:
    """Plan for a trainer with the first `number` virtual nodes; another one has the rest."""
    parts = [tuple(range(number)), tuple(range(number, spec.num_virtual_nodes))]
    members = tuple(
        Member(slot=slot, node_id=0, accelerator_index=slot, virtual_nodes=part)
        for slot, part in enumerate(parts)
        if part
    )
    membership = Membership(
        generation=0, members=members, leader_slot=0, source_slot=None, cluster_addresses=()
    )
    return Planner(spec, membership, [member.slot for member in members], 0)


def _median_s(work: BuiltJob, functions: StepFunctions, planner: Planner, deadline: float) -> float:
    """Time one size up to `RUNS` + 1 times; discards the first run if there are others."""
    seconds: list[float] = []
    for _ in range(RUNS + 1):
        seconds.append(_run_s(work, functions, planner))
        if time.monotonic() + seconds[-1] > deadline:
            break
    return statistics.median(seconds[1:] or seconds)


def _run_s(work: BuiltJob, functions: StepFunctions, planner: Planner) -> float:
    """Time one run of the job's first batch, including fetching its data, as in training."""
    position = Progress()
    order = np.arange(work.data.schedule.bounds(position)[1], dtype=np.int64)
    batch = work.data.local_batch(planner, order, position)
    started_at = time.perf_counter()
    with step_failures():
        parts = batch.repeated(len(functions.turns))
        for turn, part in zip(functions.turns, parts, strict=True):
            rows = local_rows(turn.train, part)
            np.asarray(turn.apply(tf.reduce_sum(rows, 0)))  # waits for the result on any device
    return time.perf_counter() - started_at
