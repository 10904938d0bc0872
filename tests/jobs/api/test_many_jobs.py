"""POST /api/v1/jobs/actions/: one action on many jobs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from rest_framework.test import APIClient

from controlplane.core.values.lifecycle import JobStatus
from jobs.models import (
    Accelerator,
    Event,
    Job,
    NotificationDelivery,
    UserLimits,
)
from jobs.services.notifications.channels import channel_create
from jobs.services.submission.many_jobs import JOBS_LIMIT
from tests.support.builders import Clients, at, audit_acts, job_make, membership_make, node_make
from tests.support.cases import pairs
from tests.support.rows import allocation_make, generation_make

URL = "/api/v1/jobs/actions/"


def act(client: APIClient, **body: Any) -> dict[str, Any]:
    response = client.post(URL, body, format="json")
    assert response.status_code == 200, response.json()
    answer: dict[str, Any] = response.json()
    return answer


def codes(answer: dict[str, Any]) -> dict[int, str]:
    return {row["job"]: row["code"] for row in answer["results"]}


@pytest.mark.database
def test_each_job_is_done_or_refused_by_itself(ada: User, bob: User, client_of: Clients) -> None:
    own, ended, others = job_make(ada), job_make(ada, status=JobStatus.FAILED), job_make(bob)
    jobs = [own.pk, ended.pk, others.pk, own.pk]
    answer = act(client_of(ada), action="cancel", jobs=jobs, reason="typo")
    assert codes(answer) == {own.pk: "", ended.pk: "wrong_status", others.pk: "not_found"}
    assert [(row["done"], row["changed"]) for row in answer["results"]] == [
        (True, True), (False, False), (False, False),
    ]  # fmt: skip
    assert answer["undo"] == []
    own.refresh_from_db()
    others.refresh_from_db()
    assert (own.status, others.status) == ("cancelled", "pending")
    assert Event.objects.get(job=own).message == "Cancelled by user:ada: typo"


@pytest.mark.database
def test_priorities_are_changed_and_taken_back(ada: User, client_of: Clients) -> None:
    jobs = [job_make(ada, priority=priority) for priority in (50, 60, 50, 80)]
    numbers = [job.pk for job in jobs]
    client = client_of(ada)
    answer = act(client, action="reprioritise", jobs=numbers, priority=80, reason="deadline")
    assert [row["changed"] for row in answer["results"]] == [True, True, True, False]
    assert {*Job.objects.values_list("priority", flat=True)} == {80}
    assert answer["undo"] == [
        {
            "action": "reprioritise", "reason": "Undo: deadline", "changes": [
                {"job": number, "priority": former, "expected_priority": 80}
                for number, former in zip(numbers, (50, 60, 50), strict=False)
            ],
        },
    ]  # fmt: skip
    for body in answer["undo"]:
        act(client, **body)
    assert [*Job.objects.order_by("pk").values_list("priority", flat=True)] == [50, 60, 50, 80]


@pytest.mark.database
def test_jobs_get_values_of_their_own_and_are_taken_back(
    ada: User, admin: User, client_of: Clients
) -> None:
    jobs = [job_make(ada, priority=priority) for priority in (50, 60, 70)]
    numbers = [job.pk for job in jobs]
    changes: list[dict[str, Any]] = [
        {"job": numbers[2], "priority": 950, "expected_priority": 70},
        {"job": numbers[0], "priority": 800, "tier": "urgent", "expected_tier": "normal"},
        {"job": numbers[1], "priority": 60},
    ]
    client = client_of(admin)
    body = {"action": "reprioritise", "changes": changes, "all_or_none": True, "reason": "order"}
    refused = client.post(URL, {**body, "reason": ""}, format="json").json()["errors"]
    assert refused == {"reason": ["Say why: the owner will read it."]}
    answer = act(client, **body)
    assert [(row["job"], row["changed"]) for row in answer["results"]] == [
        (numbers[0], True), (numbers[1], False), (numbers[2], True),
    ]  # fmt: skip
    values = Job.objects.order_by("pk").values_list("tier", "priority")
    assert [*values.all()] == [("urgent", 800), ("normal", 60), ("normal", 950)]
    messages = [*Event.objects.order_by("id").values_list("job", "message")]
    assert messages == [
        (numbers[0], "Tier normal → urgent: order"),
        (numbers[0], "Priority 50 → 800: order"),
        (numbers[2], "Priority 70 → 950: order"),
    ]
    assert audit_acts().filter(action="priority_changed").count() == 3
    Job.objects.filter(pk=numbers[2]).update(priority=90)
    (undo,) = answer["undo"]
    assert codes(act(client, **undo)) == {numbers[0]: "", numbers[2]: "stale_version"}
    assert [*values.all()] == [("normal", 50), ("normal", 60), ("normal", 90)]


@pytest.mark.database
@pytest.mark.parametrize(
    ("change", "status", "code", "text"),
    [
        ({"expected_priority": 60}, 412, "stale_version", "Its priority is 50 now, not 60"),
        ({"expected_tier": "idle"}, 412, "stale_version", "Its tier is normal now, not idle"),
        ({"priority": 101}, 400, "invalid", "Give a whole number from 1 to 100."),
        ({"tier": "urgent"}, 400, "invalid", "Choose one of normal, idle."),
        ({"job": "ended"}, 409, "wrong_status", "A job that is failed cannot be"),
        ({"job": "others"}, 404, "not_found", "There is no such job, or it is not yours."),
        ({"job": "none"}, 404, "not_found", "There is no such job, or it is not yours."),
    ],
)
def test_all_jobs_change_or_none(
    ada: User, bob: User, client_of: Clients, change: dict[str, Any], status: int, code: str,
    text: str,
) -> None:  # fmt: skip
    numbers = {
        "own": job_make(ada, priority=50).pk,
        "second": job_make(ada, priority=50).pk,
        "ended": job_make(ada, status=JobStatus.FAILED).pk,
        "others": job_make(bob).pk,
        "none": 999_999,
    }
    wrong = {"priority": 40, **change, "job": numbers[change.get("job", "second")]}
    changes = [{"job": numbers["own"], "priority": 10}, wrong]
    before = [*Job.objects.order_by("pk").values()]
    body = {"action": "reprioritise", "changes": changes}
    refused = client_of(ada).post(URL, {**body, "all_or_none": True}, format="json")
    assert (refused.status_code, refused.json()["code"]) == (status, code)
    (told,) = refused.json()["errors"]["jobs"]
    assert told.startswith(f"Job {wrong['job']}: {text}")
    assert [*Job.objects.order_by("pk").values()] == before
    assert not Event.objects.exists()
    # Without that field each job is done or refused by itself.
    assert codes(act(client_of(ada), **body)) == {numbers["own"]: "", wrong["job"]: code}
    assert Job.objects.get(pk=numbers["own"]).priority == 10


@pytest.mark.database
def test_a_tag_is_taken_back_only_where_it_is_new(ada: User, client_of: Clients) -> None:
    old, new = job_make(ada, tags=["a"]), job_make(ada)
    client = client_of(ada)
    answer = act(client, action="tag", jobs=[old.pk, new.pk], tag="a")
    assert [row["changed"] for row in answer["results"]] == [False, True]
    (undo,) = answer["undo"]
    act(client, **undo)
    assert [*Job.objects.order_by("pk").values_list("tags", flat=True)] == [["a"], []]
    assert act(client, action="untag", jobs=[old.pk], tag="a")["undo"][0]["action"] == "tag"


@contextmanager
def just_before_the_first_change(other: Callable[[], Any]) -> Iterator[None]:
    """Call `other` once a job has been read, and before its row is changed for the first time."""
    called: list[bool] = []

    def wrapper(execute: Any, sql: str, *rest: Any) -> Any:
        if sql.startswith('UPDATE "jobs_job"') and not called:
            called.append(True)
            other()
        return execute(sql, *rest)

    with connection.execute_wrapper(wrapper):
        yield
    assert called


ACTS: dict[str, dict[str, Any]] = {
    "80": {"action": "reprioritise", "priority": 80},
    "90": {"action": "reprioritise", "priority": 90},
    "idle": {"action": "reprioritise", "tier": "idle"},
    "urgent": {"action": "reprioritise", "tier": "urgent"},
    "tag": {"action": "tag", "tag": "a"},
    "untag": {"action": "untag", "tag": "a"},
}


def undos() -> Iterator[Any]:
    """Combine two acts on a job, and its tags before; what repeats others in `make nightly`."""
    for own, others, is_tagged in itertools.product(ACTS, ACTS, (False, True)):
        of_tags = {own, others} & {"tag", "untag"}
        # Two acts on tags have both; one is tried where it changes the job.
        is_new = {own, others} == of_tags or is_tagged == ("untag" in of_tags)
        # Of acts on different fields, those after a new priority.
        is_apart = ACTS[own].keys() != ACTS[others].keys() and own != "80"
        is_other = is_new and not is_apart and own not in ("90", "urgent")
        marks = [] if is_other else pytest.mark.nightly
        yield pytest.param(own, others, ["a"] if is_tagged else [], marks=marks)


@pytest.mark.parametrize(("own", "others", "tags"), [*undos()])
@pytest.mark.parametrize(
    "is_late",
    [pytest.param(False, id="within", marks=pytest.mark.nightly), pytest.param(True, id="after")],
)
def test_an_undo_leaves_what_somebody_else_has_changed(
    ada: User, admin: User, client_of: Clients, own: str, others: str, tags: list[str],
    is_late: bool,
) -> None:  # fmt: skip
    """Another person's change within an action, or before its undo, is kept, and only that."""
    UserLimits.objects.create(user=ada, tier_ceiling="urgent")
    job = job_make(ada, priority=50, tags=tags)
    boss, client = client_of(admin), client_of(ada)
    theirs: list[dict[str, Any]] = []

    def change() -> None:
        theirs.append(act(boss, jobs=[job.pk], reason="told so", **ACTS[others]))

    if is_late:
        answer = act(client, jobs=[job.pk], **ACTS[own])
        change()
    else:
        with just_before_the_first_change(change):
            answer = act(client, jobs=[job.pk], **ACTS[own])
    for body in answer["undo"]:
        act(client, **body)

    is_theirs = theirs[0]["results"][0]["changed"]
    expected: dict[str, Any] = {"priority": 50, "tier": "normal", "tags": tags}
    if is_theirs and others in ("80", "90"):
        expected["priority"] = int(others)
    if is_theirs and others in ("idle", "urgent"):
        expected["tier"] = others
    if is_theirs and others in ("tag", "untag"):
        expected["tags"] = ["a"] if others == "tag" else []
    job.refresh_from_db()
    assert {"priority": job.priority, "tier": job.tier, "tags": job.tags} == expected


