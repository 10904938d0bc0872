"""Environment variables: what they become, and how a wrong one is refused."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
from django.core.exceptions import ImproperlyConfigured
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from controlplane import environment
from controlplane.celery import app

ROOT = Path(__file__).resolve().parents[1]


def test_postgresql_over_tcp() -> None:
    found = environment.database(
        "postgresql://ada:p%40ss@db.example:6543/jobs?sslmode=require", connection_age_s=60
    )
    assert (found["NAME"], found["USER"], found["PASSWORD"]) == ("jobs", "ada", "p@ss")
    assert (found["HOST"], found["PORT"], found["CONN_MAX_AGE"]) == ("db.example", "6543", 60)
    told = conninfo_to_dict(make_conninfo(**found["OPTIONS"]))  # libpq knows all of them
    assert (told["connect_timeout"], told["sslmode"]) == ("5", "require")
    assert int(told["tcp_user_timeout"]) == 30_000


def test_postgresql_over_a_socket() -> None:
    found = environment.database("postgresql://ada@/jobs?host=/run/pg", connection_age_s=0)
    assert (found["NAME"], found["HOST"], found["PORT"]) == ("jobs", "/run/pg", "")
    assert not found["CONN_HEALTH_CHECKS"]


def test_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "new" / "db.sqlite3"
    found = environment.database(f"sqlite:///{path}", connection_age_s=60)
    assert found["NAME"] == str(path)
    assert path.parent.is_dir()
    assert found["OPTIONS"]["transaction_mode"] == "IMMEDIATE"
    assert found["CONN_MAX_AGE"] == 60  # opening one takes as long as half of a request


def test_another_database() -> None:
    with pytest.raises(ImproperlyConfigured, match="DATABASE_URL must start with"):
        environment.database("mysql://x/y", connection_age_s=0)


@pytest.mark.parametrize(
    ("url", "broker"),
    [
        ("redis://:secret@host:6379/3", "redis://:secret@host:6379/3"),
        ("unix:///run/redis.sock", "redis+socket:///run/redis.sock?virtual_host=0"),
        ("unix:///run/redis.sock?db=2", "redis+socket:///run/redis.sock?virtual_host=2"),
    ],
)
def test_celery_is_told_where_redis_is(url: str, broker: str) -> None:
    assert environment.celery_broker(url) == broker


def test_wrong_values_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_FLAG", "perhaps")
    with pytest.raises(ImproperlyConfigured, match="SOME_FLAG must be 1 or 0"):
        environment.flag("SOME_FLAG")
    monkeypatch.setenv("SOME_NUMBER", "99")
    with pytest.raises(ImproperlyConfigured, match="SOME_NUMBER must be between 1 and 10"):
        environment.number("SOME_NUMBER", 5, low=1, high=10)
    monkeypatch.setenv("SOME_NUMBER", "many")
    with pytest.raises(ImproperlyConfigured, match="SOME_NUMBER must be a number"):
        environment.number("SOME_NUMBER", 5, low=1, high=10)
    monkeypatch.setenv("SOME_TEXT", "")
    with pytest.raises(ImproperlyConfigured, match="SOME_TEXT"):
        environment.text("SOME_TEXT")
    monkeypatch.setenv("SOME_CHOICE", "c")
    with pytest.raises(ImproperlyConfigured, match="SOME_CHOICE must be one of a, b, got 'c'"):
        environment.choice("SOME_CHOICE", ("a", "b"), "a")
    monkeypatch.setenv("SOME_CHOICE", "")
    assert environment.choice("SOME_CHOICE", ("a", "b"), "a") == "a"
    monkeypatch.setenv("SOME_WORDS", " a, b ,,")
    assert environment.words("SOME_WORDS") == ["a", "b"]
    monkeypatch.setenv("SOME_FOLDER", "/dev/null")
    with pytest.raises(ImproperlyConfigured, match="SOME_FOLDER: /dev/null is no folder"):
        environment.folder("SOME_FOLDER", "files")


def test_a_secret_is_a_variable_or_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "secret"
    monkeypatch.setenv("SOME_SECRET_FILE", str(path))
    with pytest.raises(ImproperlyConfigured, match="No such file"):
        environment.text_or_file("SOME_SECRET")
    path.write_text("\n")
    with pytest.raises(ImproperlyConfigured, match="is empty"):
        environment.text_or_file("SOME_SECRET")
    path.write_text("kept\n")
    assert environment.text_or_file("SOME_SECRET") == "kept"
    monkeypatch.setenv("SOME_SECRET", "told")
    with pytest.raises(ImproperlyConfigured, match="not both"):
        environment.text_or_file("SOME_SECRET")
    monkeypatch.delenv("SOME_SECRET_FILE")
    assert environment.text_or_file("SOME_SECRET") == "told"


@pytest.mark.parametrize(
    ("value", "is_taken"),
    [
        ("https://login.example/realms/lab", True), ("http://127.0.0.1:1", True), ("", True),
        ("http://login.example", False), ("login.example", False), ("https://", False),
        ("https://login.example?x=1", False), ("http://127.0.0.1.example", False),
    ],
)  # fmt: skip
def test_addresses_have_tls(value: str, is_taken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_ADDRESS", value)
    if is_taken:
        assert environment.https_address("SOME_ADDRESS") == value
    else:
        with pytest.raises(ImproperlyConfigured, match="SOME_ADDRESS must"):
            environment.https_address("SOME_ADDRESS")


@pytest.mark.parametrize(
    "wrong",
    [
        "DATABASE_URL=postgresql://u:p/w@h/db", "DATABASE_URL=postgresql://u:p#w@h/db",
        "DATABASE_URL=postgresql://h", "DATABASE_URL=sqlite://relative",
        "DATABASE_URL=sqlite:////dev/null/x/db", "REDIS_URL=localhost:6379",
        "REDIS_URL=redis://:p#w@h/0", "REDIS_URL=redis://h:port/0", "REDIS_URL=redis://h/banana",
        "VIRTUALFLOW_API_RATE=5", "VIRTUALFLOW_LOG_LEVEL=LOUD", "VIRTUALFLOW_STATE_DIR=/dev/null",
        "VIRTUALFLOW_ORIGINS=jobs.example", "VIRTUALFLOW_HOSTS=https://jobs.example",
        "VIRTUALFLOW_HOSTS=jobs.example:8000", "VIRTUALFLOW_PUBLIC_URL=jobs.example",
        "VIRTUALFLOW_STREAM_URL=ftp://jobs.example", "VIRTUALFLOW_OIDC_ISSUER=http://[",
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_with_its_name(wrong: str, tmp_path: Path) -> None:
    name, _, value = wrong.partition("=")
    usual = {
        "VIRTUALFLOW_SECRET_KEY": "k" * 60,
        "REDIS_URL": "redis://localhost/0",
        "VIRTUALFLOW_STATE_DIR": str(tmp_path),
    }
    with (
        patch.dict(os.environ, {**usual, name: value}, clear=True),
        pytest.raises(ImproperlyConfigured, match=name) as refusal,
    ):
        runpy.run_path(str(ROOT / "controlplane/settings.py"))
    assert "p#w" not in str(refusal.value)  # no password stands in a log
    assert "p/w" not in str(refusal.value)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted there")
def test_the_algebra_of_policies_has_one_thread() -> None:
    """Also where its library would take one for each processor, as it does when it is loaded."""
    code = (
        "import controlplane.settings, os, numpy; numpy.ones((600, 600)) @ numpy.ones((600, 600));"
        "print(len(os.listdir('/proc/self/task')))"
    )
    given = {**os.environ, "VIRTUALFLOW_DEBUG": "1"}
    given.pop("OPENBLAS_NUM_THREADS", None)
    done = subprocess.run(
        [sys.executable, "-c", code], env=given, cwd=ROOT, capture_output=True, text=True,
        timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "1"


def _done(
    state_dir: Path, *arguments: str, **changed: str | None
) -> subprocess.CompletedProcess[str]:
    """Run Python with the variables of a site, changed or left out, and no others."""
    given = {
        "VIRTUALFLOW_SECRET_KEY": "0123456789abcdefghijklmnopqrstuvwxyz!?ABCDEFGHIJKLMNOPQRST",
        "REDIS_URL": "redis://127.0.0.1:1/0",
        "VIRTUALFLOW_STATE_DIR": str(state_dir),
        "DATABASE_URL": "sqlite:///:memory:",
        "DJANGO_SETTINGS_MODULE": "controlplane.settings",
        "PATH": os.environ["PATH"],
        **changed,
    }
    return subprocess.run(
        [sys.executable, *arguments],
        env={name: value for name, value in given.items() if value is not None},
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("missing", ["VIRTUALFLOW_SECRET_KEY", "REDIS_URL"])
def test_nothing_starts_without_its_secrets(missing: str, tmp_path: Path) -> None:
    done = _done(
        tmp_path, "-c", "from django.conf import settings; settings.DEBUG", **{missing: None}
    )
    assert done.returncode != 0
    assert f"Set the environment variable {missing}" in done.stderr


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"VIRTUALFLOW_SECRET_KEY": "k" * 49}, "VIRTUALFLOW_SECRET_KEY has 49 characters"),
        ({"VIRTUALFLOW_DEBUG": "1", "VIRTUALFLOW_SECRET_KEY": "k"}, "SECRET_KEY has 1 characters"),
        (
            {"VIRTUALFLOW_DEBUG": "1", "VIRTUALFLOW_HOSTS": "127.0.0.1,jobs.example"},
            "may name only",
        ),
        ({"VIRTUALFLOW_DEBUG": "1", "VIRTUALFLOW_HOSTS": "*"}, "may name only"),
        ({"VIRTUALFLOW_DEBUG": "1"}, ""),
    ],
)
def test_weak_keys_and_debugging_on_a_network_are_refused(
    given: dict[str, str], message: str, tmp_path: Path
) -> None:
    unset = {"VIRTUALFLOW_SECRET_KEY": None} if given == {"VIRTUALFLOW_DEBUG": "1"} else {}
    show = "import controlplane.settings as s; print(s.SECRET_KEY)"
    done = _done(tmp_path, "-c", show, **unset, **given)
    assert (done.returncode == 0) == (message == "")
    assert message in done.stderr
    assert message or len(done.stdout.strip()) >= 50


def test_the_deployment_check_is_clean(tmp_path: Path) -> None:
    given = {"VIRTUALFLOW_TLS": "1", "VIRTUALFLOW_HOSTS": "jobs.example"}
    done = _done(tmp_path, "manage.py", "check", "--deploy", "--fail-level", "WARNING", **given)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"VIRTUALFLOW_CYCLE_S": "often"}, "Settings: VIRTUALFLOW_CYCLE_S"),
        ({"DATABASE_URL": "postgresql://u:p@127.0.0.1:1/x"}, "The database of DATABASE_URL: "),
        (
            {},
            "The database of DATABASE_URL: no such table: jobs_enrolmenttoken\nFix: ",
        ),
    ],
)
def test_a_command_says_why_it_cannot_run(
    tmp_path: Path, changed: dict[str, str], expected: str
) -> None:
    done = _done(tmp_path, "manage.py", "enrolment_token", **changed)
    assert (done.returncode, done.stderr[: len(expected)]) == (1, expected)


_STATIC_FILE_READ = """
import django
django.setup()
from django.templatetags.static import static
from django.test import Client
address = static("frontend/app.js")
print(address)
print(Client(headers={"host": "localhost"}).get(address).headers["Cache-Control"])
"""


def test_browsers_keep_static_files_for_good(tmp_path: Path) -> None:
    done = _done(tmp_path, "-c", _STATIC_FILE_READ)
    assert done.returncode == 0, done.stderr
    address, caching = done.stdout.split("\n")[:2]
    assert re.fullmatch(r"/static/[0-9a-f]{12}/frontend/app\.js", address)
    assert "immutable" in caching


def test_long_tasks_have_limits_and_workers_of_their_own() -> None:
    """Without a soft limit of its own a task has that of short ones."""
    app.loader.import_default_modules()
    tasks = {name: task for name, task in app.tasks.items() if name.startswith("jobs.tasks.")}
    queues = {entry["task"]: entry["options"]["queue"] for entry in app.conf.beat_schedule.values()}
    long = {
        name: task for name, task in tasks.items() if task.time_limit > app.conf.task_time_limit
    }
    assert long
    for name, task in long.items():
        assert app.conf.task_soft_time_limit < task.soft_time_limit < task.time_limit, name
        assert queues[name] != "celery", name


def test_every_variable_is_documented() -> None:
    code = (ROOT / "controlplane" / "settings.py").read_text()
    page = (ROOT / "docs" / "settings.md").read_text()
    names = set(re.findall(r'"(VIRTUALFLOW_[A-Z_]+|DATABASE_URL|REDIS_URL)"', code))
    assert len(names) > 15
    assert [name for name in sorted(names) if f"`{name}`" not in page] == []
