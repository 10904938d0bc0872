"""Agents' tokens: replaced after a time, ended by an admin, and never sent in the clear unasked."""

from __future__ import annotations

import datetime
import json
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from agents.settings import settings_from
from controlplane.core.protocol.codec import encode
from jobs.models import Node
from tests.support.builders import Clients, enrol_request, node_make
from tests.support.messages import batch_of, hello_request


@pytest.fixture
def node(db: None) -> tuple[Node, str]:
    return node_make(now=timezone.now(), host="10.0.0.9")


def post(route: str, token: str, message: Any) -> Any:
    return Client(headers={"Authorization": f"Agent {token}"}).post(
        f"/api/v1/agent/{route}/", json.dumps(encode(message)), content_type="application/json"
    )


def hello(node: Node, token: str) -> Any:
    return post("hello", token, hello_request(node))


def heartbeat(node: Node, token: str) -> Any:
    return post("reports", token, batch_of(node))


def test_an_old_token_is_replaced_at_hello_and_ends_with_the_first_use_of_the_new_one(
    node: tuple[Node, str], settings: Any
) -> None:
    row, old = node
    assert hello(row, old).json()["agent_token"] == old
    age = datetime.timedelta(days=settings.AGENT_TOKEN_DAYS + 1)
    Node.objects.update(agent_token_issued_at=timezone.now() - age)
    assert heartbeat(row, old).json()["code"] == "token_old"
    lost, new = (hello(row, old).json()["agent_token"] for _ in range(2))
    assert len({old, lost, new}) == 3
    assert heartbeat(row, old).status_code == 200  # an agent that lost the answer goes on
    assert heartbeat(row, new).status_code == 200
    assert [heartbeat(row, token).status_code for token in (old, lost, new)] == [401, 401, 200]
    assert hello(row, new).json()["agent_token"] == new


def test_an_admin_ends_a_token_and_only_this_node_enrols_with_the_new_one(
    node: tuple[Node, str], admin: User, ada: User, client_of: Clients
) -> None:
    row, old = node
    path = f"/api/v1/nodes/{row.pk}/new-token/"
    assert client_of(ada).post(path).status_code == 403
    ended = client_of(admin).post(path).json()["token"]
    answer = client_of(admin).post(path)
    assert answer.status_code == 201
    assert heartbeat(row, old).status_code == 401

    def enrol(name: str, token: str) -> Any:
        ports = {"first_port": row.first_port, "last_port": row.last_port}
        request = enrol_request(token, name, host=row.host, boot_id=row.boot_id, **ports)
        return post("enrol", "", request)

    token = answer.json()["token"]
    assert enrol(row.name, ended).status_code in (400, 403)
    assert enrol("another-node", token).status_code == 403
    reply = enrol(row.name, token).json()
    assert reply["node_id"] == row.pk
    assert heartbeat(row, reply["agent_token"]).status_code == 200
    assert enrol(row.name, token).status_code != 201
    assert Node.objects.count() == 1


def test_a_token_that_was_sent_and_not_yet_used_ends_as_well(
    node: tuple[Node, str], admin: User, client_of: Clients, settings: Any
) -> None:
    row, old = node
    age = datetime.timedelta(days=settings.AGENT_TOKEN_DAYS + 1)
    Node.objects.update(agent_token_issued_at=timezone.now() - age)
    new = hello(row, old).json()["agent_token"]
    assert new != old
    assert client_of(admin).post(f"/api/v1/nodes/{row.pk}/new-token/").status_code == 201
    assert [heartbeat(row, token).status_code for token in (new, old)] == [401, 401]


@pytest.mark.parametrize(
    "server", ["http://site.example", "http://10.0.0.1:8000", "http://[fe80::1]"]
)
def test_an_agent_wants_https_beyond_this_machine(server: str) -> None:
    options = ["--server", server, "--node", "n", "--state-dir", "/nowhere"]
    with pytest.raises(ValueError, match="--insecure"):
        settings_from(options, {})
    assert settings_from([*options, "--insecure"], {}).server == server
    assert settings_from(options, {"VIRTUALFLOW_INSECURE": "1"}).server == server


@pytest.mark.parametrize(
    "option", ["--insec", "--enrolment=x", "--no-peer", "--no-fork", "--isol=none", "--job-net=any"]
)
def test_an_option_of_an_agent_is_written_out(option: str) -> None:
    """A slip must not switch protection off, and a new option not change what an old line means."""
    options = ["--server", "https://site.example", "--node", "n", "--state-dir", "/nowhere"]
    with pytest.raises((ValueError, SystemExit)):
        settings_from([*options, option], {})


@pytest.mark.parametrize(
    "server", ["https://site.example", "http://localhost:1", "http://127.0.0.9", "http://[::1]:80"]
)
def test_https_and_this_machine_need_no_word(server: str) -> None:
    assert settings_from(["--server", server, "--node", "n", "--state-dir", "/nowhere"], {})
