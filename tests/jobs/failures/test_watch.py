"""A control plane that was away itself holds nobody's silence against them."""

from __future__ import annotations

from typing import Any

import pytest
from django.utils import timezone

from jobs import tasks
from jobs.models import Job, Node
from jobs.services.failures.watch import (
    SETTLED_S,
    clock_is_settled,
    watch_is_kept,
    watch_keep,
)
from tests.jobs.world import World
from tests.support.builders import at, job_make, node_make

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _times(settings: Any) -> None:
    settings.LEASE_S = 20
    settings.CYCLE_PERIOD_S = 5
    settings.ALL_SILENT_LEASES = 6


def heard(node: Node, seconds: float) -> None:
    Node.objects.filter(id=node.pk).update(last_seen_at=at(seconds))


def beats(node: Node, start: int, end: int) -> bool:
    """Look every 5 s while `node` is heard of; give what the last look said."""
    is_kept = False
    for second in range(start, end + 1, 5):
        heard(node, second)
        is_kept = watch_keep(at(second))
    return is_kept


def test_silence_counts_after_one_lease_of_watching() -> None:
    node, _ = node_make(now=at(0))
    assert not watch_is_kept(at(0))
    assert not beats(node, 0, 15)
    assert beats(node, 20, 20)
    assert watch_is_kept(at(21))


def test_after_a_gap_it_is_counted_anew() -> None:
    node, _ = node_make(now=at(0))
    assert beats(node, 0, 30)
    assert not watch_is_kept(at(300))
    # Everybody was silent for minutes, because nobody was there to hear.
    assert not watch_keep(at(300))
    assert not beats(node, 305, 315)
    assert beats(node, 320, 320)


@pytest.mark.parametrize("jump_s", [30 * 86400, -7200])
def test_nothing_is_deleted_for_its_age_soon_after_the_clock_has_jumped(jump_s: int) -> None:
    start, end = 10_000_000, 10_000_000 + int(SETTLED_S)
    node, _ = node_make(now=at(start))
    assert not clock_is_settled(at(start))
    for second in range(start, end + 1, 10):
        heard(node, second)
        watch_keep(at(second))
    assert clock_is_settled(at(end))
    assert not clock_is_settled(at(end + jump_s))
    beats(node, end + jump_s, end + jump_s + 60)
    assert not clock_is_settled(at(end + jump_s + 60))


def test_when_all_are_silent_it_is_this_side_that_is_deaf() -> None:
    node, _ = node_make(now=at(0))
    assert beats(node, 0, 40)
    answers = {second: watch_keep(at(second)) for second in range(45, 240, 5)}
    assert answers[60]  # nobody is overdue yet
    assert not any(answers[second] for second in range(65, 161, 5))
    # After six leases they are believed to be gone, one lease later that counts.
    assert answers[180]


def test_one_silent_node_among_others_is_silent_itself() -> None:
    node, _ = node_make(now=at(0))
    node_make(now=at(0))
    assert beats(node, 0, 60)


@pytest.mark.parametrize("back_s", [60, 7200, 10_000_000])
def test_a_node_is_missed_in_time_though_the_clock_was_set_back(
    monkeypatch: pytest.MonkeyPatch, back_s: int
) -> None:
    node, _ = node_make(now=at(0))
    gone, _ = node_make(now=at(0))
    heard(gone, 10_000_030)
    assert beats(node, 10_000_000, 10_000_030)
    start = 10_000_030 - back_s
    lost: dict[int, list[int]] = {}
    for second in range(start, start + 60, 5):
        heard(node, second)
        monkeypatch.setattr(timezone, "now", lambda second=second: at(second))
        lost[second - start] = tasks.expire_nodes()
    # One lease in which nobody is missed, and the first look after it.
    assert {second: nodes for second, nodes in lost.items() if nodes} == {25: [gone.pk]}


def test_without_nodes_there_is_nobody_to_wait_for() -> None:
    assert not watch_keep(at(0))
    assert [watch_keep(at(second)) for second in (5, 10, 15, 20)] == [False, False, False, True]


def test_a_restarted_control_plane_restarts_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    job = job_make()
    world.settle()
    world.now_s = 600.0
    monkeypatch.setattr(timezone, "now", lambda: world.now)
    # Its first looks come before the agents have found it again.
    assert tasks.expire_nodes() == []
    assert tasks.expire_generations() == []
    for played in world.nodes:
        heard(played.node, 601)
    world.now_s = 602.0
    assert tasks.expire_nodes() == []
    assert Job.objects.get(id=job.pk).restarts == 0


def test_a_node_that_is_gone_is_lost_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    node, _ = node_make(now=at(0))
    gone, _ = node_make(now=at(0))
    now = [0]
    monkeypatch.setattr(timezone, "now", lambda: at(now[0]))
    lost: list[int] = []
    for second in range(0, 45, 5):
        now[0] = second
        heard(node, second)
        lost += tasks.expire_nodes()
    assert lost == [gone.pk]
