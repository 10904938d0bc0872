"""Answers about other users' jobs are those about jobs that do not exist, to the byte."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from controlplane.core.values.lifecycle import JobStatus
from jobs.api.jobs.serializers import JobSerializer
from jobs.models import Job, JobMetric, Validation
from jobs.selectors.job_order import ORDERS, _cursor_write
from jobs.services.lifecycle.search_rows import search_terms_write
from tests.support.builders import job_make, logged_in, submission_values, validation_make
from tests.support.cases import pairs
from tests.support.rows import artifact_make

pytestmark = pytest.mark.django_db

#: Number of a job that does not exist; as long as that of the victim's.
NONE, VICTIM = 7_341_908, 7_341_907
_NUMBER = re.compile(rf"{NONE}|{VICTIM}")
#: Texts of the victim's job, and others of the same length that no job has.
HIDDEN = {
    "q": ("sesame-name", "sesame-nome"),
    "name": ("sesame-name", "sesame-nome"),
    "tag": ("sesame-tag", "sesame-tog"),
    "metric": ("sesame_metric>0.5", "sesame_mitric>0.5"),
    "setting": ("sesame=hidden", "sesame=hodden"),
    "owner": ("bob", "bab"),
    "forked_from": (str(VICTIM), str(NONE)),
    "template": ("sesame-template", "sesame-tomplate"),
    "tier": ("urgent", "idle"),
    "status": ("running", "paused"),
}


@pytest.fixture
def victim(bob: User) -> Job:
    job = job_make(
        bob, pk=VICTIM, name="sesame-name", tags=["sesame-tag"], note="sesame-note", tier="urgent",
        settings={"sesame": "hidden"}, template="sesame-template", status=JobStatus.RUNNING,
        priority=77,
    )  # fmt: skip
    job_make(bob, forked_from=job, status=JobStatus.FINISHED)
    search_terms_write(job)
    JobMetric.objects.create(job=job, name="sesame_metric", best=0.9, best_epoch=1, last=0.9)
    artifact_make(job, step=20)
    return job


@pytest.fixture
def thief(ada: User, victim: Job) -> Client:
    job_make(ada, name="own", settings={"sesame": "own"})
    return logged_in(ada)


def shown(answer: Any) -> tuple[int, str]:
    content = b"".join(answer.streaming_content) if answer.streaming else answer.content
    text = _NUMBER.sub("N", content.decode())
    # Tokens of forms, and times at which a page was made.
    text = re.sub(r'value="[A-Za-z0-9]{64}"', "", text)
    return answer.status_code, re.sub(r"\d\d:\d\d:\d\d[.\dZ+:]*", "", text)


@pytest.mark.parametrize(("name", "page"), pairs(HIDDEN, ["/api/v1/jobs/", "/jobs/"]))
def test_filters_find_nothing_of_others(name: str, page: str, thief: Client, ada: User) -> None:
    for order in ("", "-metric" if name == "metric" else "duration"):
        more = {"order": order} if order else {}
        real, fake = (thief.get(page, {name: text, **more}) for text in HIDDEN[name])
        if page.startswith("/api/"):
            assert real.json()["results"] == fake.json()["results"], (name, order)
            assert (real.json()["next"], real.json()["previous"]) == (None, None)
        else:
            texts = [shown(one)[1] for one in (real, fake)]
            for value, text in zip(HIDDEN[name], texts, strict=True):
                assert str(VICTIM) not in text.replace(value, ""), name
            assert len({text.count("<tr") for text in texts}) == 1
    Job.objects.filter(owner=ada).update(name="sesame-name", tier="urgent")
    found = thief.get("/api/v1/jobs/", {name: HIDDEN[name][0]}).json()["results"]
    assert {row["owner"] for row in found} <= {"ada"}


@pytest.mark.parametrize("order", sorted(ORDERS))
def test_a_forged_cursor_shows_own_jobs_alone(order: str, thief: Client) -> None:
    values = {"submitted": VICTIM, "name": "sesame-name", "status": "running", "tier": "urgent",
              "priority": 77, "duration": 0.5, "metric": 0.9}  # fmt: skip
    for is_backwards in (True, False):
        for near in (0, 1):
            cursor = _cursor_write(order, is_backwards, values[order], VICTIM + near)
            given = {"cursor": cursor, "order": order}
            given |= {"metric": "sesame_metric"} if order == "metric" else {}
            found = thief.get("/api/v1/jobs/", given)
            assert found.status_code == 200
            assert {row["owner"] for row in found.json()["results"]} <= {"ada"}
            for link in ("next", "previous"):
                assert str(VICTIM) not in str(found.json()[link])


def test_columns_that_are_no_fields_cannot_be_chosen(thief: Client) -> None:
    names = {field.attname for field in Job._meta.concrete_fields}
    names |= {
        "owner__password",
        "owner__email",
        "code",
        "save_request",
        "search_terms",
        "__class__",
    }
    for name in sorted(names - {*JobSerializer.Meta.fields}):
        for path in ("/api/v1/jobs/", f"/api/v1/jobs/{VICTIM}/"):
            answer = thief.get(path, {"fields": f"id,{name}"})
            assert answer.status_code in (400, 404), name
            assert "sesame" not in answer.content.decode()


#: Requests that speak of a job: method, path, body or query.
REQUESTS: dict[str, tuple[str, str, Any]] = {
    "get": ("get", "/api/v1/jobs/{n}/", None),
    "fields": ("get", "/api/v1/jobs/{n}/?fields=policy_reason", None),
    "wait": ("get", "/api/v1/jobs/{n}/?wait=1&since_version=0", None),
    "patch": ("patch", "/api/v1/jobs/{n}/", {"note": "x"}),
    "reprioritise": ("post", "/api/v1/jobs/{n}/reprioritise/", {"priority": 5}),
    "cancel": ("post", "/api/v1/jobs/{n}/cancel/", {}),
    "pause": ("post", "/api/v1/jobs/{n}/pause/", {}),
    "resume": ("post", "/api/v1/jobs/{n}/resume/", {}),
    "clone": ("post", "/api/v1/jobs/{n}/clone/", {"priority": 1}),
    "fork": ("post", "/api/v1/jobs/{n}/fork/", {"checkpoint": "newest"}),
    "fork now": ("post", "/api/v1/jobs/{n}/fork/", {"checkpoint": "now"}),
    "fork step": ("post", "/api/v1/jobs/{n}/fork/", {"checkpoint": "19"}),
    "submit a fork": ("post", "/api/v1/jobs/", submission_values(forked_from="{n}")),
    "dry run a fork": (
        "post", "/api/v1/jobs/?dry_run=1", submission_values(forked_from="{n}", checkpoint="now"),
    ),
    "predict": ("post", "/api/v1/jobs/", submission_values(source_job="{n}", task="predict")),
    "measure": ("post", "/api/v1/validations/", submission_values(forked_from="{n}")),
    "cancel many": ("post", "/api/v1/jobs/actions/", {"action": "cancel", "jobs": ["{n}"]}),
    "expect": (
        "post", "/api/v1/jobs/actions/",
        {"action": "reprioritise", "jobs": ["{n}"], "priority": 5, "expected_priority": 77},
    ),
    "change": (
        "post", "/api/v1/jobs/actions/",
        {"action": "reprioritise", "all_or_none": True,
         "changes": [{"job": "{n}", "priority": 5, "expected_tier": "idle"}]},
    ),
    "untag": ("post", "/api/v1/jobs/actions/", {"action": "untag", "jobs": ["{n}"], "tag": "t"}),
    "preview": (
        "post", "/api/v1/jobs/actions/preview/",
        {"action": "reprioritise", "jobs": ["{n}"], "priority": 5},
    ),
    "compare": ("get", "/api/v1/jobs/compare/?job={n}", None),
    "events": ("get", "/api/v1/jobs/{n}/events/", None),
    "generations": ("get", "/api/v1/jobs/{n}/generations/", None),
    "logs": ("get", "/api/v1/jobs/{n}/logs/?cursor=0", None),
    "code": ("get", "/api/v1/jobs/{n}/code/", None),
    "file": ("get", "/api/v1/jobs/{n}/files/checkpoint.npz/", None),
    "image": ("get", "/api/v1/jobs/{n}/examples/7/image/", None),
    "delete": ("delete", "/api/v1/jobs/{n}/files/", None),
    "page": ("get", "/jobs/{n}/", None),
    "page of figures": ("get", "/jobs/{n}/figures/", None),
    "page of the log": ("get", "/jobs/{n}/log/?q=x", None),
    "page of a clone": ("get", "/jobs/new/?from={n}", None),
    "page of a fork": ("get", "/jobs/new/?fork={n}&checkpoint=20", None),
    "page of a copy": ("get", "/jobs/{n}/copy/", None),
    "page of a comparison": ("get", "/jobs/compare/?job={n}", None),
}  # fmt: skip


def filled(value: Any, number: int) -> Any:
    if isinstance(value, dict):
        return {name: filled(one, number) for name, one in value.items()}
    if isinstance(value, list):
        return [filled(one, number) for one in value]
    if value == "{n}":
        return number
    return value.replace("{n}", str(number)) if isinstance(value, str) else value


@pytest.mark.parametrize("what", REQUESTS)
def test_a_request_about_somebody_elses_job(what: str, thief: Client, victim: Job) -> None:
    method, path, body = REQUESTS[what]
    version = (victim.version, victim.revision)
    tags = [{}, {"If-Match": f'"{victim.revision}.{victim.version}"'}, {"If-Match": '"0.0"'}]
    tags += [{"If-None-Match": f'"{victim.revision}.{victim.version}"'}]
    for headers in tags if path == "/api/v1/jobs/{n}/" else tags[:2]:
        answers = []
        for number in (VICTIM, NONE):
            options: dict[str, Any] = {"headers": headers}
            if body is not None:
                options |= {"data": filled(body, number), "content_type": "application/json"}
            answers.append(shown(getattr(thief, method)(filled(path, number), **options)))
        assert answers[0] == answers[1], what
        assert "sesame" not in answers[0][1]
    victim.refresh_from_db()
    assert (victim.version, victim.revision, victim.save_request) == (*version, 0)
    assert not Job.objects.filter(owner__username="ada").exclude(name="own").exists()


def test_a_validation_of_somebody_else(thief: Client, victim: Job) -> None:
    own = validation_make(victim)
    Validation.objects.filter(pk=own.pk).update(id=VICTIM)
    for path in ("/api/v1/validations/{n}/", "/jobs/new/?validation={n}",
                 "/jobs/new/validations/{n}/"):  # fmt: skip
        answers = [shown(thief.get(filled(path, number))) for number in (VICTIM, NONE)]
        assert answers[0] == answers[1], path


def test_an_idempotency_key_is_one_users(ada: User, bob: User) -> None:
    made = {}
    for person in (bob, ada):
        client = logged_in(person, headers={"Idempotency-Key": "the same"})
        for _ in range(2):
            answer = client.post(
                "/api/v1/jobs/", submission_values(), content_type="application/json"
            )
            assert answer.json()["owner"] == person.username
            made.setdefault(person, []).append((answer.status_code, answer.json()["id"]))
        other = submission_values(name="another")
        refused = client.post("/api/v1/jobs/", other, content_type="application/json")
        assert refused.json()["code"] == "idempotency_key_reused"
        parent = job_make(person)
        artifact_make(parent, step=20)
        path = f"/api/v1/jobs/{parent.pk}/fork/"
        refused = client.post(path, {}, content_type="application/json")
        assert refused.json()["code"] == "idempotency_key_reused"
    assert [status for status, _ in made[ada]] == [201, 200]
    assert made[ada][0][1] != made[bob][0][1]
