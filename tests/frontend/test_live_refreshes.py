"""Live refreshes of open pages: they leave messages and undo forms to the page that a user sees."""

from __future__ import annotations

import pytest
from django.test import Client

from tests.frontend.test_access import GET_ROUTES, route_address
from tests.frontend.world import World
from tests.support.cases import some

LIVE = {"X-Requested-With": "live"}


def _tag(client: Client, world: World) -> None:
    client.post("/jobs/actions/", {"job": [world.jobs["pending"].pk], "do": "tag", "tag": "mine"})


#: Answers without the frame of a page, in which messages stand.
FRAMELESS = {name for name in GET_ROUTES if name.endswith(("_figures", "_log", "_file", "_code"))}


@pytest.mark.parametrize("route", some(sorted(GET_ROUTES), FRAMELESS - {"job_figures"}))
def test_a_refresh_of_another_page_takes_nothing_away(
    route: str, world: World, admin: Client
) -> None:
    address = route_address(route, world)
    _tag(admin, world)
    admin.get(address, headers=LIVE)
    page = admin.get("/jobs/")
    assert "1 job tagged." in page.content.decode()
    assert page.context["undo"]


def test_what_was_shown_is_not_shown_again(world: World, admin: Client) -> None:
    _tag(admin, world)
    admin.get("/jobs/")
    page = admin.get("/jobs/")
    assert "1 job tagged." not in page.content.decode()
    assert not page.context["undo"]


def test_a_refresh_shows_neither(world: World, admin: Client) -> None:
    _tag(admin, world)
    page = admin.get("/jobs/", headers=LIVE).content.decode()
    assert "1 job tagged." not in page
    assert 'name="undo"' not in page
