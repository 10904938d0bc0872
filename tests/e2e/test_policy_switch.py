"""An admin switches the policy while jobs train: no step is lost, no bit.

Three equal jobs, each able to use everything, so that a policy that serves one after another and
one that shares are told apart by who waits. All have to end as if nobody had touched them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from playwright.sync_api import expect, sync_playwright

from controlplane.core.policies import DEFAULT_POLICY, DEMANDS, POLICIES
from tests.e2e.stack import ADMIN, PASSWORD, Stack
from tests.e2e.submitted import NUM_STEPS, START_DEADLINE_S, Submitted, undisturbed_digest

pytestmark = [pytest.mark.whole_stack, pytest.mark.browser, pytest.mark.timeout(600)]

DECISION_DEADLINE_S = 120.0
ACCELERATORS = 4
BATCHES_OF_AN_EPOCH = 32
#: Policies that follow each other in the story itself; all others follow from the registry.
HAVE_THEIR_TURN = {"fifo", "weighted_fair", "priority", "sia", "pollux", DEFAULT_POLICY}


class Switching:
    """The three jobs, and the switches from one policy to the next."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.policies: list[str] = []
        self.seen = 0
        self.jobs = [
            Submitted(stack, name, max_accelerators=ACCELERATORS)
            for name in ("oldest", "middle", "youngest")
        ]

    def switch(self, policy: str) -> None:
        """Switch as a program does."""
        self._note(policy)
        response = self.stack.rest.put("policy/", json={"policy": policy})
        assert response.json()["policy"] == policy, response.text

    def switch_in_a_browser(self, policy: str, chromium: str) -> None:
        """Switch as a person does, who sees on the same page what comes of it."""
        self._note(policy)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
            )
            page = browser.new_page(base_url=str(self.stack.rest.base_url).removesuffix("api/v1/"))
            page.goto("/queue/")
            page.get_by_label("Username").fill(ADMIN)
            page.get_by_label("Password").fill(PASSWORD)
            page.keyboard.press("Enter")
            page.get_by_label("Policy").select_option(policy)
            page.get_by_role("button", name="Preview a switch").click()
            page.get_by_role("button", name=f"Switch to {policy}").click()
            expect(page.get_by_text(f"The policy is {policy} now.")).to_be_visible()
            for job in self.jobs:
                row = page.locator(f"#queue [data-key='job-{job.id}']")
                expect(row).to_contain_text("running", timeout=DECISION_DEADLINE_S * 1000)
            browser.close()

    def _note(self, policy: str) -> None:
        self.policies.append(policy)
        self.seen = max((event["id"] for event in self._moves()), default=0)

    def _moves(self) -> Iterator[dict[str, Any]]:
        for job in self.jobs:
            for kind in ("resize", "preemption"):
                yield from job.events(kind)

    def has_moved_a_job(self) -> bool:
        """Say whether a decision of the policy in force has come about."""
        actor = f"policy:{self.policies[-1]}"
        return any(move["actor"] == actor and move["id"] > self.seen for move in self._moves())

    def wait_until(self, num_training: int) -> None:
        """Wait until the policy has moved a job, and so many train while the others wait."""

        def is_so() -> bool:
            states = [job.state() for job in self.jobs]
            assert not any(state["status"] in ("failed", "finished") for state in states), states
            running = [state for state in states if state["status"] == "running"]
            idle = [
                state
                for state in states
                if state["status"] in ("pending", "paused") and state["num_accelerators"] == 0
            ]
            is_settled = (len(running), len(idle)) == (num_training, len(states) - num_training)
            return is_settled and self.has_moved_a_job()

        what = f"{num_training} jobs to train under {self.policies[-1]}"
        is_first = len(self.policies) == 1
        self.stack.wait_for(what, is_so, START_DEADLINE_S if is_first else DECISION_DEADLINE_S)

    def largest(self) -> Submitted:
        """Give the job that trains on most accelerators."""
        return max(self.jobs, key=lambda job: job.num_training())


@pytest.fixture(autouse=True)
def _same_policy_again(stack: Stack) -> Iterator[None]:
    before = stack.get("policy/")["policy"]
    yield
    stack.rest.put("policy/", json={"policy": before})


