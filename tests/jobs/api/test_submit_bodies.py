"""Bodies of POST /api/v1/jobs/: forms, YAML and JSON."""

from __future__ import annotations

import gzip
import io
import json
import zipfile

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from rest_framework.test import APIClient

from jobs.models import Job
from tests.support.builders import CODE, submission_values

URL = "/api/v1/jobs/"


def test_a_form_with_a_zip_file(ada_client: APIClient) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("job.py", "from helper import build\n")
        archive.writestr("helper.py", CODE.decode())
    upload = SimpleUploadedFile(f"../../etc/{'p' * 150}.zip", packed.getvalue())
    form = {
        "name": "zipped",
        "code": upload,
        "settings": '{"a": 1}',
        "global_batch_size": "64",
        "stop_kind": "epochs",
        "stop_limit": "3",
        "shuffle": "false",
        "accepted_kinds": ["cpu", "a100"],
    }
    response = ada_client.post(URL, form, format="multipart")
    assert response.status_code == 201, response.data
    job = Job.objects.get()
    assert job.code_name == f"{'p' * 116}.zip"  # without its ending no node would unpack it
    assert (job.entry_file, job.shuffle) == ("job.py", False)
    assert (job.settings, job.accepted_kinds) == ({"a": 1}, ["cpu", "a100"])
    assert ".." not in job.code.name
    form_type = "application/x-www-form-urlencoded"  # as `curl -d` sends anything
    response = ada_client.post(URL, '{"template": "tabular"}', content_type=form_type)
    assert (response.status_code, "sent as a form" in response.json()["detail"]) == (400, True)
    response = ada_client.post(URL, "template=tabular&seed=1&seed=2", content_type=form_type)
    assert {*response.json()["errors"]} == {"seed"}


def test_a_yaml_body(ada_client: APIClient) -> None:
    text = "name: from yaml\ncode: |\n  def build(settings):\n    return None\n"
    text += "global_batch_size: 16\nstop:\n  kind: metric\n  limit: 9\n  metric: val_loss\n"
    text += "  target: 0.5\n  higher_is_better: false\n"
    response = ada_client.post(URL, text, content_type="application/yaml")
    assert response.status_code == 201, response.data
    job = Job.objects.get()
    assert (job.stop_metric, job.stop_target, job.stop_higher_is_better) == ("val_loss", 0.5, False)


def test_a_yaml_spec_beside_a_code_file(ada_client: APIClient) -> None:
    spec = b"name: from spec\nglobal_batch_size: 16\npriority: 5\nstop: {kind: steps, limit: 4}\n"
    form = {
        "spec": SimpleUploadedFile("job.yaml", spec),
        "code": SimpleUploadedFile("train.py", CODE),
        "priority": "77",
    }
    response = ada_client.post(URL, form, format="multipart")
    assert response.status_code == 201, response.data
    assert (Job.objects.get().priority, Job.objects.get().entry_file) == (77, "train.py")


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1e-3", 0.001),
        ("-1E+2", -100.0),
        ("2.5e3", 2500.0),
        (".5e1", 5.0),
        ("3.e0", 3.0),
        ("1.0e-2", 0.01),
        ("'1e-3'", "1e-3"),
        ("1e", "1e"),
        ("1e3x", "1e3x"),
        ("e3", "e3"),
    ],
)
def test_numbers_of_yaml_are_those_of_json(
    ada_client: APIClient, written: str, value: object
) -> None:
    text = "name: a\nglobal_batch_size: 8\nstop: {kind: epochs, limit: 4}\n"
    text += f"code: {json.dumps(CODE.decode())}\nsettings: {{rate: {written}}}\n"
    response = ada_client.post(URL, text, content_type="application/yaml")
    assert response.status_code == 201, response.data
    assert json.dumps(Job.objects.get().settings) == json.dumps({"rate": value})


@pytest.mark.parametrize("form", ["multipart", "json"])
def test_an_object_may_be_json_text(ada_client: APIClient, form: str) -> None:
    objects = {
        "stop": {"kind": "epochs", "limit": 30},
        "selection": {"method": "selective_backprop", "beta": 2},
        "tuning": {"space": {"learning_rate": {"low": 0.001, "high": 0.1}}, "max_trials": 3},
    }
    values = {name: json.dumps(value) for name, value in objects.items()}
    response = ada_client.post(URL, {"template": "tabular", **values}, format=form)
    assert response.status_code == 201, response.data
    job = Job.objects.get()
    assert (job.stop_kind, job.stop_limit) == ("epochs", 30)
    assert (job.selection["beta"], job.tuning["max_trials"]) == (2, 3)


