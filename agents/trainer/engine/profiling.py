"""A joiner times its own virtual nodes while it gets ready, so that the first split is a good one.

What it times is what it will do alone in a step: run its virtual nodes, update. The order is from
few to many, within a bound; what is not reached is not reported.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from agents.trainer.engine.workload import Workload
from agents.trainer.model.progress import Progress
from agents.trainer.step.batch_plan import Planner
from agents.trainer.step.functions import StepFunctions
from agents.trainer.step.stepper import local_rows, step_failures
from controlplane.core.protocol.wire import Member, Membership, TrainingSpec

#: Time that a whole profile may take; a size that would not fit is left out.
BUDGET_S = 1.0

#: Runs of one size at most; the median counts, the first of all sizes does not.
RUNS = 5


def profile_measure(
    work: Workload, functions: StepFunctions, spec: TrainingSpec, num_virtual_nodes: int
) -> dict[int, float]:
    """Time 1, 2, 4 ... virtual nodes, up to `num_virtual_nodes`; the state is put back.

    Returns:
        Seconds of one step's computing by number of virtual nodes; 1 is always there.

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
    """Plan for a trainer that has the first `number` virtual nodes, beside one with the rest."""
    parts = [tuple(range(number)), tuple(range(number, spec.num_virtual_nodes))]
    members = tuple(
        Member(slot=slot, node_id=0, accelerator_index=slot, virtual_nodes=part)
        for slot, part in enumerate(parts)
        if part
    )
    membership = Membership(
        generation=0, members=members, leader_slot=0, source_slot=None, declaration=()
    )
    return Planner(spec, membership, [member.slot for member in members], 0)


def _median_s(work: Workload, functions: StepFunctions, planner: Planner, deadline: float) -> float:
    """Time one size a few times; the first run is thrown away if there is time for others."""
    seconds: list[float] = []
    for _ in range(RUNS + 1):
        seconds.append(_run_s(work, functions, planner))
        if time.monotonic() + seconds[-1] > deadline:
            break
    return statistics.median(seconds[1:] or seconds)


def _run_s(work: Workload, functions: StepFunctions, planner: Planner) -> float:
    """Run the job's first batch once, its data included: whoever trains fetches it, too."""
    position = Progress()
    order = np.arange(work.data.course.bounds(position)[1], dtype=np.int64)
    batch = work.data.local_batch(planner, order, position)
    started_at = time.perf_counter()
    with step_failures():
        rows = local_rows(functions.train, batch)
        np.asarray(functions.apply(tf.reduce_sum(rows, 0)))  # waits for it, on any device
    return time.perf_counter() - started_at
