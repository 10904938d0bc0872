"""Maintenance windows: nodes are empty in them, and an admin's own cordons and drains stay."""

from __future__ import annotations

import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.core.values.lifecycle import JobStatus, ValidationStatus
from jobs.exceptions import InvalidInputError
from jobs.models import (
    Allocation,
    Event,
    Job,
    JobForecast,
    MaintenanceWindow,
    Node,
    NotificationChannel,
)
from jobs.selectors.cluster import accelerators_open, cluster_snapshot
from jobs.selectors.drains import drain_outcome
from jobs.services.cluster.cordons import Cordon, node_cordon
from jobs.services.cluster.maintenance import (
    OPEN_LIMIT,
    window_cancel,
    windows_advance,
    windows_plan,
)
from jobs.services.submission.validations import validation_start
from tests.jobs.world import World
from tests.support.builders import at, job_make, node_make, user_make, validation_make

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("time_for_forecasts")]

HOUR = 3600.0
ROOT = "user:root"


def plan(*nodes: Node, start: float = HOUR, end: float = 2 * HOUR, now: float = 0.0) -> list[int]:
    """Plan maintenance by seconds of the test's clock; return the numbers of the windows."""
    ids = [node.pk for node in nodes]
    rows = windows_plan(ids, at(start), at(end), at(now), actor=ROOT, reason="new fan")
    return [row.pk for row in rows]


def advance(world: World, now_s: float) -> None:
    """Let the control plane notice a time, and decide and act until nothing changes."""
    world.now_s = now_s
    windows_advance(world.now)
    world.settle()


def on(node: Node) -> set[int]:
    rows = Allocation.objects.filter(accelerator__node=node, released_at=None)
    return set(rows.values_list("job_id", flat=True))


def events(node: Node) -> list[str]:
    return [row.kind for row in node.events.order_by("pk") if row.kind.startswith("maintenance")]


def test_a_node_is_empty_in_its_window_and_takes_work_again() -> None:
    world = World(num_nodes=2, num_accelerators=2)
    first, second = (played.node for played in world.nodes)
    job = job_make(min_accelerators=1, max_accelerators=4)
    world.settle()
    plan(first)
    advance(world, HOUR - 400)  # the lead is 300 s
    assert not cluster_snapshot(world.now).snapshot.cordoned
    advance(world, HOUR - 299.9)
    assert cluster_snapshot(world.now).snapshot.cordoned == {first.pk}
    assert first.pk not in {one.node_id for one in cluster_snapshot(at(HOUR)).snapshot.accelerators}
    assert on(first) >= {job.pk}  # it stays until the start
    assert accelerators_open(world.now).filter(node=first).count() == 0
    newest = job_make(min_accelerators=1, max_accelerators=1)
    world.settle()
    assert newest.pk not in on(first)
    advance(world, HOUR)
    assert on(first) == set()
    assert job.pk in on(second)
    began = Event.objects.get(kind="maintenance_began")
    assert {row["job"] for row in began.data["jobs"]} >= {job.pk}
    told = Event.objects.get(kind="maintenance", job=job)
    assert "which is in maintenance until 2026-" in told.message
    outcome = drain_outcome(first, user_make(is_staff=True), world.now)
    assert job.pk in {one.job.pk for one in outcome}
    advance(world, 2 * HOUR)
    assert on(first)
    assert events(first) == ["maintenance_planned", "maintenance_began", "maintenance_ended"]
    first.refresh_from_db()
    assert first.maintenance_from is None


def test_a_job_without_another_place_waits_and_is_told_until_when() -> None:
    world = World(num_nodes=2, num_accelerators=2)
    job = job_make(min_accelerators=3, max_accelerators=4)
    world.settle()
    plan(world.nodes[0].node)
    advance(world, HOUR)
    waiting = Job.objects.get(pk=job.pk)
    until = at(2 * HOUR).strftime("%Y-%m-%d %H:%M UTC")
    assert f"nodes that take work have 2 until {until}" in waiting.policy_reason
    assert JobForecast.of(waiting).expected_start_earliest_at is not None
    assert JobForecast.of(waiting).expected_start_earliest_at >= at(2 * HOUR - 60.0)
    assert not on(world.nodes[1].node)
    advance(world, 2 * HOUR)
    assert on(world.nodes[0].node) == {job.pk}


