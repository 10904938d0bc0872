"""Pages without nodes and jobs: what they say to a new user, and that they say nothing untrue."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from frontend.urls import urlpatterns
from tests.frontend.page_text import page_text
from tests.frontend.test_access import GET_ROUTES
from tests.frontend.world import World

HINTS = {
    "/": "An admin has to add a node before jobs can run.",
    "/jobs/": "Submit the first job",
    "/jobs/new/": "My own code",
    "/nodes/": "An admin has to add a node before jobs can run.",
    "/account/": "Create one below to use the REST API from a program.",
}


@pytest.mark.parametrize("address", HINTS)
def test_a_new_person_is_told_what_to_do_next(address: str, client: Client, db: None) -> None:
    client.force_login(User.objects.create_user("newcomer"))
    assert HINTS[address] in page_text(client.get(address))


#: Pages without a number in their address.
EMPTY_PAGES = sorted(
    str(one.name) for one in urlpatterns if one.name in GET_ROUTES and "<" not in str(one.pattern)
)
#: Words of somebody who forgot that there may be nothing.
UNTRUE = re.compile(r"the 0 |Every job has|: (None|nan|inf)\b|Traceback")


@pytest.mark.parametrize("is_admin", [False, True])
@pytest.mark.parametrize("name", EMPTY_PAGES)
def test_every_page_is_true_of_an_empty_cluster(
    name: str, is_admin: bool, client: Client, db: None
) -> None:
    make = User.objects.create_superuser if is_admin else User.objects.create_user
    client.force_login(make("somebody"))
    answer = client.get(reverse(name))
    if not is_admin and answer.status_code == 404:
        return
    assert answer.status_code == 200
    if not name.endswith("_figures"):
        assert not UNTRUE.findall(page_text(answer))


@pytest.mark.parametrize("name", ["invalid", "cancelled", "failed", "finished"])
def test_the_page_of_an_ended_job_waits_for_nothing(name: str, world: World, admin: Client) -> None:
    """Nothing more comes, so that no part of it is "not there yet"."""
    job = world.jobs[name]
    job.started_at = None
    job.save()
    job.generations.all().delete()
    job.events.all().delete()
    text = page_text(admin.get(f"/jobs/{job.pk}/"))
    assert "No resizes" in text
    assert not re.search(r"\byet\b", text)
