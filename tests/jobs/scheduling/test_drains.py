"""Previews of drains agree with what the control plane then does."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from jobs.models import Allocation, Event, Job, Node
from jobs.selectors.drains import drain_outcome, drain_preview
from jobs.services.cluster.cordons import Cordon, node_cordon
from jobs.services.cluster.maintenance import windows_advance, windows_plan
from tests.jobs.world import World
from tests.support.builders import Clients, job_make

pytestmark = pytest.mark.django_db


def counts(world: World) -> dict[int, int]:
    held = Allocation.objects.filter(
        released_at=None, stop_requested_at=None, release_requested_at=None
    )
    found = dict.fromkeys(Job.objects.values_list("pk", flat=True), 0)
    for job_id in held.values_list("job_id", flat=True):
        found[job_id] += 1
    return found


#: Policies, and the bounds of jobs; all of each with all of the other in `make nightly`.
DRAINED_UNDER = ["weighted_fair", "priority", "fifo", "goodput_fair"]
LIMITS = [[(1, 4)], [(1, 4), (1, 4)], [(2, 2), (2, 4)], [(3, 4)]]
DRAINS = [
    pytest.param(limits, policy, marks=[] if place == rank else pytest.mark.nightly)
    for place, limits in enumerate(LIMITS)
    for rank, policy in enumerate(DRAINED_UNDER)
]


@pytest.mark.parametrize(("limits", "policy"), DRAINS)
def test_a_drain_does_what_was_foretold(
    limits: list[tuple[int, int]], policy: str, admin: User
) -> None:
    world = World(num_nodes=2, num_accelerators=2, policy=policy)
    jobs = [job_make(min_accelerators=low, max_accelerators=high) for low, high in limits]
    world.settle()
    before = counts(world)
    node = world.nodes[0].node
    moves = {move.job.pk: move for move in drain_preview([node], world.now)}
    assert counts(world) == before  # it only asks
    expected = {pk: moves[pk].wanted if pk in moves else number for pk, number in before.items()}
    node_cordon(node, Cordon.DRAIN, world.now, actor="user:admin")
    world.settle()
    assert counts(world) == expected
    assert not Allocation.objects.filter(accelerator__node=node, released_at=None).exists()
    for move in moves.values():
        assert move.held == before[move.job.pk]
        assert sum(move.nodes.values()) == move.wanted
        assert node.name not in move.nodes
        assert move.within_s is not None
        assert move.within_s > 0.0
    outcome = drain_outcome(Node.objects.get(pk=node.pk), admin, world.now)
    assert {one.job.pk for one in outcome} == {pk for pk, one in moves.items() if one.num_here}
    for one in outcome:
        assert (one.expected, one.held) == (moves[one.job.pk].wanted, before[one.job.pk])
        assert one.left_s is not None
    assert len(jobs) == len(before)


def test_an_outcome_ends_with_the_drain_and_is_for_those_who_may_see_it(
    ada: User, admin: User
) -> None:
    world = World(num_nodes=2, num_accelerators=2)
    job = job_make(admin)
    world.settle()
    node = world.nodes[0].node
    assert drain_outcome(node, admin, world.now) == []
    node_cordon(node, Cordon.DRAIN, world.now, actor="user:admin")
    (one,) = drain_outcome(node, admin, world.now)
    assert (one.job, one.left_s, one.held) == (job, None, 4)
    assert drain_outcome(node, ada, world.now) == []
    node_cordon(node, Cordon.UNCORDON, world.now, actor="user:admin")
    assert drain_outcome(node, admin, world.now) == []


def test_a_policy_that_fails_does_not_keep_a_node_from_its_drain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor from its maintenance, which is noted before nodes are looked for that are lost."""

    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("jobs.services.cluster.cordons.drain_preview", fail)
    node, now = World(num_nodes=1).nodes[0].node, timezone.now()
    assert node_cordon(node, Cordon.DRAIN, now, actor="user:admin")
    assert Event.objects.get(kind="node_drained").data["jobs"] == []
    windows_plan([node.pk], now, now + timedelta(hours=1), now, actor="user:admin", reason="fan")
    assert windows_advance(now)
    assert Event.objects.get(kind="maintenance_began").data["jobs"] == []


def test_dry_runs_by_rest(ada: User, admin: User, client_of: Clients) -> None:
    world = World(num_nodes=2, num_accelerators=2)
    job = job_make(ada)
    world.settle()
    node = world.nodes[0].node
    url = f"/api/v1/nodes/{node.pk}"
    assert client_of(ada).post(f"{url}/drain/?dry_run=1").status_code == 403
    client = client_of(admin)
    found = client.post(f"{url}/drain/?dry_run=1").json()
    (move,) = found["moves"]
    assert (move["job"], move["held"], move["wanted"]) == (job.pk, 4, 2)
    assert (move["nodes"], move["text"]) == ({"played1": 2}, "4 → 2 on played1")
    assert found["staying"] == []
    found = client.post(f"{url}/cordon/?dry_run=1").json()
    assert (found["moves"], found["staying"]) == ([], [job.pk])
    assert client.post(f"{url}/cordon/?dry_run=maybe").status_code == 400
    assert client.post(f"{url}/drain/?dry_run=1", {"reson": "x"}).status_code == 400
    assert client.post(f"{url}/uncordon/?dry_run=1").status_code == 400
    node.refresh_from_db()
    assert (node.is_cordoned, node.is_draining) == (False, False)
