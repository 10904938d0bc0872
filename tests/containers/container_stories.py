"""The containers that a user starts: built, hardened, killed, upgraded, backed up and restored.

`make test-containers` runs this on the container engine of DOCKER_HOST, on this machine.
"""

from __future__ import annotations

import hashlib
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from agents.supervision.isolation import CAPABILITIES
from tests.containers.deployment import NODES, SERVICES, ContainerJob, Deployment, deployment, run
from tests.e2e.submitted import RESIZE_DEADLINE_S, START_DEADLINE_S

pytestmark = pytest.mark.timeout(3600)
#: Bits of an agent's capabilities, with NET_ADMIN for the firewall of jobs.
AGENT_RIGHTS = sum(1 << bit for bit in (*CAPABILITIES.values(), 12))
FIRST_JOB_UID = 200_000
#: Of a machine whose cores are busy.
DEADLINE_S = 2 * START_DEADLINE_S


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Build the images and start everything."""
    run([str(Path(__file__).parent / "base_images.sh")])
    directory = tmp_path_factory.mktemp("product")
    with deployment(directory, "virtualflow-test", "10.83.77") as made:
        made.compose("build")
        made.up()
        scopes = [f"--scope={name}" for name in ("jobs:read", "jobs:write", "admin")]
        command = ["python", "manage.py", "api_token", "admin", *scopes]
        token = made.compose("exec", "-T", "web", *command).decode().split()[-1]
        made.rest.headers["Authorization"] = f"Bearer {token}"
        made.wait_until_nodes_are_online()
        yield made


@pytest.fixture(scope="module")
def digest(product: Deployment) -> str:
    """Train the job undisturbed on one accelerator; return the digest of its result."""
    job = ContainerJob(product, "undisturbed", max_accelerators=1)
    job.wait_until_trains_on(1, DEADLINE_S)
    job.go()
    return str(job.wait_until_finished()["digest"])


def site_client(product: Deployment) -> httpx.Client:
    base = str(product.rest.base_url).removesuffix("api/v1/")
    return httpx.Client(base_url=base, trust_env=False, follow_redirects=True, timeout=30)


def test_a_person_logs_in_and_sees_the_nodes(product: Deployment) -> None:
    with site_client(product) as browser:
        browser.get("login/")
        form = {"username": "admin", "password": product.variables["ADMIN_PASSWORD"],
                "csrfmiddlewaretoken": browser.cookies["virtualflow_csrf"]}  # fmt: skip
        assert browser.post("login/", data=form).url.path == "/"
        page = browser.get("nodes/").text
        assert all(node in page for node in NODES)
        with browser.stream("GET", "stream/") as events:
            assert events.headers["Content-Type"].startswith("text/event-stream")


@pytest.mark.parametrize("service", SERVICES)
def test_a_container_has_no_rights_and_writes_nowhere_else(
    product: Deployment, service: str
) -> None:
    def shell(text: str) -> str:
        return product.compose("exec", "-T", service, "sh", "-c", text).decode()

    is_node = service in NODES
    status = dict(re.findall(r"^(\w+):\s+(\S+)$", shell("cat /proc/self/status"), re.MULTILINE))
    rights = AGENT_RIGHTS if is_node else 0
    assert (int(status["CapPrm"], 16), int(status["CapBnd"], 16)) == (rights, rights)
    assert status["NoNewPrivs"] == "1"
    assert "Read-only file system" in shell("touch /usr/x 2>&1; true")
    assert (shell("id -u").strip() == "0") == is_node


@pytest.mark.parametrize("node", NODES)
def test_jobs_reach_the_routes_of_agents_and_nothing_else(product: Deployment, node: str) -> None:
    program = """
import socket, urllib.error, urllib.request
def reaches(host, port):
    try:
        socket.create_connection((host, port), 3).close()
        return True
    except OSError:
        return False
def status(path):
    try:
        return urllib.request.urlopen("http://gateway:8000" + path, timeout=10).status
    except urllib.error.HTTPError as error:
        return error.code
hosts = [("postgres", 5432), ("redis", 6379), ("web", 8000), ("stream", 8000), ("proxy", 8000),
         ("1.1.1.1", 443), ("169.254.169.254", 80)]
