"""`allow_mixed_kinds` in submissions, and `reproducibility` in jobs, by REST and on the pages."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from jobs.models import Accelerator, Job
from tests.support.builders import Clients, accelerators, at, job_make, node_make, submission_values
from tests.support.rows import allocation_make

URL = "/api/v1/jobs/"


def trained_on(job: Job, *kinds: str) -> None:
    """Let a job have trained on one accelerator of each kind."""
    for slot, kind in enumerate(kinds):
        node, _ = node_make(accelerators=accelerators(1, kind))
        place = Accelerator.objects.get(node=node)
        allocation_make(job, place, slot=slot, joined_at=at(1), released_at=at(2))


@pytest.mark.parametrize(("given", "kept"), [({}, False), ({"allow_mixed_kinds": True}, True)])
def test_kinds_are_mixed_only_when_asked(
    ada: User, client_of: Clients, given: dict[str, Any], kept: bool
) -> None:
    response = client_of(ada).post(URL, submission_values(**given))
    assert response.status_code == 201, response.data
    assert response.data["allow_mixed_kinds"] is kept
    assert Job.objects.get().allow_mixed_kinds is kept


def test_it_is_said_in_a_plain_yes_or_no(ada: User, client_of: Clients) -> None:
    response = client_of(ada).post(URL, submission_values(allow_mixed_kinds="sometimes"))
    assert response.status_code == 400
    assert "allow_mixed_kinds" in response.json()["errors"]


def test_a_clone_mixes_as_its_model_does(ada: User, client_of: Clients) -> None:
    job = job_make(ada, allow_mixed_kinds=True)
    response = client_of(ada).post(f"{URL}{job.pk}/clone/", {})
    assert response.status_code == 201, response.data
    assert response.data["allow_mixed_kinds"] is True


@pytest.mark.parametrize(
    ("reduction", "kinds", "reproducibility", "words"),
    [
        ("exact", [], "bitwise", "bitwise"),
        ("exact", ["cpu", "cpu"], "bitwise", "bitwise"),
        ("exact", ["slow", "fast"], "tolerance", "fast and slow, which round differently"),
        ("fast", ["cpu"], "tolerance", "fast reduction adds in an order that changes"),
    ],
)
def test_a_job_says_how_equal_another_run_would_be(
    ada: User,
    client_of: Clients,
    client: Client,
    reduction: str,
    kinds: list[str],
    reproducibility: str,
    words: str,
) -> None:
    job = job_make(ada, reduction=reduction)
    trained_on(job, *kinds)
    shown = client_of(ada).get(f"{URL}{job.pk}/").json()
    assert (shown["reproducibility"], shown["kinds_used"]) == (reproducibility, sorted(set(kinds)))
    client.force_login(ada)
    assert words in client.get(f"/jobs/{job.pk}/").content.decode()
