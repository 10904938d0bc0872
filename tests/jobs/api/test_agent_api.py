"""/api/v1/agent/: who is let in, what an agent may reach, and what it may not."""

from __future__ import annotations

import dataclasses
import json
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from controlplane.core.protocol.node_messages import HelloRequest
from controlplane.core.protocol.wire import decode, encode
from controlplane.core.values.lifecycle import JobStatus, NodeStatus
from jobs.api import throttles
from jobs.api.agent import views
from jobs.exceptions import GoneError
from jobs.models import Accelerator, Allocation, EnrolmentToken, Event, Job, LogChunk, Node
from jobs.selectors.desired_state.state import orders_by_node, wanted_orders, wanted_state
from jobs.services.cluster import nodes
from jobs.services.cluster.nodes import enrolment_token_create, node_hello, node_remove
from jobs.services.submission.validations import validation_start
from tests.jobs.world import PlayedNode, World, settled
from tests.support.builders import (
    accelerators,
    agent_client,
    agent_token_give,
    enrol_request,
    job_make,
    node_make,
)
from tests.support.messages import hello_request

pytestmark = pytest.mark.django_db
BASE = "/api/v1/agent/"


#: Changes of a node's description by which it is refused, and the field that is named.
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"host": "a b"}, "host"),
    ({"host": "169.254.169.254"}, "host"),
    ({"first_port": 0}, "last_port"),
    ({"first_port": 900, "last_port": 899}, "last_port"),
    ({"last_port": 70000}, "last_port"),
    ({"protocol": 2}, "protocol"),
    ({"boot_id": ""}, "boot_id"),
    ({"boot_id": "x" * 65}, "boot_id"),
    ({"boot_id": "a\0b"}, "boot_id"),
    ({"accelerators": accelerators(1) + accelerators(1)}, "accelerators"),
    ({"accelerators": accelerators(65)}, "accelerators"),
    ({"first_port": 900, "last_port": 900}, "last_port"),
]


def enrol(token: str, name: str = "node-x", **other: Any) -> Any:
    body = json.dumps(encode(enrol_request(token, name, **other)))
    return Client().post(f"{BASE}enrol/", body, content_type="application/json")


def hello_body(node: Node, boot_id: str | None = None, num: int = 2) -> str:
    boot_id = node.boot_id if boot_id is None else boot_id
    return json.dumps(encode(hello_request(node, boot_id=boot_id, accelerators=accelerators(num))))


def post(client: Client, path: str, body: str) -> Any:
    return client.post(f"{BASE}{path}", body, content_type="application/json")


def batch(node: Node, **other: Any) -> str:
    values = {
        "boot_id": node.boot_id,
        "sent_at": 0.0,
        "trainers": [],
        "reports": [],
        "logs": [],
        "validations": [],
    }
    return json.dumps({**values, **other})


