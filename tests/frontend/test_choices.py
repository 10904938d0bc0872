"""The theme and the time zone: chosen in the menu, kept by the browser."""

from __future__ import annotations

import re

import pytest
from django.test import Client

from frontend.choices import THEME_COOKIE, THEMES, ZONE_COOKIE, ZONES
from tests.frontend.world import World

ADDRESS = "/account/theme/"


def _shown(page: bytes) -> tuple[str, str, str]:
    text = page.decode()
    found = [
        re.search(pattern, text)
        for pattern in (
            r'name="color-scheme" content="([^"]+)"',
            r'id="dark" media="([^"]+)"',
            r'name="theme" value="(\w+)" aria-pressed="true"',
        )
    ]
    scheme, media, pressed = (match[1] if match else "" for match in found)
    return scheme, media, pressed


@pytest.mark.parametrize("name", THEMES)
def test_a_chosen_theme_is_kept(name: str, world: World, ada: Client) -> None:
    response = ada.post(ADDRESS, {"theme": name, "next": "/jobs/?status=live"})
    assert response.headers["Location"] == "/jobs/?status=live"
    theme = THEMES[name]
    for page in ("/", "/account/"):
        assert _shown(ada.get(page).content) == (theme.scheme, theme.dark_media, name)


@pytest.mark.parametrize("cookie", [None, "", "pink", 'dark"><b>'])
def test_without_a_known_choice_the_system_decides(
    cookie: str | None, world: World, ada: Client
) -> None:
    if cookie is not None:
        ada.cookies[THEME_COOKIE] = cookie
    assert _shown(ada.get("/").content)[2] == "system"


@pytest.mark.parametrize(
    "next_", ["https://elsewhere.example/", "//elsewhere.example", "javascript:alert(1)", "", "job"]
)
def test_a_choice_leads_nowhere_else(next_: str, world: World, ada: Client) -> None:
    response = ada.post(ADDRESS, {"theme": "dark", "next": next_})
    assert response.headers["Location"] == "/"


def test_an_unknown_theme_is_refused(world: World, ada: Client) -> None:
    response = ada.post(ADDRESS, {"theme": "pink"})
    assert response.status_code == 400
    assert b"system, light, dark" in response.content
    assert THEME_COOKIE not in response.cookies


@pytest.mark.parametrize("name", ZONES)
def test_a_chosen_zone_is_kept(name: str, world: World, ada: Client) -> None:
    response = ada.post("/account/zone/", {"zone": name, "next": "/jobs/?status=live"})
    assert response.headers["Location"] == "/jobs/?status=live"
    for page in ("/", "/account/"):
        html = ada.get(page).content.decode()
        assert f'<html lang="en" data-zone="{name}"' in html
        assert f'name="zone" value="{name}" aria-pressed="true"' in html
        assert "Times are in UTC." in html  # what the page's script replaces


@pytest.mark.parametrize("cookie", [None, "", "mars", 'utc"><b>'])
def test_without_a_known_choice_the_zone_is_the_browsers(
    cookie: str | None, world: World, ada: Client
) -> None:
    if cookie is not None:
        ada.cookies[ZONE_COOKIE] = cookie
    assert '<html lang="en" data-zone="browser"' in ada.get("/").content.decode()


def test_an_unknown_zone_is_refused(world: World, ada: Client) -> None:
    response = ada.post("/account/zone/", {"zone": "mars"})
    assert response.status_code == 400
    assert b"browser, utc" in response.content
    assert ZONE_COOKIE not in response.cookies
