"""Settings nested without end are refused, and a stored job with such ones ends alone."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from controlplane.core.protocol.codec import is_nested_deeper
from controlplane.core.values.lifecycle import JobStatus
from jobs.api.jobs.submission_fields import SETTINGS_DEPTH_LIMIT
from jobs.models import Job, Node, Validation
from jobs.services.cluster.tokens import token_digest
from tests.jobs.losses import fresh
from tests.jobs.world import World
from tests.security.hostile_values import nested
from tests.support.builders import Clients, at, job_make, node_make, submission_values

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("levels", [SETTINGS_DEPTH_LIMIT, 50, 900, 20_000])
@pytest.mark.parametrize("form", ["json", "text", "yaml", "form"])
def test_settings_have_few_levels(ada: User, client_of: Clients, levels: int, form: str) -> None:
    settings = f'{{"a": {"[" * levels}1{"]" * levels}}}'
    body = json.dumps(submission_values(settings="SETTINGS"))
    client, path = client_of(ada), "/api/v1/jobs/?dry_run=1"
    if form in ("json", "yaml"):
        text = body.replace('"SETTINGS"', settings)
        answer = client.post(path, text, content_type=f"application/{form}")
    elif form == "text":
        values = submission_values(settings=settings)
        answer = client.post(path, values, format="json")
    else:
        values = submission_values(settings=settings)
        stop = values.pop("stop")
        values |= {f"stop_{name}": value for name, value in stop.items()}
        answer = client.post(path, values, format="multipart")
    assert answer.status_code == 400
    if levels == SETTINGS_DEPTH_LIMIT and form != "yaml":
        assert answer.json()["errors"] == {
            "settings": ["Nest lists and objects at most 32 levels deep."]
        }


def test_as_many_levels_as_allowed_are_accepted(ada: User, client_of: Clients) -> None:
    values = submission_values(settings={"a": nested(SETTINGS_DEPTH_LIMIT - 1)})
    assert client_of(ada).post("/api/v1/jobs/", values, format="json").status_code == 201


def test_few_settings_are_changed_one_by_one(ada: User, client_of: Clients) -> None:
    """Each copies them all: the 100 thousand of a body of 2 MB would hold a thread for long."""
    values = submission_values(**{f"settings.{number}": 1 for number in range(1001)})
    answer = client_of(ada).post("/api/v1/jobs/?dry_run=1", values, format="json")
    assert answer.status_code == 400
    assert "at most 1000 fields" in str(answer.json()["errors"]["settings"])


@pytest.mark.parametrize("levels", [1, 2, 3, 40])
def test_levels_are_counted(levels: int) -> None:
    assert is_nested_deeper(nested(levels), levels - 1)
    assert not is_nested_deeper(nested(levels), levels)
    assert not is_nested_deeper({"a": nested(levels)}, levels + 1)


def wanted(token: str) -> dict[str, Any]:
    answer = Client().get("/api/v1/agent/wanted/", headers={"Authorization": f"Agent {token}"})
    assert answer.status_code == 200
    return answer.json()


def test_a_node_gets_its_other_validations(ada: User) -> None:
    node, token = node_make()
    jobs = [job_make(ada, status=JobStatus.VALIDATING) for _ in range(2)]
    Job.objects.filter(id=jobs[0].pk).update(settings={"a": nested(400)})
    Validation.objects.update(status="running", node=node, attempt=1, deadline_at=at(9))
    (left,) = wanted(token)["validations"]
    assert left["spec"]["job_id"] == jobs[1].pk
    job = fresh(jobs[0])
    assert (job.status, job.status_code, job.error_field) == (
        "invalid",
        "settings_too_deep",
        "settings",
    )


def test_a_node_gets_its_other_trainers() -> None:
    world = World(1, 2)
    jobs = [job_make(max_accelerators=1) for _ in range(2)]
    world.settle(4)
    Job.objects.filter(id=jobs[0].pk).update(settings={"a": nested(400)})
    token = "agent-token"
    Node.objects.update(agent_token_digest=token_digest(token))
    (left,) = wanted(token)["trainers"]
    assert left["spec"]["job_id"] == jobs[1].pk
    assert (fresh(jobs[0]).status, fresh(jobs[0]).status_code) == ("failed", "settings_too_deep")