class TestEnrol:
    def test_a_token_lets_one_node_in_once(self) -> None:
        row, text = enrolment_token_create(None, timezone.now())
        response = enrol(text)
        assert response.status_code == 201
        node = Node.objects.get(id=response.json()["node_id"])
        assert [a.kind for a in node.accelerators.all()] == ["cpu", "cpu"]
        assert agent_client(response.json()["agent_token"]).get(f"{BASE}wanted/").status_code == 200
        again = enrol(text, "node-y")
        assert (again.status_code, again.json()["code"]) == (409, "enrolment_token_used")
        assert EnrolmentToken.objects.get(id=row.pk).node == node
        assert Node.objects.count() == 1

    def test_tokens_are_not_stored(self) -> None:
        _, text = enrolment_token_create(None, timezone.now())
        reply = enrol(text).json()
        stored = str([*EnrolmentToken.objects.values(), *Node.objects.values()])
        assert text not in stored
        assert reply["agent_token"] not in stored

    def test_unknown_and_expired_tokens(self) -> None:
        assert enrol("vfe_wrong").status_code == 403
        _, text = enrolment_token_create(None, timezone.now() - timedelta(days=2))
        assert enrol(text).status_code == 403
        assert not Node.objects.exists()

    def test_a_name_that_is_taken_leaves_the_token_good(self) -> None:
        node, _ = node_make("node-x")
        _, text = enrolment_token_create(None, timezone.now())
        response = enrol(text, "node-x")
        assert (response.status_code, set(response.json()["errors"])) == (400, {"name"})
        assert enrol(text, "node-y").status_code == 201
        assert Node.objects.exclude(id=node.pk).get().name == "node-y"

    @pytest.mark.parametrize(("change", "field"), [*WRONG, ({"name": "No Spaces"}, "name")])
    def test_a_wrong_field_is_named(self, change: dict[str, Any], field: str) -> None:
        _, text = enrolment_token_create(None, timezone.now())
        response = enrol(text, **change)
        assert (response.status_code, set(response.json()["errors"])) == (400, {field})
        assert not Node.objects.exists()

    def test_two_nodes_cannot_share_ports(self) -> None:
        node, _ = node_make("node-x", now=timezone.now())
        _, text = enrolment_token_create(None, timezone.now())
        taken = enrol(text, "node-y", first_port=node.last_port, last_port=node.last_port + 50)
        assert (taken.status_code, set(taken.json()["errors"])) == (400, {"first_port"})

    def test_a_kind_has_one_thread_count(self, monkeypatch: pytest.MonkeyPatch) -> None:
        node, token = node_make("node-x", 1)
        _, text = enrolment_token_create(None, timezone.now())
        odd = dataclasses.replace(accelerators(1)[0], threads=2)
        ports = {"first_port": 900, "last_port": 950}
        refused = enrol(text, "node-y", accelerators=(odd,), **ports)
        assert refused.status_code == 400
        assert "another --kind" in str(refused.json()["errors"]["accelerators"])
        other = dataclasses.replace(odd, kind="cpu-wide")
        assert enrol(text, "node-y", accelerators=(other,), **ports).status_code == 201
        # Node x restarts, and waits for the lock while node y takes its kind.
        rows = Accelerator.objects.filter(node__name="node-y")
        monkeypatch.setattr(nodes, "_enrolments_lock", lambda: rows.update(kind=odd.kind))
        refused = post(agent_client(token), "hello/", hello_body(node, num=1))
        assert "another --kind" in str(refused.json()["errors"]["accelerators"])

    @pytest.mark.parametrize("body", ["{", "[]", '{"token": 1}', "[" * 50_000])
    def test_what_is_no_message(self, body: str) -> None:
        assert post(Client(), "enrol/", body).status_code == 400

    def test_wrong_method(self) -> None:
        response = Client().get(f"{BASE}enrol/")
        assert (response.status_code, response.headers["Allow"]) == (405, "POST")


class TestAuthentication:
    @pytest.mark.parametrize("header", ["", "Agent", "Agent vfa_wrong", "Bearer x", "Agent  "])
    def test_without_a_known_token(self, header: str) -> None:
        response = Client(headers={"Authorization": header}).get(f"{BASE}wanted/")
        assert (response.status_code, response.json()["code"]) == (401, "not_authenticated")

    def test_a_removed_node_is_told_to_stop(self, fresh_node: tuple[Node, Client]) -> None:
        node, client = fresh_node
        Node.objects.filter(id=node.pk).update(removed_at=timezone.now())
        assert client.get(f"{BASE}wanted/").status_code == 410


