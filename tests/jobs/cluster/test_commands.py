"""Management commands that print tokens."""

from __future__ import annotations

import io

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.utils import timezone
from rest_framework.test import APIClient

from jobs.services.cluster.nodes import node_enrol
from tests.support.builders import enrol_request

pytestmark = pytest.mark.django_db


def printed(*words: str) -> str:
    out = io.StringIO()
    call_command(*words, stdout=out)
    return out.getvalue().strip()


def test_an_enrolment_token_lets_a_node_in() -> None:
    reply = node_enrol(enrol_request(printed("enrolment_token"), "fresh"), timezone.now())
    assert reply.node_id


def test_an_api_token_acts_for_its_user(ada: User) -> None:
    token = printed("api_token", "ada", "--scope", "jobs:read")
    client = APIClient(headers={"Authorization": f"Bearer {token}"})
    assert client.get("/api/v1/jobs/").status_code == 200
    assert client.post("/api/v1/jobs/", {}).status_code == 403


def test_wrong_words_are_explained(ada: User) -> None:
    with pytest.raises(CommandError, match="no user 'nobody'"):
        printed("api_token", "nobody")
    with pytest.raises(CommandError, match="lifetime_days"):
        printed("api_token", "ada", "--days", "0")
    with pytest.raises(CommandError, match="scope admin"):
        printed("api_token", "ada", "--scope", "admin")
    for hours in ("0", "-1", "169", "nan", "inf"):
        with pytest.raises(CommandError, match="at most 168"):
            printed("enrolment_token", "--hours", hours)
