"""A site whose people log in at a provider of `tests.support.oidc_provider`."""

from __future__ import annotations

from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.contrib.auth import get_user
from django.contrib.auth.models import User
from django.http import HttpRequest
from django.test import Client
from pytest_django import Settings

from jobs.models import AuditEntry, ExternalIdentity
from tests.support.oidc_provider import CLIENT_ID, CLIENT_SECRET, Provider, start_provider

PASSWORD = "rowing-boat-on-a-lake"


@pytest.fixture(scope="module")
def running_provider() -> Iterator[Provider]:
    provider = start_provider()
    yield provider
    provider.stop()


@pytest.fixture
def provider(
    running_provider: Provider, db: None, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Provider]:
    """Give an honest provider to which the settings of the site lead; it takes everybody."""
    honest = Provider(running_provider.server, running_provider.address)
    running_provider.server.RequestHandlerClass.provider = honest  # type: ignore[attr-defined]
    settings.OIDC_ISSUER = honest.address
    settings.OIDC_CLIENT_ID, settings.OIDC_CLIENT_SECRET = CLIENT_ID, CLIENT_SECRET
    settings.OIDC_TITLE, settings.OIDC_USERS = "the lab", "any"
    monkeypatch.setattr("jobs.oidc._newest", None)
    yield honest
    honest.slow = ""


def way_back(client: Client, query: str = "") -> str:
    """Begin a login and finish it at the provider; return the address that leads back."""
    begun = client.get(f"/login/oidc/{query}")
    assert begun.status_code == 302, begun.content
    return way_back_of(begun)


def way_back_of(begun: Any) -> str:
    """Finish a login at the provider that has begun; return the address that leads back."""
    parts = urlsplit(begun.headers["Location"])
    connection = HTTPConnection(parts.netloc, timeout=10)
    try:
        connection.request("GET", f"{parts.path}?{parts.query}")
        sent_to = connection.getresponse().headers["Location"]
    finally:
        connection.close()
    return str(sent_to).removeprefix("http://testserver")


def log_in(client: Client, query: str = "") -> Any:
    """Log in at the provider, and follow the way back."""
    return client.get(way_back(client, query))


def visitor(address: str = "192.0.2.1") -> Client:
    return Client(REMOTE_ADDR=address, headers={"User-Agent": "a browser"})


def user_of(client: Client) -> str:
    """Return the name of the person whom a browser's session is of; empty: of nobody."""
    request = HttpRequest()
    request.session = client.session
    return get_user(request).get_username()


def refusals() -> list[tuple[str, str]]:
    """Return action and reason of the refused logins, oldest first."""
    rows = AuditEntry.objects.filter(action__in=("login_failed", "login_locked")).order_by("id")
    return [(row.action, row.details.get("reason", "")) for row in rows]


def known(name: str, subject: str, provider: Provider, **more: Any) -> User:
    """Make a local account that an account of the provider logs in."""
    user = User.objects.create_user(name, password=PASSWORD, **more)
    ExternalIdentity.objects.create(
        user=user, issuer=provider.address, subject=subject, created_at=user.date_joined
    )
    return user
