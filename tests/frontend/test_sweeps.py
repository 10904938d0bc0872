"""Pages of sweeps: the form with its preview, the list, the page of one, its figure and actions."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest
from django.test import Client

from frontend.figures.sweep import sweep_figure
from jobs.api.parsers import yaml_read
from jobs.models import Event, Job, JobMetric, Project, Sweep
from jobs.selectors.sweeps import METRICS_LIMIT, sweep_table
from tests.frontend.world import World, make_sweep

FORM = {
    "code_from": "template:digits_cnn", "name": "search", "num_virtual_nodes": "4",
    "global_batch_size": "64", "min_accelerators": "1", "max_accelerators": "2", "priority": "80",
    "tier": "normal", "stop_kind": "epochs", "stop_limit": "5", "seed": "0", "reduction": "exact",
    "task": "train", "checkpoint": "newest", "on_nonfinite": "stop", "settings": "{}",
    "selection_method": "none", "sweep_max_running": "2",
}  # fmt: skip


def order_of(page: str) -> list[int]:
    """Give the units of the jobs of a page, in its order."""
    return [int(text) for text in re.findall(r'data-label="units">(\d+)<', page)]


def test_a_check_shows_the_jobs_and_a_submission_makes_them(world: World, ada: Client) -> None:
    space = "hidden_units: [16, 32]\nlearning_rate: {low: 1e-3, high: 1e-1, scale: log, num: 3}"
    form = FORM | {"sweep_space": space}
    as_json = {"Accept": "application/json"}
    answer = ada.post("/jobs/new/", form | {"do": "check"}, headers=as_json).json()
    assert answer["errors"] == {}
    assert answer["check"]["title"] == "Would submit 6 jobs"
    assert answer["check"]["columns"] == ["Job", "hidden_units", "learning_rate"]
    assert answer["check"]["rows"][5] == ["6", "32", "0.1"]
    page = ada.post("/jobs/new/", form | {"do": "check"}).content.decode()
    assert "<td>32</td><td>0.1</td>" in page
    assert not Sweep.objects.exists()
    answer = ada.post("/jobs/new/", form | {"do": "submit"}, headers=as_json).json()
    sweep = Sweep.objects.get()
    assert answer == {"location": f"/sweeps/{sweep.pk}/"}
    assert (sweep.jobs.count(), sweep.max_running, sweep.owner.username) == (6, 2, "ada")
    assert b"6 <small>" not in ada.get(answer["location"]).content


@pytest.mark.parametrize(
    ("changes", "field", "text"),
    [
        ({"sweep_space": "units: ["}, "sweep_space", "YAML"),
        ({"sweep_space": "just text"}, "sweep_space", "hidden_units"),
        ({"sweep_space": "hidden_units: []"}, "sweep_space", "hidden_units: give a list"),
        ({"sweep_space": "units: [1]"}, "sweep_space", "has no setting units"),
        ({"sweep_num_draws": "1000"}, "sweep_num_draws", "500"),
        ({"sweep_max_running": "some"}, "sweep_max_running", "whole number"),
        ({"sweep_seed": "-1"}, "sweep_seed", "whole number"),
        ({"num_virtual_nodes": "0"}, "num_virtual_nodes", "whole number"),
    ],
)
def test_errors_stand_at_their_fields(
    world: World, ada: Client, changes: dict[str, str], field: str, text: str
) -> None:
    form = FORM | {"sweep_space": "hidden_units: [1, 2]", "do": "submit"} | changes
    num_before = Job.objects.count()
    answer = ada.post("/jobs/new/", form, headers={"Accept": "application/json"}).json()
    assert list(answer["errors"]) == [field]
    assert text in answer["errors"][field][0]
    assert Job.objects.count() == num_before


def test_without_values_one_job_is_submitted(world: World, ada: Client) -> None:
    answer = ada.post(
        "/jobs/new/", FORM | {"sweep_space": " ", "do": "submit"},
        headers={"Accept": "application/json"},
    ).json()  # fmt: skip
    assert answer["location"].startswith("/jobs/")


def test_a_sweep_lists_its_jobs_best_first(world: World, ada: Client) -> None:
    sweep = make_sweep(world.ada, [0.5, 0.9, None, 0.7])
    page = ada.get(f"/sweeps/{sweep.pk}/").content.decode()
    assert order_of(page) == [16, 32, 8, 24]
    assert "&lt;b&gt;&amp;x" in page
    assert "<b>" not in page
    best = Job.objects.get(sweep=sweep, settings__units=16)
    assert re.search(rf"Best val_accuracy</dt><dd>0.9000 <small><a href=\"/jobs/{best.pk}/", page)
    assert f"/jobs/compare/?job={best.pk}&amp;job=" in page
    for order, expected in {
        "metric": [8, 32, 16, 24],
        "-metric": [16, 32, 8, 24],
        "setting.units": [8, 16, 24, 32],
        "-setting.units": [32, 24, 16, 8],
        "setting.kind": [8, 24, 16, 32],
        "epoch": [32, 24, 16, 8],
        "setting.absent": [8, 16, 24, 32],
    }.items():
        page = ada.get(f"/sweeps/{sweep.pk}/?order={order}").content.decode()
        assert order_of(page) == expected, order
    assert str(sweep.pk) in ada.get("/sweeps/").content.decode()
    assert f"sweep {sweep.pk}</a>" in ada.get(f"/jobs/{best.pk}/").content.decode()


def test_of_many_metrics_some_are_offered_and_the_chosen_one(world: World, ada: Client) -> None:
    """500 jobs of 50 metrics each, all of other names, would be 25,000 options."""
    sweep = make_sweep(world.ada, [0.5])
    job = Job.objects.get(sweep=sweep)
    rows = [JobMetric(job=job, name=f"m{n:03}", best=n, best_epoch=0, last=n) for n in range(300)]
    JobMetric.objects.bulk_create(rows)
    for metric, num in (("m299", METRICS_LIMIT + 1), ("m000", METRICS_LIMIT)):
        page = ada.get(f"/sweeps/{sweep.pk}/?metric={metric}").content.decode()
        assert page.count("<option") - page.count("<option value") == num
        assert f"<option selected>{metric}</option>" in page


def test_a_lower_loss_is_better(world: World) -> None:
    sweep = make_sweep(world.ada, [0.5, 0.9])
    JobMetric.objects.update(name="val_loss")
    table = sweep_table(world.ada, sweep)
    assert (table.metric, table.is_higher_better) == ("val_loss", False)
    assert [row.best for row in table.ranked] == [0.5, 0.9]
    sweep.jobs.filter(settings__units=8).update(settings={"units": 10**400})  # beyond any float
    table = sweep_table(world.ada, sweep, order="setting.units")
    assert [row.settings[1] for row in table.rows] == [16, 10**400]
    assert len(sweep_figure(table)["data"]) == 3


def test_the_figure_has_an_axis_for_each_setting_and_one_for_the_metric(
    world: World, ada: Client
) -> None:
    sweep = make_sweep(world.ada, [0.5, 0.9, None, 0.7])
    figure = ada.get(f"/sweeps/{sweep.pk}/figures/").json()["sweep"]
    assert figure["layout"]["xaxis"]["ticktext"] == ["kind", "units", "val_accuracy"]
    best = figure["data"][-1]
    assert best["name"] == "best tenth"
    assert best["y"] == [1.0, pytest.approx(1 / 3), 1.0, None]
    assert sum(len(trace["x"]) for trace in figure["data"]) == 3 * 4
    assert "<b>" not in str(figure["data"])
    ends = {(mark["y"], mark["yanchor"]) for mark in figure["layout"]["annotations"]}
    assert ends == {(0.0, "top"), (1.0, "bottom")}, "a line runs through the label"
    assert [row[0] for row in figure["table"]["rows"]][-1] == best["text"][0].split()[0]
    page = ada.get(f"/sweeps/{sweep.pk}/?order=epoch").content.decode()
    found = re.search(r'<noscript>.*?<a href="(\?[^"]+order=epoch)">', page)
    assert found is not None
    tables = ada.get(f"/sweeps/{sweep.pk}/{unescape(found[1])}").content.decode()
    assert tables.count("<details open>") == 1
    assert f"<td>{best['text'][0].split()[0]}</td>" in tables
    empty = make_sweep(world.ada, [None, None])
    assert ada.get(f"/sweeps/{empty.pk}/figures/").json()["sweep"]["data"] == []


def test_actions_on_a_sweep(world: World, ada: Client, admin: Client) -> None:
    sweep = make_sweep(world.ada, [None, None])
    address = f"/sweeps/{sweep.pk}/act/"
    page = ada.post(address, {"do": "pause"}, follow=True).content.decode()
    assert "paused</span>" in page
    assert "Resume" in page
    ada.post(address, {"do": "resume"})
    assert 'name="seen" value="2"' in page
    limit = {"do": "limit", "max_running": "7", "seen": "2"}
    ada.post(address, limit)
    sweep.refresh_from_db()
    assert (sweep.is_paused, sweep.max_running) == (False, 7)
    page = ada.post(address, limit | {"max_running": "9"}, follow=True).content.decode()
    assert "in the meantime: it runs at most 7 at once now" in page
    sweep.refresh_from_db()
    assert sweep.max_running == 7
    page = ada.post(address, {"do": "limit", "max_running": "0"}, follow=True).content.decode()
    assert "Give a whole number from 1 to 500." in page
    page = admin.post(address, {"do": "limit", "max_running": "1"}, follow=True).content.decode()
    assert "Say why" in page
    assert ada.post(address, {"do": "explode"}).status_code == 404
    ada.post(address, {"do": "cancel"})
    assert {*sweep.jobs.values_list("status", flat=True)} == {"cancelled"}


def test_somebody_elses_sweep_is_not_there(world: World, ben: Client) -> None:
    sweep = make_sweep(world.ada, [0.5])
    for address in (f"/sweeps/{sweep.pk}/", f"/sweeps/{sweep.pk}/figures/"):
        assert ben.get(address).status_code == 404
    assert ben.post(f"/sweeps/{sweep.pk}/act/", {"do": "cancel"}).status_code == 404
    assert f"/sweeps/{sweep.pk}/" not in ben.get("/sweeps/").content.decode()


def test_a_sweep_is_made_again_from_the_form(world: World, ada: Client) -> None:
    space = {"units": [8, 16], "وسم": ["😀", "x\x7f"], "rate": {"low": 1e-5, "high": 1, "num": 3}}
    sweep = make_sweep(world.ada, [0.5], space=space, num_draws=2, seed=5)
    job = sweep.jobs.get()
    response = ada.get(f"/jobs/new/?from={job.pk}&sweep={sweep.pk}")
    text = response.context["form"]["sweep_space"].value()
    # PostgreSQL orders the names by their lengths.
    assert {"units: [8, 16]", 'وسم: [😀, "x\\x7F"]'} < {*text.splitlines()}
    assert yaml_read(text.encode()) == space
    assert 'name="sweep_seed" value="5"' in response.content.decode()
    left = Project.objects.create(name="left", created_at=sweep.submitted_at)
    Job.objects.filter(pk=job.pk).update(project=left)
    form = FORM | {"code_from": f"clone:{job.pk}", "sweep_space": text, "do": "submit"}
    again = int(ada.post("/jobs/new/", form).headers["Location"].split("/")[2])
    said = Event.objects.filter(job__sweep=again, kind="submitted").values_list("message")[0][0]
    assert said.startswith(f"Submitted without project left of job {job.pk}")


def test_large_sweeps_have_pages_and_few_queries(
    world: World, ada: Client, django_assert_max_num_queries: Any
) -> None:
    sweep = make_sweep(world.ada, [0.1])
    job = sweep.jobs.get()
    rows = []
    for number in range(149):
        job.pk = None
        job.settings = {"units": 16 + number, "kind": "b"}
        rows.append(Job(**{f.attname: getattr(job, f.attname) for f in Job._meta.concrete_fields}))
    Job.objects.bulk_create(rows)
    with django_assert_max_num_queries(14):
        page = ada.get(f"/sweeps/{sweep.pk}/").content.decode()
    assert len(order_of(page)) == 100
    assert len(order_of(ada.get(f"/sweeps/{sweep.pk}/?page=2").content.decode())) == 50
    assert len(order_of(ada.get(f"/sweeps/{sweep.pk}/?page=99").content.decode())) == 50
