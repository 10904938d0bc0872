"""Parallel tuning on real trainers: trials on idle accelerators give way, the best is adopted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.stack import Stack
from tests.e2e.submitted import (
    FINISH_DEADLINE_S,
    LOOK_EVERY_S,
    RESIZE_DEADLINE_S,
    START_DEADLINE_S,
    Submitted,
)

pytestmark = [pytest.mark.whole_stack, pytest.mark.timeout(900)]

CODE = (Path(__file__).parent / "steady_job.py").read_text()
TRIAL_STEPS = 20
#: A step of 16 examples takes 1.6 s on one accelerator, a trial half a minute.
PAUSE_S = 0.1
TUNING = {
    "space": {"learning_rate": {"low": 0.001, "high": 0.01, "log": True}},
    "parallel": True,
    "max_parallel": 2,
    "max_trials": 2,
    "trial_steps": TRIAL_STEPS,
}


def trials_of(job: Submitted) -> list[dict[str, Any]]:
    """List the trials that are jobs of their own."""
    return [trial for trial in job.state()["tuned"]["trials"] if trial["child"] is not None]


def children_of(job: Submitted) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = job.stack.get("jobs/", trial_of=job.id)["results"]
    return found


@pytest.mark.nightly  # a trial needs minutes; `make test` has the parts: rounds, trainers, agents
def test_trials_give_way_and_the_best_is_adopted_in_the_running_trainers(stack: Stack) -> None:
    def wait(what: str, is_so: Any, deadline_s: float) -> None:
        stack.wait_for(what, is_so, deadline_s, look_every_s=LOOK_EVERY_S)

    job = Submitted(
        stack,
        "steady",
        code=CODE,
        settings={"go_file": str(stack.directory / "go-steady"), "pause_s": PAUSE_S},
        max_accelerators=1,
        stop={"kind": "steps", "limit": 3000},
        tuning=TUNING,
    )
    job.wait_until_trains_on(1, START_DEADLINE_S)
    slot = job.leader()
    wait(
        "both trials train",
        lambda: [row["status"] for row in children_of(job)] == ["running"] * 2,
        START_DEADLINE_S,
    )
    assert {row["tier"] for row in children_of(job)} == {"idle"}
    assert not job.stack.get("jobs/", q=", trial")["results"], "trials are listed among jobs"

    higher = Submitted(stack, "higher", min_accelerators=3, max_accelerators=3)
    higher.wait_until_trains_on(3, START_DEADLINE_S)
    assert [row["num_accelerators"] for row in children_of(job)] == [0, 0]
    assert job.num_training() == 1
    higher.do("cancel", reason="trials go on")

    wait("a trial is kept", lambda: job.events("tuned"), START_DEADLINE_S + 3 * FINISH_DEADLINE_S)
    wait("its state is adopted", lambda: job.events("adopted"), RESIZE_DEADLINE_S)
    assert job.leader() == slot, "a trainer was started anew"
    kept = next(trial for trial in trials_of(job) if trial["end"] == "kept")
    assert kept["values"] == job.state()["tuned"]["values"]
    (adopted,) = job.events("adopted")
    assert adopted["data"]["trial"] == kept["number"]
    assert kept["start_loss"] > 1.5 * kept["losses"][-1], "the trial has not learnt"

    def has_learnt() -> bool:
        state = job.state()
        is_later = state["step"] > adopted["data"]["step"]
        return bool(is_later and state["loss"] < kept["losses"][-1])

    wait("the job goes on from there", has_learnt, FINISH_DEADLINE_S)
    wait(
        "the files of trials are deleted",
        lambda: all(
            stack.get(f"jobs/{row['id']}/")["files_deleted_at"] for row in children_of(job)
        ),
        FINISH_DEADLINE_S,
    )
    job.go()
    assert job.wait_until_finished()["tuned"]["num_trials"] == 3