def test_a_site_that_was_away_catches_up() -> None:
    """Decisions follow the clock at once; the events come with the next sweep."""
    world = World(num_nodes=2, num_accelerators=1)
    node = world.nodes[0].node
    plan(node)
    plan(node, start=2 * HOUR, end=3 * HOUR)
    assert [one.node_id for one in cluster_snapshot(at(1.5 * HOUR)).snapshot.maintenance] == [
        node.pk
    ]
    assert windows_advance(at(2.5 * HOUR))  # the first was slept through
    assert events(node)[2:] == ["maintenance_ended", "maintenance_began"]
    assert not windows_advance(at(2.6 * HOUR))
    assert {row.node_id for row in cluster_snapshot(at(2.6 * HOUR)).snapshot.accelerators} == {
        world.nodes[1].node.pk
    }
    assert len(cluster_snapshot(at(3 * HOUR)).snapshot.accelerators) == 2
    assert windows_advance(at(4 * HOUR))
    assert not windows_advance(at(4 * HOUR))


def test_a_window_shorter_than_the_lead_closes_its_node() -> None:
    node, _ = node_make(num_accelerators=1)
    plan(node, start=200.0, end=220.0)
    assert not accelerators_open(at(0)).exists()
    assert cluster_snapshot(at(0)).snapshot.cordoned == {node.pk}
    assert accelerators_open(at(220)).exists()


def test_cancelling_before_and_during() -> None:
    node, _ = node_make(num_accelerators=1)
    (first,), (second,) = plan(node), plan(node, start=3 * HOUR, end=4 * HOUR)
    assert window_cancel(MaintenanceWindow.objects.get(pk=second), at(1), actor=ROOT)
    windows_advance(at(HOUR))
    assert not accelerators_open(at(HOUR)).exists()
    window = MaintenanceWindow.objects.get(pk=first)
    assert window.status == "under way"
    assert window_cancel(window, at(HOUR + 1), actor=ROOT, reason="no fan")
    assert accelerators_open(at(HOUR + 1)).exists()
    assert not window_cancel(window, at(HOUR + 2), actor=ROOT)
    plan(node, start=5 * HOUR, end=6 * HOUR)
    plan(node, start=6 * HOUR + 200, end=7 * HOUR)  # within the lead
    assert not accelerators_open(at(6 * HOUR + 1)).exists()
    windows_advance(at(6 * HOUR + 2))
    assert not accelerators_open(at(6 * HOUR + 2)).exists()
    assert "the next follows" in node.events.get(kind="maintenance_ended").message
    assert (
        Event.objects.filter(kind="maintenance_cancelled").latest("pk").data["reason"] == "no fan"
    )


@pytest.mark.parametrize(
    ("start", "end", "field"),
    [
        (-61.0, HOUR, "starts_at"),
        (367 * 24 * HOUR, 367 * 24 * HOUR + 1, "starts_at"),
        (HOUR, HOUR, "ends_at"),
        (2 * HOUR, HOUR, "ends_at"),
        (-50.0, -40.0, "ends_at"),
        (0.0, 30 * 24 * HOUR + 1, "ends_at"),
    ],
)
def test_nonsense_is_refused_by_field(start: float, end: float, field: str) -> None:
    node, _ = node_make()
    with pytest.raises(InvalidInputError) as caught:
        plan(node, start=start, end=end)
    assert list(caught.value.fields) == [field]
    assert not MaintenanceWindow.objects.exists()


