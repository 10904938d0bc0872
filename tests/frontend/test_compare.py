"""Jobs side by side: the page, its figures and its colours."""

from __future__ import annotations

import itertools
import json
import re
from html import unescape

import pytest
from django.test import Client
from django.utils.html import escape

from frontend.figures.comparison import AXES, JobStyle, comparison_figure
from frontend.figures.metrics import metric_key
from frontend.figures.parts import MAX_TABLE_ROWS
from frontend.palette import colours_apart
from jobs.models import Job
from jobs.models.jobs import NUM_COLOURS
from jobs.selectors.comparison import COMPARED_LIMIT, Series
from jobs.services.lifecycle.search_rows import metric_values_write
from tests.frontend.world import SCRIPT_NAME, World, make_job

STYLES = {job_id: JobStyle(job_id, "<b>%{x}", f"--job-{job_id}", job_id) for job_id in range(12)}
SERIES = Series(3, [10, 20], [320, 640], [60.0, 1200.0], [0.5, 1.0], [0.25, 0.5])


def query(world: World, *names: str) -> str:
    return "&".join(f"job={world.jobs[name].pk}" for name in names)


@pytest.mark.parametrize(
    ("axis", "xs", "title"),
    [
        ("steps", [10, 20], "steps"),
        ("examples", [320, 640], "examples"),
        ("time", [1.0, 20.0], "time since the start in minutes"),
        ("accelerator_hours", [0.5, 1.0], "accelerator-hours of training"),
    ],
)
def test_a_metric_is_drawn_against_each_axis(axis: str, xs: list[float], title: str) -> None:
    figure = comparison_figure("loss", [SERIES], STYLES, axis=axis, is_log=True, smoothing=0.9)
    (trace,) = figure["data"]
    assert (trace["x"], trace["y"], trace["text"]) == (xs, [0.25, 0.5], ["", "#3"])
    assert figure["layout"]["xaxis"]["title"]["text"] == title
    assert figure["layout"]["yaxis"]["type"] == "log"
    assert figure["smoothing"] == 0.9
    assert figure["table"]["rows"][-1] == ["#3", f"{xs[1]:g}", "0.5"]
    assert "<b>" not in json.dumps(figure["data"])


def test_patterns_tell_lines_apart_without_colours() -> None:
    many = [Series(job_id, [1], [1], [1.0], [0.1], [1.0]) for job_id in range(12)]
    figure = comparison_figure("loss", many, STYLES)
    assert figure["layout"]["yaxis"]["rangemode"] == "tozero"  # all values are the same
    traces = figure["data"]
    looks = {(trace["line"]["dash"], trace["marker"]["symbol"]) for trace in traces}
    assert len(looks) == 12
    assert len({trace["line"]["color"] for trace in traces}) == 12


def test_a_table_holds_part_of_every_line() -> None:
    steps = [*range(1, 301)]
    floats = [float(step) for step in steps]
    many = [Series(job_id, steps, floats, floats, floats, floats) for job_id in range(12)]
    table = comparison_figure("loss", many, STYLES)["table"]
    rows = table["rows"]
    assert len(rows) <= MAX_TABLE_ROWS
    assert table["note"] == "Some of the points; the REST API returns all of them."
    assert comparison_figure("loss", [SERIES], STYLES)["table"]["note"] == ""
    assert {row[0] for row in rows} == {f"#{job_id}" for job_id in range(12)}


@pytest.mark.parametrize(
    ("colours", "given"),
    [([], []), ([3, 5], [3, 5]), ([3, 3, 0], [3, 1, 0]), ([11, 11, 11], [11, 0, 1])],
)
def test_colours_are_kept_where_they_do_not_collide(colours: list[int], given: list[int]) -> None:
    assert colours_apart(colours) == given


def test_twelve_jobs_never_share_a_colour() -> None:
    for first in itertools.product(range(3), repeat=4):
        colours = [*first, *first, *first]
        assert len({*colours_apart(colours)}) == NUM_COLOURS


