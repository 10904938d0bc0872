"""Texts that submit a job again: the job that they make is the same."""

from __future__ import annotations

import ast
import io
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.contrib.auth.models import User
from django.test import Client

from frontend.views import copy
from jobs.job_templates import JOB_TEMPLATES
from jobs.models import Job
from jobs.services.submission.rows import SUBMITTED_COLUMNS
from tests.frontend.submitted_form import code_upload, form_values
from tests.frontend.world import World, make_job
from tests.support.builders import CODE, acting_as, logged_in, user_make
from tests.support.cases import pairs

pytestmark = pytest.mark.django_db

#: Text like numbers, and values inside of others.
SETTINGS = {"rate": "1e-3", "tiny": 1e-05, "day": "2026-01-01", "deep": [1, None, "yes", "1e3"]}
CHANGES = {
    "plain": {},
    "all": {
        "name": "ünï 'quoted' \"name\": #1", "tags": ["a", "b:c"], "note": "one\ntwo\nEND\n",
        "priority": 7, "seed": 2**40, "settings.dropout": 1e-05,
        "allow_mixed_kinds": True, "max_accelerators": 1, "on_nonfinite": "continue",
        "selection_method": "selective_backprop", "selection_beta": 2.5, "reduction": "fast",
    },
    "tuned": {"tuning_space": {"weight_decay": {"low": 0, "high": 0.5}}, "tuning_max_trials": 7},
    "metric": {
        "stop_kind": "metric", "stop_limit": 9, "stop_metric": "loss", "stop_target": 0.25,
        "stop_higher_is_better": False,
    },
}  # fmt: skip


@pytest.fixture
def owner() -> User:
    return user_make("ada")


def texts(owner: User, job: int) -> dict[str, str]:
    client = logged_in(owner)
    response = client.get(f"/jobs/{job}/copy/")
    return {name: text for name, _, text in response.context["texts"]}


def columns(job_id: int) -> dict[str, object]:
    job = Job.objects.get(pk=job_id)
    return {name: getattr(job, name) for name in SUBMITTED_COLUMNS}


def submit(owner: User, content: object, **options: str) -> int:
    response = acting_as(owner).post("/api/v1/jobs/", content, **options)
    assert response.status_code == 201, response.json()["errors"]
    number: int = response.json()["id"]
    return number


@pytest.mark.parametrize(("template", "changes"), pairs(JOB_TEMPLATES, CHANGES))
def test_a_job_of_a_template_comes_again(template: str, changes: str, owner: User) -> None:
    job = submit(owner, {"template": template, **CHANGES[changes]}, format="json")
    copied = texts(owner, job)
    again = submit(owner, copied["yaml"], content_type="application/yaml")
    assert columns(again) == columns(job)
    assert copied["curl"].split("<<'END'\n")[1] == f"{copied['yaml']}END\n"
    (spec,) = (
        node.value for node in ast.parse(copied["python"]).body if isinstance(node, ast.Assign)
    )
    assert ast.literal_eval(spec) == yaml.safe_load(copied["yaml"])


def test_a_job_with_code_of_its_own_comes_again(owner: User) -> None:
    values = {"name": "own", "code": CODE.decode(), "code_name": "Mine.py"}
    values |= {"global_batch_size": 32, "stop": {"kind": "steps", "limit": 3}}
    values["settings"] = SETTINGS
    job = submit(owner, values, format="json")
    copied = texts(owner, job)
    code, spec = io.BytesIO(CODE), io.BytesIO(copied["yaml"].encode())
    code.name, spec.name = f"job-{job}.py", "job.yaml"
    again = submit(owner, {"code": code, "spec": spec}, format="multipart")
    before, after = columns(job), columns(again)
    for name in ("code_name", "entry_file"):  # the file has a name of its own
        assert Path(str(before.pop(name))).suffix == Path(str(after.pop(name))).suffix
    assert after == before
    assert f"--form code=@job-{job}.py" in copied["curl"]
    assert f"code=Path('job-{job}.py')" in copied["python"]
    odd = copy._curl("https://site.example", "", copy.CodeFile('a;b,"c.zip', None))
    assert """--form 'code=@"a;b,\\"c.zip"' """ in odd


def form_texts(client: Client, **changes: Any) -> dict[str, str]:
    response = client.post("/jobs/new/", form_values(**changes, do="copy"))
    return {name: text for name, _, text in response.context["texts"]}


def test_the_form_is_copied_as_texts_that_submit_the_same(world: World, ada: Client) -> None:
    changes = {"name": "it's “this”", "tags": "a, b", "settings": '{"filters": 3}', "seed": "11"}
    before = Job.objects.count()
    copied = form_texts(ada, **changes)
    assert Job.objects.count() == before
    ada.post("/jobs/new/", form_values(**changes))
    posted = Job.objects.latest("id")
    api = acting_as(world.ada)
    answer = api.post("/api/v1/jobs/", copied["yaml"], content_type="application/yaml")
    again = Job.objects.get(pk=answer.json()["id"])
    assert posted.pk != again.pk
    for name in SUBMITTED_COLUMNS:
        assert getattr(posted, name) == getattr(again, name), name
    assert "code=@" not in copied["curl"]
    # The job's page makes the same texts.
    page = ada.get(f"/jobs/{posted.pk}/copy/")
    assert {name: text for name, _, text in page.context["texts"]} == copied


def test_a_copied_form_names_the_file_that_it_needs(world: World, ada: Client) -> None:
    copied = form_texts(ada, code_from="upload", code=code_upload(name="mine.py"))
    assert "--form code=@mine.py" in copied["curl"]
    assert "code=Path('mine.py')" in copied["python"]
    original = make_job(world.ada, "original")
    copied = form_texts(ada, code_from=f"clone:{original.pk}")
    assert f"/api/v1/jobs/{original.pk}/code/" in copied["curl"]
    assert f"--form code=@job-{original.pk}.py" in copied["curl"]


def test_a_copied_fork_names_its_state(world: World, ada: Client) -> None:
    parent = world.jobs["running"]
    changes = {"code_from": f"clone:{parent.pk}", "forked_from": str(parent.pk)}
    copied = form_texts(ada, **changes, checkpoint="now")
    spec = yaml.safe_load(copied["yaml"])
    assert (spec["forked_from"], spec["checkpoint"]) == (parent.pk, "now")


def test_a_form_with_errors_is_not_copied(ada: Client) -> None:
    headers = {"HTTP_ACCEPT": "application/json"}
    values = form_values(global_batch_size="none", do="copy")
    answer = ada.post("/jobs/new/", values, **headers).json()
    assert set(answer["errors"]) == {"global_batch_size"}
    assert answer["copy"] == ""
    answer = ada.post("/jobs/new/", form_values(name="<b>x</b>", do="copy"), **headers).json()
    assert answer["errors"] == {}
    assert "&lt;b&gt;x&lt;/b&gt;" in answer["copy"]
    assert "<b>" not in answer["copy"]
    assert 'data-copy="copy-curl"' in answer["copy"]
