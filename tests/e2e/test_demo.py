"""`manage.py demo`, as `make demo` runs it: comes up, trains, stops without a trace, goes on."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from jobs.demo.demo_jobs import ARRIVALS
from tests.support.present import present
from tests.support.starts import count_start

pytestmark = [pytest.mark.whole_stack, pytest.mark.timeout(1500)]

ROOT = Path(__file__).parent.parent.parent
START_DEADLINE_S = 240.0
MOVE_DEADLINE_S = 400.0
STOP_DEADLINE_S = 90.0
COMMANDS_DEADLINE_S = 300.0
#: Hashing a password takes half a second of a processor that trainers have to themselves otherwise.
ANSWER_S = 30.0
_LOOK_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class Demo:
    """A demo that runs: its process, what it wrote, and a client for its REST interface."""

    process: subprocess.Popen[bytes]
    directory: Path
    output: Path
    rest: httpx.Client

    def jobs(self) -> dict[str, dict[str, Any]]:
        """Give all jobs by name."""
        response = self.rest.get("jobs/")
        response.raise_for_status()
        return {job["name"]: job for job in response.json()["results"]}

    def stop(self) -> str:
        """End it as Ctrl-C does, and give all that it said."""
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(timeout=STOP_DEADLINE_S) == 0, self.output.read_text()
        return self.output.read_text()


def wait_for(what: str, condition: Callable[[], Any], deadline_s: float) -> Any:
    ends_at = time.monotonic() + deadline_s
    while not (found := condition()):
        assert time.monotonic() < ends_at, f"waited {deadline_s} s for {what}"
        time.sleep(_LOOK_EVERY_S)
    return found


@contextmanager
def running_demo(directory: Path, output: Path) -> Iterator[Demo]:
    """Start the demo and wait until it prints where it is; kill it if the test did not end it."""
    count_start("demos")
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "manage.py", "demo"],
            cwd=ROOT,
            env=demo_environment(directory),
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        address = wait_for(
            "the address", lambda: printed_address(process, output), START_DEADLINE_S
        )
        token = (directory / "token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        with httpx.Client(
            base_url=f"{address}api/v1/", headers=headers, timeout=ANSWER_S, trust_env=False
        ) as rest:
            yield Demo(process, directory, output, rest)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(timeout=STOP_DEADLINE_S)


def demo_environment(directory: Path) -> dict[str, str]:
    """Give the test's own environment without the settings that it has for itself."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("VIRTUALFLOW_", "DATABASE_URL", "REDIS_URL"))
    }
    return {**kept, "VIRTUALFLOW_DEMO_DIR": str(directory)}


def printed_address(process: subprocess.Popen[bytes], output: Path) -> str | None:
    assert process.poll() is None, output.read_text()
    text = output.read_text()
    found = re.search(r"The site runs at\s+(http://127\.0\.0\.1:\d+/)", text)
    return found.group(1) if found and "Ctrl-C ends everything" in text else None


def processes_below(directory: Path) -> list[str]:
    """List processes whose environment or command line names the demo's directory."""
    found = []
    for process in psutil.process_iter():
        try:
            command = process.cmdline()
            words = [*process.environ().values(), *command]
            is_ours = process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE
        except (psutil.Error, OSError):
            continue
        if is_ours and any(str(directory) in word for word in words):
            found.append(" ".join(command))
    return found


@contextmanager
def listening_on(port: int) -> Iterator[None]:
    """Take a port, as somebody else's program may do between two runs."""
    with socket.create_server(("127.0.0.1", port)):
        yield


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(2)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_demo_trains_follows_the_readme_and_stops_without_a_trace(tmp_path: Path) -> None:
    """Its own job is paused as it starts; README.md's then has the processors to itself."""
    directory = tmp_path / "demo"
    first = ARRIVALS[0].name
    with running_demo(directory, tmp_path / "first-run.txt") as demo:
        port = present(demo.rest.base_url.port)
        check_login(demo)
        check_second_demo_is_refused(directory)
        wait_for("its first job", lambda: holds_accelerators(demo, first), MOVE_DEADLINE_S)
        pause = f"jobs/{demo.jobs()[first]['id']}/pause/"
        assert demo.rest.post(pause, json={}).is_success
        if shutil.which("curl") or os.environ.get("TEST_SERVERS_REQUIRED") == "1":
            check_readme_commands(demo, tmp_path)
        wait_for("the pause", lambda: demo.jobs()[first]["status"] == "paused", MOVE_DEADLINE_S)
        assert "Jobs paused: " in demo.stop()
    wait_for("the end of all processes", lambda: not processes_below(directory), STOP_DEADLINE_S)
    assert not is_listening(port)


