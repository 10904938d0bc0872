"""POST /api/v1/jobs/."""

from __future__ import annotations

import hashlib
import json
from dataclasses import make_dataclass
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone
from rest_framework.test import APIClient

from controlplane.core.protocol.codec import encode
from controlplane.core.protocol.nonfinite import Nonfinite
from controlplane.core.values.lifecycle import JobStatus
from jobs.job_templates import JOB_TEMPLATES
from jobs.models import ClusterSetting, Event, Job, Node, StepTimeProfile
from jobs.selectors.desired_state.state import training_spec
from jobs.selectors.estimates.step_times import profile_key
from jobs.services.cluster.api_tokens import api_token_create
from jobs.services.cluster.saved_filters import filter_save
from jobs.submission import fingerprint, name_start
from tests.support.builders import CODE, Clients, at, job_make, node_make, submission_values

URL = "/api/v1/jobs/"
EPOCHS = {"kind": "epochs", "limit": 3}
ADAPTIVE = {"stop": EPOCHS, "batch_size_min": 8, "batch_size_max": 128}


def test_a_complete_submission_is_stored_and_sent_to_a_node(
    ada: User, ada_client: APIClient
) -> None:
    node, _ = node_make()
    values = submission_values(
        priority=50, settings={"units": 8}, accepted_kinds=["cpu"], seed=7, reduction="fast"
    )
    response = ada_client.post(URL, values)
    assert response.status_code == 201, response.data
    job = Job.objects.get()
    assert response.headers["Location"].endswith(f"/api/v1/jobs/{job.pk}/")
    assert response.headers["ETag"] == f'"{job.revision}.{job.version}"'
    assert (job.owner, job.priority, job.settings) == (ada, 50, {"units": 8})
    assert (job.seed, job.reduction, job.stop_limit) == (7, "fast", 100)
    assert job.code.read() == CODE
    assert job.code_sha256 == hashlib.sha256(CODE).hexdigest()
    assert (job.status, job.validation.node, job.validation.attempt) == ("validating", node, 1)
    assert response.data["status"] == "validating"
    assert response.data["stop"]["kind"] == "steps"
    assert Event.objects.get(job=job).actor == "user:ada"


def test_a_template_needs_nothing_else(ada_client: APIClient) -> None:
    name, template = next(iter(JOB_TEMPLATES.items()))
    response = ada_client.post(URL, {"template": name})
    assert response.status_code == 201, response.data
    job = Job.objects.get()
    assert job.code.read() == template.path.read_bytes()
    assert job.settings == template.settings
    assert job.max_accelerators == template.max_accelerators
    assert job.status_code == "no_node"  # there is none yet


@pytest.mark.parametrize(
    ("given", "name", "offered"),
    [
        ({"num_virtual_node": 3}, "num_virtual_node", "num_virtual_nodes."),
        ({"prio": 3}, "prio", "priority."),
        ({"batch_size": 3}, "batch_size", "batch_size_min, batch_size_max, global_batch_size."),
        (
            {"stop": {"kind": "epochs", "limit": 2, "limits": 2}},
            "stop_limits",
            "stop_kind, stop_limit, stop_metric, stop_target, stop_higher_is_better.",
        ),
        ({"learning_rate": 0.1}, "learning_rate", "name, tags, "),
    ],
)
def test_an_unknown_field_is_told_what_it_may_mean(
    ada_client: APIClient, given: dict[str, Any], name: str, offered: str
) -> None:
    response = ada_client.post(URL, submission_values(**given))
    (message,) = response.json()["errors"][name]
    assert message.startswith(f"There is no such field; use {offered}")
    assert ("settings." in message) == (name == "learning_rate")


def test_a_template_that_is_not_there_hides_what_it_would_have_given(
    ada_client: APIClient,
) -> None:
    errors = ada_client.post(URL, {"template": "digits", "seed": -1}).json()["errors"]
    assert set(errors) == {"template", "seed"}
    assert errors["template"] == [f"Choose one of {', '.join(JOB_TEMPLATES)}."]


