"""Regret of the guard: jobs whose selection cannot pay, over plain ones of as many epochs.

Where nearly all examples are chosen, losses are computed for nothing. The guard decides by the
clock, as in every job; the cost is then counted, as in the races.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmarks.selection_runs.costs import Costs
from benchmarks.selection_runs.runs import job_spec, run
from benchmarks.specs import epochs_stop
from controlplane.core.protocol.selection import SelectionMethod, SelectionSpec

#: Chooses 91 % of the candidates.
SMALL_BETA = 0.1


def guard_regret(data: str, costs: Costs, num_epochs: int, seeds: Sequence[int]) -> float:
    """Return a guarded job's cost over a plain one's, the median over seeds; prints a row."""
    selection = SelectionSpec(method=SelectionMethod.SELECTIVE_BACKPROP, beta=SMALL_BETA)
    regrets, ends = [], []
    for seed in seeds:
        rows = run(job_spec({"data": data}, epochs_stop(num_epochs), selection, seed))
        last = rows[-1]
        per_epoch = rows[0].trained  # the first epoch trains on everything
        plain = per_epoch * num_epochs
        regrets.append(costs.of(last) / plain)
        ends.append(1 + round(last.candidates / per_epoch))
    found = statistics.median(regrets)
    without = (1 + (num_epochs - 1) * (costs.loss + costs.step / (1 + SMALL_BETA))) / num_epochs
    print(
        f"{data}: {found:.3f} over {num_epochs} epochs, stopped selecting at {ends}, "
        f"without a guard about {without:.3f}",
        flush=True,
    )
    return round(found, 3)
