"""Files of ended jobs: deleted by age or by their owner, limited for each user."""

from __future__ import annotations

import datetime
import hashlib
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.files.base import ContentFile
from django.core.files.storage import default_storage
from django.core.management import call_command
from django.utils import timezone
from rest_framework.test import APIClient

from controlplane.core.protocol import node_messages
from controlplane.core.values.lifecycle import JobStatus
from jobs import tasks
from jobs.exceptions import ConflictError
from jobs.management.commands import unknown_files
from jobs.models import Allocation, ExamplePreview, Job, LogChunk
from jobs.selectors.retention import stored_bytes
from jobs.services.lifecycle import retention
from jobs.services.lifecycle.events import user_actor
from jobs.services.lifecycle.retention import files_delete, files_expire
from jobs.services.reports.log_chunks import log_chunks_store
from tests.jobs.world import World
from tests.support.builders import CODE, Clients, job_make, logged_in, node_make, submission_values
from tests.support.rows import PREDICTION, allocation_make, clock_settle, file_store, log_add

pytestmark = pytest.mark.django_db(transaction=True)

DAY = datetime.timedelta(days=1)


def ended_job(owner: User, days: float, **other: Any) -> tuple[Job, list[str]]:
    """Make a job that ended so many days ago; give it and the names of its files."""
    now = timezone.now()
    job = job_make(owner, status=JobStatus.FINISHED, **other)
    Job.objects.filter(pk=job.pk).update(ended_at=now - days * DAY)
    artifact = file_store(job, "model.keras", b"weights", now)
    job.example_previews.create(place=3, label="cat", image=b"png")
    log_add(job, "hello", now=now)
    job.refresh_from_db()
    return job, [job.code.name, artifact.file.name]


@pytest.mark.parametrize("days", [0.9, 1.1])
def test_files_that_a_restored_database_does_not_know_are_removed_once_they_are_old(
    ada: User, monkeypatch: pytest.MonkeyPatch, days: float
) -> None:
    job, known = ended_job(ada, 1)
    lost, lost_files = ended_job(ada, 1)
    foreign = ["other/1.npz", "jobs/readme", "jobs/notes/1.npz"]
    for name in (f"jobs/{job.pk}/since.npz", *foreign):
        default_storage.save(name, ContentFile(b"1"))
    Job.objects.filter(pk=lost.pk).delete()
    unknown = [*lost_files, f"jobs/{job.pk}/since.npz"] if days > 1 else []
    later = timezone.now() + days * DAY
    monkeypatch.setattr(unknown_files.timezone, "now", lambda: later)
    listed, removed = StringIO(), StringIO()
    call_command("unknown_files", stdout=listed)
    assert {line.split()[0] for line in listed.getvalue().splitlines()} == {*unknown}
    every = [*known, *lost_files, f"jobs/{job.pk}/since.npz", *foreign]
    assert all(map(default_storage.exists, every))
    call_command("unknown_files", "--remove", stdout=removed)
    assert removed.getvalue() == listed.getvalue()
    assert [file for file in every if not default_storage.exists(file)] == unknown


