"""Addresses of pages with odd values, under every name that the page itself reads."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.http import QueryDict
from django.test import Client

from tests.frontend.world import World, make_sweep, make_world
from tests.jobs.test_authorisation import routes
from tests.security.test_odd_forms import VALUES, session_of

pytestmark = pytest.mark.django_db

#: Besides nonsense, what is nearly right.
NEARLY: dict[str, Any] = {
    "not a number": "nan",
    "infinite": "1e400",
    "largest": str(2**63),
    "time": "2026-11-25T99:99Z",
    "first year": "0001-01-01T00:00+14:00",
    "last year": "9999-12-31T23:59-14:00",
    "metric": "val_accuracy>nan",
    "setting": "a.b=[1",
    "cursor": "eyJhIjogMX0",
}
ODD = {**VALUES, **NEARLY}
ALWAYS = ("last year",)


@pytest.fixture
def world(db: None) -> World:
    world = make_world()
    make_sweep(world.ada, [0.5, 0.7])
    return world


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Collect the names that are looked up in addresses and forms."""
    read: set[str] = set()
    for method in ("get", "getlist", "__getitem__", "__contains__"):
        own = getattr(QueryDict, method)

        def noting(self: QueryDict, name: str, *rest: Any, own: Any = own, **more: Any) -> Any:
            read.add(name)
            return own(self, name, *rest, **more)

        monkeypatch.setattr(QueryDict, method, noting)
    return read


def pages(world: World) -> list[str]:
    """Return the paths of all pages that can be read; numbers are of things that are there."""
    numbers = {
        "job_id": world.jobs["running"].pk,
        "sweep_id": world.ada.sweeps.get().pk,
        "node_id": world.nodes[0].pk,
    }
    found = []
    for route, pattern in routes():
        is_page = pattern.callback.__module__.startswith("frontend.")
        if not is_page or route in ("logout/", "stream/"):
            continue
        for name, number in numbers.items():
            route = route.replace(f"<int:{name}>", str(number))
        route = re.sub("<int:[a-z_]+>", "1", route)
        found.append("/" + route.replace("<str:name>", "model.keras"))
    return found


def status_of(client: Client, path: str, query: dict[str, Any]) -> int:
    answer = client.get(path, query)
    if answer.streaming:
        b"".join(answer)  # downloads have few places
    return answer.status_code


@pytest.mark.parametrize(
    "what",
    [name if name in ALWAYS else pytest.param(name, marks=pytest.mark.nightly) for name in ODD],
)
def test_no_odd_address_is_an_error_of_the_site(what: str, world: World, names: set[str]) -> None:
    client = session_of(world.admin)
    num_read = 0
    for path in pages(world):
        names.clear()
        assert status_of(client, path, {}) < 500, path
        own = sorted(names)
        num_read += len(own)
        assert status_of(client, path, dict.fromkeys(own, ODD[what])) < 500, (path, own)
        for name in own if what not in ALWAYS else ():
            assert status_of(client, path, {name: ODD[what]}) < 500, (path, name)
    assert num_read > 50
