"""Hints on the pages of a new user, on a cluster without nodes and jobs."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client

from tests.frontend.test_pages import page_text

HINTS = {
    "/": "An administrator has to add a node before jobs can run.",
    "/jobs/": "Submit the first job",
    "/jobs/new/": "My own code",
    "/nodes/": "An administrator has to add a node before jobs can run.",
    "/account/": "Create one below to use the REST API from a program.",
}


@pytest.mark.parametrize("address", HINTS)
def test_a_new_person_is_told_what_to_do_next(address: str, client: Client, db: None) -> None:
    client.force_login(User.objects.create_user("newcomer"))
    assert HINTS[address] in page_text(client.get(address))