def test_old_files_are_deleted_and_the_job_stays(
    ada: User, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.RETENTION_DAYS = 30
    old, old_files = ended_job(ada, 31)
    new, new_files = ended_job(ada, 29)
    running = job_make(ada, status=JobStatus.RUNNING)
    # A process that was killed between a file and its row has left one.
    default_storage.save(f"jobs/{old.pk}/left-checkpoint.npz", ContentFile(b"state"))
    assert tasks.expire_files() == [], "the clock may be wrong"
    clock_settle()
    assert tasks.expire_files() == [old.pk]
    default_storage.save(f"jobs/{old.pk}/not-deleted-in-time.npz", ContentFile(b"part"))
    assert tasks.expire_files() == []
    assert not any(map(default_storage.exists, [*old_files, f"jobs/{old.pk}"]))
    kept = [*new_files, running.code.name]
    left = default_storage.save("code/left.py", ContentFile(b"code"))
    monkeypatch.setattr(retention.secrets, "token_hex", lambda _: "")
    retention.code_left_remove(timezone.now())
    assert all(map(default_storage.exists, [*kept, left]))
    retention.code_left_remove(timezone.now() + 2 * DAY)
    assert [file for file in [*kept, left] if not default_storage.exists(file)] == [left]
    assert [*LogChunk.objects.values_list("job", flat=True)] == [new.pk]
    assert [*ExamplePreview.objects.values_list("job", flat=True)] == [new.pk]
    old.refresh_from_db()
    assert old.files_deleted_at is not None
    assert not old.artifacts.exists()
    event = old.events.get(kind="files_deleted")
    assert (event.actor, event.message) == (
        "system",
        "Its files are deleted, 30 days after its end",
    )


def test_without_the_setting_files_are_kept(ada: User) -> None:
    ended_job(ada, 10_000)
    clock_settle()
    assert tasks.expire_files() == []


def test_the_task_deletes_a_bounded_portion(
    ada: User, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.RETENTION_DAYS = 1
    monkeypatch.setattr(retention, "EXPIRED_AT_ONCE", 2)
    jobs = [ended_job(ada, days)[0].pk for days in (4, 9, 6)]
    assert files_expire(timezone.now()) == {jobs[1], jobs[2]}
    assert files_expire(timezone.now()) == {jobs[0]}


def test_a_model_in_use_and_files_of_living_trainers_are_kept(
    ada: User, bob: User, settings: Any, client_of: Clients
) -> None:
    settings.RETENTION_DAYS = 1
    source, files = ended_job(ada, 2)
    reader = job_make(ada, source_job=source, source_sha256="0" * 64, **PREDICTION)
    leaving, _ = ended_job(ada, 2)
    node, _ = node_make()
    held = allocation_make(leaving, node.accelerators.all()[0], granted_at=timezone.now())
    assert files_expire(timezone.now()) == set()
    for job, code in ((source, "in_use"), (leaving, "wrong_status"), (reader, "wrong_status")):
        refused = client_of(ada).delete(f"/api/v1/jobs/{job.pk}/files/")
        assert (refused.status_code, refused.json()["code"]) == (409, code)
    for actor, name in ((ada, f"Job {reader.pk}"), (bob, "A live job of its owner")):
        with pytest.raises(ConflictError, match=f"^{name} predicts"):
            files_delete(source.pk, timezone.now(), actor=user_actor(actor))
    assert all(map(default_storage.exists, files))
    Job.objects.filter(pk=reader.pk).update(status="cancelled", ended_at=timezone.now())
    Allocation.objects.filter(pk=held.pk).update(released_at=timezone.now())
    assert files_expire(timezone.now()) == {source.pk, leaving.pk}


def test_owners_delete_files_and_learn_that_they_are_gone(
    ada: User, bob: User, settings: Any, client_of: Clients
) -> None:
    settings.RETENTION_DAYS = 30
    job, files = ended_job(ada, 1)
    client, url = client_of(ada), f"/api/v1/jobs/{job.pk}/"
    told = client.get(url).json()
    assert told["files_deleted_at"] is None
    assert told["files_expire_at"][:10] == f"{job.ended_at + 30 * DAY:%Y-%m-%d}"  # type: ignore[operator]
    assert client_of(bob).delete(f"{url}files/").status_code == 404
    for _ in range(2):
        assert client.delete(f"{url}files/").status_code == 204
    assert not any(map(default_storage.exists, files))
    told = client.get(url).json()
    assert (told["files"], told["files_expire_at"]) == ([], None)
    assert told["files_deleted_at"] is not None
    for answer in (client.get(f"{url}code/"), client.post(f"{url}clone/", {})):
        assert (answer.status_code, answer.json()["code"]) == (410, "files_deleted")
    assert client.get(f"{url}files/model.keras/").status_code == 404
    assert client.post(f"{url}clone/", {"code": CODE.decode()}).status_code == 201


def test_the_page_tells_and_deletes(ada: User, settings: Any) -> None:
    settings.RETENTION_DAYS = 30
    job, _ = ended_job(ada, 1)
    client = logged_in(ada)
    page = client.get(f"/jobs/{job.pk}/").content.decode()
    assert "These files are deleted on" in page
    assert f"?from={job.pk}" in page
    client.post(f"/jobs/{job.pk}/delete-files/")
    page = client.get(f"/jobs/{job.pk}/").content.decode()
    assert "The files are deleted" in page
    assert f"?from={job.pk}" not in page
    assert client.get(f"/jobs/{job.pk}/code/").status_code == 404
    values = submission_values(stop_kind="steps", stop_limit="9", code_from=f"clone:{job.pk}")
    answer = client.post("/jobs/new/", values, headers={"Accept": "application/json"})
    assert "were deleted" in str(answer.json()["errors"])


def test_a_log_that_comes_late_is_not_kept(ada: User, client_of: Clients) -> None:
    world = World(num_nodes=1)
    job = job_make(ada, max_accelerators=1, num_virtual_nodes=1)
    world.settle(3)
    client_of(ada).post(f"/api/v1/jobs/{job.pk}/cancel/", {})
    world.settle(3)
    assert client_of(ada).delete(f"/api/v1/jobs/{job.pk}/files/").status_code == 204
    chunk = node_messages.LogChunk(job_id=job.pk, slot=0, offset=0, text="late")
    assert log_chunks_store(world.nodes[0].node, [chunk], world.now) == set()
    assert not LogChunk.objects.exists()


def test_a_users_storage_has_a_limit(
    ada: User, bob: User, settings: Any, client_of: Clients
) -> None:
    client = client_of(ada)
    code = len(CODE)
    made = client.post("/api/v1/jobs/", submission_values()).json()
    job = Job.objects.get(pk=made["id"])
    file_store(job, "model.keras", b"x" * 1000)
    assert stored_bytes(ada.pk) == 1000 + code
    settings.STORAGE_LIMIT_BYTES = 1000 + 2 * code
    assert client.post("/api/v1/jobs/", submission_values()).status_code == 201
    refused = client.post("/api/v1/jobs/", submission_values())
    assert (refused.status_code, refused.json()["code"]) == (413, "storage_full")
    assert "delete those" in refused.json()["detail"]
    assert client_of(bob).post("/api/v1/jobs/", submission_values()).status_code == 201
    client.post(f"/api/v1/jobs/{job.pk}/cancel/", {})
    client.delete(f"/api/v1/jobs/{job.pk}/files/")
    assert stored_bytes(ada.pk) == code
    assert client.post("/api/v1/jobs/", submission_values()).status_code == 201


def test_refused_code_leaves_no_file(ada: User, settings: Any, client_of: Clients) -> None:
    settings.STORAGE_LIMIT_BYTES = 10
    assert client_of(ada).post("/api/v1/jobs/", submission_values()).status_code == 413
    assert not Job.objects.exists()
    assert not default_storage.exists("code") or default_storage.listdir("code")[1] == []


def test_parts_of_predictions_count_before_they_are_stored(
    ada: User, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, token = node_make()
    job = job_make(ada, status=JobStatus.RUNNING, **PREDICTION)
    allocation_make(job, node.accelerators.all()[0], granted_at=timezone.now())
    agent = APIClient(headers={"Authorization": f"Agent {token}"})
    statuses = []
    for number, limit_bytes in enumerate((0, 150, 150, 0)):
        if number == 3:
            monkeypatch.setattr("jobs.api.agent.views.PARTS_LIMIT", 1)
        settings.STORAGE_LIMIT_BYTES = limit_bytes
        data = bytes([number]) * 100
        answer = agent.put(
            f"/api/v1/agent/jobs/{job.pk}/files/predictions-{number}-{number + 1}.npz/"
            "?slot=0&generation=1",
            data,
            content_type="application/octet-stream",
            headers={"X-Sha256": hashlib.sha256(data).hexdigest()},
        )
        statuses.append(answer.status_code)
    assert statuses == [204, 413, 413, 413]
    assert "A job may have 1 files" in answer.json()["detail"]
    assert stored_bytes(ada.pk) == 100