@pytest.mark.nightly  # `make test` moves paced jobs, and kills the supervisor of smaller parts
def test_demo_shares_out_goes_on_elsewhere_and_leaves_nothing_when_killed(tmp_path: Path) -> None:
    directory = tmp_path / "demo"
    first, second = (arrival.name for arrival in ARRIVALS[:2])
    with running_demo(directory, tmp_path / "first-run.txt") as demo:
        wait_for("the first job", lambda: count(demo, first) > 0, MOVE_DEADLINE_S)
        wait_for("the second job", lambda: count(demo, second) > 0, MOVE_DEADLINE_S)
        assert 0 < count(demo, first) < 4
        port = present(demo.rest.base_url.port)
        demo.stop()
    with listening_on(port), running_demo(directory, tmp_path / "second-run.txt") as demo:
        assert demo.rest.base_url.port != port
        before = demo.jobs()
        wait_for(
            "steps after those of the first run",
            lambda: demo.jobs()[first]["step"] > before[first]["step"] or has_finished(demo, first),
            MOVE_DEADLINE_S,
        )
        assert len(demo.jobs()) <= len(ARRIVALS), "a job was submitted again"
        demo.process.send_signal(signal.SIGKILL)
        demo.process.wait(timeout=10)
        wait_for(
            "the end of all processes", lambda: not processes_below(directory), STOP_DEADLINE_S
        )


def holds_accelerators(demo: Demo, name: str) -> bool:
    return live_job(demo, name).get("status") in ("starting", "running")


def count(demo: Demo, name: str) -> int:
    job = live_job(demo, name)
    return int(job["num_accelerators"]) if job.get("status") == "running" else 0


def live_job(demo: Demo, name: str) -> dict[str, Any]:
    """Return a job, or nothing before it is there; it must not have ended before its time."""
    job: dict[str, Any] = demo.jobs().get(name, {})
    assert job.get("status") not in ("invalid", "failed", "cancelled"), job
    return job


def has_finished(demo: Demo, name: str) -> bool:
    return bool(demo.jobs()[name]["status"] == "finished")


def check_login(demo: Demo) -> None:
    """Log in as a person does, with what the demo printed."""
    text = demo.output.read_text()
    found = present(re.search(r"Log in as\s+(\S+)\n\s+with password\s+(\S+)", text))
    password_file = demo.directory / "admin-password"
    assert password_file.stat().st_mode & 0o777 == 0o600
    base = str(demo.rest.base_url).removesuffix("api/v1/")
    with httpx.Client(
        base_url=base, follow_redirects=True, timeout=ANSWER_S, trust_env=False
    ) as browser:
        page = browser.get("/")
        fields = {"username": found.group(1), "password": found.group(2)}
        fields["csrfmiddlewaretoken"] = browser.cookies["virtualflow_csrf"]
        wrong = browser.post(page.url, data={**fields, "password": "guess"})
        assert "virtualflow_session" not in browser.cookies
        assert wrong.status_code == httpx.codes.OK
        fields["csrfmiddlewaretoken"] = browser.cookies["virtualflow_csrf"]
        assert browser.post(page.url, data=fields).status_code == httpx.codes.OK
        assert "virtualflow_session" in browser.cookies


def check_second_demo_is_refused(directory: Path) -> None:
    done = subprocess.run(
        [sys.executable, "manage.py", "demo"], cwd=ROOT, env=demo_environment(directory),
        capture_output=True, text=True, timeout=START_DEADLINE_S, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "A demo already runs in" in done.stderr


def check_readme_commands(demo: Demo, directory: Path) -> None:
    """Run the shell commands of README.md, with fewer epochs; they end with a trained model."""
    (commands,) = re.findall(r"```bash\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert "127.0.0.1:8000" in commands
    assert "var/demo/token" in commands
    assert "stop_limit=30" in commands
    script = commands.replace("127.0.0.1:8000", f"127.0.0.1:{demo.rest.base_url.port}")
    script = script.replace("var/demo/token", str(demo.directory / "token"))
    script = script.replace("stop_limit=30", "stop_limit=3")
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=directory, capture_output=True, text=True, timeout=COMMANDS_DEADLINE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"status":"finished"' in done.stderr
    assert '"kind":"resize"' in done.stdout
    assert zipfile.is_zipfile(directory / "model.keras")