def test_the_page_shows_values_and_differences(world: World, ada: Client) -> None:
    running, finished = world.jobs["running"], world.jobs["finished"]
    for job, units, values in ((running, 64, [0.5, 0.75]), (finished, 128, [0.6, 0.5])):
        Job.objects.filter(pk=job.pk).update(settings={"units": units, "same": 1}, colour=4)
        job.epoch = 0
        for epoch, value in enumerate(values):
            metric_values_write(job, {epoch: {"val_accuracy": value}})
    response = ada.get(f"/jobs/compare/?{query(world, 'running', 'finished')}")
    assert response.status_code == 200
    (row, values), *_ = [
        pair for pair in response.context["metrics"] if pair[0].name == "val_accuracy"
    ]
    assert row.is_higher_better
    assert values == [(0.75, 1, 0.75, True), (0.6, 0, 0.5, False)]
    settings = {row.name: row.values for row in response.context["settings"]}
    assert settings["settings.units"] == [64, 128]
    assert "settings.same" not in settings
    assert [job.colour for job in response.context["jobs"]] == [4, 0]
    everything = ada.get(f"/jobs/compare/?{query(world, 'running', 'finished')}&settings=all")
    assert "settings.same" in {row.name for row in everything.context["settings"]}


def test_ticked_jobs_are_compared_without_scripts(world: World, ada: Client) -> None:
    jobs = [world.jobs[name].pk for name in ("running", "script")]
    page = ada.post("/jobs/actions/", {"do": "compare", "job": jobs}, follow=True)
    assert page.redirect_chain[0][0] == f"/jobs/compare/?job={jobs[0]}&job={jobs[1]}"
    html = page.content.decode()
    assert html.count("<details open>") == 0
    found = re.search(r'<noscript>.*?<a href="(\?[^"]+)">', html)
    assert found is not None
    tables = ada.get(f"/jobs/compare/{unescape(found[1])}")
    assert tables.content.decode().count("<details open>") == len(tables.context["charts"]) > 0
    assert f"<td>#{jobs[0]}</td>" in tables.content.decode()


def test_the_figures_have_a_line_per_job_with_reports(world: World, ada: Client) -> None:
    jobs = query(world, "running", "finished")
    for axis in AXES:
        figures = ada.get(f"/jobs/compare/figures/?{jobs}&x={axis}&smooth=0.6").json()
        loss = figures[metric_key("loss")]
        (trace,) = loss["data"]  # the other job has no reports
        assert trace["name"] == f"#{world.jobs['running'].pk}"
        assert trace["x"] == sorted(trace["x"])
        assert loss["smoothing"] == 0.6
    page = ada.get(f"/jobs/compare/?{jobs}").content.decode()
    assert all(f'data-figure="{key}"' in page for key in figures)


def test_names_stay_text(world: World, admin: Client) -> None:
    html = admin.get(f"/jobs/compare/?{query(world, 'script')}").content.decode()
    assert "<script>window" not in html
    assert escape(SCRIPT_NAME) in html


def test_no_jobs_lead_to_the_list(ada: Client) -> None:
    response = ada.get("/jobs/compare/")
    assert "No jobs to compare" in response.content.decode()
    assert ada.get("/jobs/compare/figures/").json() == {}


def test_others_jobs_are_not_there(world: World, ben: Client) -> None:
    for address in ("/jobs/compare/", "/jobs/compare/figures/"):
        assert ben.get(f"{address}?{query(world, 'running')}").status_code == 404
    own = make_job(world.ben, "own").pk
    refused = ben.get(f"/jobs/compare/?job={own}&{query(world, 'running')}&job={own}")
    html, hidden = refused.content.decode(), world.jobs["running"].pk
    assert refused.status_code == 404
    assert f"There is no job {hidden}, or it is not yours." in html
    assert html.count(f'type="hidden" name="job" value="{own}"') == 1
    assert f'name="job" value="{hidden}"' not in html


@pytest.mark.parametrize(
    "wrong", ["job=x", "x=years", "y=cubic", "smooth=2", "settings=some", "colour=red", "many"]
)
def test_wrong_addresses_say_what_is_wrong(wrong: str, world: World, admin: Client) -> None:
    if wrong == "many":
        wrong = "&".join(f"job={number}" for number in range(1, COMPARED_LIMIT + 2))
    page = admin.get(f"/jobs/compare/?{wrong}")
    assert (page.status_code, "notice-bad" in page.content.decode()) == (400, True)
    assert admin.get(f"/jobs/compare/figures/?{wrong}").status_code == 400
