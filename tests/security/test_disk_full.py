"""A full disk of the site: told plainly, nothing half stored, and as ever once there is room."""

from __future__ import annotations

import errno
import io
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.contrib.auth.models import User
from django.core.files.storage import filesystem
from django.db import OperationalError, connection
from django.utils import timezone

from controlplane import request_bodies
from controlplane.core.values.lifecycle import JobStatus
from jobs import tasks
from jobs.models import Artifact, Job, Validation
from jobs.services.lifecycle import predictions
from tests.support.builders import at, job_make, logged_in, node_make, submission_values, user_make
from tests.support.rows import PREDICTION, file_store, log_add

pytestmark = pytest.mark.django_db

FULL = (OSError(errno.ENOSPC, "No space left"), OSError(errno.EDQUOT, "Disk quota exceeded"))


@pytest.fixture(autouse=True)
def files(settings: Any, tmp_path: Path) -> Path:
    settings.MEDIA_ROOT = str(tmp_path / "files")
    return tmp_path / "files"


@pytest.fixture
def ada() -> User:
    return user_make("ada")


class Cramped(io.FileIO):
    """A file that takes ten bytes."""

    error = FULL[0]

    def write(self, data: Any) -> int:
        super().write(bytes(data)[:10])
        raise self.error


@contextmanager
def full_disk(
    monkeypatch: pytest.MonkeyPatch, error: OSError = FULL[0], call: str = "write"
) -> Iterator[None]:
    """Let files of the site's storage find room for ten bytes, or folders and files for no name."""

    def full(*_arguments: Any, **_options: Any) -> None:
        raise error

    monkeypatch.setattr(Cramped, "error", error)
    with monkeypatch.context() as patch:
        if call == "write":
            patch.setattr(filesystem.os, "fdopen", lambda fd, _mode: Cramped(fd, "w"))
        else:
            patch.setattr(filesystem.os, call, full)
        yield


def stored(files: Path) -> list[Path]:
    return [path for path in files.rglob("*") if path.is_file()]


def database_full(backend: str) -> OperationalError:
    error = OperationalError("there is no room")
    if backend == "sqlite":
        cause = sqlite3.OperationalError("database or disk is full")
        cause.sqlite_errorcode = sqlite3.SQLITE_FULL
        error.__cause__ = cause
    else:
        error.__cause__ = psycopg.errors.DiskFull()
    return error


@contextmanager
def failing_writes(error: Exception) -> Iterator[None]:
    def execute(call: Any, sql: str, *rest: Any) -> Any:
        if sql.startswith(("INSERT", "UPDATE")):
            raise error
        return call(sql, *rest)

    with connection.execute_wrapper(execute):
        yield


