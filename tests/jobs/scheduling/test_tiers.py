"""Tiers in the control loop: an idle job gives way without loss, is told why, and comes back."""

from __future__ import annotations

import pytest

from controlplane.core.values.lifecycle import JobStatus
from controlplane.core.values.types import Plan, Snapshot
from jobs.api.jobs.submission_request import submission_read
from jobs.models import Event, Job, Node, PolicyState
from jobs.selectors import drains, dry_run, policy_preview
from jobs.selectors.cluster import cluster_snapshot
from jobs.selectors.dry_run import submission_outlook
from jobs.selectors.next_cycle import decide_timed, policy_state_read
from jobs.selectors.queue import live_jobs, queue_place
from tests.jobs.world import World, num_held
from tests.support.builders import job_make, submission_values, user_make
from tests.support.present import present

pytestmark = pytest.mark.django_db


def test_an_urgent_job_takes_what_it_can_use_from_an_idle_one() -> None:
    world, ada = World(1, 4), user_make()
    idle = job_make(
        ada, max_accelerators=4, min_accelerators=2, num_virtual_nodes=4, tier="idle", priority=1000
    )
    world.until(lambda: num_held(idle) == 4)
    world.settle()
    world.train(idle)
    urgent = job_make(ada, max_accelerators=1, num_virtual_nodes=4, tier="urgent", priority=1)
    world.until(lambda: (num_held(idle), num_held(urgent)) == (3, 1))
    normal = job_make(ada, max_accelerators=2, num_virtual_nodes=4, priority=1)
    world.until(lambda: (num_held(idle), num_held(urgent), num_held(normal)) == (0, 1, 2))
    idle.refresh_from_db()
    assert idle.status == JobStatus.PENDING
    assert idle.policy_reason.startswith(
        "Waits for 2 accelerators of one kind: higher tiers come first, "
        f"job {urgent.pk} (urgent), job {normal.pk} (normal) got 3 of 4 cpu"
    )
    assert Event.objects.filter(job=idle, kind="resize").exists()
    assert "higher tiers" in " ".join(
        Event.objects.filter(job=idle).values_list("message", flat=True)
    ), [*Event.objects.filter(job=idle).values_list("kind", "message")]
    assert queue_place(idle) == 1
    step = idle.step
    Job.objects.filter(pk=normal.pk).update(tier="idle", priority=1)
    world.until(lambda: num_held(idle) >= 2)
    idle.refresh_from_db()
    assert idle.step == step > 0


def test_the_queue_is_in_order_of_tier() -> None:
    admin = user_make("admin", is_staff=True)
    jobs = [
        job_make(tier=tier, priority=priority)
        for tier, priority in (("idle", 999), ("normal", 5), ("urgent", 1), ("normal", 6))
    ]
    order = [jobs[place].pk for place in (2, 3, 1, 0)]
    assert [job.pk for job in live_jobs(admin)] == order
    by_id = {job.pk: job for job in jobs}
    assert [queue_place(by_id[number]) for number in order] == [1, 2, 3, 4]


def test_each_tier_has_a_memory_that_is_stored() -> None:
    world = World(1, 2, policy="tiresias")
    for tier in ("idle", "urgent"):
        job_make(tier=tier, max_accelerators=1, num_virtual_nodes=4)
    world.settle()
    assert {*PolicyState.objects.get().state["by_tier"]} == {"idle", "urgent"}
    state = present(policy_state_read("tiresias"))
    world.settle()
    assert policy_state_read("tiresias") == state


def test_previews_go_on_from_the_state_of_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(1, 2, policy="tiresias")
    running = job_make(max_accelerators=1, num_virtual_nodes=4)
    world.settle()
    seen: list[Snapshot] = []

    def decided(snapshot: Snapshot, policy: str) -> tuple[Plan, int]:
        seen.append(snapshot)
        return decide_timed(snapshot, policy)

    for module in (dry_run, drains, policy_preview):
        monkeypatch.setattr(module, "decide_timed", decided)
    submission_outlook(submission_read(submission_values()), world.now, user_make("ada"))
    drains.drain_preview([Node.objects.get()], world.now)
    policy_preview.reprioritise_preview({running.pk: 7}, {}, world.now, Job.objects.all())
    state = present(policy_state_read("tiresias"))
    assert [snapshot.carried for snapshot in seen] == [state] * 3


def test_a_dry_run_knows_the_tier() -> None:
    """The urgent job gets the idle accelerator, and two that the running job gives up."""
    world = World(1, 3)
    running = job_make(max_accelerators=2, min_accelerators=2, num_virtual_nodes=4, tier="normal")
    world.settle()
    asked = {"min_accelerators": 3, "max_accelerators": 3, "num_virtual_nodes": 4}
    outlook = {
        tier: submission_outlook(
            submission_read(submission_values(tier=tier, **asked)), world.now, running.owner
        )
        for tier in ("urgent", "idle")
    }
    kinds = {tier: one.kind for tier, one in outlook.items()}
    assert kinds == {"urgent": "after_release", "idle": "later"}
    assert sum(outlook["urgent"].accelerators.values()) == 3
    assert (outlook["urgent"].num_shrunk, outlook["urgent"].num_stopped) == (1, 1)
    assert {job.tier for job in cluster_snapshot(world.now).snapshot.jobs} == {"normal"}
