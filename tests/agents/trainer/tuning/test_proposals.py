"""Proposals for trials: from the space, and the same from every leader."""

from __future__ import annotations

from dataclasses import replace

from agents.trainer.tuning.proposals import Proposals
from controlplane.core.protocol.tuning import TunableRange, TuningSpec
from controlplane.core.tuning.convergence import Verdict
from controlplane.core.tuning.search import Search, Trial

SPEC = TuningSpec(
    space={
        "batch_size": TunableRange(low=8.0, high=100.0, log=True),
        "momentum": TunableRange(low=0.0, high=0.9),
    }
)


def searched(num_trials: int, own: float = 50.0) -> Search:
    """Make a search whose trials are the faster, the smaller their batches; one runs."""
    made = [
        Trial(
            number,
            1,
            {"batch_size": own if number == 1 else 8.0 * 2 ** (number % 4), "momentum": 0.5},
            verdict=Verdict.CONVERGING,
            speed=1.0 / (1 + number % 4),
        )
        for number in range(1, num_trials + 1)
    ]
    trials = (*made[:-1], replace(made[-1], verdict=None))
    return Search(1, 1000, 20, 10_000, trials, running=num_trials)


def test_batch_sizes_double_from_the_smallest_multiple_of_the_virtual_nodes() -> None:
    """The job's own size, of the first trial, is none of them."""
    proposals = Proposals(SPEC, seed=3, num_virtual_nodes=8)
    found = [proposals.next(searched(number)) for number in range(1, 20)]
    sizes = {values["batch_size"] for values in found}
    assert sizes <= {8.0, 16.0, 32.0, 64.0}
    assert len(sizes) > 1
    assert all(tuple(values) == SPEC.names for values in found)
    assert all(0.0 <= values["momentum"] <= 0.9 for values in found)


def test_a_new_leader_proposes_what_the_lost_one_did() -> None:
    proposals = Proposals(SPEC, seed=3, num_virtual_nodes=8)
    for number in (1, 7, 12):
        fresh = Proposals(SPEC, seed=3, num_virtual_nodes=8)
        assert fresh.next(searched(number)) == proposals.next(searched(number))
