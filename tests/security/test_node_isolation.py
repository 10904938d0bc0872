"""A site of strangers takes no node whose jobs share a user, unless an admin says so in words."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from rest_framework.test import APIClient

from controlplane.core.protocol.codec import encode
from controlplane.core.values.lifecycle import JobStatus
from jobs.models import Event, Node
from jobs.services.cluster.cordons import Cordon, node_cordon
from jobs.services.cluster.nodes import enrolment_token_create
from jobs.services.submission.validations import validation_start
from jobs.tasks import expire_nodes
from tests.support.builders import agent_client, enrol_request, job_make, logged_in, node_make
from tests.support.messages import hello_request

pytestmark = pytest.mark.django_db
FIX = "VIRTUALFLOW_USERS_TRUST_EACH_OTHER=1"


@pytest.fixture(autouse=True)
def _strangers(settings: Any) -> None:
    settings.USERS_TRUST_EACH_OTHER = False


def enrol(isolation: str) -> Any:
    _, token = enrolment_token_create(None, timezone.now())
    body = json.dumps(encode(enrol_request(token, f"node-{isolation}", isolation=isolation)))
    return Client().post("/api/v1/agent/enrol/", body, content_type="application/json")


def hello(node: Node, token: str, isolation: str) -> Any:
    client = agent_client(token)
    body = json.dumps(encode(hello_request(node, isolation=isolation)))
    return client.post("/api/v1/agent/hello/", body, content_type="application/json")


def test_strangers_need_isolation(ada: User, bob: User, settings: Any) -> None:
    refused = enrol("none")
    assert refused.status_code == 400
    assert FIX in json.dumps(refused.json()["errors"]["isolation"])
    assert not Node.objects.exists()
    assert FIX in refused.content.decode()[:500]  # as much as an agent logs
    assert enrol("uid").status_code == 201
    settings.USERS_TRUST_EACH_OTHER = True
    assert enrol("none").status_code == 201


def test_one_active_user_does_not(ada: User, bob: User) -> None:
    User.objects.filter(pk=bob.pk).update(is_active=False)
    assert enrol("none").status_code == 201


def test_a_known_node_is_not_brought_online(ada: User, settings: Any) -> None:
    node, token = node_make(now=timezone.now())
    assert hello(node, token, "none").status_code == 200
    User.objects.create_user("newcomer")
    Node.objects.filter(pk=node.pk).update(status="lost")
    refused = hello(node, token, "none")
    assert (refused.status_code, FIX in refused.content.decode()) == (400, True)
    node.refresh_from_db()
    assert node.status == "lost"
    assert hello(node, token, "uid").status_code == 200
    node.refresh_from_db()
    assert (node.status, node.isolation) == ("online", "uid")


def test_a_second_account_ends_new_work_on_shared_nodes(ada: User, settings: Any) -> None:
    now = timezone.now()
    shared, _ = node_make("shared", now=now)
    own, _ = node_make("own", now=now, isolation="uid")
    running = job_make(ada, status=JobStatus.VALIDATING).validation
    assert validation_start(running, now)
    expire_nodes()
    assert not Node.objects.filter(is_cordoned=True).exists()

    newcomer = User.objects.create_user("newcomer")
    expire_nodes()
    expire_nodes()
    assert list(Node.objects.filter(is_cordoned=True)) == [shared]
    assert Event.objects.filter(node=shared, kind="node_cordoned").count() == 1
    for _ in range(2):
        theirs = job_make(newcomer, status=JobStatus.VALIDATING).validation
        assert validation_start(theirs, now)
        theirs.refresh_from_db()
        assert theirs.node == own
    Node.objects.filter(pk=own.pk).update(status="lost")
    assert not validation_start(job_make(ada, status=JobStatus.VALIDATING).validation, now)
    settings.USERS_TRUST_EACH_OTHER = True
    assert validation_start(job_make(ada, status=JobStatus.VALIDATING).validation, now)


def shared_node(settings: Any, name: str) -> Node:
    """Enrol a node before its site has strangers."""
    settings.USERS_TRUST_EACH_OTHER = True
    node, _ = node_make(name, now=timezone.now())
    settings.USERS_TRUST_EACH_OTHER = False
    return node


def _setting(settings: Any) -> None:
    settings.USERS_TRUST_EACH_OTHER = True


def _users(_settings: Any) -> None:
    User.objects.exclude(username="ada").update(is_active=False)


def _agents(_settings: Any) -> None:
    Node.objects.update(isolation="uid")


@pytest.mark.parametrize("cause_end", [_setting, _users, _agents])
def test_a_cordon_ends_with_its_cause_but_none_of_a_person(
    ada: User, bob: User, settings: Any, cause_end: Callable[[Any], None]
) -> None:
    now = timezone.now()
    names = ("left", "held", "drained", "before")
    nodes = {name: shared_node(settings, name) for name in names}
    for name, change in (("before", Cordon.CORDON), ("drained", Cordon.DRAIN)):
        assert node_cordon(nodes[name], change, now, actor="user:root", reason="new memory")
    expire_nodes()
    assert node_cordon(nodes["held"], Cordon.CORDON, now, actor="user:root", reason="fans")
    cause_end(settings)
    expire_nodes()
    rows = Node.objects.values_list("name", "is_cordoned", "is_draining", "cordon_reason")
    assert sorted(rows) == [
        ("before", True, False, "new memory"),
        ("drained", True, True, "new memory"),
        ("held", True, False, "fans"),
        ("left", False, False, ""),
    ]
    cordons = Event.objects.filter(node=nodes["left"], kind__endswith="cordoned").order_by("id")
    assert list(cordons.values_list("kind", "actor")) == [
        ("node_cordoned", "system"),
        ("node_uncordoned", "system"),
    ]


def test_the_reason_is_shown_and_a_cordon_that_would_return_is_not_lifted(
    admin: User, ada: User, client_of: Callable[..., APIClient], settings: Any
) -> None:
    node = shared_node(settings, "shared")
    expire_nodes()
    reason = "its jobs share a user, and the site has several active accounts"
    (row,) = client_of(ada).get("/api/v1/nodes/").json()["results"]
    assert row["cordon_reason"] == reason
    browser = logged_in(admin)
    for path in ("/nodes/", f"/nodes/{node.pk}/"):
        page = browser.get(path).content.decode()
        assert f"Cordoned by system: {reason}" in page
        assert ">Uncordon<" not in page
        assert FIX in page
    refused = client_of(admin).post(f"/api/v1/nodes/{node.pk}/uncordon/")
    assert refused.status_code == 400
    assert FIX in refused.json()["errors"]["isolation"][0]
    posted = browser.post(
        reverse("node_cordon", args=[node.pk]), {"change": "uncordon"}, follow=True
    )
    assert FIX in posted.content.decode()
    node_cordon(node, Cordon.DRAIN, timezone.now(), actor="user:root", reason="new fans")
    page = browser.get("/nodes/").content.decode()
    assert "Draining by user:root: new fans" in page
    assert ">Uncordon<" in page
    settings.USERS_TRUST_EACH_OTHER = True
    assert client_of(admin).post(f"/api/v1/nodes/{node.pk}/uncordon/").status_code == 200
    assert "new fans" not in browser.get("/nodes/").content.decode()


def test_the_command_for_a_new_node_is_one_that_is_taken(admin: User) -> None:
    browser = logged_in(admin)
    path = reverse("node_token")
    assert "--isolation" not in browser.post(path, {"hours": 1}).content.decode()
    User.objects.create_user("newcomer")
    assert "--isolation uid" in browser.post(path, {"hours": 1}).content.decode()


def test_another_word_is_refused(ada: User) -> None:
    refused = enrol("container")
    assert refused.status_code == 400
    assert set(refused.json()["errors"]) == {"isolation"}


@pytest.mark.parametrize(
    ("isolation", "words"),
    [("uid", "jobs run as users of their own"), ("none", "s own user")],
)
def test_it_is_shown(
    ada: User, client_of: Callable[..., APIClient], isolation: str, words: str
) -> None:
    node_make(now=timezone.now(), isolation=isolation)
    (row,) = client_of(ada).get("/api/v1/nodes/").json()["results"]
    assert row["isolation"] == isolation
    browser = logged_in(ada)
    page = browser.get("/nodes/").content.decode()
    assert words in page
    told = "until an admin isolates them"
    assert told not in page
    User.objects.create_user("newcomer")
    page = browser.get("/nodes/").content.decode()
    assert (told in page) is (isolation == "none")
    assert FIX not in page
