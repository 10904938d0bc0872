"""POST and GET /api/v1/sweeps/, and what becomes of the jobs of a sweep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.files.storage import default_storage
from django.db.models import Count
from rest_framework.test import APIClient

from controlplane.core.values.lifecycle import JobStatus, ValidationStatus
from jobs.job_templates import FOLDER
from jobs.models import (
    AuditEntry,
    Event,
    Job,
    NotificationChannel,
    Project,
    ProjectMembership,
    Sweep,
    UserLimits,
    Validation,
)
from jobs.models.jobs import NUM_COLOURS
from jobs.selectors.cluster import cluster_snapshot
from jobs.selectors.next_cycle import decide_timed
from jobs.selectors.sweeps import sweep_table
from jobs.services.scheduling.cycle import plan_apply
from jobs.services.submission.sweeps import sweep_pause
from jobs.services.submission.validations import USER_RUNNING_PER_NODE, validations_start_waiting
from tests.jobs.world import World
from tests.support.builders import Clients, at, audit_acts, job_make, node_make, submission_values

pytestmark = pytest.mark.django_db

URL = "/api/v1/sweeps/"
GRID = {"hidden_units": [32, 64], "learning_rate": {"low": 0.001, "high": 0.1, "num": 3,
        "scale": "log"}}  # fmt: skip


def body(space: Any = GRID, /, **sweep: Any) -> dict[str, Any]:
    return {"template": "digits_cnn", "name": "search", "sweep": {"space": space, **sweep}}


def submit(client: APIClient, space: Any = GRID, /, **sweep: Any) -> dict[str, Any]:
    response = client.post(URL, body(space, **sweep), format="json")
    assert response.status_code == 201, response.json()
    answer: dict[str, Any] = response.json()
    return answer


def sweep_make(owner: User, statuses: list[JobStatus], **values: Any) -> Sweep:
    """Make a sweep with one job for each status."""
    values = {"name": "search", "space": {"x": [1]}, "max_running": 2, **values}
    sweep = Sweep.objects.create(owner=owner, submitted_at=at(0), **values)
    for status in statuses:
        job_make(owner, status=status, sweep=sweep)
    return sweep


def test_a_grid_is_submitted_as_jobs(ada: User, client_of: Clients) -> None:
    client = client_of(ada)
    found = submit(client, max_running=2)
    assert (found["num_jobs"], found["max_running"], found["owner"]) == (6, 2, "ada")
    assert found["statuses"] == {"validating": 6}
    jobs = Job.objects.filter(sweep=found["id"]).order_by("pk")
    assert [(job.name, job.settings["hidden_units"], job.settings["learning_rate"])
            for job in jobs] == [
        ("search 1", 32, 0.001), ("search 2", 32, 0.01), ("search 3", 32, 0.1),
        ("search 4", 64, 0.001), ("search 5", 64, 0.01), ("search 6", 64, 0.1),
    ]  # fmt: skip
    others = {name for job in jobs for name in job.settings} - {*GRID}
    assert others, "the template's other settings stay"
    assert len({job.code.name for job in jobs}) == 6
    # One file under six names: a large archive is not written six times.
    assert {Path(job.code.path).stat().st_nlink for job in jobs} == {6}
    listed = client.get(f"/api/v1/jobs/?sweep={found['id']}").json()["results"]
    assert {row["sweep"] for row in listed} == {found["id"]}
    assert len(listed) == 6
    assert client.get(URL).json()["results"] == [client.get(f"{URL}{found['id']}/").json()]


def test_draws_differ_and_are_repeated_by_their_seed(ada: User, client_of: Clients) -> None:
    space = {"hidden_units": {"low": 8, "high": 512, "scale": "log", "integer": True},
             "learning_rate": {"low": 1e-4, "high": 1e-1, "scale": "log"}}  # fmt: skip
    client, query = client_of(ada), "?dry_run=1"

    def drawn(**sweep: Any) -> list[dict[str, Any]]:
        answer = client.post(URL + query, body(space, num_draws=20, **sweep), format="json")
        settings: list[dict[str, Any]] = answer.json()["settings"]
        return settings

    first = drawn()
    assert first == drawn(seed=0)
    assert first != drawn(seed=1)
    assert len({str(one) for one in first}) == 20
    assert all(type(one["hidden_units"]) is int for one in first)
    assert all(8 <= one["hidden_units"] <= 512 for one in first)
    assert all(1e-4 <= one["learning_rate"] <= 1e-1 for one in first)
    assert not Sweep.objects.exists()
    few = client.post(URL + query, body({"hidden_units": [1, 2, 3]}, num_draws=9), format="json")
    assert few.json()["num_jobs"] == 3


@pytest.mark.parametrize(
    ("sweep", "field", "text"),
    [
        (None, "sweep", "space"),
        ("none", "sweep", "space"),
        ({}, "sweep.space", "required"),
        ({"space": {}}, "sweep.space", "hidden_units"),
        ({"space": {"units": []}}, "sweep.space", "units: give a list"),
        ({"space": {"units": 3}}, "sweep.space", "units: give a list"),
        ({"space": {"units": [1]}}, "sweep.space", "has no setting units"),
        ({"space": {"filters": [8, "many"]}}, "sweep.space", 'filters: "many" will not do'),
        ({"space": {"filters": [[8]]}}, "sweep.space", "takes a number, such as 32"),
        ({"space": {"a": {"low": 1, "high": 2}}}, "sweep.space", "a: a grid needs num"),
        ({"space": {"a": {"low": 2, "high": 1}}}, "sweep.space", "smaller one first"),
        ({"space": {"a": {"low": 0, "high": 1, "scale": "log", "num": 2}}}, "sweep.space", "log"),
        ({"space": {"a": {"low": 0, "high": 1, "scale": "x", "num": 2}}}, "sweep.space", "linear"),
        ({"space": {"a": {"low": 0, "high": 1.5, "integer": True}}}, "sweep.space", "whole"),
        ({"space": {"a": {"low": 0, "high": 1, "step": 1}}}, "sweep.space", "no field step"),
        ({"space": {"a": {"low": 0, "high": 1, "num": 1}}}, "sweep.space", "2 to 100"),
        ({"space": {"a": [*range(30)], "b": [*range(30)]}}, "sweep.space", "900 jobs"),
        ({"space": {"hidden_units": [1]}, "num_draws": 501}, "sweep.num_draws", "500"),
        ({"space": {"hidden_units": [1]}, "max_running": 0}, "sweep.max_running", "500"),
        ({"space": {"hidden_units": [1]}, "max_runing": 1}, "sweep.max_runing", "max_running"),
    ],
)
def test_a_wrong_space_names_the_setting(
    ada: User, client_of: Clients, sweep: Any, field: str, text: str
) -> None:
    given = {"template": "digits_cnn", "sweep": sweep}
    answer = client_of(ada).post(URL, given, format="json")
    assert answer.status_code == 400
    assert list(answer.json()["errors"]) == [field]
    assert text in answer.json()["errors"][field][0]
    assert not Job.objects.exists()


def test_a_wrong_field_of_the_job_is_named_as_ever(ada: User, client_of: Clients) -> None:
    answer = client_of(ada).post(URL, body() | {"num_virtual_nodes": 0}, format="json")
    assert list(answer.json()["errors"]) == ["num_virtual_nodes"]
    answer = client_of(ada).post("/api/v1/jobs/", body(), format="json")
    assert list(answer.json()["errors"]) == ["sweep"]


def test_the_limit_of_live_jobs_counts_all_of_them(ada: User, client_of: Clients) -> None:
    UserLimits.objects.create(user=ada, live_jobs_limit=6)
    job_make(ada)
    for query in ("", "?dry_run=1"):
        answer = client_of(ada).post(URL + query, body(), format="json")
        assert (answer.status_code, answer.json()["code"]) == (409, "too_many_jobs")
        assert answer.json()["detail"] == (
            "You have 1 job that has not ended; wait for some or cancel them. These would be 6 "
            "more, and 6 are allowed."
        )
    assert (Job.objects.count(), Sweep.objects.count()) == (1, 0)


def test_a_repeated_request_makes_no_second_sweep(ada: User, client_of: Clients) -> None:
    client, key = client_of(ada), {"Idempotency-Key": "once"}
    first, second = (client.post(URL, body(), format="json", headers=key) for _ in range(2))
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json() == second.json()
    assert Job.objects.count() == 6
    other = client.post(URL, body(max_running=1), format="json", headers=key)
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_key_reused")


def test_a_yaml_file_describes_a_sweep(ada: User, client_of: Clients) -> None:
    text = (
        "template: digits_cnn\nsweep:\n  max_running: 1\n  space:\n    hidden_units: [16, 32, 64]\n"
        f"    learning_rate: [1e-4, 1e-2]\nname: {97 * 'x'}e\u0301\n"
    )
    answer = client_of(ada).post(URL, text, content_type="application/yaml")
    assert answer.status_code == 201, answer.json()
    rates = Job.objects.order_by("pk").values_list("settings__learning_rate", flat=True)
    assert list(rates) == [1e-4, 1e-2] * 3
    assert Job.objects.earliest("pk").name == 97 * "x" + " 1"
    values = submission_values(settings={"net": {"depth": 2, "act": "relu"}})
    values["sweep"] = {"space": {"net.depth": [3, 4]}}
    made = client_of(ada).post(URL, values, format="json").json()
    sweep = Sweep.objects.get(pk=made["id"])
    nets = [{"net": {"depth": depth, "act": "relu"}} for depth in (3, 4)]
    assert [job.settings for job in sweep.jobs.order_by("pk")] == nets
    assert [row.settings for row in sweep_table(ada, sweep, order="job").rows] == [(3,), (4,)]


def test_limits_of_the_project_and_of_storage_count_all_of_them(
    ada: User, client_of: Clients, settings: Any
) -> None:
    """Six jobs are one too many for the project, then one byte too large together."""
    vision = Project.objects.create(name="vision", live_jobs_limit=5, created_at=at(0))
    ProjectMembership.objects.create(project=vision, user=ada, role="operator", since=at(0))
    client = client_of(ada)
    answer = client.post(URL, {**body(), "project": "vision"}, format="json")
    assert answer.status_code == 400
    assert "These would be 6 more" in answer.json()["errors"]["project"][0]
    Project.objects.update(live_jobs_limit=6)
    num_bytes = (FOLDER / "digits_cnn.py").stat().st_size
    settings.STORAGE_LIMIT_BYTES = 6 * num_bytes - 1
    answer = client.post(URL, {**body(), "project": "vision"}, format="json")
    assert (answer.status_code, answer.json()["code"]) == (413, "storage_full")
    assert (Job.objects.count(), Sweep.objects.count()) == (0, 0)
    settings.STORAGE_LIMIT_BYTES = 6 * num_bytes
    assert client.post(URL, {**body(), "project": "vision"}, format="json").status_code == 201


def test_jobs_beyond_the_limit_are_held_back(ada: User) -> None:
    """Of a sweep of 2 at once, one job is being stopped: only one more may begin."""
    statuses = [JobStatus.PENDING, JobStatus.PENDING, JobStatus.PREEMPTING]
    sweep = sweep_make(ada, statuses)
    job_make(ada)
    snapshot = cluster_snapshot(at(10)).snapshot
    assert [job.sweep for job in snapshot.jobs] == [sweep.pk, sweep.pk, None]
    (held,) = snapshot.sweeps.values()
    assert (held.max_running, held.num_leaving, held.is_paused) == (2, 1, False)


def test_a_sweep_does_not_keep_the_code_of_others_waiting(
    ada: User, bob: User, client_of: Clients
) -> None:
    node_make()
    submit(client_of(ada))
    own = job_make(ada, status=JobStatus.VALIDATING).validation
    others = job_make(bob, status=JobStatus.VALIDATING).validation
    running = Validation.objects.filter(status=ValidationStatus.RUNNING)
    of_ada = running.filter(owner=ada)
    for second in (1, 2, 3):
        validations_start_waiting(at(second))
        assert of_ada.count() == USER_RUNNING_PER_NODE
        of_ada.filter(pk=of_ada.earliest("id").pk).update(
            status=ValidationStatus.PASSED, deadline_at=None
        )
    own.refresh_from_db()
    assert own.attempt == 1, "before the rest of the sweep"
    assert running.filter(pk=others.pk).exists()


def test_one_user_does_not_keep_the_code_of_others_waiting(ada: User, bob: User) -> None:
    node_make()
    for owner in [*[ada] * 9, bob]:
        job_make(owner, status=JobStatus.VALIDATING)
    validations_start_waiting(at(1))
    running = Validation.objects.filter(status=ValidationStatus.RUNNING)
    counts = dict(running.order_by().values_list("owner__username").annotate(n=Count("id")))
    assert counts == {ada.username: USER_RUNNING_PER_NODE, bob.username: 1}


def test_a_sweep_is_paused_resumed_and_cancelled(ada: User, client_of: Clients) -> None:
    sweep = sweep_make(ada, [JobStatus.PENDING, JobStatus.VALIDATING, JobStatus.FINISHED])
    client, address = client_of(ada), f"{URL}{sweep.pk}/"
    paused = client.post(f"{address}pause/", {"reason": "later"}, format="json").json()
    assert (paused["is_paused"], paused["statuses"]["pending"]) == (True, 1)
    (held,) = cluster_snapshot(at(10)).snapshot.sweeps.values()
    assert held.is_paused
    assert client.post(f"{address}resume/").json()["is_paused"] is False
    for _ in range(2):
        cancelled = client.post(f"{address}cancel/", {"reason": "typo"}, format="json")
        assert cancelled.json()["statuses"] == {"cancelled": 2, "finished": 1}
    assert not audit_acts().exists()


def test_running_jobs_of_a_paused_sweep_are_paused(ada: User, client_of: Clients) -> None:
    sweep = sweep_make(ada, [JobStatus.RUNNING])
    client = client_of(ada)
    client.post(f"{URL}{sweep.pk}/pause/")
    assert Job.objects.get().pause_requested
    client.post(f"{URL}{sweep.pk}/resume/")
    assert not Job.objects.get().pause_requested


def test_no_job_starts_by_a_decision_from_before_the_pause(ada: User) -> None:
    world = World(num_nodes=1)
    sweep = sweep_make(ada, [JobStatus.PENDING])
    view = cluster_snapshot(world.now)
    plan, _ = decide_timed(view.snapshot, "fifo")
    sweep_pause(sweep, ada, world.now)
    assert len(plan.resizes) == 1
    assert plan_apply(plan, view.generations, world.now, actor="policy:fifo") == set()
    assert Job.objects.get().status == JobStatus.PENDING


def test_the_limit_is_changed_by_its_owner_and_by_admins_with_a_reason(
    ada: User, bob: User, admin: User, client_of: Clients
) -> None:
    sweep = sweep_make(ada, [])
    address = f"{URL}{sweep.pk}/"

    def change(user: User, **values: Any) -> Any:
        return client_of(user).patch(address, values, format="json")

    assert change(ada, max_running=5).json()["max_running"] == 5
    assert change(bob, max_running=1).status_code == 404
    assert list(change(admin, max_running=1).json()["errors"]) == ["reason"]
    assert change(admin, max_running=1, reason="a demo").json()["max_running"] == 1
    assert audit_acts().get().object == f"sweep:{sweep.pk}"
    assert list(change(ada, max_running=0).json()["errors"]) == ["max_running"]
    assert list(change(ada, space={}).json()["errors"]) == ["space"]


@pytest.mark.parametrize("action", ["", "cancel/", "pause/", "resume/"])
def test_somebody_elses_sweep_is_not_there(
    ada: User, bob: User, client_of: Clients, action: str
) -> None:
    sweep = sweep_make(ada, [JobStatus.PENDING])
    client = client_of(bob)
    method = client.post if action else client.get
    assert method(f"{URL}{sweep.pk}/{action}").status_code == 404
    assert client.get(URL).json()["results"] == []


def test_all_jobs_or_none(ada: User, client_of: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    stored: list[str] = []

    def fail(jobs: Sequence[Job], *_rest: Any) -> None:
        stored.extend(job.code.name for job in jobs)
        assert all(default_storage.exists(name) for name in stored)
        raise RuntimeError("as by the database")

    monkeypatch.setattr("jobs.services.submission.job_actions.jobs_store", fail)
    client = client_of(ada)
    client.raise_request_exception = False
    assert client.post(URL, body(), format="json").status_code == 500
    assert not Sweep.objects.exists()
    assert len(stored) == 6
    assert not any(default_storage.exists(name) for name in stored)


def test_many_jobs_cost_few_queries(
    ada: User, client_of: Clients, django_assert_max_num_queries: Callable[[int], Any]
) -> None:
    UserLimits.objects.create(user=ada, live_jobs_limit=1000)
    client = client_of(ada)
    space = {"learning_rate": {"low": 0.001, "high": 0.1}}
    with django_assert_max_num_queries(40):
        found = submit(client, space, num_draws=120)
    jobs = Job.objects.filter(sweep=found["id"])
    assert jobs.filter(events__kind="submitted", validation__status="waiting").count() == 120
    settings = jobs.values_list("settings__learning_rate", flat=True)
    assert len({*settings}) == 120
    assert {*Counter(jobs.values_list("colour", flat=True)).values()} == {120 // NUM_COLOURS}
    chosen = [*jobs.values_list("pk", flat=True)[:60]]
    with django_assert_max_num_queries(30):
        act = {"action": "cancel", "jobs": chosen}
        done = client.post("/api/v1/jobs/actions/", act, format="json").json()
    assert {row["job"] for row in done["results"] if row["changed"]} == {*chosen}
    with django_assert_max_num_queries(30):
        client.post(f"{URL}{found['id']}/cancel/")
    assert jobs.filter(status="cancelled", validation__status="cancelled").count() == 120


def test_each_cancelled_job_has_its_event_entry_and_message(
    admin: User, ada: User, client_of: Clients
) -> None:
    channel = NotificationChannel.objects.create(
        owner=ada, kind="webhook", name="mine", events=["cancelled"], created_at=at(0)
    )
    statuses = [JobStatus.VALIDATING, JobStatus.PENDING, JobStatus.PAUSED, JobStatus.RUNNING]
    sweep = sweep_make(ada, [*statuses, JobStatus.FINISHED])
    jobs = Job.objects.filter(sweep=sweep).exclude(status=JobStatus.FINISHED)
    paused = jobs.get(status=JobStatus.PENDING).pk
    for act in ("pause", "resume", "resume"):
        client_of(admin).post(f"/api/v1/jobs/{paused}/{act}/", {"reason": "rest"}, format="json")
    acts = AuditEntry.objects.filter(object=f"job:{paused}", details__reason="rest")
    assert [*acts.values_list("action", flat=True)] == ["job_resumed", "job_paused"]
    before = {job.pk: (job.version, job.revision) for job in jobs}
    ids = sorted(before)
    answer = client_of(admin).post(f"{URL}{sweep.pk}/cancel/", {"reason": "to save"}, format="json")
    assert answer.json()["statuses"] == {"cancelled": 4, "finished": 1}
    text = "Cancelled by user:admin: to save"
    events = Event.objects.filter(kind="cancelled").order_by("job_id")
    assert [(one.job_id, one.actor, one.message) for one in events] == [
        (job_id, "user:admin", text) for job_id in ids
    ]
    audited = AuditEntry.objects.filter(action="job_cancelled", actor="user:admin")
    assert {*audited.values_list("object", flat=True)} == {f"job:{job_id}" for job_id in ids}
    assert audited.count() == len(ids)
    bodies = [row.body["data"]["job"] for row in channel.deliveries.order_by("id")]
    assert sorted((one["id"], one["status"]) for one in bodies) == [
        (job_id, "cancelled") for job_id in ids
    ]
    for job in Job.objects.filter(pk__in=ids):
        assert (job.status_code, job.status_reason) == ("cancelled", text)
        assert job.version > before[job.pk][0]
        assert job.revision == before[job.pk][1] + 1
        assert job.ended_at is not None
    again = client_of(ada).post(f"{URL}{sweep.pk}/cancel/")
    assert again.status_code == 200
    assert Event.objects.filter(kind="cancelled").count() == 4