def test_windows_of_a_node_do_not_overlap_and_are_not_too_many() -> None:
    node, other = node_make()[0], node_make()[0]
    plan(node)
    for start, end in ((0.0, HOUR + 1), (2 * HOUR - 1, 9 * HOUR), (0.0, 9 * HOUR)):
        with pytest.raises(InvalidInputError) as caught:
            plan(other, node, start=start, end=end)
        assert f"{node.name} has maintenance from" in caught.value.fields["nodes"][0]
    assert not other.windows.exists()
    plan(node, other, start=2 * HOUR, end=3 * HOUR)  # they may touch
    for row in cluster_snapshot(at(HOUR)).snapshot.maintenance:
        assert row.ends_at == at(3 * HOUR).timestamp()
    assert cluster_snapshot(at(2 * HOUR)).snapshot.maintenance
    for number in range(3, OPEN_LIMIT + 1):
        plan(node, start=number * HOUR, end=(number + 1) * HOUR)
    with pytest.raises(InvalidInputError) as caught:
        plan(node, start=100 * HOUR, end=101 * HOUR)
    assert f"{OPEN_LIMIT} windows" in caught.value.fields["nodes"][0]
    node.removed_at = at(0)
    node.save()
    with pytest.raises(InvalidInputError, match="not valid"):
        plan(node, start=200 * HOUR, end=201 * HOUR)


@settings(max_examples=10)
@given(
    st.lists(
        st.one_of(
            st.sampled_from(Cordon),
            st.sampled_from(["plan", "cancel"]),
            st.floats(10.0, 3 * HOUR, allow_nan=False),
        ),
        max_size=12,
    )
)
def test_windows_and_manual_changes_leave_each_other_alone(
    steps: list[Cordon | str | float],
) -> None:
    node, _ = node_make(num_accelerators=1)
    now, by_hand = 0.0, (False, False)
    windows: list[tuple[float, float, int]] = []
    for step in steps:
        if isinstance(step, Cordon):
            node_cordon(Node.objects.get(pk=node.pk), step, at(now), actor=ROOT)
            by_hand = (step is not Cordon.UNCORDON, step is Cordon.DRAIN)
        elif isinstance(step, float):
            now += step
            windows_advance(at(now))
        elif step == "plan" and all(end <= now for _, end, _ in windows):
            (number,) = plan(node, start=now + HOUR, end=now + 2 * HOUR, now=now)
            windows.append((now + HOUR, now + 2 * HOUR, number))
        elif step == "cancel" and windows:
            *_, number = windows.pop()
            window_cancel(MaintenanceWindow.objects.get(pk=number), at(now), actor=ROOT)
        found = Node.objects.get(pk=node.pk)
        assert (found.is_cordoned, found.is_draining) == by_hand
        is_closed = any(start - 300.0 <= now < end for start, end, _ in windows)
        is_away = any(start <= now < end for start, end, _ in windows)
        is_open = accelerators_open(at(now)).filter(node=node).exists()
        assert is_open == (not is_closed and not by_hand[0])
        snapshot = cluster_snapshot(at(now)).snapshot
        is_there = node.pk in {one.node_id for one in snapshot.accelerators}
        assert is_there == (not is_away and not by_hand[1])
        comes_back = node.pk in {one.node_id for one in snapshot.maintenance}
        assert comes_back == (is_closed and not by_hand[0])


def test_validations_run_elsewhere() -> None:
    closed, other = node_make()[0], node_make()[0]
    node_cordon(other, Cordon.CORDON, at(0), actor=ROOT)
    plan(closed, start=100.0, end=200.0)
    validation = validation_make(job_make(status=JobStatus.VALIDATING))
    for now_s, node in ((0.0, other), (200.0, closed)):
        validation.status, validation.deadline_at = ValidationStatus.WAITING.value, None
        validation.node = None
        validation.save()
        assert validation_start(validation, at(now_s))
        validation.refresh_from_db()
        assert validation.node == node


def test_an_owner_is_told_that_a_job_leaves() -> None:
    world = World(num_nodes=2, num_accelerators=1)
    job = job_make(min_accelerators=1, max_accelerators=2)
    NotificationChannel.objects.create(
        owner=job.owner, name="a", kind="webhook", events=["maintenance"], created_at=at(0)
    )
    world.settle()
    plan(world.nodes[0].node)
    windows_advance(at(HOUR) + datetime.timedelta(seconds=1))
    (delivery,) = job.owner.notification_channels.get().deliveries.all()
    assert delivery.kind == "maintenance"