def test_the_platform_may_be_given_the_choice_of_the_batch_size(ada_client: APIClient) -> None:
    response = ada_client.post(URL, submission_values(**ADAPTIVE))
    assert response.status_code == 201, response.data
    assert (response.data["batch_size_min"], response.data["batch_size_max"]) == (8, 128)
    assert response.data["batch_size"] == 32  # what it begins with
    job = Job.objects.get()
    assert (training_spec(job).batch_size_min, training_spec(job).batch_size_max) == (8, 128)
    clone = ada_client.post(f"{URL}{job.pk}/clone/", {"batch_size_max": 64})
    assert clone.status_code == 201, clone.data
    assert (clone.data["batch_size_min"], clone.data["batch_size_max"]) == (8, 64)
    refused = ada_client.post(f"{URL}{job.pk}/clone/", {"stop": {"kind": "steps", "limit": 9}})
    assert set(refused.json()["errors"]) == {"stop_kind"}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "two\nlines"}, "name"),
        ({"name": "x" * 101}, "name"),
        ({"code": None}, "code"),
        ({"code": "def build(:\n"}, "code"),
        ({"code": "examples/train.py\n"}, "code"),
        ({"template": "no_such"}, "template"),
        ({"settings": [1]}, "settings"),
        ({"settings": "{"}, "settings"),
        ({"settings": {"a": "x" * 70_000}}, "settings"),
        ({"global_batch_size": 0}, "global_batch_size"),
        ({"global_batch_size": True}, "global_batch_size"),
        ({"global_batch_size": 2.5}, "global_batch_size"),
        ({"num_virtual_nodes": 33}, "num_virtual_nodes"),
        ({"max_accelerators": 5}, "max_accelerators"),
        ({"min_accelerators": 3, "max_accelerators": 2}, "min_accelerators"),
        ({"accepted_kinds": ["a b"]}, "accepted_kinds"),
        ({"accepted_kinds": 7}, "accepted_kinds"),
        ({"priority": 0}, "priority"),
        ({"priority": 1001}, "priority"),
        ({"stop": {"kind": "moon", "limit": 1}}, "stop_kind"),
        ({"stop": {"kind": "steps"}}, "stop_limit"),
        ({"stop": {"kind": "metric", "limit": 1, "target": 1}}, "stop_metric"),
        ({"stop": {"kind": "metric", "limit": 1, "metric": "loss"}}, "stop_target"),
        ({"stop": "soon"}, "stop"),
        ({"seed": -1}, "seed"),
        ({"reduction": "slow"}, "reduction"),
        ({"shuffle": "maybe"}, "shuffle"),
        ({"prio": 5}, "prio"),
        ({"batch_size_min": 8}, "batch_size_max"),
        ({"batch_size_max": 64}, "batch_size_min"),
        ({"batch_size_min": 8, "batch_size_max": 64}, "stop_kind"),
        ({**ADAPTIVE, "batch_size_min": "few"}, "batch_size_min"),
        ({**ADAPTIVE, "batch_size_min": 3}, "batch_size_min"),
        ({**ADAPTIVE, "batch_size_min": 33}, "batch_size_min"),
        ({**ADAPTIVE, "batch_size_max": 31}, "batch_size_max"),
        ({**ADAPTIVE, "num_virtual_nodes": 1}, "num_virtual_nodes"),
        (
            {**ADAPTIVE, "num_virtual_nodes": 30, "batch_size_min": 31, "batch_size_max": 59},
            "batch_size_max",
        ),
    ],
)
def test_a_wrong_field_is_named(ada_client: APIClient, change: dict[str, Any], field: str) -> None:
    response = ada_client.post(URL, submission_values(**change))
    assert response.status_code == 400
    assert response.headers["Content-Type"] == "application/problem+json"
    assert response.json()["code"] == "invalid"
    assert set(response.json()["errors"]) == {field}
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    ("character", "named"),
    [
        ("\n", "U+000A (a control character)"),
        ("\u00a0", "U+00A0 (no-break space)"),
        ("\u200d ", "U+200D (zero width joiner)"),
        ("\u200c\u200c", "U+200C (zero width non-joiner)"),
        ("\u202e", "U+202E (right-to-left override)"),
    ],
)
def test_a_character_that_is_not_seen_is_named(
    ada_client: APIClient, character: str, named: str
) -> None:
    answer = ada_client.post(URL, submission_values(name=f"my{character}run"))
    expected = f"Give 1 to 100 printable characters, without {named}."
    assert answer.json()["errors"] == {"name": [expected]}