print([place for place in hosts if reaches(*place)])
print([status(path) for path in ("/", "/login/", "/api/v1/jobs/", "/healthz", "/admin/")])
print(status("/api/v1/agent/wanted/"))
"""
    said = product.compose("exec", "-T", node, "python", "-c", program).decode().splitlines()
    assert said == ["[]", str([404] * 5), "401"]


def test_an_enrolment_token_is_gone_after_its_use(product: Deployment) -> None:
    for node in NODES:
        assert product.compose("exec", "-T", node, "find", "/enrolment", "-type", "f") == b""


def test_the_site_has_no_tensorflow(product: Deployment) -> None:
    assert b"tensorflow" not in product.compose("exec", "-T", "web", "pip", "list")
    assert b"django" not in product.compose("exec", "-T", "node-a", "pip", "list")


def test_a_job_is_resized_across_both_nodes(product: Deployment, digest: str) -> None:
    job = ContainerJob(product, "resized", max_accelerators=4, priority=100)
    job.wait_until_trains_on(4, DEADLINE_S)
    for node in NODES:
        listing = "stat -c %u /proc/[0-9]* 2>/dev/null; true"  # some end meanwhile
        owners = product.compose("exec", "-T", node, "sh", "-c", listing)
        uids = {int(uid) for uid in owners.split() if int(uid)}
        assert len(uids) == 1  # of the job; the agent is root
        assert min(uids) > FIRST_JOB_UID
    other = ContainerJob(product, "neighbour", max_accelerators=3, priority=900)
    other.wait_until_trains_on(3, DEADLINE_S)
    job.wait_until_trains_on(1, RESIZE_DEADLINE_S)
    other.do("cancel")
    job.wait_until_trains_on(4, DEADLINE_S)
    job.go()
    assert job.wait_until_finished()["digest"] == digest


def test_slow_senders_do_not_stop_the_site(product: Deployment) -> None:
    """Open forty connections that send two bytes of a body and then nothing."""
    port = int(product.variables["VIRTUALFLOW_PORT"])
    senders = [slow_sender(port) for _ in range(40)]
    try:
        with site_client(product) as visitor:
            for _ in range(10):
                assert visitor.get("healthz").elapsed.total_seconds() < 5
                assert visitor.post("login/", data={"username": "x"}).status_code == 403
    finally:
        for sender in senders:
            sender.close()


def slow_sender(port: int) -> Any:
    sender = socket.create_connection(("127.0.0.1", port), 10)
    sender.sendall(
        b"POST /login/ HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n"
        b"Content-Type: application/x-www-form-urlencoded\r\nCookie: csrftoken=x\r\n\r\na="
    )
    return sender


@pytest.mark.usefixtures("digest")
@pytest.mark.parametrize("asked", ["script", "model"])
def test_slow_readers_do_not_stop_the_site(product: Deployment, asked: str) -> None:
    """Open forty connections that ask for a script or a model eight times, and read nothing."""
    port = int(product.variables["VIRTUALFLOW_PORT"])
    with site_client(product) as visitor:
        (style,) = set(re.findall(r'"(/static/[^"]*/app\.css)"', visitor.get("login/").text))
        path = style.replace("app.css", "vendor/plotly/plotly-basic.min.js")
        if asked == "model":
            job = product.rest.get("jobs/?status=finished").json()["results"][0]["id"]
            path = f"/api/v1/jobs/{job}/files/model.keras/"
        token = product.rest.headers["Authorization"]
        request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {token}\r\n\r\n"
        with ExitStack() as readers:
            for _ in range(40):
                reader = readers.enter_context(socket.socket())
                reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
                reader.settimeout(10)
                reader.connect(("127.0.0.1", port))
                reader.sendall(request.encode() * 8)
            for _ in range(10):
                assert visitor.get("healthz").elapsed.total_seconds() < 5
                assert visitor.get("login/").status_code == 200
        answer = visitor.get(path, headers={"Authorization": token})
        assert answer.status_code == 200
        if asked == "model":
            assert hashlib.sha256(answer.content).hexdigest() == answer.headers["X-Sha256"]


def test_each_container_killed_once_changes_no_result(product: Deployment, digest: str) -> None:
    job = ContainerJob(product, "survivor", max_accelerators=4)
    job.wait_until_trains_on(4, DEADLINE_S)
    for service in SERVICES:
        product.kill(service)
        job.wait_for_steps(1, DEADLINE_S)
    job.go()
    assert job.wait_until_finished()["digest"] == digest


def test_an_upgrade_with_a_migration_leaves_a_job_training(
    product: Deployment, digest: str, tmp_path: Path
) -> None:
    job = ContainerJob(product, "upgraded", max_accelerators=4)
    job.wait_until_trains_on(4, DEADLINE_S)
    product.overrides.append(next_version(tmp_path))
    product.up()
    shown = product.compose("exec", "-T", "web", "python", "manage.py", "showmigrations", "jobs")
    assert b"[X] 9999_next_version" in shown
    job.wait_for_steps(1, DEADLINE_S)
    job.go()
    assert job.wait_until_finished()["digest"] == digest


def next_version(directory: Path) -> Path:
    """Build a site with one more migration; return the compose file that uses it."""
    migrations = Path(__file__).parent.parent.parent / "jobs" / "migrations"
    last = sorted(path.stem for path in migrations.glob("0*.py"))[-1]
    (directory / "9999_next_version.py").write_text(
        "from django.db import migrations, models\n\n\n"
        "class Migration(migrations.Migration):\n"
        f"    dependencies = [('jobs', '{last}')]\n"
        "    operations = [migrations.AddField('node', 'next_version',"
        " models.IntegerField(null=True, db_default=7))]\n"
    )
    (directory / "Dockerfile").write_text(
        "FROM virtualflow-site\nCOPY 9999_next_version.py jobs/migrations/\n"
    )
    run(["docker", "build", "--tag", "virtualflow-site-next", str(directory)])
    override = directory / "next.yml"
    names = ("prepare", "web", "stream", "worker", "replayer", "notifier", "beat")
    lines = ["services:", *(f"  {name}: {{image: virtualflow-site-next}}" for name in names)]
    override.write_text("\n".join(lines))
    return override


def test_everything_is_still_there_after_down_and_up(product: Deployment, digest: str) -> None:
    before = product.get("jobs/", page_size=50)["results"]
    nodes = [row["id"] for row in product.get("nodes/")["results"]]
    product.compose("down")
    product.up()
    product.wait_until_nodes_are_online()
    assert [row["id"] for row in product.get("nodes/")["results"]] == nodes
    after = product.get("jobs/", page_size=50)["results"]
    assert [(row["id"], row["status"]) for row in after] == [
        (row["id"], row["status"]) for row in before
    ]


def test_a_backup_is_restored_into_an_empty_deployment(
    product: Deployment, digest: str, tmp_path: Path
) -> None:
    database, files = tmp_path / "database", tmp_path / "files.tar"
    dump = ["pg_dump", "--username", "virtualflow", "--format", "custom", "virtualflow"]
    database.write_bytes(product.compose("exec", "-T", "postgres", *dump))
    folder = "/var/lib/virtualflow"
    pack = ["tar", "--create", "--directory", folder, "files"]
    files.write_bytes(product.compose("exec", "-T", "worker", *pack))
    finished = product.get("jobs/", page_size=50)["results"]
    job = next(row["id"] for row in finished if row["status"] == "finished")
    model = product.rest.get(f"jobs/{job}/files/model.keras/").content

    with deployment(tmp_path, "virtualflow-restored", "10.83.78") as restored:
        restored.overrides.extend(product.overrides)
        restored.up("postgres")
        restore = ["pg_restore", "--username", "virtualflow", "--dbname", "virtualflow"]
        restored.compose("exec", "-T", "postgres", *restore, stdin=database)
        unpack = ["tar", "--extract", "--directory", folder]
        restored.compose("run", "--rm", "-T", "--no-deps", "prepare", *unpack, stdin=files)
        restored.up("proxy", "worker", "beat")
        restored.rest.headers["Authorization"] = product.rest.headers["Authorization"]
        assert restored.get(f"jobs/{job}/")["digest"] == digest
        assert restored.rest.get(f"jobs/{job}/files/model.keras/").content == model
