"""Forms that come after the login has ended, or with an old token: nothing typed is lost."""

from __future__ import annotations

import re
from urllib.parse import unquote

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from jobs.models import Event, Job
from tests.frontend.test_access import POST_ROUTES, route_address
from tests.frontend.world import World
from tests.support.builders import logged_in

OWN = "http://testserver"
TYPED = {
    "note": "<b>three\nlines of</b> thought",
    "password": "my secret words",
    "seen-3": "it was",
}
#: Fields of a job in the queue, by what is before its number.
_ROW = {"seen": "normal 100", "tier": "normal", "priority": "100"}
SHOWN = "&lt;b&gt;three\nlines of&lt;/b&gt; thought"


def test_a_logged_out_form_is_shown_again(world: World, client: Client) -> None:
    before = (Job.objects.count(), Event.objects.count(), User.objects.count())
    page = f"/jobs/{world.jobs['running'].pk}/?scale=log"
    for name in (*sorted(POST_ROUTES), "submit", "channels", "maintenance"):
        answer = client.post(route_address(name, world), TYPED, HTTP_REFERER=OWN + page)
        text = answer.content.decode()
        assert answer.status_code == 403, name
        assert "nothing was changed" in text, name
        assert SHOWN in text, name
        assert "my secret words" not in text, name
        assert "it was" not in text, name
        assert f"/login/?next=/jobs/{world.jobs['running'].pk}/?scale=log" in unquote(text), name
    assert (Job.objects.count(), Event.objects.count(), User.objects.count()) == before


def test_of_the_queue_only_changed_fields_are_shown_again(world: World, client: Client) -> None:
    rows = {f"{name}-{job}": value for job in (3, 30) for name, value in _ROW.items()}
    form = {**rows, "priority-30": "555", "job": [3, 30], "preview": "1", "version": "7"}
    page = client.post(reverse("queue"), form).content.decode()
    assert re.findall(r"<dt>(.*?)</dt><dd[^>]*>(.*?)</dd>", page) == [("Priority-30", "555")]


def test_a_script_is_told_what_to_do(world: World, client: Client) -> None:
    answer = client.post(reverse("submit"), TYPED, HTTP_ACCEPT="application/json")
    assert answer.status_code == 403
    (text,) = answer.json()["errors"]["__all__"]
    assert "logged out" in text
    assert "another tab" in text


def test_the_way_back_stays_on_this_site(world: World, client: Client) -> None:
    page = client.post(reverse("prices"), HTTP_REFERER="https://elsewhere.example/x").content
    assert b"elsewhere" not in page
    assert b"/login/?next=%2F" in page


@pytest.mark.parametrize(("origin", "is_shown"), [(OWN, True), ("https://x.example", False)])
def test_a_form_with_an_old_token_is_shown_if_it_is_of_this_site(
    origin: str, is_shown: bool, world: World
) -> None:
    browser = logged_in(world.ada, enforce_csrf_checks=True)
    address = reverse("job_describe", args=[world.jobs["running"].pk])
    answer = browser.post(address, TYPED, HTTP_ORIGIN=origin)
    assert answer.status_code == 403
    assert (SHOWN in answer.content.decode()) == is_shown
    assert "Nothing was changed" in answer.content.decode()
