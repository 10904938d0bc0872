"""Charts of a job's metrics: each has one, whatever its name."""

from __future__ import annotations

import re

import pytest
from django.test import Client
from django.utils import timezone

from frontend.charts import job_charts
from frontend.figures.metrics import metric_figure, metric_key
from frontend.figures.parts import MAX_POINTS, MAX_TABLE_ROWS
from frontend.figures.rows import EpochPoint, ResizeMark
from jobs.models import Job
from jobs.selectors.series import MAX_METRICS, metric_names_of
from tests.frontend.world import World

EPOCHS = [
    EpochPoint(0, 12, {"accuracy": 0.5, "val_accuracy": 0.4, "loss": 1.0}),
    EpochPoint(1, 24, {"accuracy": 0.75, "loss": 0.5}),  # a number that is not finite is left out
    EpochPoint(2, 36, {"accuracy": 0.875, "val_accuracy": 0.8, "loss": 0.4}),
]


def test_training_and_validation_stand_in_one_chart() -> None:
    figure = metric_figure("accuracy", EPOCHS, [ResizeMark(9.0, 20, 1, 2)])
    training, validation = figure["data"]
    assert (training["x"], training["y"]) == ([12, 24, 36], [0.5, 0.75, 0.875])
    assert (validation["x"], validation["y"]) == ([12, 36], [0.4, 0.8])
    assert [entry["label"] for entry in figure["legend"]] == ["training", "validation"]
    assert [shape["x0"] for shape in figure["layout"]["shapes"]] == [20]
    assert figure["table"]["rows"] == [
        [1, 12, "0.5000", "0.4000"],
        [2, 24, "0.7500", ""],
        [3, 36, "0.8750", "0.8000"],
    ]


@pytest.mark.parametrize(
    ("steps", "drawn"),
    [
        ([5, 10_000, 10_001], [5, 10_000, 10_001]),
        ([*range(10, 10_010, 10)], [*range(40, 10_000, 50), 10_000]),
    ],
)
def test_of_many_resizes_those_that_touch_are_one_line(steps: list[int], drawn: list[int]) -> None:
    marks = [ResizeMark(float(step), step, 1, 2) for step in steps]
    lines = metric_figure("auc", EPOCHS, marks)["layout"]["shapes"]
    assert [line["x0"] for line in lines] == drawn


@pytest.mark.parametrize(
    ("num", "shown", "note"),
    [(MAX_POINTS, MAX_POINTS, ""), (5000, 557, "Not every epoch is drawn.")],
)
def test_a_line_has_no_more_points_than_a_screen_shows(num: int, shown: int, note: str) -> None:
    epochs = [EpochPoint(n, 12 * n, {"auc": n / num, "val_auc": 0.5}) for n in range(num)]
    figure = metric_figure("auc", epochs, [])
    for trace in figure["data"]:
        assert len(trace["x"]) == len(trace["y"]) == shown
        assert (trace["x"][0], trace["x"][-1]) == (0, 12 * (num - 1))
    assert figure["note"] == note
    rows = figure["table"]["rows"]
    assert [row[0] for row in rows] == [*range(num + 1 - MAX_TABLE_ROWS, num + 1)]
    assert figure["table"]["num_left_out"] == num - MAX_TABLE_ROWS


def test_a_metric_without_numbers_is_an_empty_chart() -> None:
    figure = metric_figure("auc", EPOCHS, [])
    assert (figure["data"], figure["table"]["rows"]) == ([], [])


def test_names_stay_text() -> None:
    figure = metric_figure("<b>%{x}</b>", [EpochPoint(0, 1, {"<b>%{x}</b>": 1.0})], [])
    assert figure["layout"]["yaxis"]["title"]["text"] == "&lt;b&gt;&#37;{x}&lt;/b&gt;"
    assert re.fullmatch(r"metric-[0-9a-f]{12}", metric_key("<b>\n'"))


@pytest.mark.parametrize(
    ("foreseen", "logged", "names"),
    [
        (["loss", "accuracy"], {}, ["accuracy"]),
        (["loss", "b", "a"], {"loss": 1, "val_a": 1, "c": 1, "learning_rate": 1}, ["b", "a", "c"]),
        (None, {"val_loss": 1.0, "val_auc": 0.5}, ["auc"]),
        ("nonsense", {}, []),
        ([7, None, "auc"], {}, ["auc"]),
        ([str(number) for number in range(500)], {}, [str(n) for n in range(MAX_METRICS)]),
    ],
)
def test_every_metric_is_listed_once_before_its_first_epoch_too(
    foreseen: object, logged: dict[str, float], names: list[str]
) -> None:
    facts = {} if foreseen is None else {"metrics": foreseen}
    assert metric_names_of(Job(facts=facts, metrics=logged)) == names


@pytest.mark.django_db
def test_the_page_has_a_place_for_each_figure(world: World, ada: Client) -> None:
    job = world.jobs["running"]
    figures = ada.get(f"/jobs/{job.pk}/figures/").json()
    page = ada.get(f"/jobs/{job.pk}/").content.decode()
    assert set(re.findall(r'data-figure="([^"]+)"', page)) == set(figures)
    assert metric_key("accuracy") in figures
    charts = job_charts(job, timezone.now())
    assert len(charts[metric_key("accuracy")]["data"]) == 2
    assert len(charts[metric_key("auc")]["data"]) == 1


@pytest.mark.django_db
def test_what_failed_shows_its_model_below_the_traceback(world: World, ada: Client) -> None:
    page = ada.get(f"/jobs/{world.jobs['invalid'].pk}/").content.decode()
    notice = page[page.index('id="job-why"') : page.index('id="tiles"')]
    assert notice.index("not compiled") < notice.index("Traceback: line 3")
    assert notice.index("Traceback: line 3") < notice.index("Connected to")
    assert page.count("Connected to") == 1


@pytest.mark.parametrize(
    ("query", "scale", "smoothing"),
    [
        ("", "linear", 0.0),
        ("?scale=log&smoothing=0.9", "log", 0.9),
        ("?scale=<b>&smoothing=7", "linear", 0.0),
    ],
)
def test_curves_on_a_logarithmic_scale_and_smoothed(
    world: World, admin: Client, query: str, scale: str, smoothing: float
) -> None:
    job = world.jobs["running"]
    page = admin.get(f"/jobs/{job.pk}/{query}").content.decode()
    address = re.search(r'data-figures-url="([^"]+)"', page)
    assert address is not None
    figures = admin.get(address[1].replace("&amp;", "&")).json()
    curves = {name for name in figures if name == "loss" or name.startswith("metric-")}
    for name in curves:
        assert figures[name]["layout"]["yaxis"]["type"] == scale
        assert figures[name]["smoothing"] == smoothing
    assert "smoothing" not in figures["throughput"]
    assert ("logarithmic" in page, 'value="log" selected' in page) == (True, scale == "log")
