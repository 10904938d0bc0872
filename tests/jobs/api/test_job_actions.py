"""POST /api/v1/jobs/N/{cancel,pause,resume,reprioritise,clone}/."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.files.uploadedfile import SimpleUploadedFile

from controlplane.core.values.lifecycle import ENDED_JOB_STATUSES, JobStatus
from jobs.models import Event, Job
from tests.support.builders import CODE, Clients, at, job_make

ACTIONS = ("cancel", "pause", "resume", "reprioritise", "clone")


def url(job: Job | int, action: str) -> str:
    return f"/api/v1/jobs/{job if isinstance(job, int) else job.pk}/{action}/"


@pytest.mark.parametrize("action", ACTIONS)
def test_other_peoples_jobs_are_not_there(
    ada: User, bob: User, client_of: Clients, action: str
) -> None:
    job, client = job_make(bob), client_of(ada)
    body = {"priority": 5, "reason": "mine"}
    assert client.post(url(job, action), body).status_code == 404
    assert client.post(url(job.pk + 1, action), body).status_code == 404
    assert Job.objects.get().version == 1


@pytest.mark.parametrize("action", ACTIONS)
def test_wrong_method(ada: User, client_of: Clients, action: str) -> None:
    assert client_of(ada).get(url(job_make(ada), action)).status_code == 405


@pytest.mark.parametrize("action", ACTIONS)
def test_a_token_that_may_only_read(ada: User, client_of: Clients, action: str) -> None:
    response = client_of(ada, ("jobs:read",)).post(url(job_make(ada), action), {})
    assert (response.status_code, response.json()["code"]) == (403, "permission_denied")


@pytest.mark.parametrize("action", ["cancel", "pause", "reprioritise"])
@pytest.mark.parametrize("body", ['{"reason": 7}', "[]", '{"reason": "' + "x" * 501 + '"}'])
def test_a_wrong_body(ada: User, client_of: Clients, action: str, body: str) -> None:
    job = job_make(ada)
    response = client_of(ada).post(url(job, action), body, content_type="application/json")
    assert response.status_code == 400
    assert Job.objects.get().status == JobStatus.PENDING


def test_cancel_twice(ada: User, client_of: Clients) -> None:
    job, client = job_make(ada), client_of(ada)
    for _ in range(2):
        response = client.post(url(job, "cancel"), {"reason": "typo"})
        assert (response.status_code, response.data["status"]) == (200, "cancelled")
    event = Event.objects.get(job=job)
    assert (event.actor, event.message) == ("user:ada", "Cancelled by user:ada: typo")


@pytest.mark.parametrize("status", sorted(ENDED_JOB_STATUSES - {JobStatus.CANCELLED}))
@pytest.mark.parametrize("action", ["cancel", "pause", "resume", "reprioritise"])
def test_what_has_ended_stays_ended(
    ada: User, client_of: Clients, action: str, status: JobStatus
) -> None:
    job = job_make(ada, status=status)
    body = {"priority": 5} if action == "reprioritise" else {}
    response = client_of(ada).post(url(job, action), body)
    assert (response.status_code, response.json()["code"]) == (409, "wrong_status")
    assert Job.objects.get().status == status


def test_pause_and_resume_twice_each(ada: User, client_of: Clients) -> None:
    job, client = job_make(ada), client_of(ada)
    for _ in range(2):
        assert client.post(url(job, "pause")).data["status"] == "paused"
    for _ in range(2):
        assert client.post(url(job, "resume"), {"reason": "typo"}).data["status"] == "pending"
    events = list(Event.objects.order_by("id"))
    assert [event.kind for event in events] == ["pause_requested", "paused", "resumed"]
    assert events[2].message == "Resumed by user:ada: typo"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("pause/", {}),
        ("resume/", {}),
        ("cancel/", {}),
        ("reprioritise/", {"priority": 7}),
        ("", {"note": "why", "tags": ["a"]}),
    ],
)
def test_a_repeated_request_changes_no_version(
    path: str, body: dict[str, Any], ada: User, client_of: Clients
) -> None:
    job, client = job_make(ada, status=JobStatus.PAUSED), client_of(ada)
    if path == "pause/":
        client.post(url(job, "resume"))
    send = client.post if path else client.patch
    first, second = (send(f"/api/v1/jobs/{job.pk}/{path}", body) for _ in range(2))
    assert first.data["version"] > 1
    assert second.headers["ETag"] == first.headers["ETag"]


def test_an_owner_reprioritises_without_a_reason(ada: User, client_of: Clients) -> None:
    job = job_make(ada)
    response = client_of(ada).post(url(job, "reprioritise"), {"priority": 50})
    assert (response.status_code, response.data["priority"]) == (200, 50)


def test_an_admin_says_why(ada: User, admin: User, client_of: Clients) -> None:
    job, client = job_make(ada), client_of(admin)
    response = client.post(url(job, "reprioritise"), {"priority": 300})
    assert (response.status_code, set(response.json()["errors"])) == (400, {"reason"})
    response = client.post(url(job, "reprioritise"), {"priority": 300, "reason": "deadline"})
    assert response.status_code == 200
    event = Event.objects.get(job=job)
    assert (event.actor, event.data["reason"]) == ("user:admin", "deadline")


@pytest.mark.parametrize("priority", [None, 0, 1001, "5", 1.5, True])
def test_a_wrong_priority(ada: User, client_of: Clients, priority: object) -> None:
    response = client_of(ada).post(url(job_make(ada), "reprioritise"), {"priority": priority})
    assert (response.status_code, set(response.json()["errors"])) == (400, {"priority"})


def test_a_change_on_condition(ada: User, client_of: Clients) -> None:
    job, client = job_make(ada), client_of(ada)
    tag = client.get(f"/api/v1/jobs/{job.pk}/").headers["ETag"]
    # Progress is no reason to refuse; somebody else's act is.
    Job.objects.filter(id=job.pk).update(version=50)
    first = client.post(url(job, "reprioritise"), {"priority": 5}, HTTP_IF_MATCH=tag)
    second = client.post(url(job, "reprioritise"), {"priority": 6}, HTTP_IF_MATCH=tag)
    assert (first.status_code, second.status_code) == (200, 412)
    assert second.json()["code"] == "stale_version"
    assert Job.objects.get().priority == 5
    again = client.post(
        url(job, "reprioritise"), {"priority": 6}, HTTP_IF_MATCH=first.headers["ETag"]
    )
    assert again.status_code == 200
    response = client.post(url(job, "reprioritise"), {"priority": 6}, HTTP_IF_MATCH="yesterday")
    assert (response.status_code, set(response.json()["errors"])) == (400, {"if_match"})


def test_a_clone_is_the_same_but_for_what_is_changed(ada: User, client_of: Clients) -> None:
    job = job_make(ada, status=JobStatus.FINISHED, settings={"a": 1}, priority=7, seed=3)
    response = client_of(ada).post(
        url(job, "clone"), {"name": "again", "stop": {"kind": "epochs", "limit": 2}}
    )
    assert response.status_code == 201, response.data
    clone = Job.objects.exclude(id=job.pk).get()
    assert (clone.name, clone.settings, clone.priority, clone.seed) == ("again", {"a": 1}, 7, 3)
    assert (clone.stop_kind, clone.stop_limit) == ("epochs", 2)
    assert clone.code.read() == CODE
    assert clone.code.name != job.code.name
    assert Event.objects.get(job=clone).data == {"cloned_from": job.pk}
    response = client_of(ada).post(url(job, "clone"), {"template": "tabular"})
    assert {*response.json()["errors"]} == {"template"}, "its code is that of the job"
    code = CODE.decode() + "#" * 64 * 1024
    response = client_of(ada).post(url(job, "clone"), {"template": "tabular", "code": code})
    assert response.status_code == 201, response.data


#: Bodies of a clone with `settings.b=2` and a name: what is sent, and as what.
FORMATS: dict[str, tuple[Any, dict[str, str]]] = {
    "form": ("name=again&settings.b=2", {"content_type": "application/x-www-form-urlencoded"}),
    "multipart": ({"name": "again", "settings.b": "2"}, {"format": "multipart"}),
    "yaml": ("name: again\nsettings.b: 2", {"content_type": "application/yaml"}),
    "json": ({"name": "again", "settings.b": 2}, {"format": "json"}),
}


@pytest.mark.parametrize("sent", FORMATS)
def test_a_clone_comes_in_every_format_of_a_submission(
    sent: str, ada: User, client_of: Clients
) -> None:
    job = job_make(ada, settings={"a": 1}, priority=7)
    body, options = FORMATS[sent]
    response = client_of(ada).post(url(job, "clone"), body, **options)
    assert response.status_code == 201, response.data
    clone = Job.objects.get(pk=response.data["id"])
    assert (clone.name, clone.settings, clone.priority) == ("again", {"a": 1, "b": 2}, 7)
    assert clone.code.read() == CODE


def test_a_clone_may_have_the_code_of_a_file(ada: User, client_of: Clients) -> None:
    client, job, key = client_of(ada), job_make(ada), {"HTTP_IDEMPOTENCY_KEY": "a"}

    def post(code: bytes) -> Any:
        body = {"code": SimpleUploadedFile("other.py", code), "seed": "9"}
        return client.post(url(job, "clone"), body, format="multipart", **key)

    first, again, other = post(CODE + b"# 1"), post(CODE + b"# 1"), post(CODE + b"# 2")
    assert [one.status_code for one in (first, again, other)] == [201, 200, 409]
    clone = Job.objects.get(pk=first.data["id"])
    assert (clone.code.read(), clone.code_name, clone.seed) == (CODE + b"# 1", "other.py", 9)


def test_a_repeated_clone_with_a_key_is_the_same_job(ada: User, client_of: Clients) -> None:
    client, job, key = client_of(ada), job_make(ada), {"Idempotency-Key": "a"}
    first = client.post(url(job, "clone"), {}, headers=key)
    Job.objects.filter(pk=job.pk).update(priority=9, note="seen since")
    again = client.post(url(job, "clone"), {}, headers=key)
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json()["id"] == first.json()["id"]
    assert client.post(url(job, "clone"), {"seed": 9}, headers=key).status_code == 409
    job.code.storage.delete(job.code.name)  # while its row is read
    assert client.post(url(job, "clone"), {}).json()["code"] == "files_deleted"
    assert client.get(url(job, "code")).status_code == 404


def test_the_clock_of_cancelled_jobs(ada: User, client_of: Clients) -> None:
    job = job_make(ada, submitted_at=at(0))
    data = client_of(ada).post(url(job, "cancel")).data
    assert data["ended_at"] is not None
