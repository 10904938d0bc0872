"""Settings of POST /api/v1/jobs/, whole and single."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from rest_framework.test import APIClient

from jobs.job_templates import JOB_TEMPLATES
from jobs.models import Job
from tests.support.builders import CODE, job_make, submission_values

URL = "/api/v1/jobs/"


@pytest.mark.parametrize(
    ("written", "place"),
    [
        ("{day: 2026-01-01}", "day"),
        ("{net: {rates: [1, .inf]}}", "net.rates[1]"),
        ("{net: {2026-01-01: 1}}", "a key"),
    ],
)
def test_a_setting_that_json_does_not_have_is_named(
    ada_client: APIClient, written: str, place: str
) -> None:
    text = f"template: tabular\nsettings: {written}\n"
    response = ada_client.post(URL, text, content_type="application/yaml")
    (message,) = response.json()["errors"]["settings"]
    assert message.endswith(f"; {place} is none of them.")


@pytest.mark.parametrize("form", ["multipart", "json"])
def test_single_settings_and_parts_of_the_stop_override_the_spec(
    ada_client: APIClient, form: str
) -> None:
    spec = "name: a\nglobal_batch_size: 8\nsettings: {units: 8, name: old, keep: [1]}\n"
    spec += "stop: {kind: epochs, limit: 4}\n"
    values = {"spec": spec, "settings.units": "16", "settings.name": "new", "stop_limit": "9"}
    values["code"] = CODE.decode()
    response = ada_client.post(URL, values, format=form)
    assert response.status_code == 201, response.data
    job = Job.objects.get()
    assert job.settings == {"units": 16, "name": "new", "keep": [1]}
    assert (job.stop_kind, job.stop_limit) == ("epochs", 9)


@pytest.mark.parametrize(
    ("name", "value", "changed"),
    [
        ("flag", "False", {"flag": False}),
        ("flag", "True", {"flag": True}),
        ("flag", "None", {"flag": None}),
        ("flag", '"False"', {"flag": "False"}),
        ("flag", "false", {"flag": False}),
        ("net.depth", "3", {"net": {"depth": 3, "of": {"a": 1}}}),
        ("net.of.a", "[2]", {"net": {"depth": 2, "of": {"a": [2]}}}),
        ("net.of.b", "x", {"net": {"depth": 2, "of": {"a": 1, "b": "x"}}}),
        ("flag.depth", "3", {"flag.depth": 3}),
        ("old.key", "3", {"old.key": 3}),
    ],
)
def test_a_single_setting_is_changed_where_it_is(
    ada: User, ada_client: APIClient, name: str, value: str, changed: dict[str, Any]
) -> None:
    before = {"flag": 1, "net": {"depth": 2, "of": {"a": 1}}, "old.key": 1, "old": {}}
    change = {f"settings.{name}": value}
    response = ada_client.post(URL, submission_values(settings=before, **change))
    assert response.status_code == 201, response.data
    original = job_make(ada, settings=before)
    response = ada_client.post(f"{URL}{original.pk}/clone/", change)
    assert response.status_code == 201, response.data
    found = Job.objects.exclude(pk=original.pk).values_list("settings", flat=True)
    assert list(found) == [{**before, **changed}] * 2


def test_a_single_setting_changes_those_of_the_template(ada_client: APIClient) -> None:
    name, template = next((n, t) for n, t in JOB_TEMPLATES.items() if t.settings)
    response = ada_client.post(URL, {"template": name, "settings.dropout": "0.1"})
    assert response.status_code == 201, response.data
    assert Job.objects.get().settings == {**template.settings, "dropout": 0.1}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"settings.learnig_rate": "1"}, ["has no setting learnig_rate; use learning_rate."]),
        ({"settings": {"xyz": 1, "filters": "many"}}, ["it has dropout, filters,", '"many" will']),
        ({"settings.dropout": "null"}, ["takes a number, such as 0.4"]),
    ],
)
def test_a_setting_that_the_template_lacks_is_refused(
    ada_client: APIClient, change: dict[str, Any], told: list[str]
) -> None:
    template = JOB_TEMPLATES["digits_cnn"]
    assert ada_client.post(URL, {"template": template.name}).status_code == 201
    job = Job.objects.get()
    job.update_columns(settings={"old": 1})  # of an earlier version, which refused nothing
    clone = f"{URL}{job.pk}/clone/"
    code = {"template": template.name, "code": template.code}
    for url, base in ((URL, {"template": template.name}), (URL, code), (clone, {})):
        response = ada_client.post(url, base | change)
        assert (response.status_code, {*response.json()["errors"]}) == (400, {"settings"})
        texts = response.json()["errors"]["settings"]
        assert all(part in text for part, text in zip(told, texts, strict=True))
    own = code | {"code": f"{template.code}# changed"} | change
    for url, values in ((URL, own), (clone, {}), (clone, {"settings.dropout": 0.1})):
        response = ada_client.post(url, values)
        assert response.status_code == 201, response.data


@pytest.mark.parametrize(
    "values",
    [
        {"settings": "{", "settings.units": 1},
        {"settings.": 1},
        {"settings": [1], "settings.units": 1},
        {"settings.units": "NaN"},
        {"settings.units": "[" * 100_000},
    ],
)
def test_a_wrong_single_setting_is_a_wrong_setting(
    ada_client: APIClient, values: dict[str, Any]
) -> None:
    response = ada_client.post(URL, {"template": "tabular", **values})
    assert (response.status_code, set(response.json()["errors"])) == (400, {"settings"})
