"""The client as a package of its own: installed without the product, and run from there."""

from __future__ import annotations

import importlib.metadata
import os
import pty
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, is_typeddict

import pytest
from packaging.requirements import Requirement
from rest_framework.test import APIClient
from virtualflow import answers
from virtualflow.cli.common import ExitCode
from virtualflow.credentials import SERVER_VARIABLE, TOKEN_VARIABLE
from virtualflow.progress import job_progress

from controlplane.core.values.lifecycle import JobStatus
from frontend.live.progress import job_progress as page_progress
from jobs.api.openapi import openapi_document
from jobs.models import Job
from tests.client.conftest import Site, wait_until
from tests.support.builders import job_make
from tests.test_docs import ROOT

DEPENDENCIES = ("click", "httpx", "rich")
#: Packages that are loaded if a module of the product, or one of its frameworks, is imported.
FOREIGN = ("django", "rest_framework", "tensorflow", "keras", "numpy", "yaml", "celery", "jobs",
           "controlplane", "frontend", "agents")  # fmt: skip


def _needed(names: tuple[str, ...]) -> set[str]:
    """Name these distributions and all that they need."""
    found: set[str] = set()
    wanted = list(names)
    while wanted:
        name = wanted.pop()
        if name not in found:
            found.add(name)
            for line in importlib.metadata.requires(name) or ():
                requirement = Requirement(line)
                if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                    wanted.append(requirement.name)
    return found


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Install the package, with links to what it needs and nothing else; give its environment."""
    folder = tmp_path_factory.mktemp("installed")
    source = folder / "source"
    shutil.copytree(ROOT / "client", source, ignore=shutil.ignore_patterns("__pycache__"))
    place = folder / "site"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps",
         "--no-build-isolation", "--disable-pip-version-check", "--no-compile",
         "--target", place, source],
        check=True, timeout=240,
    )  # fmt: skip
    for name in _needed(DEPENDENCIES):
        distribution = importlib.metadata.distribution(name)
        for path in distribution.files or ():
            top = path.parts[0]
            if top != ".." and not (place / top).exists():
                (place / top).symlink_to(distribution.locate_file(top))
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(place),
        "PYTHONDONTWRITEBYTECODE": "1",
        "XDG_CONFIG_HOME": str(folder / "config"),
        "PROGRAM": str(place / "bin/virtualflow"),
    }


def _python(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    # -S: nothing of the virtual environment of these tests.
    return subprocess.run(
        [sys.executable, "-S", *arguments],
        env=environment, cwd=environment["PYTHONPATH"], capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip


def test_it_declares_what_it_needs(environment: dict[str, str]) -> None:
    code = "import importlib.metadata as m; print(*m.requires('virtualflow-client'))"
    declared = _python(environment, "-c", code).stdout
    names = {Requirement(line).name for line in declared.replace(" ", "\n").split()}
    assert names == {*DEPENDENCIES}


def test_every_module_loads_without_the_product(environment: dict[str, str]) -> None:
    code = (
        "import importlib, pkgutil, sys, virtualflow\n"
        "names = [m.name for m in pkgutil.walk_packages(virtualflow.__path__, 'virtualflow.')]\n"
        "[importlib.import_module(n) for n in names if not n.endswith('__main__')]\n"
        f"print(len(names), [name for name in {FOREIGN!r} if name in sys.modules])\n"
        "import importlib.util\n"
        f"print([name for name in {FOREIGN!r} if importlib.util.find_spec(name)])"
    )
    done = _python(environment, "-c", code)
    assert done.returncode == 0, done.stderr
    number, _, loaded = done.stdout.splitlines()[0].partition(" ")
    assert int(number) == len([*(ROOT / "client/virtualflow").rglob("*.py")]) - 1
    assert (loaded, done.stdout.splitlines()[1]) == ("[]", "[]")


def test_the_installed_command(site: Site, environment: dict[str, str]) -> None:
    job = job_make(site.ada, name="mine")
    here = environment | {SERVER_VARIABLE: site.address, TOKEN_VARIABLE: site.token(site.ada)}
    done = _python(here, environment["PROGRAM"], "ls")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1].split("\t")[:2] == [str(job.pk), "mine"]
    done = _python(here, "-m", "virtualflow", "show", "999999")
    assert (done.returncode, done.stdout) == (ExitCode.REFUSED, "")
    assert done.stderr.startswith("Error: There is no such job")


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """Open a terminal; give its two ends."""
    ours, theirs = pty.openpty()
    yield ours, theirs
    os.close(ours)


def test_ctrl_c_on_a_terminal_ends_a_watch_quietly(
    site: Site, environment: dict[str, str], terminal: tuple[int, int]
) -> None:
    job = job_make(site.ada, status=JobStatus.RUNNING, step=40)
    here = environment | {SERVER_VARIABLE: site.address, TOKEN_VARIABLE: site.token(site.ada)}
    ours, theirs = terminal
    process = subprocess.Popen(
        [sys.executable, "-S", environment["PROGRAM"], "watch", str(job.pk)],
        env=here | {"TERM": "xterm", "COLUMNS": "100"}, stdin=theirs, stdout=theirs, stderr=theirs,
        # Background processes of a script ignore the signal, and so would this one.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    os.close(theirs)
    shown = b""

    def is_shown() -> bool:
        nonlocal shown
        shown += os.read(ours, 65_536)
        return b"40%" in shown

    wait_until(is_shown)
    process.send_signal(signal.SIGINT)
    while process.poll() is None:
        shown += _rest(ours)
    shown += _rest(ours)
    assert process.wait(timeout=60) == ExitCode.INTERRUPTED
    assert b"goes on" in shown
    assert b"Traceback" not in shown
    assert Job.objects.get().status == "running"


#: Runs the file of its first argument with a signal at the moment when a module is imported.
_SIGNAL_AT_IMPORT = """
import os, runpy, signal, sys
path, handler, module = sys.argv[1:4]
signal.signal(signal.SIGINT, getattr(signal, handler))
class Finder:
    @classmethod
    def find_spec(cls, name, *_):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder)
