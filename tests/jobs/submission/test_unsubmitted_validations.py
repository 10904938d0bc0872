"""Measuring before submitting: one validation, no job, and what a later submission makes of it."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from rest_framework.test import APIClient

from controlplane.core.protocol.node_messages import ValidationReport
from jobs.api.jobs.submission_request import submission_read
from jobs.models import Job, Node, Validation
from jobs.selectors.desired_state.state import wanted_state
from jobs.services.cluster.nodes import nodes_expire
from jobs.services.reports.batches import batch_take
from jobs.services.submission import validation_requests
from jobs.services.submission.validation_requests import (
    KEPT_FOR,
    KEPT_LIMIT,
    validation_request,
    validations_delete_old,
)
from jobs.services.submission.validations import validations_expire
from tests.jobs.reports.test_memory import EXAMPLE_BYTES, facts
from tests.support.builders import at, node_make, submission_values, user_make
from tests.support.messages import batch_of

URL = "/api/v1/validations/"
JOBS = "/api/v1/jobs/"

pytestmark = pytest.mark.django_db


@pytest.fixture
def client(ada: User, client_of: Any) -> APIClient:
    made: APIClient = client_of(ada)
    return made


def answer(node: Node, now: datetime.datetime, **values: Any) -> None:
    """Let a node report on every validation that it was given."""
    reports = tuple(
        ValidationReport(
            validation_id=wanted.validation_id,
            attempt=wanted.attempt,
            **({"ok": True, "facts": facts(3)} | values),
        )
        for wanted in wanted_state(node).validations
    )
    batch_take(node, batch_of(node, validations=reports), now)


def ask(client: APIClient, expect: int = 202, **changes: Any) -> dict[str, Any]:
    response = client.post(URL, submission_values(**changes), format="json")
    assert response.status_code == expect, response.data
    found: dict[str, Any] = response.data
    return found


def told(client: APIClient, asked: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = client.get(f"{URL}{asked['id']}/").data
    return found


def test_new_code_is_measured_and_a_number_suggested(client: APIClient) -> None:
    """32 examples in slices of at most 3: 11 virtual nodes, not the 4 that were asked for."""
    node, _ = node_make()
    asked = ask(client)
    assert (asked["status"], asked["memory"]) == ("running", None)
    assert node.name in asked["text"]
    answer(node, at(1))
    found = told(client, asked)
    assert (found["status"], found["num_virtual_nodes"]) == ("passed", 4)
    assert found["memory"]["bytes_per_example"] == EXAMPLE_BYTES
    assert found["memory"]["num_virtual_nodes"] == 11
    assert "11 virtual nodes would fit" in found["text"]
    # A dry run of the same knows it from now on.
    dry = client.post(f"{JOBS}?dry_run=1", submission_values(), format="json").data
    assert dry["memory"]["num_virtual_nodes"] == 11


def test_no_job_is_made(client: APIClient) -> None:
    node, _ = node_make()
    asked = ask(client)
    answer(node, at(1))
    assert told(client, asked)["status"] == "passed"
    assert not Job.objects.exists()


def test_the_validation_of_a_job_is_no_resource_of_its_own(client: APIClient) -> None:
    node_make()
    job = Job.objects.get(id=client.post(JOBS, submission_values(), format="json").data["id"])
    assert client.get(f"{URL}{job.validation.pk}/").status_code == 404


def test_the_validation_of_a_cancelled_job_ends(client: APIClient) -> None:
    node, _ = node_make()
    job = client.post(JOBS, submission_values(), format="json").data
    client.post(f"{JOBS}{job['id']}/cancel/")
    assert wanted_state(node).validations == ()
    assert Validation.objects.get().status == "cancelled"


def test_what_was_measured_is_not_validated_again(client: APIClient) -> None:
    node, _ = node_make()
    asked = ask(client)
    answer(node, at(1))
    # Name, priority, the number of steps and more virtual nodes change nothing that was tried.
    stop = {"kind": "steps", "limit": 77}
    values = submission_values(name="other", priority=7, stop=stop, num_virtual_nodes=11)
    job = client.post(JOBS, values, format="json").data
    assert job["status"] == "pending"
    row = Job.objects.get(id=job["id"])
    validation = Validation.objects.get(id=asked["id"])
    assert row.facts["memory"] == validation.facts["memory"]
    assert "validated with 4 virtual nodes" in row.facts["warnings"][-1]
    kinds = list(row.events.order_by("id").values_list("kind", flat=True))
    assert kinds == ["submitted", "validated"]
    assert wanted_state(node).validations == ()
    # As it was measured it is told that it runs out of memory.
    job = client.post(JOBS, submission_values(), format="json").data
    assert Job.objects.get(id=job["id"]).events.filter(kind="memory_short").exists()
    assert "warnings" not in Job.objects.get(id=job["id"]).facts


def test_name_and_stop_condition_may_be_missing(client: APIClient) -> None:
    node, _ = node_make()
    ask(client, name=None, stop=None)
    answer(node, at(1))
    assert client.post(JOBS, submission_values(), format="json").data["status"] == "pending"
    answered = client.post(JOBS, submission_values(name=None, stop=None), format="json")
    assert set(answered.data["errors"]) == {"name", "stop_kind", "stop_limit"}


@pytest.mark.parametrize(
    "changes",
    [
        {"num_virtual_nodes": 2},  # larger slices than those tried
        {"global_batch_size": 64},
        {"settings": {"size": 2}},
        {"seed": 8},
        {"code": "def build(settings):\n    return 1, 2, 3\n"},
        {"stop": {"kind": "metric", "limit": 3, "metric": "val_loss", "target": 0.1}},
    ],
)
def test_anything_else_is_validated(client: APIClient, changes: dict[str, Any]) -> None:
    node, _ = node_make()
    ask(client)
    answer(node, at(1))
    job = client.post(JOBS, submission_values(**changes), format="json").data
    assert job["status"] == "validating"


def test_nobody_else_profits_or_sees(client: APIClient, client_of: Any) -> None:
    node, _ = node_make()
    asked = ask(client)
    answer(node, at(1))
    ben: APIClient = client_of(user_make("ben"))
    assert ben.get(f"{URL}{asked['id']}/").status_code == 404
    assert ben.post(JOBS, submission_values(), format="json").data["status"] == "validating"


def test_the_same_again_is_the_same_validation(client: APIClient) -> None:
    node, _ = node_make()
    asked = ask(client)
    assert ask(client)["id"] == asked["id"]
    answer(node, at(1))
    assert ask(client, expect=200)["id"] == asked["id"]
    assert ask(client, accepted_kinds=["cpu"])["id"] != asked["id"]


def test_the_same_at_once_is_the_same_validation(
    client: APIClient, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    node_make()
    first, known = ask(client), validation_requests._known
    looks = iter([lambda *_: None])  # the first one is not committed yet
    monkeypatch.setattr(validation_requests, "_known", lambda *of: next(looks, known)(*of))
    again = ask(client)
    assert (again["id"], again["status"]) == (first["id"], "running")
    files = [path for path in Path(settings.MEDIA_ROOT).rglob("*") if path.is_file()]
    assert [path.name for path in files] == [Path(Validation.objects.get().code.name).name]


def test_a_newer_one_takes_the_place_of_ones_own(client: APIClient) -> None:
    node, _ = node_make()
    first = ask(client)
    second = ask(client, seed=8)
    assert told(client, first)["code"] == "replaced"
    assert [row.validation_id for row in wanted_state(node).validations] == [second["id"]]
    client.post(JOBS, submission_values(seed=8), format="json")  # nor twice what is submitted
    assert told(client, second)["status"] == "cancelled"


def test_work_of_another_name_or_file_leaves_a_validation_running(client: APIClient) -> None:
    node_make()
    first = ask(client)
    client.post(JOBS, submission_values(name="another"), format="json")
    second = ask(client, code_name="other.py")
    assert [told(client, asked)["status"] for asked in (first, second)] == ["running"] * 2
    refused = ask(client, expect=409, name="third")
    assert refused["code"] == "too_many_validations"
    assert refused["detail"].startswith("2 validations of yours are running")
    assert ask(client, code_name="other.py", seed=9)["status"] == "running"  # instead of the second


def test_code_that_fails_says_why(client: APIClient) -> None:
    node, _ = node_make()
    asked = ask(client)
    answer(
        node,
        at(1),
        ok=False,
        facts={},
        code="user_code",
        field="code.build",
        message="ValueError: no data",
        traceback="line 2, in build",
    )
    found = told(client, asked)
    assert (found["status"], found["code"], found["memory"]) == ("failed", "user_code", None)
    assert (found["error_field"], found["text"]) == ("code.build", "ValueError: no data")
    assert found["error_traceback"] == "line 2, in build"
    job = client.post(JOBS, submission_values(), format="json").data
    assert job["status"] == "validating"


def test_wrong_fields_are_refused_as_in_a_submission(client: APIClient) -> None:
    node_make()
    errors = ask(client, expect=400, num_virtual_nodes=0, seed=-1)["errors"]
    assert set(errors) == {"num_virtual_nodes", "seed"}
    assert not Validation.objects.exists()


def test_without_a_node_nothing_waits(client: APIClient, settings: Any) -> None:
    refused = ask(client, expect=409)
    assert (refused["code"], Validation.objects.count()) == ("no_node", 0)
    assert "No node is online" in refused["detail"]
    assert not list(Path(settings.MEDIA_ROOT).glob("code/*"))


def test_there_is_room_for_two_a_node(client: APIClient, client_of: Any) -> None:
    node, _ = node_make()
    for name in ("ben", "eve"):
        ask(client_of(user_make(name)))
    refused = ask(client, expect=409)
    assert refused["code"] == "too_many_validations"
    answer(node, at(1))
    ask(client)


def test_the_limit_of_live_jobs_counts(client: APIClient, settings: Any) -> None:
    node_make()
    settings.LIVE_JOBS_LIMIT = 1
    client.post(JOBS, submission_values(), format="json")
    assert ask(client, expect=409, seed=8)["code"] == "too_many_jobs"


def test_submitted_jobs_are_validated_first(client: APIClient, client_of: Any) -> None:
    node, _ = node_make()
    first = ask(client_of(user_make("ben")))
    job = client.post(JOBS, submission_values(), format="json").data
    asked = wanted_state(node).validations
    assert [row.spec.job_id for row in asked] == [job["id"], 0]
    assert asked[1].validation_id == first["id"]


@pytest.mark.parametrize("how", ["silent", "lost", "unasked"])
def test_a_node_that_says_nothing_ends_it(client: APIClient, how: str) -> None:
    """After one time limit, as long as it may be: whoever waits for it can ask again."""
    node_make("one")
    node_make("two")
    asked = ask(client)
    validation = Validation.objects.get()
    late = validation.deadline_at
    assert late is not None
    assert (late - validation.requested_at).total_seconds() <= 500
    if how == "unasked":
        result = ValidationReport(validation_id=asked["id"], attempt=7, ok=True)
        assert validation.node is not None
        batch_take(validation.node, batch_of(validation.node, validations=(result,)), late)
    if how != "lost":
        validations_expire(late + datetime.timedelta(seconds=1))
    else:
        nodes_expire(at(10_000))
    found = told(client, asked)
    assert (found["status"], found["code"]) == ("failed", "validation_lost")
    assert "No node measured it in time" in found["text"]


def test_old_ones_are_deleted_with_their_files(ada: User, settings: Any) -> None:
    node, _ = node_make()
    for seed in range(KEPT_LIMIT + 3):
        validation_request(ada, submission_read(submission_values(seed=seed)), at(seed))
    assert Validation.objects.count() == KEPT_LIMIT
    answer(node, at(50))
    codes = Path(settings.MEDIA_ROOT) / "code"
    assert len(list(codes.iterdir())) == KEPT_LIMIT
    assert validations_delete_old(at(0) + KEPT_FOR) == 0
    assert validations_delete_old(at(100) + KEPT_FOR) == KEPT_LIMIT
    assert (Validation.objects.count(), list(codes.iterdir())) == (0, [])


def test_a_measurement_is_waited_for(client: APIClient) -> None:
    node, _ = node_make()
    asked = ask(client)
    assert client.get(f"{URL}{asked['id']}/?wait=0.01").data["status"] == "running"
    answer(node, at(1))
    assert client.get(f"{URL}{asked['id']}/?wait=30").data["status"] == "passed"
    assert client.get(f"{URL}{asked['id']}/?wait=x").status_code == 400


def test_the_model_and_its_migrations_agree() -> None:
    call_command("makemigrations", "--check", "--dry-run", verbosity=0)
