"""A job that selects its examples, from its submission to the counts on its page."""

from __future__ import annotations

import pytest

from tests.e2e.stack import Stack
from tests.e2e.submitted import FINISH_DEADLINE_S, START_DEADLINE_S, Submitted

pytestmark = [pytest.mark.whole_stack, pytest.mark.timeout(600)]


@pytest.mark.nightly  # `make test` has its parts: submission, validation, trainers, page
def test_a_selecting_job_tells_analysed_and_trained_examples_apart(stack: Stack) -> None:
    job = Submitted(
        stack,
        "selecting",
        stop={"kind": "epochs", "limit": 12},
        max_accelerators=2,
        selection={"method": "stale_selective_backprop", "beta": 2, "stale_every": 2},
    )
    job.go()
    state = job.wait_until_holds_nothing("finished", START_DEADLINE_S + FINISH_DEADLINE_S)
    num_examples, counts = state["facts"]["num_examples"], state["selected"]
    assert counts["candidates"] == 11 * num_examples
    assert counts["analysed"] == 6 * num_examples
    assert 0.15 < counts["share"] < 0.5  # a third is expected
    assert state["metrics"]["selected_share"] > 0.0
