"""Notification channels: what they are made of, whose they are, and what is shown of them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth.models import User
from rest_framework.test import APIClient

from jobs.models import AuditEntry, NotificationChannel
from jobs.sealing import unseal
from jobs.services.notifications.channels import CHANNELS_LIMIT, shown_address
from tests.jobs.notifications.channels import URL, channel_make
from tests.support.builders import Clients, api_token_make, audit_acts

pytestmark = pytest.mark.django_db


def test_the_shown_address_is_one(ada: User, client_of: Clients) -> None:
    made = client_of(ada).post(URL, {"name": "lab", "address": "http://[2001:db8::1]:8377/secret"})
    assert made.json()["address"] == "http://[2001:db8::1]:8377/…"
    limit = NotificationChannel._meta.get_field("shown_address").max_length
    assert len(shown_address("email", f"{'a' * 300}@lab.example")) == limit


def test_addresses_and_keys_are_never_shown_again(ada: User, client_of: Clients) -> None:
    client = client_of(ada)
    secret = "https://hooks.example:8443/services/T0/B1/very-secret?key=also-secret"
    made = client.post(URL, {"name": "lab", "address": secret})
    assert (made.status_code, made.headers["Cache-Control"]) == (201, "no-store")
    shown, key = made.json(), made.json()["signing_key"]
    assert shown["address"] == "https://hooks.example:8443/…"
    row = NotificationChannel.objects.get()
    assert (unseal(row.address), unseal(row.signing_key)) == (secret, key)
    one = f"{URL}{row.pk}/"
    answers = [client.get(URL), client.get(one), client.patch(one, {"events": ["failed"]})]
    answers += [client.post(f"{one}test/"), client.get(f"{one}deliveries/")]
    texts = [answer.content.decode() for answer in answers]
    texts += [json.dumps(entry.details) for entry in AuditEntry.objects.all()]
    texts += [json.dumps([row.address, row.signing_key])]
    assert not [text for text in texts if "secret" in text or key in text]
    assert client.delete(one).status_code == 204
    acts = [entry.action for entry in audit_acts()]
    assert acts == ["channel_made", "channel_changed", "channel_deleted"]


WRONG = {
    "name": [
        {"name": name} for name in ("", "x" * 61, None, ["a"], "a\0", "a\nb", "\u202eb")
    ],
    "kind": [{"kind": "pigeon"}, {"kind": None}],
    "events": [
        {"events": []}, {"events": ["nothing"]}, {"events": "failed"}, {"events": [1]},
        {"events": ["node_lost"]}, {"events": ["failed"] * 100},
    ],
    "is_cluster_wide": [{"is_cluster_wide": True}, {"is_cluster_wide": "maybe"}],
    "address": [
        {"address": text}
        for text in (
            "", "hook", "ftp://a.example/", "file:///etc/passwd", "javascript:alert(1)",
            "https://", "https://user:pw@a.example/", "https://a.example:99999/",
            "https://a.example/ x", "https://a.example/\r\nHost: b", "https://[::1/",
            "https://a.example/#x", "x" * 1001, "https://bücher.example/",
        )
    ] + [
        {"kind": "email", "address": "ada@lab.example"},  # no mail server
        *(
            {"kind": "chat", "address": text}
            for text in (
                "https://a.example/", "json://127.0.0.1/", "file://etc/passwd", "slack",
                "slack://a/b/c?template=/etc/passwd", "slack://a/b/c?verify=no", "syslog://",
                "slack://a/b/c#general",
            )
        ),
    ],
    "unknown": [{"unknown": 1}],
}  # fmt: skip


@pytest.mark.parametrize("field", WRONG)
def test_wrong_values_are_refused_by_name(ada: User, client_of: Clients, field: str) -> None:
    client = client_of(ada)
    for values in WRONG[field]:
        body = {"name": "a", "address": "https://a.example/", **values}
        answer = client.post(URL, body)
        assert (answer.status_code, [*answer.json()["errors"]]) == (400, [field]), values
    assert not NotificationChannel.objects.exists()


def test_names_and_numbers_of_channels_are_bounded(ada: User, client_of: Clients) -> None:
    client = client_of(ada)
    body = {"name": "a", "address": "https://a.example/"}
    assert client.post(URL, body).status_code == 201
    assert client.post(URL, body).json()["code"] == "channel_exists"
    for number in range(1, CHANNELS_LIMIT):
        assert client.post(URL, body | {"name": str(number)}).status_code == 201
    assert client.post(URL, body | {"name": "one more"}).json()["code"] == "too_many_channels"
    channel = NotificationChannel.objects.all()[0]
    codes = [client.post(f"{URL}{channel.pk}/test/").status_code for _ in range(4)]
    assert codes == [202, 202, 202, 409]


def test_channels_are_their_owners_alone(ada: User, admin: User, client_of: Clients) -> None:
    channel, _ = channel_make(ada)
    client, one = client_of(admin), f"{URL}{channel.pk}/"
    assert client.get(URL).json() == []
    answers = [client.get(one), client.patch(one, {"is_paused": True}), client.delete(one)]
    answers += [client.post(f"{one}test/"), client.get(f"{one}deliveries/")]
    assert {answer.status_code for answer in answers} == {404}


def test_a_token_needs_the_scope_admin_for_a_cluster_wide_channel(admin: User) -> None:
    body = {"name": "a", "address": "https://a.example/", "is_cluster_wide": True}
    member, boss = (
        APIClient(headers={"Authorization": f"Bearer {api_token_make(admin, scopes)}"})
        for scopes in (("jobs:write",), ("jobs:write", "admin"))
    )
    made = [client.post(URL, body) for client in (member, boss)]
    assert [answer.status_code for answer in made] == [400, 201]
    one = f"{URL}{made[1].json()['id']}/"
    changes: list[dict[str, Any]] = [
        {"is_paused": False}, {"is_paused": True, "events": ["failed"]}, {"is_paused": True},
    ]  # fmt: skip
    answers = [member.patch(one, change, format="json") for change in changes]
    assert [answer.status_code for answer in answers] == [400, 400, 200]
    assert answers[2].json()["paused_reason"] == "paused by its owner"