def test_names_are_written_with_joiners(ada: User, ada_client: APIClient) -> None:
    name = "\u0645\u06cc\u200c\u0631\u0648\u062f \U0001f468\u200d\U0001f469\u200d\U0001f467"
    assert ada_client.post(URL, submission_values(name=name)).json()["name"] == name
    assert filter_save(ada, name, "q=a", at(0)).name == name
    assert api_token_create(ada, name, at(0))[0].name == name


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("abcd", "abc"),
        ("abe\u0301\u0301", "ab"),
        ("ab\u200dc", "a"),
        ("a\U0001f468\u200d\U0001f469", "a"),
        ("e\u0301\u0301\u0301", "e\u0301\u0301"),
        ("ab\U0001f44d\U0001f3fd", "ab"),
        ("\U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7", "\U0001f1e9\U0001f1ea"),
        ("a\U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7", "a\U0001f1e9\U0001f1ea"),
    ],
)
def test_a_name_is_cut_between_characters(name: str, start: str) -> None:
    assert name_start(name, 3) == start


def test_all_wrong_fields_are_named_at_once(ada_client: APIClient) -> None:
    response = ada_client.post(URL, {})
    assert set(response.json()["errors"]) == {
        "name", "code", "global_batch_size", "stop_kind", "stop_limit",
    }  # fmt: skip
    wrong = {"priority": 1000, "tier": "urgent", "forked_from": 9, "secrets": ["S3"],
             "project": "none"}  # fmt: skip
    response = ada_client.post(URL, submission_values(**wrong))
    assert set(response.json()["errors"]) == {*wrong}


def test_the_same_key_gives_the_same_job(ada_client: APIClient) -> None:
    first = ada_client.post(URL, submission_values(), HTTP_IDEMPOTENCY_KEY="k1")
    again = ada_client.post(URL, submission_values(), HTTP_IDEMPOTENCY_KEY="k1")
    other = ada_client.post(URL, submission_values(name="b"), HTTP_IDEMPOTENCY_KEY="k1")
    assert (first.status_code, again.status_code, other.status_code) == (201, 200, 409)
    assert again.data["id"] == first.data["id"]
    assert other.json()["code"] == "idempotency_key_reused"
    assert Job.objects.count() == 1


def test_a_key_outlives_an_upgrade() -> None:
    """A version with one field more still knows the request, unless the field is used."""
    before = make_dataclass("Request", ["seed", "stop"])(0, make_dataclass("Stop", ["limit"])(5))
    stop = make_dataclass("Stop", ["limit", "after_s"])
    request = make_dataclass("Request", ["seed", "later", "stop"])
    known = fingerprint(before)
    assert fingerprint(request(0, {}, stop(5, None))) == known
    others = (request(1, {}, stop(5, None)), request(0, {"a": 0}, stop(5, None)))
    assert known not in map(fingerprint, (*others, request(0, {}, stop(5, 9))))


def test_a_key_belongs_to_its_user(ada_client: APIClient, bob: User, client_of: Clients) -> None:
    ada_client.post(URL, submission_values(), HTTP_IDEMPOTENCY_KEY="k1")
    assert (
        client_of(bob).post(URL, submission_values(), HTTP_IDEMPOTENCY_KEY="k1").status_code == 201
    )
    assert Job.objects.count() == 2


def test_a_dry_run_stores_nothing(ada_client: APIClient) -> None:
    node_make(num_accelerators=2)
    response = ada_client.post(f"{URL}?dry_run=1", submission_values())
    assert response.status_code == 200
    assert (response.data["starts"], response.data["accelerators"]) == ("now", {"cpu": 2})
    assert not Job.objects.exists()


def test_a_dry_run_knows_how_fast_the_same_code_went_before(
    ada: User, ada_client: APIClient
) -> None:
    """100 steps of 40 ms on one accelerator, of 20 ms on two: 2 s, but 10 s are the least told."""
    node_make(num_accelerators=2)
    ClusterSetting.objects.update_or_create(id=1, defaults={"policy": "srtf"})
    before = job_make(ada, status=JobStatus.FINISHED, settings={"size": 1})
    code, settings = profile_key(before, before.global_batch_size)
    StepTimeProfile.objects.create(
        code_sha256=code,
        settings_sha256=settings,
        measures=StepTimeProfile.COMPUTE,
        kind="cpu",
        samples={str(number): [5, number * 0.01, number * 0.01] for number in (1, 2, 4)},
        updated_at=timezone.now(),
    )
    told = {
        size: ada_client.post(f"{URL}?dry_run=1", submission_values(settings={"size": size})).data[
            "reason"
        ]
        for size in (1, 2)
    }
    assert told[1] == (
        "Gets its full demand of 2 of 2 cpu: it would end in 10 s, 0 jobs would end sooner."
    )
    assert "it has 60 s to show how fast it goes" in told[2]