class TestHello:
    @pytest.mark.parametrize(("change", "field"), WRONG)
    def test_a_wrong_field_is_named(
        self, fresh_node: tuple[Node, Client], change: dict[str, Any], field: str
    ) -> None:
        node, client = fresh_node
        before = Node.objects.values().get()
        body = json.loads(hello_body(node)) | json.loads(json.dumps(encode(change)))
        response = post(client, "hello/", json.dumps(body))
        assert (response.status_code, set(response.json()["errors"])) == (400, {field})
        assert Node.objects.values().get() == before

    def test_the_same_boot_is_taken_back_at_once(self, fresh_node: tuple[Node, Client]) -> None:
        node, client = fresh_node
        response = post(client, "hello/", hello_body(node, num=1))
        assert response.status_code == 200
        assert response.json()["agent_token"].startswith("vfa_")
        assert node.accelerators.filter(is_present=True).count() == 1
        assert post(client, "hello/", hello_body(node)).status_code == 200
        assert node.accelerators.filter(is_present=True).count() == 2

    def test_a_node_that_is_removed_meanwhile_does_not_come_back(
        self, fresh_node: tuple[Node, Client]
    ) -> None:
        node, _ = fresh_node
        stale = Node.objects.get(pk=node.pk)
        node_remove(node, timezone.now(), actor="user:root")
        request = decode(HelloRequest, json.loads(hello_body(node)))
        with pytest.raises(GoneError):
            node_hello(stale, request, "", timezone.now())
        assert Node.objects.get(pk=node.pk).status == NodeStatus.LOST

    def test_a_second_live_agent_is_refused_without_harm(
        self, fresh_node: tuple[Node, Client]
    ) -> None:
        node, client = fresh_node
        response = post(client, "hello/", hello_body(node, "other-boot", num=1))
        assert (response.status_code, response.json()["code"]) == (409, "node_in_use")
        assert node.accelerators.filter(is_present=True).count() == 2
        assert post(client, "reports/", batch(node)).status_code == 200

    def test_another_boot_after_the_lease_restarts_what_ran(self, settings: Any) -> None:
        world, job = settled()
        node = world.nodes[0].node
        long_ago = timezone.now() - timedelta(seconds=settings.LEASE_S + 1)
        Node.objects.filter(id=node.pk).update(last_seen_at=long_ago)
        token = agent_token_give(node)
        assert post(agent_client(token), "hello/", hello_body(node, "new-boot")).status_code == 200
        assert not Allocation.objects.filter(released_at=None).exists()
        assert (Job.objects.get().status, Job.objects.get().restarts) == ("pending", 1)
        assert Event.objects.filter(job=job, kind="restart").exists()

    def test_a_lost_node_says_hello_before_it_reports(
        self, fresh_node: tuple[Node, Client]
    ) -> None:
        node, client = fresh_node
        Node.objects.filter(id=node.pk).update(status="lost")
        response = post(client, "reports/", batch(node))
        assert (response.status_code, response.json()["code"]) == (409, "lease_lost")
        assert post(client, "hello/", hello_body(node)).status_code == 200
        assert post(client, "reports/", batch(node)).status_code == 200

    def test_ports_of_a_live_neighbour_are_waited_for(
        self, fresh_node: tuple[Node, Client], settings: Any
    ) -> None:
        node, client = fresh_node
        other, _ = node_make(now=timezone.now())
        wish = json.loads(hello_body(node)) | {
            "first_port": other.first_port,
            "last_port": other.last_port,
        }
        response = post(client, "hello/", json.dumps(wish))
        assert (response.status_code, response.json()["code"]) == (409, "ports_taken")
        long_ago = timezone.now() - timedelta(seconds=settings.LEASE_S + 1)
        Node.objects.filter(id=other.pk).update(last_seen_at=long_ago)
        assert post(client, "hello/", json.dumps(wish)).status_code == 200


class TestWanted:
    def test_it_answers_at_once_when_the_version_differs(
        self, fresh_node: tuple[Node, Client]
    ) -> None:
        _, client = fresh_node
        state = client.get(f"{BASE}wanted/", {"version": "x", "wait": 25}).json()
        assert (state["trainers"], state["validations"]) == ([], [])
        same = client.get(f"{BASE}wanted/", {"version": state["version"], "wait": 0.02})
        assert (same.status_code, same.content) == (304, b"")

    def test_it_costs_the_same_with_many_trainers(self, django_assert_max_num_queries: Any) -> None:
        world = World(num_nodes=1, num_accelerators=6)
        for _ in range(3):
            job_make(max_accelerators=2)
        world.settle(4)
        with django_assert_max_num_queries(4):
            assert len(wanted_state(world.nodes[0].node).trainers) == 6

    def test_many_nodes_cost_as_many_queries_as_one(
        self, django_assert_max_num_queries: Any
    ) -> None:
        """Jobs on one node and on several, one that is validated, and a node without orders."""
        world = World(num_nodes=4, num_accelerators=2)
        for number in (1, 3, 2):
            job_make(max_accelerators=number)
        world.settle(4)
        nodes = [played.node for played in world.nodes]
        assert validation_start(job_make(status=JobStatus.VALIDATING).validation, world.now)
        alone = {node.pk: wanted_orders(node) for node in nodes}
        with django_assert_max_num_queries(4):
            assert orders_by_node([node.pk for node in nodes]) == alone
        assert sum(len(state.trainers) for state, _ in alone.values()) == 6
        assert sum(len(state.validations) for state, _ in alone.values()) == 1
        assert orders_by_node([]) == {}

    def test_a_wait_that_is_no_number(self, fresh_node: tuple[Node, Client]) -> None:
        assert fresh_node[1].get(f"{BASE}wanted/", {"wait": "x"}).status_code == 400

    def test_members_hear_nothing_while_joiners_boot(self) -> None:
        world, job = settled(max_accelerators=1)
        (node,) = world.nodes
        before = {t.slot: t for t in wanted_state(node.node).trainers}
        world.cap(job, 2)
        during = {t.slot: t for t in wanted_state(node.node).trainers}
        (member,) = before
        assert during[member] == before[member]
        (joiner,) = set(during) - set(before)
        assert (during[joiner].go, during[joiner].membership.generation) == (False, 2)
        world.follow(node)
        after = wanted_state(node.node).trainers
        assert [(t.go, t.membership.generation) for t in after] == [(True, 2), (True, 2)]

    def test_members_hear_which_hosts_were_not_declared_to_them(self) -> None:
        world = World(num_nodes=1, num_accelerators=1)
        job = job_make(max_accelerators=1)
        world.settle()
        (old,) = world.nodes
        (before,) = wanted_state(old.node).trainers
        new = PlayedNode(node_make("enrolled-later", 1, host="10.0.0.9")[0])
        world.nodes.append(new)
        world.cap(job, 2)
        (during,) = wanted_state(old.node).trainers
        assert during == dataclasses.replace(before, peers=("10.0.0.9",))
        (joiner,) = wanted_state(new.node).trainers
        assert joiner.membership.hosts == {old.node.host, new.node.host}
        assert joiner.peers == ()
        world.follow(new)
        (after,) = wanted_state(old.node).trainers
        assert (after.go, after.membership, after.peers) == (True, joiner.membership, ())