sys.argv = [path, "--version"]
runpy.run_path(path, run_name="__main__")
"""


@pytest.mark.parametrize("module", ["httpx", "rich.table", "virtualflow.cli.windows"])
def test_ctrl_c_while_modules_load_says_nothing(environment: dict[str, str], module: str) -> None:
    arguments = ("-c", _SIGNAL_AT_IMPORT, environment["PROGRAM"])
    done = _python(environment, *arguments, "default_int_handler", module)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")
    # As of a script's background process.
    done = _python(environment, *arguments, "SIG_IGN", module)
    assert (done.returncode, done.stderr) == (ExitCode.FINE, "")


def _rest(ours: int) -> bytes:
    """Read what the other end still says; nothing once it is closed."""
    try:
        return os.read(ours, 65_536)
    except OSError:
        return b""


def test_a_closed_pipe_is_no_error(site: Site, environment: dict[str, str]) -> None:
    for i in range(100):
        job_make(site.ada, name=f"job {i} {'x' * 80}")
    here = environment | {SERVER_VARIABLE: site.address, TOKEN_VARIABLE: site.token(site.ada)}
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [sys.executable, "-S", environment["PROGRAM"], "ls", "--limit", "100"],
        env=here, stdout=write_end, stderr=subprocess.PIPE, timeout=60, check=False,
    )  # fmt: skip
    os.close(write_end)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("command", [("ls",), ("show", "1", "--json"), ("--help",)])
def test_a_full_disk_is_told(
    site: Site, environment: dict[str, str], command: tuple[str, ...]
) -> None:
    job_make(site.ada, id=1)
    here = environment | {SERVER_VARIABLE: site.address, TOKEN_VARIABLE: site.token(site.ada)}
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-S", environment["PROGRAM"], *command],
            env=here, stdout=full, stderr=subprocess.PIPE, timeout=60, check=False,
        )  # fmt: skip
    told = b"Error: Cannot write the output: No space left on device.\n"
    assert (done.returncode, done.stderr) == (ExitCode.USAGE, told)


TYPES = {name: one for name, one in vars(answers).items() if is_typeddict(one)}
#: Types that have another name in the OpenAPI document.
SCHEMAS = {
    "File": "Artifact",
    "NewChannel": "Channel",
    "Outlook": "SubmissionOutlook",
    "ReplayComparison": "Comparison",
    "Utilisation": "NodeUtilisation",
}
#: Types of answers that it does not describe field by field, or of messages beside it.
WITHOUT_SCHEMA = {"Change", "Comparison", "DrainPreview", "Metrics"}
#: Fields of some answers alone: in the document or the type, not in both.
_OF_SOME_ANSWERS = {"Channel": {"signing_key"}, "Policy": {"policies"}}


@pytest.mark.parametrize("name", sorted({*TYPES} - WITHOUT_SCHEMA))
def test_types_have_the_fields_of_the_openapi_document(name: str) -> None:
    schemas = openapi_document()["components"]["schemas"]
    documented = {*schemas[SCHEMAS.get(name, name)]["properties"]}
    differing = {*TYPES[name].__annotations__} ^ documented
    unexpected = differing ^ _OF_SOME_ANSWERS.get(name, set())
    assert unexpected == set(), f"{name} of client/virtualflow/answers/ differs in these"


PROGRESS = [
    {"step": 40},
    {"step": 400},
    {"stop_kind": "epochs", "stop_limit": 5, "step": 40, "epoch": 2},
    {"stop_kind": "epochs", "stop_limit": 5, "step": 40, "facts": {"steps_per_epoch": 10}},
    {"stop_kind": "metric", "stop_metric": "acc", "stop_target": 1.0, "stop_limit": 5, "step": 7,
     "facts": {"steps_per_epoch": 10}},
    {"stop_kind": "epochs", "stop_limit": 5, "step": 30, "epoch": 4, "examples_per_s": 16.0,
     "selection": {"method": "random"}, "facts": {"steps_per_epoch": 10},
     "status": JobStatus.RUNNING},
    {"status": JobStatus.RUNNING, "step": 40, "examples_per_s": 16.0},
    {"stop_kind": "epochs", "stop_limit": 5, "epoch": 1, "step": 12, "batch_size_min": 8,
     "batch_size_max": 64, "facts": {"steps_per_epoch": 10}, "examples_per_s": 9.0,
     "status": JobStatus.RUNNING},
    {"stop_kind": "epochs", "stop_limit": 5, "epoch": 2, "step": 42,
     "facts": {"steps_per_epoch": 10}, "fork": {"step": 41, "keeps_order": False}},
    {"task": "predict", "shuffle": False, "stop_kind": "epochs", "stop_limit": 1, "step": 3,
     "facts": {"steps_per_epoch": 10, "num_examples": 300}},
    {"task": "predict", "shuffle": False, "stop_kind": "epochs", "stop_limit": 1, "step": 3},
]  # fmt: skip


@pytest.mark.parametrize("values", PROGRESS)
@pytest.mark.django_db
def test_progress_is_that_of_the_pages(
    settings: Any, tmp_path: Path, values: dict[str, object]
) -> None:
    settings.MEDIA_ROOT = str(tmp_path)
    job = job_make(**values)  # type: ignore[arg-type]
    if job.fork:
        job.update_columns(forked_from=job)
    browser = APIClient()
    browser.force_login(job.owner)
    found = job_progress(browser.get(f"/api/v1/jobs/{job.pk}/").json())
    facts = job.facts
    expected = page_progress(job, facts.get("steps_per_epoch"), facts.get("num_examples"))
    assert (found.text, found.fraction) == (expected.text, expected.fraction)
