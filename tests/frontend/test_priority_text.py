"""The sentence that says what a priority means now."""

from __future__ import annotations

import pytest
from django.test import Client

from controlplane.core.values.tiers import TIERS, Tier
from frontend.text.priority_text import priority_text
from jobs.models import ClusterSetting, Job
from jobs.selectors.queue import PriorityRange, priority_ranges
from tests.frontend.world import World

URGENT, NORMAL, IDLE = TIERS


@pytest.mark.parametrize(
    ("policy", "others", "own", "expected"),
    [
        ("fifo", {NORMAL: (1, 9, 2)}, None, "the policy fifo does not look at priorities."),
        ("priority", {NORMAL: (1, 9, 2)}, (NORMAL, 5), "jobs of higher priority start first"),
        ("goodput_fair", {NORMAL: (300, 950, 4)}, None,
         "950 weighs 3.17 times as much as 300, the lowest of 4 normal jobs."),
        ("goodput_fair", {IDLE: (100, 100, 3)}, None,
         "All 3 idle jobs have 100 and weigh the same."),
        ("sia", {}, None, "priority is a weight inside the tier, not an order."),
        ("sia", {NORMAL: (300, 777, 3)}, (NORMAL, 950),
         "This job's 950 weighs 3.17 times as much as the lowest (300) and 1.22 times as much as "
         "the highest (777) of the 3 other normal jobs."),
        ("sia", {NORMAL: (100, 300, 2)}, (NORMAL, 100),
         "This job's 100 weighs as much as the lowest (100) and 33.3 % as much as"),
        ("sia", {NORMAL: (100, 100, 2)}, (NORMAL, 50),
         "This job's 50 weighs 50 % as much as the 100 of the 2 other normal jobs."),
        ("sia", {NORMAL: (100, 100, 1)}, (URGENT, 50), "No other urgent job is active."),
        ("sia", {URGENT: (1, 1, 1), NORMAL: (5, 9, 2), IDLE: (1, 1, 1)}, None,
         "Active now: 1 urgent, 2 normal, 1 idle."),
        ("sia", {URGENT: (1, 1, 1), NORMAL: (5, 9, 2), IDLE: (1, 1, 2)}, (NORMAL, 5),
         "This job is normal: 1 of higher tiers comes before it, 2 of lower tiers give way to it, "
         "at any priority."),
    ],
)  # fmt: skip
def test_the_numbers_of_now(
    policy: str,
    others: dict[Tier, tuple[int, int, int]],
    own: tuple[Tier, int] | None,
    expected: str,
) -> None:
    ranges = {tier: PriorityRange(*numbers) for tier, numbers in others.items()}
    assert expected in priority_text(policy, ranges, own)


@pytest.mark.parametrize("policy", ["weighted_fair", "fifo"])
def test_queue_and_job_say_it(world: World, admin: Client, policy: str) -> None:
    ClusterSetting.objects.update_or_create(id=1, defaults={"policy": policy})
    Job.objects.filter(pk=world.jobs["running"].pk).update(priority=1000)
    assert priority_ranges()[NORMAL].highest == 1000
    job = world.jobs["pending"]
    pages = {
        "/queue/": priority_text(policy, priority_ranges()),
        f"/jobs/{job.pk}/": priority_text(policy, priority_ranges(job), (NORMAL, job.priority)),
    }
    for page, text in pages.items():
        assert text.replace("'", "&#x27;") in admin.get(page).content.decode()