class TestReports:
    def test_a_heartbeat_renews_the_lease(self, fresh_node: tuple[Node, Client]) -> None:
        node, client = fresh_node
        Node.objects.filter(id=node.pk).update(last_seen_at=timezone.now() - timedelta(hours=1))
        response = post(client, "reports/", batch(node))
        assert (response.status_code, response.json()["stale"]) == (200, [])
        age = timezone.now() - Node.objects.get().last_seen_at
        assert age < timedelta(seconds=30)

    def test_another_boot_is_refused(self, fresh_node: tuple[Node, Client]) -> None:
        node, client = fresh_node
        assert post(client, "reports/", batch(node, boot_id="other")).status_code == 409

    def test_an_ill_typed_field_is_named_by_its_path(self, fresh_node: tuple[Node, Client]) -> None:
        node, client = fresh_node
        trainers = [{"job_id": 1, "slot": "x", "generation": 1, "accelerator_index": 0, "pid": 1}]
        response = post(client, "reports/", batch(node, trainers=trainers))
        assert response.status_code == 400
        assert "ReportBatch.trainers[0].slot must be a whole number" in response.json()["detail"]

    def test_too_much_is_refused(self, fresh_node: tuple[Node, Client], settings: Any) -> None:
        settings.AGENT_BATCH_LIMIT_BYTES = 100
        node, client = fresh_node
        response = post(client, "reports/", batch(node, boot_id="b" * 200))
        assert (response.status_code, response.json()["code"]) == (413, "too_large")

    def test_a_trainer_that_nobody_wants_is_stale(self, fresh_node: tuple[Node, Client]) -> None:
        node, client = fresh_node
        state = {"job_id": 77, "slot": 0, "generation": 1, "accelerator_index": 0, "pid": 5}
        response = post(client, "reports/", batch(node, trainers=[state]))
        assert response.json()["stale"] == [state | {"adoption": 0}]

    def test_what_another_nodes_trainer_says_is_not_taken(
        self, fresh_node: tuple[Node, Client]
    ) -> None:
        _, job = settled()
        node, client = fresh_node
        whose: dict[str, Any] = {"job_id": job.pk, "slot": 0}
        chunk = {**whose, "offset": 0, "text": "forged"}
        report = {**whose, "generation": 1, "sequence": 999, "at": 0.0, "kind": "failed"}
        report["data"] = {"code": "user_code", "message": "forged", "traceback": ""}
        for said in ({"logs": [chunk]}, {"reports": [report]}):
            assert post(client, "reports/", batch(node, **said)).status_code == 200
        assert not LogChunk.objects.exists()
        assert Job.objects.get().status == JobStatus.STARTING


def test_a_node_that_floods_the_site_is_answered_later_and_others_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(views, "_NODE_REQUESTS_LIMIT", 3)
    now_s = [1_000_000.0]
    monkeypatch.setattr(throttles.time, "time", lambda: now_s[0])
    flooding, other = (agent_client(node_make()[1]) for _ in range(2))
    assert [flooding.get(f"{BASE}wanted/").status_code for _ in range(4)] == [200, 200, 200, 429]
    refused = flooding.get(f"{BASE}wanted/")
    assert (refused.json()["code"], refused.headers["Retry-After"]) == ("throttled", "21")
    assert other.get(f"{BASE}wanted/").status_code == 200
    now_s[0] += int(refused.headers["Retry-After"])
    assert flooding.get(f"{BASE}wanted/").status_code == 200


def test_requests_of_a_thousand_nodes_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttles.time, "time", lambda: 1_000_000.0)
    names = [f"counted:{number}" for number in range(1000)]
    for times in (1, 2):
        assert {throttles.times_this_minute(name, 1) for name in names} == {times}
