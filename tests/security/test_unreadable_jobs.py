"""A job that cannot be read is left out of a cycle; a cycle that fails is told of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from controlplane.core.policies import POLICIES
from jobs import tasks
from jobs.api.jobs.submission_request import submission_read
from jobs.models import ClusterSetting, Event, Job
from jobs.selectors.dry_run import submission_outlook
from tests.jobs.losses import fresh
from tests.jobs.world import World
from tests.support.builders import job_make, logged_in, submission_values, user_make

pytestmark = pytest.mark.django_db

#: Columns of a row as older versions, or a hand in the database, may have left them.
UNREADABLE: dict[str, dict[str, Any]] = {
    "num_examples": {"facts": {"num_examples": 10**400}},
    "no accelerators": {"throughput_by_count": {"0": 5.0}},
    "no number": {"throughput_by_count": {"one": 5.0}},
    "speed": {"throughput_by_count": {"1": 10**400}},
    "no list": {"accepted_kinds": 7},
    "selection": {"selection": {"method": "best"}, "facts": {"num_examples": 100}},
    "no selection": {"selection": 7, "facts": {"num_examples": 100}},
    "text": {"facts": "text"},
}


@pytest.mark.parametrize(
    "policies",
    [["fifo", "goodput_fair"], pytest.param([*POLICIES], marks=pytest.mark.nightly)],
    ids=["two policies", "all policies"],
)
def test_a_cycle_goes_on_with_all_other_jobs(policies: list[str]) -> None:
    """The rows are left out before a policy sees them, so two of them stand for all."""
    world = World(1, len(UNREADABLE) + 2)
    odd_jobs = {name: job_make(stop_kind="epochs", max_accelerators=1) for name in UNREADABLE}
    world.settle(4)
    others = [job_make(stop_kind="epochs") for _ in range(5)]
    for name, columns in UNREADABLE.items():
        Job.objects.filter(id=odd_jobs[name].pk).update(**columns)
    for policy in policies:
        ClusterSetting.objects.update(policy=policy)
        world.cycle()
        submission_outlook(submission_read(submission_values()), world.now, user_make())
    others_hold = {row.accelerator_id for job in others for row in job.allocations.all()}
    assert len(others_hold) == 2
    for name, odd in odd_jobs.items():
        odd = fresh(odd)
        assert odd.policy_reason.startswith("One of the job's values cannot be read ("), name
        assert "cancel it and submit it again" in odd.policy_reason
        assert odd.events.filter(kind="unreadable").count() == 1, name
        held = odd.allocations.get(released_at=None)
        assert held.accelerator_id not in others_hold, name


def test_a_job_that_can_be_read_again_is_scheduled_again() -> None:
    world = World(1, 1)
    job = job_make()
    Job.objects.filter(id=job.pk).update(throughput_by_count={"0": 1.0})
    world.cycle()
    assert fresh(job).status == "pending"
    Job.objects.filter(id=job.pk).update(throughput_by_count={})
    world.cycle()
    assert fresh(job).status == "starting"
    assert "cannot be read" not in fresh(job).policy_reason


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let cycles fail, until the given function is called."""

    def fail(*_: Any, **__: Any) -> None:
        raise OverflowError("int too large")

    monkeypatch.setattr("jobs.services.scheduling.cycle.decide_timed", fail)
    job_make()
    return monkeypatch.undo


def overview(user: User) -> str:
    client = logged_in(user)
    return client.get("/").content.decode()


@pytest.fixture
def _always_looked_at() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jobs.api.health.READY_FOR_S", 0.0)
        yield


@pytest.mark.usefixtures("_always_looked_at")
def test_a_failing_cycle_is_seen_until_one_succeeds(failing: Callable[[], None]) -> None:
    ada, admin = user_make("ada"), user_make("admin", is_staff=True)
    for _ in range(2):
        with pytest.raises(OverflowError):
            tasks.allocate_cluster()
    assert Event.objects.get(kind="cycle_failed").message.endswith("OverflowError: int too large")
    assert "Scheduling fails" in overview(ada)
    assert "OverflowError" not in overview(ada)
    assert "OverflowError: int too large" in overview(admin)
    ready = Client().get("/readyz")
    assert (ready.status_code, ready.json()["cycle"]) == (200, False)
    assert ready.json()["status"] == "degraded"
    failing()
    tasks.allocate_cluster()
    assert "Scheduling fails" not in overview(ada)
    assert Client().get("/readyz").json()["cycle"] is True
    assert Event.objects.filter(kind="cycle_succeeded").count() == 1


def test_readiness_is_looked_at_once_a_second(
    db: None, django_assert_num_queries: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("jobs.api.health._last", None)
    monkeypatch.setattr("jobs.api.health.monotonic", lambda: now)
    for num_queries in (1, 0, 0):
        with django_assert_num_queries(num_queries):
            assert Client().get("/readyz").status_code == 200
    now += 1.0
    with django_assert_num_queries(1):
        Client().get("/readyz")
    monkeypatch.setattr("jobs.api.health._last", None)
