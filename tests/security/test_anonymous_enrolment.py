"""Without a token an enrolment tells nothing, and a node has logs of its own jobs only (M8)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.cache import cache
from django.test import Client
from django.utils import timezone

from controlplane.core.protocol.codec import encode
from controlplane.core.protocol.node_messages import LogChunk as WireChunk
from controlplane.core.values.lifecycle import JobStatus
from jobs.models import Allocation, EnrolmentToken, LogChunk, Node
from jobs.services.cluster.agent_tokens import node_by_token, node_token_replace
from jobs.services.cluster.nodes import enrolment_token_create
from jobs.services.reports.log_chunks import LOG_GRACE, log_chunks_store, logs_file
from tests.support.builders import accelerators, at, enrol_request, job_make, node_make
from tests.support.rows import allocation_make

pytestmark = pytest.mark.django_db

URL = "/api/v1/agent/enrol/"


@pytest.fixture(autouse=True)
def _fresh_counters() -> Iterator[None]:
    cache.clear()
    yield
    cache.clear()


def enrol(token: str, address: str = "192.0.2.1", **other: Any) -> Any:
    body = json.dumps(encode(enrol_request(token, **{"name": "node-y", **other})))
    return Client(REMOTE_ADDR=address).post(URL, body, content_type="application/json")


def unused() -> str:
    return enrolment_token_create(None, timezone.now())[1]


def used() -> str:
    row, text = enrolment_token_create(None, timezone.now())
    EnrolmentToken.objects.filter(pk=row.pk).update(used_at=timezone.now())
    return text


def expired() -> str:
    return enrolment_token_create(None, timezone.now() - timedelta(days=9))[1]


@pytest.mark.parametrize("bad", [lambda: "vfe_made_up", used, expired])
def test_only_the_token_is_spoken_of(bad: Callable[[], str]) -> None:
    node, _ = node_make("node-x", now=timezone.now())
    token = bad()
    odd = (accelerators(1)[0],)
    probes: list[dict[str, Any]] = [
        {}, {"name": "node-x"}, {"name": "Not A Name"}, {"host": "no-such-name.invalid"},
        {"first_port": node.first_port, "last_port": node.last_port}, {"protocol": 99},
        {"accelerators": odd * 3}, {"boot_id": ""}, {"first_port": 9, "last_port": 1},
    ]  # fmt: skip
    answers = [enrol(token, **probe) for probe in probes]
    assert len({(answer.status_code, answer.content) for answer in answers}) == 1
    assert answers[0].status_code in (403, 409)
    assert "token" in answers[0].json()["detail"]
    assert "errors" not in answers[0].json()
    assert Node.objects.count() == 1
    assert enrol(unused(), name="Not A Name").json()["errors"].keys() == {"name"}


def test_an_agent_whose_answer_was_lost_enrols_again_until_it_is_heard_of() -> None:
    token = unused()
    lost, stranger = enrol(token), enrol(token, boot_id="of another machine")
    again = enrol(token)
    assert (lost.status_code, stranger.status_code, again.status_code) == (201, 409, 201)
    assert Node.objects.get().pk == lost.json()["node_id"] == again.json()["node_id"]
    row = Node.objects.get()
    tokens = [reply.json()["agent_token"] for reply in (lost, again)]
    assert [node_by_token(text, timezone.now()) for text in tokens] == [None, row]
    Node.objects.update(last_seen_at=timezone.now())  # as a hello does
    assert enrol(token).json()["code"] == "enrolment_token_used"
    Node.objects.update(last_seen_at=at(0))
    node_token_replace(row, None, timezone.now(), actor="test")
    assert enrol(token).status_code == 403


def test_a_large_body_is_not_read() -> None:
    body = json.dumps(encode(enrol_request("vfe_x", "a" * 70_000)))
    answer = Client().post(URL, body, content_type="application/json")
    assert (answer.status_code, "65536 bytes" in answer.json()["detail"]) == (413, True)


def test_wrong_tokens_are_limited_by_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.api.agent.views._WRONG_TOKENS_LIMIT", 3)
    # A minute may end between two of them, so more than twice the limit are sent.
    answers = [enrol(f"vfe_{number}") for number in range(8)]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert refused
    assert 1 <= int(refused[0].headers["Retry-After"]) <= 61
    assert enrol(unused(), "192.0.2.2").status_code == 201


def tenure(job: Any, node: Node, released_after_s: float) -> Allocation:
    return allocation_make(job, node.accelerators.first(), released_at=at(released_after_s))


def chunk(job: Any, text: str, offset: int = 0) -> WireChunk:
    return WireChunk(job_id=job.pk, slot=0, offset=offset, text=text)


def test_a_former_holder_writes_for_a_day_only(ada: User) -> None:
    node, _ = node_make()
    other, _ = node_make()
    job = job_make(ada)
    tenure(job, node, 10)
    grace_s = LOG_GRACE.total_seconds()
    assert log_chunks_store(other, [chunk(job, "not mine")], at(20)) == set()
    assert log_chunks_store(node, [chunk(job, "late\n")], at(9 + grace_s)) == {job.pk}
    assert log_chunks_store(node, [chunk(job, "too late", 5)], at(11 + grace_s)) == set()
    assert [row.text for row in LogChunk.objects.all()] == ["late\n"]


def test_a_log_file_is_written_for_own_jobs_only(ada: User) -> None:
    node, _ = node_make()
    other, _ = node_make()
    job = job_make(ada, status=JobStatus.FINISHED)
    tenure(job, node, 10)
    log_chunks_store(node, [chunk(job, "text\n")], at(20))
    assert logs_file(other, {job.pk}, at(30)) == set()
    assert logs_file(node, {job.pk}, at(30)) == {job.pk}
    assert logs_file(node, {job.pk}, at(11 + LOG_GRACE.total_seconds())) == set()
