"""A job that is tuned, from its submission to the trials on its page."""

from __future__ import annotations

import pytest

from tests.e2e.stack import Stack
from tests.e2e.submitted import FINISH_DEADLINE_S, START_DEADLINE_S, Submitted

pytestmark = [pytest.mark.whole_stack, pytest.mark.timeout(600)]


@pytest.mark.nightly  # `make test` has its parts: submission, validation, trainers, page
def test_a_tuned_job_tells_its_trials(stack: Stack) -> None:
    space = {"learning_rate": {"low": 0.00001, "high": 1.0, "log": True}}
    job = Submitted(
        stack,
        "tuned",
        stop={"kind": "epochs", "limit": 12},
        max_accelerators=2,
        tuning={"space": space, "max_trials": 4, "objective": "loss"},
    )
    job.go()
    state = job.wait_until_holds_nothing("finished", START_DEADLINE_S + FINISH_DEADLINE_S)
    tuned = state["tuned"]
    assert tuned["num_trials"] >= 1
    assert 0.0 < tuned["share"] <= 0.3
    assert tuned["search_end"]
    assert all(trial["end"] for trial in tuned["trials"])