@pytest.mark.parametrize(
    ("own", "others", "detail"),
    [
        ("80", "90", "Its priority is 90 now, not 80: it stays."),
        ("idle", "urgent", "Its tier is urgent now, not idle: it stays."),
    ],
)
def test_a_refused_undo_says_why(
    ada: User, admin: User, client_of: Clients, own: str, others: str, detail: str
) -> None:
    job, client = job_make(ada, priority=50), client_of(ada)
    (undo,) = act(client, jobs=[job.pk], **ACTS[own])["undo"]
    act(client_of(admin), jobs=[job.pk], reason="told so", **ACTS[others])
    (row,) = act(client, **undo)["results"]
    assert (row["done"], row["changed"], row["code"]) == (False, False, "stale_version")
    assert row["detail"] == detail


def test_a_repeated_action_changes_nothing(ada: User, client_of: Clients) -> None:
    job, client = job_make(ada), client_of(ada)
    for body in (
        {"action": "tag", "tag": "a"},
        {"action": "reprioritise", "priority": 5},
        {"action": "cancel"},
    ):
        first, second = (act(client, jobs=[job.pk], **body) for _ in range(2))
        assert (codes(first), codes(second)) == ({job.pk: ""}, {job.pk: ""})
        assert second["undo"] == []
    assert Event.objects.filter(job=job).count() == 3


