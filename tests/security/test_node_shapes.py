"""A stolen agent's token cannot give a node accelerators or an address that it does not have."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from controlplane.core.protocol.codec import encode
from controlplane.core.protocol.node_messages import HelloRequest
from jobs.exceptions import ConflictError, InvalidInputError
from jobs.models import Event, Node
from jobs.services.cluster import node_shapes
from jobs.services.cluster.node_shapes import CHANGES_AN_HOUR, host_check, shape_check
from tests.jobs.world import World
from tests.support.builders import Clients, accelerators, job_make, logged_in, node_make
from tests.support.messages import hello_request

pytestmark = pytest.mark.django_db

PINNED = accelerators(2)
CHANGES: dict[str, dict[str, Any]] = {
    "more": {"accelerators": accelerators(64)},
    "another index": {"accelerators": (dataclasses.replace(PINNED[0], index=5),)},
    "another kind": {"accelerators": (dataclasses.replace(PINNED[0], kind="h100", threads=0),)},
    "more memory": {"accelerators": (dataclasses.replace(PINNED[0], memory_bytes=2**40),)},
    "endless memory": {"accelerators": (dataclasses.replace(PINNED[0], memory_bytes=2**80),)},
    "another host": {"host": "10.1.2.3"},
    "other ports": {"first_port": 40_000, "last_port": 40_100},
}


@pytest.fixture
def node() -> tuple[Node, Client]:
    made, token = node_make(now=timezone.now(), host="10.0.0.9")
    return made, Client(headers={"Authorization": f"Agent {token}"})


def hello_of(node: Node, **changes: Any) -> HelloRequest:
    return hello_request(node, **{"accelerators": PINNED, **changes})


def hello(client: Client, node: Node, **changes: Any) -> Any:
    body = json.dumps(encode(hello_of(node, **changes)))
    return client.post("/api/v1/agent/hello/", body, content_type="application/json")


def rows(node: Node) -> list[Any]:
    node.refresh_from_db()
    columns = ("index", "kind", "memory_bytes", "threads", "is_present")
    return [node.host, node.first_port, *node.accelerators.values_list(*columns)]


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_another_shape_waits_for_an_admin(
    node: tuple[Node, Client],
    change: dict[str, Any],
    ada: User,
    admin: User,
    client_of: Clients,
) -> None:
    row, agent = node
    before = rows(row)
    for _ in range(2):
        answer = hello(agent, row, **change)
        assert (answer.status_code, answer.json()["code"]) == (409, "shape_changed")
    assert rows(row) == before
    assert Event.objects.filter(node=row, kind="node_changed").count() == 1
    path = f"/api/v1/nodes/{row.pk}/"
    assert {*client_of(ada).get(path).json()["proposed_shape"]} == {"accelerators"}
    proposed = client_of(admin).get(path).json()["proposed_shape"]
    wish = {"digest": proposed["digest"]}
    assert client_of(ada).post(f"{path}accept-shape/", wish).status_code == 403
    nothing = client_of(admin).post(f"{path}accept-shape/")
    assert (nothing.status_code, {*nothing.json()["errors"]}) == (400, {"digest"})
    other = client_of(admin).post(f"{path}accept-shape/", {"digest": "another"})
    assert (other.status_code, other.json()["code"]) == (409, "shape_not_proposed")
    assert client_of(admin).post(f"{path}accept-shape/", wish).status_code == 200
    assert rows(row) != before
    assert hello(agent, row, **change).status_code == 200
    assert Event.objects.get(node=row, kind="node_accepted").actor == "user:admin"


def test_the_honest_agent_is_not_disturbed(node: tuple[Node, Client], ada: User) -> None:
    row, agent = node
    hello(agent, row, **CHANGES["more"])
    browser = logged_in(ada)
    assert "Waits for an admin" in browser.get("/nodes/").content.decode()
    assert hello(agent, row).status_code == 200
    row.refresh_from_db()
    assert row.proposed_shape is None
    assert "Waits for an admin" not in browser.get("/nodes/").content.decode()


def test_lies_fill_neither_the_events_nor_the_database(node: tuple[Node, Client]) -> None:
    row = node[0]
    for number in range(CHANGES_AN_HOUR + 2):
        told = {"name": f"{number}" * 10_000, "threads": 10**200, "uuid": "u" * 10_000}
        lies = (dataclasses.replace(PINNED[0], kind="h100", **told),)
        with pytest.raises(ConflictError):
            shape_check(row, hello_of(row, accelerators=lies), timezone.now())
    row.refresh_from_db()
    assert row.proposed_shape is not None
    assert row.proposed_shape["accelerators"][0]["name"] == "11" * 60
    events = Event.objects.filter(node=row, kind="node_changed")
    assert events.count() == CHANGES_AN_HOUR
    assert max(len(json.dumps(event.data)) for event in events) < 1000


def test_missing_accelerators_may_come_back(node: tuple[Node, Client]) -> None:
    row, agent = node
    for found in (PINNED[:1], (), PINNED):
        assert hello(agent, row, accelerators=found).status_code == 200
        assert row.accelerators.filter(is_present=True).count() == len(found)


def test_a_lie_draws_no_job(client_of: Clients) -> None:
    world = World(2, 1)
    jobs = [job_make(max_accelerators=1) for _ in range(8)]
    lying, token = node_make(now=timezone.now(), host="10.0.0.9", num_accelerators=1)
    agent = Client(headers={"Authorization": f"Agent {token}"})
    world.settle(3)
    hello(agent, lying, accelerators=accelerators(64))
    world.settle(3)
    codes = [agent.get(f"/api/v1/agent/jobs/{job.pk}/code/").status_code for job in jobs]
    assert codes.count(200) <= 1


@pytest.mark.parametrize(
    "host",
    [
        "169.254.169.254",
        "[fe80::1]",
        "::ffff:169.254.169.254",
        "0.0.0.0",
        "::",
        "224.0.0.1",
        "100.100.100.200",
        "168.63.129.16",
        "fd00:ec2::254",
        "nowhere.invalid",
        "a" * 250,
        "..",
    ],
)
def test_hosts_that_no_trainer_can_have(node: tuple[Node, Client], host: str) -> None:
    with pytest.raises(InvalidInputError) as refusal:
        host_check(host)
    assert set(refusal.value.fields) == {"host"}
    row, agent = node
    assert hello(agent, row, host=host).status_code == 400
    row.refresh_from_db()
    assert (row.host, row.proposed_shape) == ("10.0.0.9", None)


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "10.0.0.7", "localhost", "2001:db8::1"])
def test_hosts_of_trainers(host: str) -> None:
    host_check(host)


def test_slow_names_of_others_hold_up_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """The few threads that resolve names may all wait for the name server of a hostile agent."""
    monkeypatch.setattr(node_shapes, "_resolver", None)
    host_check("10.0.0.9")
    host_check("[fd00::9]")
    with pytest.raises(InvalidInputError):
        host_check("169.254.169.254")
