"""The form's “Measure memory”: with and without scripts, when it builds and when it does not."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.utils import timezone

from controlplane.core.protocol.node_messages import ValidationReport
from jobs.models import Job, Node, Validation
from jobs.services.submission.validations import validation_take
from tests.frontend.submitted_form import TEMPLATE, form_values
from tests.frontend.world import CODE, World

JSON = {"Accept": "application/json"}
#: 0.9 * 2 GiB - 1 GB - 64 MiB leave room for 2 examples.
FACTS = {"memory": {"process_bytes": 1e9, "base_bytes": 0, "bytes_per_example": 3e8}}


def _validation() -> Validation:
    return Validation.objects.get(job=None)


def _answer(**values: Any) -> None:
    """Let the node that was chosen report."""
    validation = _validation()
    assert validation.node is not None
    report = {"ok": True, "facts": FACTS} | values
    number, attempt = validation.pk, validation.attempt
    taken = ValidationReport(validation_id=number, attempt=attempt, **report)
    assert validation_take(validation.node, taken, timezone.now())


def test_the_script_is_told_where_to_ask(ada: Client, world: World) -> None:
    before = Job.objects.count()
    sent = form_values(do="measure", accepted_kinds="cpu", global_batch_size="20")
    check = ada.post("/jobs/new/", sent, headers=JSON).json()["check"]
    assert (check["tone"], check["title"]) == ("plain", "Measuring")
    assert "within 140 s" in check["text"]
    assert ada.get(check["waits_at"]).json()["check"] == check
    _answer()
    found = ada.get(check["waits_at"]).json()
    assert found["errors"] == {}
    assert found["check"]["waits_at"] == ""
    assert (found["check"]["tone"], found["check"]["num_virtual_nodes"]) == ("warn", 10)
    assert found["check"]["title"] == "Builds, but does not fit"
    assert "10 virtual nodes would fit" in found["check"]["memory"]
    # No job, nor built again when it becomes one.
    assert Job.objects.count() == before
    ada.post("/jobs/new/", sent | {"do": "submit", "num_virtual_nodes": "10"})
    job = Job.objects.latest("id")
    assert (job.status, Job.objects.count()) == ("pending", before + 1)


def test_without_scripts_the_page_is_asked_for_again(ada: Client, world: World) -> None:
    code = SimpleUploadedFile("mine.py", CODE)
    sent = form_values(do="measure", code_from="upload", code=code, global_batch_size="20")
    response = ada.post("/jobs/new/", sent | {"accepted_kinds": "cpu"})
    address = response.headers["Location"]
    assert address == f"/jobs/new/?validation={_validation().pk}"
    page = ada.get(address).content.decode()
    assert "Measuring" in page
    assert f'<a class="button" href="{address}">Look again</a>' in page
    _answer()
    page = ada.get(address).content.decode()
    assert "10 virtual nodes would fit" in page
    assert "<h1>Submit a job</h1>" in page
    assert "Code that was measured" in page
    form = ada.get(f"{address}&virtual_nodes=10").context["form"]
    assert form["num_virtual_nodes"].value() == "10"
    # What was chosen, the file included, is what is submitted.
    shown = {name: form[name].value() for name in form.fields if name != "code"}
    again = {name: "on" if v is True else v for name, v in shown.items() if v not in (None, False)}
    ada.post(address, again | {"do": "submit"})
    job = Job.objects.latest("id")
    assert (job.status, job.num_virtual_nodes) == ("pending", 10)
    assert job.code.read() == CODE
    assert job.events.get(kind="submitted").data == {}


@pytest.mark.parametrize(
    ("at_fault", "field"),
    [
        ("code.build", "code_from"),
        ("data.train", "code_from"),
        ("global_batch_size", "global_batch_size"),
        ("stop.metric", "stop_metric"),
    ],
)
def test_code_that_fails_is_marked_with_its_traceback(
    at_fault: str, field: str, ada: Client, world: World
) -> None:
    check = ada.post("/jobs/new/", form_values(do="measure"), headers=JSON).json()["check"]
    trace = "ValueError: <no data>"
    _answer(ok=False, facts={}, code="x", field=at_fault, message="no good", traceback=trace)
    found = ada.get(check["waits_at"]).json()
    assert found["errors"] == {field: ["no good"]}
    assert (found["check"]["tone"], found["check"]["traceback"]) == ("bad", trace)
    page = ada.get(check["page"])
    assert page.context["form"].errors[field] == ["no good"]
    assert ">ValueError: &lt;no data&gt;</pre>" in page.content.decode()
    assert page.context["form"]["code_from"].value() == f"template:{TEMPLATE}"


def test_wrong_fields_are_marked_before_anything_is_measured(ada: Client, world: World) -> None:
    answer = ada.post("/jobs/new/", form_values(do="measure", seed="-1"), headers=JSON).json()
    assert list(answer["errors"]) == ["seed"]
    assert not Validation.objects.filter(job=None).exists()


def test_without_a_node_it_is_said_at_once(ada: Client, world: World) -> None:
    Node.objects.update(status="lost")
    page = ada.post("/jobs/new/", form_values(do="measure"))
    assert "No node is online" in str(page.context["form"].non_field_errors())


def test_a_node_that_never_answers_is_nobodys_mistake(ada: Client, world: World) -> None:
    check = ada.post("/jobs/new/", form_values(do="measure"), headers=JSON).json()["check"]
    Validation.objects.filter(id=_validation().pk).update(
        status="failed",
        status_code="validation_lost",
        status_reason="No node",
        deadline_at=None,
        ended_at=timezone.now(),
    )
    found = ada.get(check["waits_at"]).json()
    assert (found["errors"], found["check"]["title"]) == ({}, "Not measured")


def test_a_check_of_new_code_names_the_way(ada: Client, world: World) -> None:
    check = ada.post("/jobs/new/", form_values(do="check"), headers=JSON).json()["check"]
    assert "Memory use is unknown" in check["memory"]


def test_others_measurements_are_not_there(ada: Client, ben: Client, world: World) -> None:
    check = ada.post("/jobs/new/", form_values(do="measure"), headers=JSON).json()["check"]
    for address in (check["waits_at"], check["page"], "/jobs/new/measured/999999/"):
        assert ben.get(address).status_code == 404
