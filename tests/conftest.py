"""What every test shares: which database Django uses, and real servers on demand.

Django tests run on PostgreSQL when its programs are installed, otherwise on SQLite. `TEST_DATABASE`
chooses one of them by name. With `TEST_SERVERS_REQUIRED=1` (as in .ci/run) a missing server or
browser fails the tests that need it instead of skipping them.
"""

from __future__ import annotations

import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import django
import hypothesis
import pytest
from django.conf import settings
from django.db import connection, transaction
from django.test import TransactionTestCase
from xdist.scheduler.loadfile import LoadFileScheduling

from tests.support import servers, starts

# How long one example takes says something about the machine, not about the code.
# Always the same examples: new ones, which may fail, are drawn in the nightly runs.
hypothesis.settings.register_profile("ci", deadline=None, max_examples=16, derandomize=True)
hypothesis.settings.register_profile("nightly", deadline=None, max_examples=500)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

_REQUIRED = os.environ.get("TEST_SERVERS_REQUIRED") == "1"
#: Folders with the longest files: they are handed out first, so that workers end together.
_LONGEST = ("e2e", "browser", "security", "agents", "conformance")
_ENGINE = ("tests/agents/trainer/", "tests/conformance/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest folders first."""

    def rank(item: pytest.Item) -> int:
        folder = item.path.relative_to(Path(__file__).parent).parts[0]
        return _LONGEST.index(folder) if folder in _LONGEST else len(_LONGEST)

    items.sort(key=rank)


class _FileScheduling(LoadFileScheduling):
    """Hands out files to workers, and some folders as one, whose files share running processes.

    Half of the workers begin with the files of the engine, the others end with them: each that has
    one starts a fork server of trainers, which imports TensorFlow.
    """

    def _split_scope(self, nodeid: str) -> str:
        path: str = super()._split_scope(nodeid)
        folders = ("tests/e2e", "tests/browser")
        return next((name for name in folders if path.startswith(f"{name}/")), path)

    def _assign_work_unit(self, node: Any) -> None:
        begins = self.nodes.index(node) < len(self.nodes) // 2
        fit = (scope for scope in self.workqueue if scope.startswith(_ENGINE) is begins)
        if wanted := next(fit, None):
            self.workqueue.move_to_end(wanted, last=False)
        super()._assign_work_unit(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    return _FileScheduling(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Collect no garbage while tests are imported, a third of that time.

    Keras would import scikit-learn for wrappers that no trainer has.
    """
    gc.disable()
    sys.modules["sklearn"] = None  # type: ignore[assignment]  # an ImportError from now on
    worker = getattr(session.config, "workerinput", None)
    if worker is not None and session.config.args == ["tests"]:
        _import_part(int(worker["workerid"].removeprefix("gw")), worker["workercount"])


def _import_part(number: int, num_parts: int) -> None:
    """Compile a part of the tests, of which the other workers compile the rest at the same time.

    Each would compile all of them otherwise. An error comes again when the module is collected.
    """
    folder = Path(__file__).parent
    # Modules expect that the conftest.py of their folder is there.
    first = sorted(folder.rglob("conftest.py"), key=lambda path: len(path.parts))
    part = sorted(folder.rglob("test_*.py"))[number::num_parts]
    for path in [*first, *part]:
        with suppress(Exception):
            import_module(".".join(path.relative_to(folder.parent).with_suffix("").parts))


def pytest_collection_finish() -> None:
    """Keep what was imported out of every later collection of garbage: a tenth of the run."""
    del sys.modules["sklearn"]
    gc.enable()
    gc.collect()
    gc.freeze()


def _choose_database() -> str:
    """Put the address of the test database where Django's settings look for it, and name its kind.

    The server itself starts when the first test asks for a database. An address that somebody set
    on purpose is left alone.
    """
    choice = os.environ.get("TEST_DATABASE", "auto")
    if choice not in ("auto", "postgresql", "sqlite"):
        raise pytest.UsageError(f"TEST_DATABASE must be postgresql or sqlite, got {choice!r}")
    if choice == "auto" and "DATABASE_URL" in os.environ:
        return "given"
    try:
        if choice != "sqlite":
            servers.postgresql_programs()
            os.environ["DATABASE_URL"] = servers.postgresql_url(servers.postgresql_directory())
            return "postgresql"
    except servers.ServerMissingError:
        if choice == "postgresql" or _REQUIRED:
            raise
    os.environ.pop("DATABASE_URL", None)  # the default of the settings: a file
    return "sqlite"


def _set_environment() -> Path:
    """Give Django settings that touch nothing outside a directory of this session."""
    directory = Path(tempfile.mkdtemp(prefix="tests-state-"))
    os.environ["DJANGO_SETTINGS_MODULE"] = "controlplane.settings"
    os.environ["VIRTUALFLOW_STATE_DIR"] = str(directory)
    os.environ["VIRTUALFLOW_SECRET_KEY"] = "signs-nothing-but-the-sessions-and-forms-of-these-tests"
    # Without Redis nothing is enqueued: tests call services and tasks themselves.
    os.environ["VIRTUALFLOW_DEBUG"] = "1"
    # Tests have several users, and nodes whose jobs are played or their own.
    os.environ["VIRTUALFLOW_USERS_TRUST_EACH_OTHER"] = "1"
    os.environ.pop("REDIS_URL", None)
    return directory


_DATABASE = _choose_database()
_STATE_DIRECTORY = _set_environment()
# Here and not in pyproject.toml: pytest-django would read the settings before this file is loaded.
django.setup()
from django.contrib.auth.models import Permission  # noqa: E402  they need the settings
from django.contrib.contenttypes.models import ContentType  # noqa: E402
from django.core.cache import cache  # noqa: E402

from jobs.api import downloads  # noqa: E402

# A slow digest of a password takes longer than most tests.
settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


_rows_flush = TransactionTestCase._fixture_teardown


def _rows_delete(case: TransactionTestCase) -> None:
    """Empty the tables after a test that has committed.

    Django truncates them and makes the rows of content types and permissions again, which takes
    several times as long; on PostgreSQL those rows stay. No trigger refuses or checks a deletion,
    for which the user of the database has to be a superuser, as that of a server of ours is.
    """
    if _DATABASE != "postgresql":
        return _rows_flush(case)
    tables = set(connection.introspection.django_table_names())
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        for table in tables - {ContentType._meta.db_table, Permission._meta.db_table}:
            cursor.execute(f"DELETE FROM {connection.ops.quote_name(table)}")
    return None


TransactionTestCase._fixture_teardown = _rows_delete


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    """Keep this process's settings from the workers: each has a database server of its own."""
    del os.environ["DJANGO_SETTINGS_MODULE"]
    if _DATABASE != "given":
        os.environ.pop("DATABASE_URL", None)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add up what the workers have started."""
    starts.STARTED.update(getattr(node, "workeroutput", {}).get("started", {}))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run that has started more than `make test` may."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["started"] = dict(starts.STARTED)
    elif _excesses(session.config) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    counts = ", ".join(f"{count} {name}" for name, count in sorted(starts.STARTED.items()))
    if counts:
        terminalreporter.write_line(f"started: {counts}")
    for text in _excesses(terminalreporter.config):
        terminalreporter.write_line(f"ERROR: {text}", red=True)


def _excesses(config: pytest.Config) -> list[str]:
    """List what was started too often, in runs without the nightly tests."""
    return starts.excesses(starts.STARTED) if config.option.markexpr == "not nightly" else []


def pytest_unconfigure() -> None:
    shutil.rmtree(_STATE_DIRECTORY, ignore_errors=True)


def pytest_report_header() -> str:
    return f"test database: {_DATABASE}"


@pytest.fixture(autouse=True)
def _empty_cache() -> Iterator[None]:
    """Forget counts of requests: on SQLite the users of the next test have the same numbers.

    Downloads that a test has not read hold no place in the next one either.
    """
    yield
    cache.clear()
    downloads.places.cache_clear()


def _missing(reason: str) -> None:
    """Skip the test, or fail it where everything has to be there."""
    if _REQUIRED:
        pytest.fail(f"{reason} (TEST_SERVERS_REQUIRED is set)")
    pytest.skip(reason)


def _running(start: Callable[[], servers.RunningServer]) -> Iterator[servers.RunningServer]:
    """Start a server, and stop it afterwards."""
    try:
        server = start()
    except servers.ServerMissingError as error:
        _missing(str(error))
        raise
    yield server
    server.stop()


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[servers.RunningServer]:
    """Run a PostgreSQL server for this test session."""
    yield from _running(lambda: servers.start_postgresql(servers.postgresql_directory()))


@pytest.fixture(scope="session")
def redis_server() -> Iterator[servers.RunningServer]:
    """Run a Redis server for this test session."""
    yield from _running(servers.start_redis)


@pytest.fixture(scope="session")
def django_db_modify_db_settings(request: pytest.FixtureRequest) -> None:
    """Start the database server before pytest-django makes the test database in it.

    SQLite gets a file, as in the product: threads that share a database in memory are refused at
    once when one of them writes ("database table is locked"), whatever the timeout.
    """
    if _DATABASE == "postgresql":
        request.getfixturevalue("postgresql_server")
    elif _DATABASE == "sqlite":
        connection.settings_dict["TEST"]["NAME"] = str(_STATE_DIRECTORY / "tests.sqlite3")


@pytest.fixture(scope="session")
def django_db_keepdb() -> bool:
    """Leave the test database in a server of ours, which goes with it: to drop it takes seconds."""
    return _DATABASE == "postgresql"


@pytest.fixture(scope="session")
def chromium() -> str:
    """Find a Chromium that tests can drive; without windows it takes two thirds of the time."""
    programs = ("chromium-headless-shell", "chromium", "google-chrome")
    path = next(filter(None, map(shutil.which, programs)), None)
    if path is None:
        _missing("Chromium is not installed: apt-get install chromium-headless-shell")
        raise AssertionError
    return path