def test_too_many_live_jobs(ada_client: APIClient, settings: Any) -> None:
    settings.LIVE_JOBS_LIMIT = 1
    assert ada_client.post(URL, submission_values()).status_code == 201
    for query in ("", "?dry_run=1"):
        response = ada_client.post(URL + query, submission_values())
        assert (response.status_code, response.json()["code"]) == (409, "too_many_jobs")
    Job.objects.get()
    assert Job.objects.filter(status=JobStatus.VALIDATING).count() == 1


@pytest.mark.parametrize("kind", ["application/json", "application/yaml"])
def test_what_a_job_does_when_it_is_not_finite_is_a_field_like_any(
    ada_client: APIClient, kind: str
) -> None:
    # JSON is YAML as well, also with escapes of characters beyond U+FFFF.
    values = submission_values(on_nonfinite="continue", name="🚀 \\ud83d\\ude00")
    response = ada_client.post(URL, json.dumps(values), content_type=kind)
    assert response.status_code == 201, response.data
    job = Job.objects.get()
    read = ada_client.get(f"{URL}{job.pk}/").data
    assert (read["on_nonfinite"], read["nonfinite"], read["warning"]) == ("continue", {}, "")
    assert read["name"] == values["name"]
    clone = ada_client.post(f"{URL}{job.pk}/clone/", {"name": "again"})
    assert clone.data["on_nonfinite"] == "continue"
    changed = ada_client.post(f"{URL}{job.pk}/clone/", {"on_nonfinite": "stop"})
    assert changed.data["on_nonfinite"] == "stop"


@pytest.mark.parametrize("wrong", ["ignore", True, 1, ["stop"]])
def test_another_choice_names_the_field(ada_client: APIClient, wrong: object) -> None:
    response = ada_client.post(URL, submission_values(on_nonfinite=wrong))
    assert response.status_code == 400
    assert response.json()["errors"] == {"on_nonfinite": ["Choose one of stop, continue."]}


def test_a_warning_is_in_the_list_and_in_the_job(ada: User, ada_client: APIClient) -> None:
    state = Nonfinite(
        metric=None, value="nan", step=14, epoch=0, last_finite=2.5, last_finite_step=13
    )
    job = job_make(ada, on_nonfinite="continue", nonfinite={state.name: encode(state)})
    response = ada_client.get(URL)
    read = json.loads(response.content, parse_constant=pytest.fail)
    assert read["results"][0]["warning"] == "The loss is not finite since step 14."
    read = json.loads(ada_client.get(f"{URL}{job.pk}/").content, parse_constant=pytest.fail)
    assert read["warning"] == "The loss is not finite since step 14."
    assert read["nonfinite"]["loss"]["last_finite"] == 2.5
    chosen = ada_client.get(f"{URL}?fields=id,warning").data["results"]
    assert chosen == [{"id": job.pk, "warning": "The loss is not finite since step 14."}]


@pytest.mark.parametrize("path", [URL, f"{URL}?dry_run=1", "/api/v1/validations/"])
def test_kinds_that_no_node_has_are_refused(ada_client: Any, path: str) -> None:
    node_make("a-node", num_accelerators=1)
    removed, _ = node_make("removed", num_accelerators=1)
    removed.accelerators.update(kind="h100")
    Node.objects.filter(pk=removed.pk).update(removed_at=at(0))
    answer = ada_client.post(path, submission_values(accepted_kinds=["h100", "h200"]))
    assert answer.json()["errors"]["accepted_kinds"] == [
        "No node has h100 or h200; the cluster has cpu."
    ]
    assert (
        ada_client.post(path, submission_values(accepted_kinds=["h100", "cpu"])).status_code < 300
    )