def test_admins_say_why_and_leave_entries(ada: User, admin: User, client_of: Clients) -> None:
    job, client = job_make(ada), client_of(admin)
    body = {"action": "reprioritise", "jobs": [job.pk], "priority": 5}
    assert codes(act(client, **body)) == {job.pk: "invalid"}
    act(client, **body, reason="a demo")
    act(client, action="tag", jobs=[job.pk], tag="a", reason="a demo")
    act(client, action="cancel", jobs=[job.pk], reason="a demo")
    entries = list(audit_acts().values_list("action", "object"))
    assert [action for action, _ in entries] == [
        "priority_changed", "job_described", "job_cancelled",
    ]  # fmt: skip
    assert {object_ for _, object_ in entries} == {f"job:{job.pk}"}


#: Bodies of each action, and of what it depends on.
BODIES: dict[str, dict[str, Any]] = {
    "cancel": {"action": "cancel"},
    "tag": {"action": "tag", "tag": "b"},
    "untag": {"action": "untag", "tag": "a"},
    "one priority": {"action": "reprioritise", "priority": 7, "tier": "idle"},
    "own priorities": {"action": "reprioritise"},
    "all or none": {"action": "reprioritise", "priority": 7, "all_or_none": True},
}


@pytest.mark.parametrize(("name", "is_admins"), pairs(BODIES, [False, True]))
def test_the_number_of_queries_does_not_grow_with_that_of_the_jobs(
    ada: User, admin: User, client_of: Clients, name: str, is_admins: bool
) -> None:
    """Of running jobs with a history too, and whether somebody is notified or not."""
    values = {"name": "lab", "kind": "webhook", "address": "https://hooks.example/x"}
    channel_create(ada, {**values, "events": ["cancelled"], "is_cluster_wide": False}, at(0))
    client = client_of(admin if is_admins else ada)
    num_queries = []
    for count in (1, 3, 12):  # the first request of a process reads more
        node, _ = node_make(num_accelerators=count)
        jobs = [bulk_job(ada, *each) for each in enumerate(node.accelerators.all())]
        body = {**BODIES[name], "reason": "a demo", "jobs": [job.pk for job in jobs]}
        if name == "own priorities":
            body["changes"] = [
                {"job": job_id, "priority": 20 + place}
                for place, job_id in enumerate(body.pop("jobs"))
            ]
        with CaptureQueriesContext(connection) as queries:
            answer = act(client, **body)
        assert all(row["changed"] for row in answer["results"]), answer
        num_cancelled = Event.objects.filter(kind="cancelled").count()
        assert NotificationDelivery.objects.count() == num_cancelled
        num_queries.append(len(queries))
    assert num_queries[2] <= num_queries[1] + 2
    assert num_queries[2] < 60


