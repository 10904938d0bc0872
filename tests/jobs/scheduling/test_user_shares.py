"""Owners and their share factors reach the policy, the dry run and a replay."""

from __future__ import annotations

import pytest
from django.utils import timezone

from jobs.api.jobs.submission_request import submission_read
from jobs.models import Job, UserLimits
from jobs.selectors.cluster import cluster_snapshot
from jobs.selectors.dry_run import submission_outlook
from tests.jobs.world import World, num_held
from tests.support.builders import job_make, submission_values, user_make

pytestmark = pytest.mark.django_db


def test_shares_go_to_users_first_by_their_factors() -> None:
    ada, ben = user_make("ada"), user_make("ben")
    world = World(2, 3)
    many = [job_make(ada, max_accelerators=8, num_virtual_nodes=8) for _ in range(6)]
    world.until(lambda: num_held(*many) == 6)
    single = job_make(ben, max_accelerators=8, num_virtual_nodes=8)
    world.until(lambda: (num_held(*many), num_held(single)) == (3, 3))
    single.refresh_from_db()
    assert single.policy_reason.endswith("claim of 100 of 200 among 2 users.")
    waiting = Job.objects.get(pk=many[-1].pk)
    assert (
        "the minima of its owner's other jobs take up the owner's share of 3."
        in waiting.policy_reason
    )
    UserLimits.objects.create(user=ben, share_factor=2.0)
    world.until(lambda: (num_held(*many), num_held(single)) == (2, 4))
    snapshot = cluster_snapshot(timezone.now()).snapshot
    assert {(job.user, job.user_factor) for job in snapshot.jobs} == {(ada.pk, 1.0), (ben.pk, 2.0)}
    wanted = submission_read(submission_values(max_accelerators=8, num_virtual_nodes=8))
    outlook = submission_outlook(wanted, world.now, ada)
    assert "the minima of its owner's other jobs take up the owner's share of 2" in outlook.reason
