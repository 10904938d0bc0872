"""Webhooks reach no address inside the site's network, by any name, and tell nothing of it."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Any

import pytest
from django.contrib.auth.models import User

from jobs.exceptions import InvalidInputError
from jobs.models import NotificationDelivery
from jobs.services.lifecycle.events import event_add
from jobs.services.notifications.deliveries import deliveries_due, delivery_attempt
from tests.jobs.notifications.channels import channel_make
from tests.jobs.notifications.receiver import Receiver, receiver
from tests.support.builders import at, job_make

pytestmark = pytest.mark.django_db

HOSTS = [
    "127.0.0.1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "0.0.0.0", "localhost",
    "[::1]", "[::]", "[::ffff:127.0.0.1]", "10.0.0.1", "172.16.0.1", "192.168.1.1",
    "169.254.169.254", "100.64.0.1", "[fd00::1]", "[fe80::1]", "[64:ff9b::7f00:1]",
    "224.0.0.1", "255.255.255.255",
]  # fmt: skip


@pytest.fixture
def hook() -> Any:
    with receiver() as made:
        yield made


def outcome(user: User, address: str) -> str:
    """Send one message; return the answer that the owner is told."""
    channel_make(user, address)
    event_add("failed", "It", now=at(0), job=job_make(user))
    (due,) = deliveries_due(at(0))
    assert delivery_attempt(due, at(0))
    return NotificationDelivery.objects.get(id=due).answer


@pytest.mark.parametrize("host", HOSTS)
def test_private_addresses_are_refused(ada: User, hook: Receiver, host: str) -> None:
    answer = outcome(ada, f"http://{host}:{hook.port}/")
    assert answer in ("The host has a private address.", "The host cannot be reached.")
    assert hook.received == []


@pytest.mark.parametrize(
    "form",
    [
        "http://{ok}\\@127.0.0.1:{port}/", "http://127.0.0.1:{port}\\@{ok}/",
        "http://127.0.0.1:{port}\\.{ok}/", "http://{ok};@127.0.0.1:{port}/", "http://@127.0.0.1:{port}/",
        "http://{ok}%2f@127.0.0.1:{port}/", "http://127.0.0.1:{port}?@{ok}/",
        "http://127.0.0.1:{port}/@{ok}/", "http://127.0.0.1:{port}#@{ok}/", "http://[{ok}]/",
        "http://{ok}:80:{port}@127.0.0.1/", "http:///127.0.0.1:{port}/", "http://{ok}%00.x/",
        "http://{ok}.127.0.0.1.nip.invalid:{port}/", "HTTP://127.0.0.1:{port}/?{ok}",
        "ftp://{ok}/", "file://{ok}/etc/passwd", "gopher://{ok}:{port}/", "unix://{ok}/x",
    ],
)  # fmt: skip
def test_an_allowed_host_lends_its_name_to_no_other(
    form: str, ada: User, hook: Receiver, settings: Any
) -> None:
    """The host that is compared with the list is the one connected to."""
    settings.WEBHOOK_PRIVATE_HOSTS = ["hooks.internal"]
    answer = ""
    with suppress(InvalidInputError):
        answer = outcome(ada, form.format(ok="hooks.internal", port=hook.port))
    assert answer in ("", "The host has a private address.", "The host cannot be reached.")
    assert hook.received == []


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_name_is_resolved_once_and_checked(
    ada: User, hook: Receiver, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    """A name that is public at first and private afterwards reaches nothing private."""
    asked: list[str] = []
    real = socket.getaddrinfo

    def resolve(host: str, port: int, *args: Any, **options: Any) -> Any:
        if host != "rebinding.example":
            return real(host, port, *args, **options)
        asked.append(host)
        # TEST-NET-3 stands for a public address: it is reserved, so the filter refuses it too.
        return real("203.0.113.1" if len(asked) == 1 else "127.0.0.1", port, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    outcome(ada, f"{scheme}://rebinding.example:{hook.port}/")
    assert (len(asked), hook.received) == (1, [])


def test_site_local_addresses_are_refused(ada: User, monkeypatch: pytest.MonkeyPatch) -> None:
    place = (socket.AF_INET6, socket.SOCK_STREAM, 0, "", ("fec0::1", 80, 0, 0))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [place])
    assert outcome(ada, "http://site.example/") == "The host has a private address."


def test_proxies_of_the_environment_are_not_used(
    ada: User, hook: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{hook.port}")
    assert outcome(ada, "http://10.0.0.1/") == "The host has a private address."
    assert hook.received == []