def bulk_job(owner: User, number: int, accelerator: Accelerator) -> Job:
    """Make a job that waits, was paused while it trained, or trains, with accelerators held."""
    status = (JobStatus.PENDING, JobStatus.PAUSED, JobStatus.RUNNING)[number % 3]
    job = job_make(owner, status=status, tags=["a"], priority=10, started_at=at(0))
    released_at = None if status is JobStatus.RUNNING else at(9)
    allocation_make(job, accelerator, released_at=released_at)
    phase = "active" if status is JobStatus.RUNNING else "closed"
    membership = membership_make(1, {0: [0, 1, 2, 3]})
    generation_make(job, phase=phase, membership=membership, reported_at=at(1))
    return job


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"action": "explode", "jobs": [1]}, "action"),
        ({"jobs": [1]}, "action"),
        ({"action": "cancel"}, "jobs"),
        ({"action": "cancel", "jobs": []}, "jobs"),
        ({"action": "cancel", "jobs": [*range(1, JOBS_LIMIT + 2)]}, "jobs"),
        ({"action": "cancel", "jobs": ["x"]}, "jobs"),
        ({"action": "cancel", "jobs": [0]}, "jobs"),
        ({"action": "cancel", "jobs": 7}, "jobs"),
        ({"action": "reprioritise", "jobs": [1]}, "priority"),
        ({"action": "reprioritise", "jobs": [1], "priority": 1001}, "priority"),
        ({"action": "tag", "jobs": [1]}, "tag"),
        ({"action": "tag", "jobs": [1], "tag": "a b"}, "tag"),
        ({"action": "untag", "jobs": [1], "tag": ["a"]}, "tag"),
        ({"action": "cancel", "jobs": [1], "reason": "x" * 501}, "reason"),
        ({"action": "cancel", "jobs": [1], "all": True}, "all"),
        ({"action": "cancel", "jobs": [1], "priority": 5}, "priority"),
        ({"action": "tag", "tag": "a", "jobs": [1], "tier": "idle"}, "tier"),
        ({"action": "reprioritise", "jobs": [1], "priority": 5, "tag": "a"}, "tag"),
        ({"action": "cancel", "jobs": [1], "all_or_none": "perhaps"}, "all_or_none"),
        ({"action": "cancel", "changes": [{"job": 1, "priority": 5}]}, "changes"),
        *(
            ({"action": "reprioritise", "priority": 5, **body}, "changes")
            for body in ({"changes": [{"job": 1, "priority": 5}]}, {"jobs": [1], "changes": []})
        ),
        *(
            ({"action": "reprioritise", "changes": changes}, "changes")
            for changes in (
                [],
                7,
                [7],
                [{"job": 1}],
                [{"priority": 5}],
                [{"job": 1, "priority": 0}],
                [{"job": 1, "priority": 5}] * 2,
                [{"job": 1, "tier": "royal"}],
                [{"job": 1, "priority": 5, "reason": "x"}],
                [{"job": number, "priority": 5} for number in range(1, JOBS_LIMIT + 2)],
            )
        ),
    ],
)
def test_a_wrong_body_names_the_field(
    ada: User, client_of: Clients, body: dict[str, Any], field: str
) -> None:
    response = client_of(ada).post(URL, body, format="json")
    assert (response.status_code, set(response.json()["errors"])) == (400, {field})


def test_a_refusal_names_the_change(ada: User, client_of: Clients) -> None:
    changes = [{"job": 1, "priority": 5}, {"job": 2, "priority": 1001}]
    answer = client_of(ada).post(URL, {"action": "reprioritise", "changes": changes}, format="json")
    assert answer.json()["errors"] == {
        "changes": ["Item 2: priority: Give a whole number from 1 to 1000."]
    }


def test_other_requests_are_refused(ada: User, client_of: Clients) -> None:
    body = {"action": "cancel", "jobs": [job_make(ada).pk]}
    reader = client_of(ada, ("jobs:read",)).post(URL, body, format="json")
    assert (reader.status_code, reader.json()["code"]) == (403, "permission_denied")
    assert client_of(ada).post(URL, [body], format="json").status_code == 400
    assert client_of(ada).get(URL).status_code == 405
