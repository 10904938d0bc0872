"""Text that no database stores, in whatever an agent says of itself: refused, never a failure."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from controlplane.core.protocol.wire import encode
from jobs.exceptions import InvalidInputError
from jobs.models import Node
from jobs.services.cluster import nodes
from jobs.services.cluster.nodes import enrolment_token_create
from tests.support.builders import accelerators, enrol_request, node_make
from tests.support.messages import hello_request

pytestmark = [pytest.mark.django_db, pytest.mark.database]

ODD = ("\0", "a\0b", "\ud800", "\udfffx")
FIELDS = ("host", "boot_id", "isolation")
ACCELERATOR_FIELDS = ("accelerators.kind", "accelerators.name", "accelerators.uuid")


def post(path: str, body: Any, token: str = "") -> Any:
    client = Client(headers={"Authorization": f"Agent {token}"} if token else {})
    return client.post(f"/api/v1/agent/{path}/", json.dumps(body), content_type="application/json")


def with_odd(message: Any, field: str, odd: str) -> dict[str, Any]:
    body: dict[str, Any] = encode(message)
    part, _, name = field.rpartition(".")
    holder = body[part][0] if part else body
    holder[name] = odd
    return body


@pytest.mark.parametrize("odd", ODD, ids=ascii)
@pytest.mark.parametrize("field", [*FIELDS, *ACCELERATOR_FIELDS, "token", "name"])
def test_an_enrolment_is_refused(field: str, odd: str) -> None:
    _, token = enrolment_token_create(None, timezone.now())
    answer = post("enrol", with_odd(enrol_request(token, "alpha"), field, odd))
    assert answer.status_code == (403 if field == "token" else 400)
    assert not Node.objects.exists()


@pytest.mark.parametrize("odd", ODD, ids=ascii)
@pytest.mark.parametrize("field", [*FIELDS, *ACCELERATOR_FIELDS])
def test_a_hello_is_refused(field: str, odd: str) -> None:
    node, token = node_make(now=timezone.now())
    hello = with_odd(hello_request(node, boot_id="another"), field, odd)
    answer = post("hello", hello, token)
    assert answer.status_code == 400
    assert Node.objects.get().boot_id == node.boot_id


def test_accelerators_have_printable_names() -> None:
    """They stand in events, in messages and in other users' terminals."""
    told = dataclasses.replace(enrol_request("token", "alpha"), accelerators=accelerators(1))
    for odd in ("h100\x1b[2J", "h100\u202e", "h100\n"):
        for name in ("kind", "name", "uuid"):
            wrong = dataclasses.replace(told.accelerators[0], **{name: odd})
            with pytest.raises(InvalidInputError):
                nodes._node_check(dataclasses.replace(told, accelerators=(wrong,)))


@pytest.mark.parametrize("odd", ODD, ids=ascii)
def test_a_heartbeat_of_no_boot_is_a_lost_lease(odd: str) -> None:
    _, token = node_make(now=timezone.now())
    batch = {"boot_id": odd, "sent_at": 0.0, "trainers": [], "reports": [], "logs": [],
             "validations": [], "wanted_version": odd}  # fmt: skip
    answer = post("reports", batch, token)
    assert (answer.status_code, answer.json()["code"]) == (409, "lease_lost")
