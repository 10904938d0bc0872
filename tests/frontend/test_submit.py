"""The submission page: templates, uploads, clones, YAML, dry runs, errors at their fields."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.utils import timezone
from pytest_django import Settings

from frontend.forms import JobForm
from frontend.sweep_form import SWEEP_FIELDS
from jobs.api.jobs.submission_serializer import SubmissionSerializer
from jobs.job_templates import JOB_TEMPLATES
from jobs.models import ClusterSetting, Job, Node
from tests.frontend.submitted_form import TEMPLATE, code_upload, form_values
from tests.frontend.world import CODE, World, make_job


def test_the_form_has_exactly_the_fields_of_a_submission() -> None:
    # The code is a file here, its name goes with it, and the choice of a template is a button.
    shown = set(SubmissionSerializer().fields) - {"template", "code_name", "stop", "selection"}
    shown |= {*SWEEP_FIELDS}
    shown -= {"tuning"}
    assert set(JobForm().fields) - {"code_from"} == shown
    sections = JobForm().sections()
    assert sorted(field.name for row in sections.values() for field in row) == sorted(
        shown - {"code"}
    )


def test_a_site_without_nodes_says_that_jobs_wait(world: World, ada: Client) -> None:
    assert "no nodes yet" not in ada.get("/jobs/new/").content.decode()
    Node.objects.update(removed_at=timezone.now())
    assert "no nodes yet" in ada.get("/jobs/new/").content.decode()


def test_submitting_a_template(world: World, ada: Client) -> None:
    response = ada.post("/jobs/new/", form_values(name="from the form"))
    job = Job.objects.get(name="from the form")
    assert response.headers["Location"] == f"/jobs/{job.pk}/"
    template = JOB_TEMPLATES[TEMPLATE]
    assert (job.owner, job.template, job.seed, job.shuffle) == (world.ada, TEMPLATE, 7, True)
    assert job.settings == template.settings
    assert job.stop_limit == template.stop.limit
    assert job.code.read().decode() == template.code
    assert job.events.get(kind="submitted").actor == "user:ada"


def test_a_form_that_is_sent_twice_is_submitted_once(world: World, ada: Client) -> None:
    key = ada.get("/jobs/new/").context["form_key"]
    first, again, changed = (
        ada.post("/jobs/new/", form_values(name=name, form_key=key)).headers["Location"]
        for name in ("clicked twice", "clicked twice", "another")
    )
    assert first == again != changed
    assert Job.objects.filter(name="clicked twice").count() == 1
    other = ada.post("/jobs/new/", form_values(name="clicked twice", form_key="0" * 32))
    assert other.headers["Location"] not in (first, changed)
    sweep = form_values(name="swept", form_key=key, sweep_space='{"filters": [8, 16]}')
    assert len({ada.post("/jobs/new/", sweep).headers["Location"] for _ in range(2)}) == 1


def test_a_box_that_is_not_ticked_means_no(ada: Client, world: World) -> None:
    ada.post("/jobs/new/", form_values(name="in order", shuffle=None))
    assert not Job.objects.get(name="in order").shuffle


@pytest.mark.parametrize("template", JOB_TEMPLATES)
def test_every_template_can_be_submitted_as_the_form_shows_it(
    template: str, ada: Client, world: World
) -> None:
    page = ada.get(f"/jobs/new/?template={template}")
    shown = page.context["form"].initial
    sent = {
        name: "on" if value is True else value
        for name, value in shown.items()
        if value not in (None, False)
    }
    response = ada.post("/jobs/new/", sent | {"do": "submit"})
    assert response.status_code == 302
    assert Job.objects.latest("id").template == template


def test_submitting_own_code(world: World, ada: Client) -> None:
    ada.post("/jobs/new/", form_values(name="own", code_from="upload", code=code_upload()))
    job = Job.objects.get(name="own")
    assert (job.code_name, job.entry_file, job.template) == ("mine.py", "mine.py", "")
    assert job.code.read() == CODE


def test_own_code_needs_a_name(world: World, ada: Client) -> None:
    page = ada.post("/jobs/new/", form_values(name="", code_from="upload", code=code_upload()))
    assert list(page.context["form"].errors) == ["name"]


def test_submitting_an_archive(world: World, ada: Client) -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("job.py", CODE)
        archive.writestr("helpers/layers.py", "SIZE = 3\n")
    file = code_upload(content.getvalue(), "bundle.zip")
    ada.post("/jobs/new/", form_values(name="zipped", code_from="upload", code=file))
    assert Job.objects.get(name="zipped").entry_file == "job.py"


def test_cloning_takes_the_code_and_the_values_along(world: World, ada: Client) -> None:
    original = world.jobs["finished"]
    page = ada.get(f"/jobs/new/?from={original.pk}")
    initial = page.context["form"].initial
    assert initial["code_from"] == f"clone:{original.pk}"
    assert json.loads(initial["settings"]) == original.settings
    sent = {k: "on" if v is True else v for k, v in initial.items() if v not in (None, False)}
    ada.post("/jobs/new/", sent | {"name": "again", "do": "submit"})
    job = Job.objects.get(name="again")
    assert job.code.read() == CODE
    assert job.code.name != original.code.name
    assert job.events.get(kind="submitted").data == {"cloned_from": original.pk}
    assert job.stop_limit == original.stop_limit


@pytest.mark.parametrize("what", ["?from={}", "?from=x", "?from=99999999999999999999"])
def test_others_jobs_cannot_be_cloned(what: str, world: World, ben: Client) -> None:
    address = "/jobs/new/" + what.format(world.jobs["finished"].pk)
    assert ben.get(address).status_code == 404
    sent = form_values(code_from=f"clone:{world.jobs['finished'].pk}")
    assert ben.post("/jobs/new/", sent).status_code == 404


@pytest.mark.parametrize(
    ("changes", "field", "message"),
    [
        ({"name": "x" * 101}, "name", "1 to 100"),
        ({"global_batch_size": "4"}, "num_virtual_nodes", "4 examples"),
        ({"num_virtual_nodes": "0"}, "num_virtual_nodes", "whole number from 1"),
        ({"num_virtual_nodes": "many"}, "num_virtual_nodes", "whole number from 1"),
        ({"min_accelerators": "9"}, "min_accelerators", ""),
        ({"max_accelerators": "9"}, "max_accelerators", ""),
        ({"priority": "1001"}, "priority", "1 to 1000"),
        ({"batch_size_min": "16"}, "batch_size_max", "or neither"),
        ({"settings": "{filters: 3}"}, "settings", "JSON"),
        ({"settings": "[1]"}, "settings", "object"),
        ({"stop_kind": "metric", "stop_target": "1"}, "stop_metric", "required"),
        ({"stop_kind": "metric", "stop_metric": "acc", "stop_target": "x"}, "stop_target", ""),
        ({"stop_limit": "0"}, "stop_limit", "whole number from 1"),
        ({"seed": "-1"}, "seed", "whole number from 0"),
        ({"accepted_kinds": "c p u"}, "accepted_kinds", "kind"),
        ({"code_from": ""}, "code_from", "Choose a template"),
        ({"code_from": "template:none"}, "code_from", "Choose one of"),
        ({"code_from": "upload"}, "code", "Choose a .py or .zip file"),
    ],
)
def test_a_mistake_is_shown_at_its_field(
    changes: dict[str, str], field: str, message: str, ada: Client, world: World
) -> None:
    before = Job.objects.count()
    page = ada.post("/jobs/new/", form_values(**changes))
    assert list(page.context["form"].errors) == [field]
    assert message in str(page.context["form"].errors[field])
    html = page.content.decode()
    assert f'data-error-for="{field}">' in html  # shown, not hidden
    assert "Please correct the marked fields" in html
    answer = ada.post("/jobs/new/", form_values(**changes), headers={"Accept": "application/json"})
    assert list(answer.json()["errors"]) == [field]
    assert Job.objects.count() == before


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        (b"def build(:\n", "typo.py", "Line 1"),
        (b"x", "photo.png", ".py"),
        (b"not a zip", "bundle.zip", "zip"),
    ],
)
def test_bad_code_is_refused_with_the_reason(
    content: bytes, name: str, message: str, ada: Client, world: World
) -> None:
    page = ada.post("/jobs/new/", form_values(code_from="upload", code=code_upload(content, name)))
    assert message in str(page.context["form"].errors["code"])


def test_too_much_code_is_refused(ada: Client, world: World, settings: Settings) -> None:
    settings.CODE_LIMIT_BYTES = 10
    page = ada.post("/jobs/new/", form_values(code_from="upload", code=code_upload()))
    assert "too large" in str(page.context["form"].errors["code"])


def test_what_was_typed_is_still_there_after_a_mistake(ada: Client, world: World) -> None:
    html = ada.post("/jobs/new/", form_values(name="keep me", stop_limit="0")).content.decode()
    assert 'value="keep me"' in html
    assert 'aria-invalid="true"' in html


def test_a_dry_run_stores_nothing_and_says_when(ada: Client, world: World) -> None:
    ClusterSetting.objects.update_or_create(id=1, defaults={"policy": "weighted_fair"})
    before = Job.objects.count()
    # Three of the ten accelerators are free: one of node-b and the two of the cordoned node.
    page = ada.post("/jobs/new/", form_values(do="check", accepted_kinds="cpu"))
    assert page.context["check"].title.startswith("Would start")
    assert "cpu" in page.context["check"].title
    late = ada.post(
        "/jobs/new/",
        form_values(do="check", min_accelerators="4", max_accelerators="8", num_virtual_nodes="8"),
        headers={"Accept": "application/json"},
    ).json()["check"]
    assert (late["tone"], late["title"]) == ("warn", "Would have to wait")
    assert late["text"]
    assert Job.objects.count() == before


def test_a_check_offers_a_number_of_virtual_nodes_that_fits(ada: Client, world: World) -> None:
    """One example takes 300 MB, and a cpu has 2 GiB: the batch needs more slices than it has."""
    template = JOB_TEMPLATES[TEMPLATE]
    memory = {"process_bytes": 1e9, "base_bytes": 0, "bytes_per_example": 3e8}
    make_job(
        world.ada,
        "tried before",
        code_sha256=hashlib.sha256(template.code.encode()).hexdigest(),
        settings=template.settings,
        facts={"memory": memory, "state_bytes": 0},
    )
    values = form_values(do="check", accepted_kinds="cpu")
    headers = {"Accept": "application/json"}
    check = ada.post("/jobs/new/", values, headers=headers).json()["check"]
    # 0.9 * 2 GiB - 1 GB - 64 MiB leave room for 2 examples.
    assert check["num_virtual_nodes"] == -(-template.global_batch_size // 2)
    assert check["tone"] == "warn"
    assert "Measured: 300.0 MB per example" in check["memory"]
    page = ada.post("/jobs/new/", values).content.decode()
    assert f'data-virtual-nodes="{check["num_virtual_nodes"]}"' in page
    enough = values | {"num_virtual_nodes": str(check["num_virtual_nodes"])}
    check = ada.post("/jobs/new/", enough, headers=headers).json()["check"]
    assert check["num_virtual_nodes"] is None


def test_scripts_are_told_where_the_job_is(ada: Client, world: World) -> None:
    answer = ada.post("/jobs/new/", form_values(), headers={"Accept": "application/json"})
    assert answer.json() == {"location": f"/jobs/{Job.objects.latest('id').pk}/"}


def test_too_many_jobs_of_one_person(ada: Client, world: World, settings: Settings) -> None:
    settings.LIVE_JOBS_LIMIT = 2
    for do in ("submit", "check"):
        page = ada.post("/jobs/new/", form_values(do=do))
        assert "wait for some or cancel them" in str(page.context["form"].non_field_errors())


YAML = """
template: digits_cnn
name: from yaml
settings: {filters: 4}
stop: {kind: metric, limit: 9, metric: val_accuracy, target: 0.9}
accepted_kinds: [cpu, t4]
"""


@pytest.mark.parametrize("how", ["text", "file"])
def test_yaml_fills_the_form(how: str, ada: Client, world: World) -> None:
    sent: dict[str, Any] = {"do": "yaml", "yaml": YAML}
    if how == "file":
        sent = {"do": "yaml", "yaml_file": SimpleUploadedFile("job.yaml", YAML.encode())}
    form = ada.post("/jobs/new/", sent).context["form"]
    shown = {name: form[name].value() for name in form.fields}
    assert shown["name"] == "from yaml"
    assert json.loads(shown["settings"]) == {"filters": 4}
    assert (shown["stop_kind"], shown["stop_metric"]) == ("metric", "val_accuracy")
    assert shown["accepted_kinds"] == ["cpu", "t4"]
    # What the YAML leaves open comes from the template.
    assert shown["num_virtual_nodes"] == JOB_TEMPLATES[TEMPLATE].num_virtual_nodes
    assert shown["code_from"] == f"template:{TEMPLATE}"


def test_a_field_without_a_value_is_empty(ada: Client, world: World) -> None:
    clone = ada.get(f"/jobs/new/?from={world.jobs['finished'].pk}")
    filled = ada.post("/jobs/new/", {"do": "yaml", "yaml": "num_virtual_nodes: 4"})
    for page in (ada.get("/jobs/new/"), clone, filled):
        assert "object at 0x" not in page.content.decode()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Give fields with values"),
        ("- a\n- b\n", "Give fields with values"),
        ("name: [", "This is no YAML"),
        ("name: &a x\nsettings: *a\n", "aliases"),
        ("name: x\ncolour: red\n", "No such field: colour"),
        ("template: none\n", "template must be one of"),
        ("template: [digits_cnn]\n", "template must be one of"),
        ("settings: {day: 2026-03-01}\n", "day is none of them"),
        ("!!python/object/apply:os.getcwd []", "This is no YAML"),
    ],
)
def test_bad_yaml_says_what_is_wrong(text: str, message: str, ada: Client, world: World) -> None:
    page = ada.post("/jobs/new/", {"do": "yaml", "yaml": text})
    assert message in page.context["yaml_error"]
    assert page.context["yaml_text"] == text


def test_a_file_that_is_no_text_is_no_yaml(ada: Client, world: World) -> None:
    file = SimpleUploadedFile("job.yaml", b"\xff\xfe\x00")
    page = ada.post("/jobs/new/", {"do": "yaml", "yaml_file": file})
    assert page.context["yaml_error"] == "The file is no UTF-8 text."


def test_the_form_carries_what_a_job_does_when_it_is_not_finite(world: World, ada: Client) -> None:
    assert ada.get("/jobs/new/").context["form"].initial["on_nonfinite"] == "stop"
    ada.post("/jobs/new/", form_values(name="goes on", on_nonfinite="continue"))
    job = Job.objects.get(name="goes on")
    assert job.on_nonfinite == "continue"
    assert (
        ada.get(f"/jobs/new/?from={job.pk}").context["form"].initial["on_nonfinite"] == "continue"
    )
    sent = {"do": "yaml", "yaml": f"template: {TEMPLATE}\non_nonfinite: continue\n"}
    page = ada.post("/jobs/new/", sent)
    assert page.context["form"]["on_nonfinite"].value() == "continue"


def test_the_form_carries_a_selection(world: World, ada: Client) -> None:
    initial = ada.get("/jobs/new/").context["form"].initial
    assert (initial["selection_method"], initial["selection_history"]) == ("none", 1024)
    given = {"selection_method": "random", "selection_beta": "2", "selection_start": "3"}
    ada.post("/jobs/new/", form_values(name="selects", stop_kind="epochs", stop_limit="9", **given))
    job = Job.objects.get(name="selects")
    assert (job.selection["method"], job.selection["beta"], job.selection["start"]) == (
        *("random", 2.0, 3),
    )
    page = ada.get(f"/jobs/new/?from={job.pk}")
    assert page.context["form"].initial["selection_beta"] == 2.0
    assert b'id="selection-fields" open' in page.content
    text = f"template: {TEMPLATE}\nselection: {{method: random, beta: 3}}\n"
    page = ada.post("/jobs/new/", {"do": "yaml", "yaml": text})
    assert page.context["form"]["selection_beta"].value() == 3
    page = ada.post("/jobs/new/", form_values(name="wrong", selection_beta="0"))
    assert "selection_beta" in page.context["form"].errors


def test_the_form_carries_a_tuning(world: World, ada: Client) -> None:
    page = ada.get("/jobs/new/")
    initial = page.context["form"].initial
    assert (initial["tuning_max_trials"], initial["tuning_retune"]) == (20, True)
    assert "tuning_space" not in initial
    assert b'id="tuning-fields">' in page.content
    space = '{"weight_decay": {"low": 0, "high": 0.1}}'
    ada.post("/jobs/new/", form_values(name="tuned", tuning_space=space, tuning_max_share="0.2"))
    job = Job.objects.get(name="tuned")
    assert job.tuning["space"]["weight_decay"] == {"low": 0.0, "high": 0.1, "log": False}
    assert (job.tuning["max_share"], job.tuning["retune"]) == (0.2, False)  # its box is off
    page = ada.get(f"/jobs/new/?from={job.pk}")
    assert '"high": 0.1' in page.context["form"].initial["tuning_space"]
    assert b'id="tuning-fields" open' in page.content
    page = ada.post("/jobs/new/", form_values(name="wrong", tuning_space="{}x"))
    assert "tuning_space" in page.context["form"].errors


@pytest.mark.parametrize(
    "field", ["task", "reduction", "stop_kind", "on_nonfinite", "selection_method"]
)
def test_a_choice_that_there_is_not_is_refused(field: str, world: World, ada: Client) -> None:
    page = ada.post("/jobs/new/", form_values(name="wrong", **{field: "maybe"}))
    assert field in page.context["form"].errors
    assert not Job.objects.filter(name="wrong").exists()


def _boxes(page: Any) -> dict[str, bool]:
    """Give the label of each kind on the form, and whether it is ticked."""
    form = page.context["form"]
    return {box.choice_label: bool(box.data["selected"]) for box in form["accepted_kinds"]}


def test_kinds_are_ticked_and_absent_ones_are_kept(ada: Client, world: World) -> None:
    assert _boxes(ada.get("/jobs/new/")) == {"cpu": False, "t4": False}
    yaml = YAML.replace("[cpu, t4]", "'t4, <b>h100'")
    page = ada.post("/jobs/new/", {"do": "yaml", "yaml": yaml})
    absent = "<b>h100 (no node has it)"
    assert _boxes(page) == {"cpu": False, "t4": True, absent: True}
    assert "<b>h100" not in page.content.decode()
    kinds = ["t4", "h100"]
    page = ada.post("/jobs/new/", form_values(do="submit", accepted_kinds=kinds), follow=True)
    job = Job.objects.latest("id")
    assert job.accepted_kinds == kinds
    page = ada.get(f"/jobs/new/?from={job.pk}")
    assert _boxes(page) == {"cpu": False, "t4": True, "h100 (no node has it)": True}
    page = ada.post("/jobs/new/", form_values(do="check", accepted_kinds=["a100"]))
    assert "No node has a100" in str(page.context["form"].errors["accepted_kinds"])
    assert _boxes(page) == {"cpu": False, "t4": False, "a100 (no node has it)": True}