@pytest.mark.parametrize("call", ["write", "open", "makedirs"], ids=["bytes", "inode", "folder"])
@pytest.mark.parametrize("error", FULL, ids=["disk", "quota"])
@pytest.mark.parametrize("path", ["/api/v1/jobs/", "/api/v1/validations/"])
def test_a_submission_says_so_and_leaves_nothing(
    path: str, error: OSError, call: str, ada: User, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A volume runs out of bytes, or of inodes."""
    node_make(isolation="uid")
    client = logged_in(ada, raise_request_exception=False)
    with full_disk(monkeypatch, error, call):
        answer = client.post(path, submission_values(), content_type="application/json")
    assert (answer.status_code, answer.json()["code"]) == (507, "disk_full")
    assert "disk is full" in answer.json()["detail"]
    assert int(answer["Retry-After"]) > 0
    assert stored(files) == []
    assert not Job.objects.exists()
    assert not Validation.objects.exists()
    again = client.post(path, submission_values(), content_type="application/json")
    assert again.status_code in (201, 202)
    assert len(stored(files)) == 1


@pytest.mark.parametrize("backend", ["sqlite", "postgresql"])
def test_a_full_database_leaves_no_file(backend: str, ada: User, files: Path) -> None:
    client = logged_in(ada, raise_request_exception=False)
    with failing_writes(database_full(backend)):
        answer = client.post("/api/v1/jobs/", submission_values(), content_type="application/json")
        page = client.post("/account/theme/", {"theme": "dark"})
    assert (answer.status_code, answer.json()["code"]) == (507, "disk_full")
    assert page.status_code < 500  # it stores nothing
    assert stored(files) == []


@contextmanager
def no_free_pages() -> Iterator[None]:
    """Let the database of SQLite grow no more."""
    with connection.cursor() as cursor:
        cursor.execute("VACUUM")
        cursor.execute("PRAGMA page_count")
        (pages,) = cursor.fetchone()
        cursor.execute(f"PRAGMA max_page_count = {pages}")
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"PRAGMA max_page_count = {2**30}")


@pytest.mark.database
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("what", ["jobs", "validations", "projects", "secrets"])
def test_a_database_of_sqlite_that_is_really_full_says_so(what: str, files: Path) -> None:
    """Its error may have ended the whole transaction already; what only reads goes on."""
    if connection.vendor != "sqlite":
        return  # nothing of PostgreSQL can be filled like this
    client = logged_in(user_make("grace", is_staff=True), raise_request_exception=False)
    node_make(isolation="uid")
    long_text = "x" * 5000

    def send(number: int) -> Any:
        """Add one more row; the first ones fit into pages that are not full yet."""
        if what == "projects":
            values = {"name": f"vision-{number}", "description": long_text[:300]}
        else:
            values = submission_values(settings={"text": long_text}, seed=number)
        address, method = f"/api/v1/{what}/", client.post
        if what == "secrets":
            address, method = f"{address}KEY_{number % 50}/", client.put
            values = {"value": f"{number}{long_text}"}
        return method(address, values, content_type="application/json")

    with no_free_pages():
        answers = (send(number) for number in range(300))
        answer = next(one for one in answers if one.status_code not in (200, 201, 202, 204))
        assert (answer.status_code, answer.json()["code"]) == (507, "disk_full")
        assert client.get("/api/v1/jobs/").status_code == 200
        assert client.get("/").status_code == 200
    num_files, num_rows = len(stored(files)), Job.objects.count() + Validation.objects.count()
    assert num_files <= num_rows
    assert send(301).status_code in (200, 201, 202, 204)


def test_a_page_says_so(ada: User, monkeypatch: pytest.MonkeyPatch) -> None:
    client = logged_in(ada, raise_request_exception=False)
    job = job_make(ada)
    with failing_writes(database_full("postgresql")):
        answer = client.post(f"/jobs/{job.pk}/describe/", {"note": "x"})
    assert answer.status_code == 507
    assert b"disk is full" in answer.content


@pytest.mark.parametrize("is_in_database", [False, True], ids=["file", "row"])
def test_a_result_without_room_replaces_nothing(
    is_in_database: bool, ada: User, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_make(ada)
    file_store(job, "model.keras", b"old weights")
    before = stored(files)
    try:
        if is_in_database:
            with failing_writes(database_full("sqlite")):
                file_store(job, "model.keras", b"new weights")
        else:
            with full_disk(monkeypatch):
                file_store(job, "model.keras", b"new weights")
    except (OSError, OperationalError):
        pass
    assert stored(files) == before
    assert Artifact.objects.get().file.read() == b"old weights"
    file_store(job, "model.keras", b"new weights")
    assert Artifact.objects.get().file.read() == b"new weights"


def test_predictions_that_found_no_room_are_joined_later(
    ada: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_make(ada, status=JobStatus.FINISHED, **PREDICTION)

    def full(*_arguments: Any) -> None:
        raise FULL[0]

    monkeypatch.setattr(predictions, "parts_join", full)
    with pytest.raises(OSError, match="No space"):
        predictions.predictions_join_next(at(0))
    assert not job.events.exists()
    monkeypatch.undo()
    assert predictions.predictions_join_next(at(predictions.JOIN_LIMIT_S + 1)) == job.pk


def test_a_log_that_found_no_room_is_filed_later(
    ada: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_make(ada, status=JobStatus.FINISHED)
    Job.objects.filter(pk=job.pk).update(ended_at=timezone.now())
    log_add(job, "hello")
    with full_disk(monkeypatch), pytest.raises(OSError, match="No space"):
        tasks.file_logs()
    assert not Artifact.objects.exists()
    assert tasks.file_logs() == [job.pk]
    assert b"hello" in Artifact.objects.get(name="log.txt").file.read()
    assert tasks.file_logs() == []


def test_a_log_that_is_too_large_for_a_file_is_cut_and_keeps_no_other_waiting(
    ada: User, settings: Any
) -> None:
    """Each trainer's log is limited, but a job that is often resized has any number of them."""
    settings.ARTIFACT_LIMIT_BYTES = 200
    jobs = [job_make(ada, status=JobStatus.FINISHED) for _ in range(2)]
    Job.objects.update(ended_at=timezone.now())
    for slot, job in enumerate([*jobs, *5 * jobs[:1]]):
        log_add(job, 50 * "x", slot=slot)
    assert tasks.file_logs() == [job.pk for job in jobs]
    cut, whole = (Artifact.objects.get(job=job, name="log.txt").file.read() for job in jobs)
    assert len(cut) <= 200
    assert cut.endswith(b"\n[The rest of this log is left out.]\n")
    assert whole.endswith(50 * b"x")
    assert tasks.file_logs() == []


@pytest.mark.parametrize("error", [*FULL, OSError(errno.EIO, "broken")])
def test_a_body_that_finds_no_room_is_answered(
    error: OSError, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_arguments: Any) -> None:
        raise error

    monkeypatch.setattr(request_bodies, "_body_read", full)
    application = request_bodies.bounded_wsgi(lambda _environ, _start: [b"never"])
    answers: list[str] = []
    environ = {
        "REQUEST_METHOD": "POST", "PATH_INFO": "/api/v1/jobs/", "CONTENT_LENGTH": "5",
        "SERVER_NAME": "x", "SERVER_PORT": "80", "wsgi.input": io.BytesIO(b"12345"),
        "wsgi.url_scheme": "http",
    }  # fmt: skip

    def start(status: str, _headers: Any) -> None:
        answers.append(status)

    if error.errno == errno.EIO:
        with pytest.raises(OSError, match="broken"):
            application(environ, start)  # type: ignore[arg-type]
    else:
        body = b"".join(application(environ, start))  # type: ignore[arg-type]
        assert answers == ["507 Insufficient Storage"]
        assert b"disk_full" in body
