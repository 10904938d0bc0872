"""Two jobs that are to swap places do so through the control plane, without a deadlock."""

from __future__ import annotations

import pytest

from controlplane.core import cycle
from controlplane.core.values.lifecycle import GenerationPhase
from controlplane.core.values.types import Decision, Share, Snapshot
from jobs.models import Event, Job
from tests.jobs.kinds_world import KindsWorld, settled, split
from tests.support.builders import job_make

pytestmark = pytest.mark.django_db


class Assignment:
    """A policy that gives each job two accelerators of the kind it is assigned to."""

    def __init__(self, kinds: dict[int, str]) -> None:
        self.kinds = kinds

    def __call__(self, snapshot: Snapshot) -> Decision:
        shares = {job.id: Share(self.kinds[job.id], 2) for job in snapshot.jobs}
        return Decision(shares, {job: f"Gets 2 {share.kind}." for job, share in shares.items()})


def kinds_of(world: KindsWorld, job: Job) -> set[str]:
    """List the kinds on which a job trains; none while it is stopped."""
    if not job.generations.filter(phase=GenerationPhase.ACTIVE).exists():
        return set()
    return {world.kinds[node_id] for _, node_id, _ in split(job)}


@pytest.mark.parametrize("least", [1, 2])
def test_jobs_swap_kinds(monkeypatch: pytest.MonkeyPatch, least: int) -> None:
    world = KindsWorld("fast fast", "slow slow")
    first, second = (
        job_make(min_accelerators=least, max_accelerators=2, num_virtual_nodes=4) for _ in range(2)
    )
    policy = Assignment({first.pk: "fast", second.pk: "slow"})
    monkeypatch.setattr(cycle, "POLICIES", {"weighted_fair": policy, "goodput_fair": policy})
    for job in (first, second):
        settled(world, job, 2)
    policy.kinds = {first.pk: "slow", second.pk: "fast"}
    jobs = (first, second)
    world.until(lambda: all(kinds_of(world, job) == {policy.kinds[job.pk]} for job in jobs))
    for job in jobs:
        settled(world, job, 2)
    restarts = sum(Job.objects.values_list("restarts", flat=True))
    stops = Event.objects.filter(message__contains="Stops until its new accelerators are free")
    shrinks = Event.objects.filter(message__contains="Gives up 1 of 2 accelerators first")
    assert restarts == 0
    assert (stops.count() > 0, shrinks.count() > 0) == (least == 2, least == 1)
