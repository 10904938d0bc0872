"""What the tests of the jobs app share: people, and clients that act for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from jobs import nudges
from jobs.models import Node
from jobs.services.cluster.cordons import Cordon, node_cordon
from tests.support.builders import Clients, agent_client, api_token_make, node_make, user_make
from tests.support.documented import undocumented
from tests.support.servers import RunningServer


@pytest.fixture(scope="session", autouse=True)
def _static_directory() -> None:
    """WhiteNoise warns when there is no such directory; nothing is collected for tests."""
    Path(settings.STATIC_ROOT).mkdir(parents=True, exist_ok=True)


@pytest.fixture(autouse=True)
def _own_files(settings: Any, tmp_path: Path) -> None:
    """Keep each test's files apart."""
    settings.MEDIA_ROOT = str(tmp_path)


@pytest.fixture(autouse=True)
def _documented_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare every answer of REST with the OpenAPI document."""
    request = APIClient.request

    def documented_request(self: APIClient, **kwargs: Any) -> Any:
        response = request(self, **kwargs)
        method, path = kwargs["REQUEST_METHOD"], kwargs["PATH_INFO"]
        # `fields` leaves out others, which the document does not say.
        is_partial = "fields=" in kwargs.get("QUERY_STRING", "")
        difference = "" if is_partial else undocumented(method, path, response)
        assert not difference, f"{method} {path}: {difference[:2000]}"
        return response

    monkeypatch.setattr(APIClient, "request", documented_request)


@pytest.fixture
def time_for_forecasts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forecast with all decisions on a slow machine, too."""
    monkeypatch.setattr("jobs.selectors.next_cycle.FORECAST_S", 600.0)


@pytest.fixture
def ada(db: None) -> User:
    return user_make("ada")


@pytest.fixture
def bob(db: None) -> User:
    return user_make("bob")


@pytest.fixture
def admin(db: None) -> User:
    return user_make("admin", is_staff=True)


@pytest.fixture
def client_of() -> Clients:
    """Make a client that sends a token of a user."""

    def make(user: User, scopes: tuple[str, ...] = ()) -> APIClient:
        client = APIClient()
        client.credentials(HTTP_AUTHORIZATION=f"Bearer {api_token_make(user, scopes)}")
        return client

    return make


@pytest.fixture
def ada_client(ada: User, client_of: Clients) -> APIClient:
    return client_of(ada)


@pytest.fixture
def broker(redis_server: RunningServer, settings: Any) -> Iterator[redis.Redis]:
    """Let nudges use the session's Redis server."""
    settings.REDIS_URL = redis_server.url
    nudges.client.cache_clear()
    client = redis.Redis.from_url(redis_server.url)
    client.flushall()
    yield client
    nudges.client.cache_clear()
    client.close()


@pytest.fixture
def fresh_node() -> tuple[Node, Client]:
    """Make a node that gets no trainers by itself."""
    node, token = node_make(now=timezone.now())
    node_cordon(node, Cordon.CORDON, timezone.now(), actor="test")
    return node, agent_client(token)
