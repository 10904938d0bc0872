"""Trainers whose kernel refuses socket filters: none listens without one."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.utils import timezone
from rest_framework.test import APIClient

from agents.trainer.contract.failures import EXIT_FAILED
from agents.trainer.contract.run_dir import REPORTS_FILE
from agents.trainer.local.local_cluster import LocalJobError
from jobs.models import Event, Node
from jobs.services.cluster.nodes import enrolment_token_create, node_enrol, node_hello
from tests.agents.trainer.local_jobs import local_job, training_spec
from tests.security.refusing_kernel import LIMIT_S
from tests.support.builders import enrol_request, logged_in
from tests.support.messages import hello_request

needs_seccomp = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"),
    reason="system calls are refused by their numbers",
)

PROGRAM = (sys.executable, "-m", "tests.security.refusing_kernel")
REASON = "the kernel refuses the socket filter of port"


@needs_seccomp
def test_a_trainer_does_not_listen_without_its_filter(tmp_path: Path) -> None:
    with local_job(tmp_path, training_spec()) as job:
        job.program = PROGRAM
        membership = job.plan(1, None)
        job.prepare(membership)
        with pytest.raises(LocalJobError, match=REASON):
            job.wait_ready(membership)
        assert job.trainers[0].process.wait(LIMIT_S) == EXIT_FAILED  # SIGSYS, had it listened
        reports = (job.trainers[0].run_dir / REPORTS_FILE).read_text()
        assert '"code": "internal"' in reports
        assert "start it with --no-peer-filter" in reports


@needs_seccomp
def test_a_listener_without_a_filter_serves_its_machine_alone_or_ends() -> None:
    command = [*PROGRAM, "--late", "127.0.0.1", "127.0.0.2", "192.0.2.1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    first, second, last = done.stdout.splitlines()
    assert first == second == "bound to lo\0"
    assert last.startswith(f"internal {REASON}")


@pytest.mark.django_db
def test_the_site_shows_which_nodes_want_no_filter(
    admin: User, client_of: Callable[..., APIClient]
) -> None:
    browser = logged_in(admin)

    def hello(*, filters_peers: bool) -> None:
        node = Node.objects.get()
        request = hello_request(node, filters_peers=filters_peers)
        node_hello(node, request, reply.agent_token, timezone.now())

    def is_told() -> bool:
        row = client_of(admin).get("/api/v1/nodes/").json()["results"][0]
        pages = [browser.get(path) for path in ("/nodes/", f"/nodes/{row['id']}/")]
        notices = {"--no-peer-filter" in page.content.decode() for page in pages}
        assert notices == {not row["filters_peers"]}
        return not row["filters_peers"]

    _, token = enrolment_token_create(None, timezone.now())
    request = enrol_request(token, "node-a", filters_peers=False)
    reply = node_enrol(request, timezone.now())
    assert is_told()
    hello(filters_peers=True)
    assert not is_told()
    for _ in range(2):
        hello(filters_peers=False)
    assert is_told()
    kinds = Event.objects.filter(kind__contains="filtered").values_list("kind", flat=True)
    assert [*kinds] == ["node_unfiltered", "node_filtered", "node_unfiltered"]