@pytest.mark.parametrize("name", ["stop", "selection", "tuning"])
@pytest.mark.parametrize("text", ["soon", "[1]", "{", "3"])
def test_other_text_is_no_object(ada_client: APIClient, name: str, text: str) -> None:
    response = ada_client.post(URL, {"template": "tabular", name: text}, format="multipart")
    assert (response.status_code, set(response.json()["errors"])) == (400, {name})


@pytest.mark.parametrize("is_clone", [False, True])
def test_a_field_of_an_object_is_given_once(ada_client: APIClient, is_clone: bool) -> None:
    stop, url = {"kind": "steps", "limit": 5}, URL
    if is_clone:
        url = f"{URL}{ada_client.post(URL, submission_values()).json()['id']}/clone/"
    given = {"stop": stop} if is_clone else submission_values(stop=stop)
    assert ada_client.post(url, given).json()["stop"]["limit"] == 5
    response = ada_client.post(url, {**given, "stop_limit": 7})
    assert response.json()["errors"] == {"stop_limit": ["Give it here or in stop, not in both."]}


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        ("{", "application/json"),
        ("[1]", "application/json"),
        ("[" * 100_000, "application/json"),
        ("a: *b", "application/yaml"),
        ("a: &b [x]\nc: *b", "application/yaml"),
        ("a: [", "application/yaml"),
    ],
)
def test_a_body_that_is_no_object(ada_client: APIClient, body: str, content_type: str) -> None:
    response = ada_client.post(URL, body, content_type=content_type)
    assert response.status_code == 400
    assert response.headers["Content-Type"] == "application/problem+json"


@pytest.mark.parametrize(
    ("text", "name", "line"),
    [
        ("seed: 1\nname: a\nseed: 2", "seed", 3),
        ("stop: {limit: 1, limit: 2}", "limit", 1),
        ("settings:\n  a:\n  - b: 1\n    b: 1", "b", 4),
        ("'1': a\n1: b", "1", 2),
    ],
)
def test_a_key_of_yaml_that_is_given_twice(
    ada_client: APIClient, text: str, name: str, line: int
) -> None:
    response = ada_client.post(URL, text, content_type="application/yaml")
    assert response.status_code == 400
    expected = f"This is no YAML: '{name}' is there twice (line {line}); delete one"
    assert response.json()["detail"] == expected


def test_numbers_that_yaml_1_1_alone_reads_are_refused(ada_client: APIClient) -> None:
    for number in ("010", "-0777", "1:30", "12:30:45.5"):
        text = f"name: a\nseed: {number}"
        response = ada_client.post(URL, text, content_type="application/yaml")
        assert response.status_code == 400
        assert f"{number} (line 2) is read as different numbers" in response.json()["detail"]
    text = f"name: a\ncode: 0x{'f' * 5000}"  # Python writes no such number
    response = ada_client.post(URL, text, content_type="application/yaml")
    assert "line 2 has a number of more than 1000 digits" in response.json()["detail"]


def test_inner_keys_of_yaml_are_text(ada_client: APIClient) -> None:
    text = "tuning: {space: {rate: {1: 2, x: 3}}}\nsettings: {1.5: {}}"
    response = ada_client.post(URL, text, content_type="application/yaml")
    errors = response.json()["errors"]
    assert errors["tuning_space"] == ["tuning.space.rate has '1'; give low, high and log."]
    assert errors["settings"][0].startswith("Give an object with text keys")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('{"seed": 1, "name": "a", "seed": 2}', "seed"),
        ('{"stop": {"limit": 1, "limit": 1}}', "limit"),
        ('{"settings": {"a": [{"b": 1, "\\u0062": 1}]}}', "b"),
    ],
)
def test_a_key_of_json_that_is_given_twice(ada_client: APIClient, text: str, name: str) -> None:
    for address in (URL, "/api/v1/jobs/actions/", "/api/v1/sweeps/"):
        response = ada_client.post(address, text, content_type="application/json")
        assert response.status_code == 400
        assert response.json()["detail"] == f"The JSON has '{name}' twice; delete one."


def test_a_format_that_is_not_known(ada_client: APIClient) -> None:
    response = ada_client.post(URL, "<a/>", content_type="application/xml")
    assert response.status_code == 415
    packed, as_json = gzip.compress(b"{}"), "application/json"
    response = ada_client.post(URL, packed, content_type=as_json, HTTP_CONTENT_ENCODING="gzip")
    assert response.status_code == 415
    assert "without Content-Encoding" in response.json()["detail"]
    response = ada_client.post(URL, '\ufeff{"seed": 1}', content_type=as_json)  # as of PowerShell
    assert response.json()["code"] == "invalid"
    assert "name" in response.json()["errors"]