def alternation() -> Iterator[str]:
    """Yield every policy that has no turn of its own, one of fixed demands before each other one.

    A policy that follows one of the other sort has to move jobs. Where one sort is smaller, its
    policies have several turns; one of fixed demands is the last, too, so that one job trains.
    """
    names = sorted({*POLICIES} - HAVE_THEIR_TURN)
    rigid = [name for name in names if DEMANDS[name].is_rigid]
    sharing = [name for name in names if not DEMANDS[name].is_rigid]
    for turn in range(max(len(rigid), len(sharing))):
        yield rigid[turn % len(rigid)]
        yield sharing[turn % len(sharing)]
    yield rigid[0]


def switch_through_the_others(cluster: Switching) -> None:
    """Switch from sharing policies to those of fixed demands and back."""
    for policy in alternation():
        cluster.switch(policy)
        cluster.wait_until(num_training=1 if DEMANDS[policy].is_rigid else 3)
    # Queues take nothing back: somebody has to leave before they serve the next one.
    served = cluster.largest()
    cluster.switch("priority")
    served.do("pause", reason="somebody else's turn")
    cluster.wait_until(num_training=1)
    served.do("resume")
    cluster.switch("weighted_fair")
    cluster.wait_until(num_training=3)
    cluster.switch("sia")
    served.do("pause", reason="room for two")
    cluster.wait_until(num_training=2)
    cluster.switch("pollux")
    served.do("resume")
    cluster.wait_until(num_training=3)


@pytest.mark.nightly  # tests/jobs/scheduling/test_policy_switch.py has no trainers
@pytest.mark.parametrize("is_every", [False, True], ids=["three", "every"])
def test_jobs_train_on_through_policies(stack: Stack, chromium: str, is_every: bool) -> None:
    """Every policy in `make nightly`; tests/jobs switches through all of them without trainers."""
    expected = undisturbed_digest(stack)
    stack.rest.put("policy/", json={"policy": "fifo"})
    cluster = Switching(stack)
    cluster.switch("fifo")
    cluster.wait_until(num_training=1)
    cluster.switch_in_a_browser("weighted_fair", chromium)
    cluster.wait_until(num_training=3)
    if is_every:
        switch_through_the_others(cluster)
    cluster.switch("goodput_fair")
    smallest = min(cluster.jobs, key=lambda job: job.num_training())
    smallest.do("reprioritise", priority=1000, reason="the paper is due")
    stack.wait_for("the urgent job to grow", cluster.has_moved_a_job, DECISION_DEADLINE_S)
    assert not is_every or set(cluster.policies) == {*POLICIES}
    assert cluster.policies[-1] == DEFAULT_POLICY
    for job in cluster.jobs:
        job.go()
    for job in cluster.jobs:
        finished = job.wait_until_finished()
        told = [
            job.stack.get(f"jobs/{job.id}/{what}/", page_size=200)["results"]
            for what in ("events", "generations")
        ]
        assert (finished["digest"], finished["restarts"]) == (expected, 0), told
        check_steps(job)
    check_that_nothing_was_held_twice(cluster)


def check_steps(job: Submitted) -> None:
    """Check that a job went through its epochs and memberships once each, in order."""
    epochs = job.stack.get(f"jobs/{job.id}/metrics/")["epochs"]
    assert [(epoch["epoch"], epoch["step"]) for epoch in epochs] == [
        (number, (number + 1) * BATCHES_OF_AN_EPOCH)
        for number in range(NUM_STEPS // BATCHES_OF_AN_EPOCH)
    ]
    rows = job.stack.get(f"jobs/{job.id}/generations/", page_size=200)["results"]
    switched = [row for row in rows if row["switched_at"]]
    switched.sort(key=lambda row: row["number"])
    for row, following in itertools.pairwise(switched):
        assert row["step"] <= following["step"]
        assert row["digest_after"] == row["digest_before"] or row["previous"] is None


def check_that_nothing_was_held_twice(cluster: Switching) -> None:
    """Check that nobody was given an accelerator before the one before had let go of it."""
    allocations = [
        (allocation["accelerator"], allocation["granted_at"], allocation["released_at"])
        for job in cluster.jobs
        for allocation in cluster.stack.get(f"jobs/{job.id}/allocations/")["allocations"]
    ]
    assert len({accelerator for accelerator, *_ in allocations}) == ACCELERATORS
    for before, after in itertools.pairwise(sorted(allocations)):
        if before[0] == after[0]:
            released, granted = (datetime.fromisoformat(text) for text in (before[2], after[1]))
            assert released <= granted, (before, after)
