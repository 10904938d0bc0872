"""Figures from rows, with results computed by hand."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

import plotly.graph_objects
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontend.figures.batch import batch_figure
from frontend.figures.cluster import cluster_allocation_figure, cluster_throughput_figure
from frontend.figures.job import job_allocation_figure, job_throughput_figure, loss_figure
from frontend.figures.parts import MAX_POINTS, MAX_TABLE_ROWS, Figure, plotly_text
from frontend.figures.rows import (
    HIDDEN_JOB_ID,
    AllocationChanges,
    BatchChange,
    EpochPoint,
    ResizeMark,
    SearchMark,
    StepPoint,
    WorkSpan,
)


class Change(NamedTuple):
    """A job holds `num_accelerators` from `at` on."""

    at: float
    job_id: int
    job_name: str
    num_accelerators: int
    colour: int = 0


def _allocation_figure(
    changes: Sequence[Change], num_accelerators: int, start_at: float, end_at: float
) -> Figure:
    """Draw changes, whose labels are read of the jobs that are named."""
    names = {change.job_id: (change.job_name, change.colour) for change in changes}
    return cluster_allocation_figure(
        AllocationChanges.of((one.at, one.job_id, one.num_accelerators) for one in changes),
        lambda job_ids: {job_id: names[job_id] for job_id in job_ids},
        num_accelerators,
        start_at,
        end_at,
    )


def test_the_bands_of_two_jobs_share_their_times() -> None:
    figure = _allocation_figure(
        [
            Change(0.0, 9, "nine", 1, 1),  # held from before the window on
            Change(12.0, 9, "nine", 3, 1),
            Change(14.0, 10, "ten", 2, 11),
            Change(16.0, 9, "nine", 0, 1),
        ],
        num_accelerators=4,
        start_at=10.0,
        end_at=20.0,
    )
    nine, ten, capacity = figure["data"]
    assert nine["x"] == ten["x"] == [10_000, 12_000, 14_000, 16_000, 20_000]
    assert nine["y"] == [1, 3, 3, 0, 0]
    assert ten["y"] == [0, 0, 2, 2, 2]
    assert (nine["fillcolor"], ten["fillcolor"]) == ("--job-1", "--job-11")
    assert (capacity["x"], capacity["y"]) == (nine["x"], [4] * 5)
    # Jobs without accelerators are not among those that are named under the pointer.
    assert capacity["text"] == [
        "1 · #9 nine",
        "3 · #9 nine",
        "2 · #10 ten<br>3 · #9 nine",
        "2 · #10 ten",
        "2 · #10 ten",
    ]
    assert [entry["label"] for entry in figure["legend"]] == ["#9 nine", "#10 ten", "capacity 4"]
    # What happened before the window is in the areas, not among the changes of the table.
    assert figure["table"]["rows"] == [
        [12_000, "#9 nine", 3],
        [14_000, "#10 ten", 2],
        [16_000, "#9 nine", 0],
    ]


def test_the_axis_holds_more_than_the_capacity_when_nodes_have_gone() -> None:
    figure = _allocation_figure([Change(1.0, 1, "a", 8)], 4, 0.0, 2.0)
    assert figure["layout"]["yaxis"]["range"] == [0, pytest.approx(8 * 1.08)]


def test_small_jobs_beyond_the_limit_share_a_band() -> None:
    changes = [Change(0.0, job_id, f"job {job_id}", 1) for job_id in range(1, 15)]
    changes[0] = Change(0.0, 1, "job 1", 5)
    figure = _allocation_figure(changes, 0, 0.0, 10.0)
    assert [trace["y"][0] for trace in figure["data"]] == [5, *[1] * 11, 2]
    assert figure["legend"][-1] == {
        "label": "2 other jobs",
        "colour": "--other-jobs",
        "job_id": None,
        "mark": "/6",
    }


def test_labels_are_read_of_the_jobs_that_are_named() -> None:
    asked: set[int] = set()

    def labels(job_ids: Collection[int]) -> dict[int, tuple[str, int]]:
        asked.update(job_ids)
        return dict.fromkeys(job_ids, ("j", 0))

    rows = [
        row for n in range(1, 501) for row in ((2.0 * n, n, 2), (2.0 * n + 3.5 + (n < 13), n, 0))
    ]
    changes = AllocationChanges.of(rows)
    figure = cluster_allocation_figure(changes, labels, 4, 0.0, 1004.0)
    others = figure["data"][-2]
    assert others["name"] == "488 other jobs"
    assert max(others["y"]) == 4
    assert [trace["name"] for trace in figure["data"]][-1] == "capacity"
    # The 12 with the most accelerator time, and those of the newest 200 changes.
    assert asked == {*range(1, 13), *range(400, 501)}


def test_a_pattern_and_a_label_tell_bands_apart_without_colours() -> None:
    changes = [Change(0.0, number, "job", 1, number - 1) for number in range(1, 13)]
    changes += [Change(50.0, 1, "job", 5, 0), Change(98.0, 2, "job", 9, 1)]
    figure = _allocation_figure(changes, 16, 0.0, 100.0)
    bands = figure["data"][:-1]
    looks = {(one["fillpattern"]["shape"], one["fillpattern"]["size"]) for one in bands}
    marks = {entry["mark"] for entry in figure["legend"][:-1]}
    assert len(looks) == len(marks) == len(bands) == 12
    # One of 24 accelerators has no room for a label; 5 of them have, from second 50 on.
    (found,) = figure["layout"]["annotations"]
    assert (found["text"], found["x"], found["y"]) == ("#1", 75_000, 2.5)


def test_jobs_that_one_may_not_see_have_no_name_and_no_link() -> None:
    figure = _allocation_figure([Change(0.0, HIDDEN_JOB_ID, "", 2)], 2, 0.0, 1.0)
    entry = figure["legend"][0]
    assert (entry["label"], entry["colour"]) == ("other people's jobs", "--other-jobs")
    assert entry["job_id"] is None
    changes = [Change(0.0, number, "job", 2, number % 12) for number in range(1, 16)]
    figure = _allocation_figure([*changes, Change(0.0, HIDDEN_JOB_ID, "", 1)], 0, 0.0, 1.0)
    hidden, *_, others = figure["legend"]
    assert (hidden["label"], others["label"]) == ("other people's jobs", "3 other jobs")
    assert hidden["mark"] != others["mark"]


def test_no_rows_leave_nothing_but_the_capacity() -> None:
    assert [t["name"] for t in _allocation_figure([], 4, 0.0, 9.0)["data"]] == ["capacity"]
    assert _allocation_figure([], 0, 0.0, 9.0)["data"] == []


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(1, 20), st.integers(0, 8)), max_size=60))
def test_the_bands_always_add_up_to_what_was_held(rows: list[tuple[float, int, int]]) -> None:
    changes = [Change(at, job_id, "j", count) for at, job_id, count in sorted(rows)]
    figure = _allocation_figure(changes, 0, 50.0, 100.0)
    held: dict[int, int] = {change.job_id: change.num_accelerators for change in changes}
    assert sum(trace["y"][-1] for trace in figure["data"]) == sum(held.values())
    json.dumps(figure, allow_nan=False)


def test_many_changes_are_thinned_to_a_grid() -> None:
    changes = [Change(float(i), 1, "busy", i % 5) for i in range(5000)]
    figure = _allocation_figure(changes, 4, 0.0, 5000.0)
    assert len(figure["data"][0]["x"]) == MAX_POINTS
    assert len(figure["table"]["rows"]) == MAX_TABLE_ROWS
    assert figure["table"]["num_left_out"] == 5000 - MAX_TABLE_ROWS


def test_work_is_spread_over_the_bins_it_took_place_in() -> None:
    figure = cluster_throughput_figure(
        [
            WorkSpan(0.0, 10.0, 100.0),  # 10 a second through the first bin
            WorkSpan(5.0, 15.0, 200.0),  # half of it in each of two bins
            WorkSpan(-10.0, 2.0, 120.0),  # two of its twelve seconds are within
        ],
        start_at=0.0,
        end_at=30.0,
        bin_s=10.0,
    )
    assert figure["data"][0]["y"] == [10 + 10 + 2, 10.0, 0.0]
    assert figure["data"][0]["x"] == [5_000, 15_000, 25_000]
    assert figure["table"]["rows"] == [[5_000, 22.0], [15_000, 10.0]]


def test_a_cluster_that_did_nothing_has_no_line() -> None:
    assert cluster_throughput_figure([], 0.0, 60.0, 5.0)["data"] == []


def test_the_loss_of_a_job_with_validation_and_resizes() -> None:
    figure = loss_figure(
        [
            StepPoint(1.0, 10, 5.0, 1.0, 2.0),
            StepPoint(2.0, 20, 5.0, 1.0, None),
            StepPoint(3.0, 30, 5.0, 1.0, 1.0),
        ],
        [EpochPoint(0, 15, {"loss": 2.0, "val_loss": 2.5}), EpochPoint(1, 30, {"loss": 1.0})],
        [ResizeMark(1.0, 5, 0, 1), ResizeMark(2.0, 20, 1, 3), ResizeMark(2.5, None, 3, 2)],
    )
    training, validation = figure["data"]
    assert (training["x"], training["y"]) == ([10, 30], [2.0, 1.0])
    assert (validation["x"], validation["y"]) == ([15], [2.5])
    # The start is no resize, and one whose step is unknown has no place on the axis.
    assert [shape["x0"] for shape in figure["layout"]["shapes"]] == [20]
    assert figure["table"]["rows"] == [
        [10, "2.0000", ""],
        [15, "", "2.5000"],
        [30, "1.0000", ""],
    ]


def test_losses_of_trials_do_not_stretch_the_axis_upwards() -> None:
    """Steps 11 to 41 are trials from a loss of 2.2; the point up to 45 has some of theirs.

    The axis ends above what is not of trials, and reaches down to the lowest of all.
    """
    losses = {10: 2.0, 20: 9e4, 30: 0.1, 40: 7.0, 45: 3.0, 60: 1.0, 70: None, 80: 0.4}
    points = [StepPoint(1.0, step, 5.0, 1.0, loss) for step, loss in losses.items()]
    epochs = [EpochPoint(0, 40, {"val_loss": 50.0}), EpochPoint(1, 80, {"val_loss": 0.6})]
    figure = loss_figure(points, epochs, [], [SearchMark(11, 41, 2.2)])
    assert figure["layout"]["yaxis"]["range"] == pytest.approx([0.1 - 0.105, 2.2 + 0.105])
    (shade,) = figure["layout"]["shapes"]
    assert (shade["type"], shade["x0"], shade["x1"]) == ("rect", 11, 41)
    assert figure["note"] == "Shaded: trials of a search."
    assert 9e4 in figure["data"][0]["y"], "a loss is left out"
    everything = loss_figure(points, epochs, [], [SearchMark(1, 80, 2.2)])
    assert "range" not in everything["layout"]["yaxis"]
    assert "note" not in loss_figure(points, epochs, [])


def test_batch_sizes_are_stairs_above_the_learning_rates() -> None:
    rows = [(10, 0.1), (20, 0.1), (30, 0.1), (40, 0.14), (50, None)]
    figure = batch_figure(
        [StepPoint(1.0, step, 5.0, 1.0, 2.0, rate) for step, rate in rows],
        [BatchChange(1, 32), BatchChange(33, 64), BatchChange(35, 48), BatchChange(51, 96)],
    )
    sizes, rates = figure["data"]
    # A size holds from its first step on, whatever the points are; step 51 is not done yet.
    assert (sizes["x"], sizes["y"]) == ([1, 33, 35, 50], [32, 64, 48, 48])
    assert sizes["line"]["shape"] == "hv"
    assert (rates["x"], rates["y"]) == ([10, 20, 30, 40], [0.1, 0.1, 0.1, 0.14])
    assert rates["yaxis"] == "y2"
    assert figure["layout"]["yaxis2"]["domain"][1] < figure["layout"]["yaxis"]["domain"][0]
    assert figure["table"]["rows"] == [
        [1, 32, ""], [10, 32, "0.1"], [33, 64, ""], [35, 48, ""], [40, 48, "0.14"],
    ]  # fmt: skip


def test_a_schedule_leaves_room_for_the_sizes_in_the_table() -> None:
    points = [StepPoint(1.0, step, 5.0, 1.0, 2.0, 1.0 / step) for step in range(1, 601)]
    changes = [BatchChange(step, step) for step in range(1, 81)]
    table = batch_figure(points, changes)["table"]
    assert (table["num_left_out"], len(table["rows"])) == (0, 80 + 20)
    assert {row[0] for row in table["rows"]} >= set(range(1, 81))


def test_a_job_without_steps_draws_nothing() -> None:
    figure = batch_figure([], [BatchChange(1, 64)])
    assert (figure["data"], figure["table"]["rows"]) == ([], [])


def test_long_histories_become_means_of_equal_runs() -> None:
    points = [
        StepPoint(float(i), i, 10.0, 2.0 if i % 10 else 7.0, float(i))
        for i in range(2 * MAX_POINTS)
    ]
    line = loss_figure(points, [], [])["data"][0]
    assert len(line["x"]) == MAX_POINTS
    assert (line["x"][0], line["y"][0]) == (1, 0.5)
    speed = job_throughput_figure(points, [])["data"][0]
    # Ten reports to a bin: 100 examples in 9 * 2 + 7 = 25 seconds.
    assert (len(speed["x"]), speed["x"][1], speed["y"][1]) == (120, 19_000, 4.0)


def test_one_point_is_drawn_as_a_dot() -> None:
    assert job_throughput_figure([StepPoint(1.0, 1, 9.0, 1.0, 1.0)], [])["data"][0]["mode"] == (
        "lines+markers"
    )


def test_the_staircase_of_a_job() -> None:
    figure = job_allocation_figure(
        [ResizeMark(10.0, 0, 0, 1), ResizeMark(20.0, 90, 1, 3)], "--job-3", 5.0, 30.0
    )
    stairs, marks = figure["data"]
    assert (stairs["x"], stairs["y"]) == ([5_000, 10_000, 20_000, 30_000], [0, 1, 3, 3])
    assert (stairs["line"]["shape"], stairs["fillcolor"]) == ("hv", "--job-3-soft")
    assert (marks["x"], marks["y"]) == ([10_000, 20_000], [1, 3])
    assert marks["text"] == ["0 → 1", "1 → 3"]
    assert marks["marker"]["symbol"] == ["triangle-up", "triangle-up"]
    assert figure["table"]["rows"] == [[10_000, 0, 1, 0], [20_000, 1, 3, 90]]


def test_a_preemption_points_down() -> None:
    figure = job_allocation_figure([ResizeMark(10.0, 9, 2, 0)], "--job-3", 0.0, 20.0)
    assert figure["data"][1]["marker"]["symbol"] == ["triangle-down"]
    assert figure["data"][0]["y"][-1] == 0


def test_names_stay_text() -> None:
    name = "<b>%{x}</b>&amp;"
    figure = _allocation_figure([Change(0.0, 1, name, 1)], 1, 0.0, 1.0)
    trace, capacity = figure["data"]
    assert trace["name"] == "#1 &lt;b&gt;&#37;{x}&lt;/b&gt;&amp;amp;"
    assert capacity["text"][0] == f"1 · {trace['name']}"
    # The page writes these as text, so they carry the name as it is.
    assert figure["legend"][0]["label"] == f"#1 {name}"


@given(st.text(max_size=40))
def test_no_text_can_open_a_tag_or_a_template(text: str) -> None:
    escaped = plotly_text(text)
    assert "<" not in escaped
    assert "%" not in escaped


@pytest.mark.parametrize(("points_per_second", "most"), [(1, 6), (100, 7)])
def test_a_stop_is_a_gap_in_the_speeds(
    points_per_second: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("frontend.figures.job.MAX_SPEEDS", most)
    seconds = 1 / points_per_second
    points = [
        StepPoint(start + seconds * (n + 1), 1, 9.0 * seconds, seconds, 1.0)
        for start in (0.0, 83.0)
        for n in range(3 * points_per_second)
    ]
    trace = job_throughput_figure(points, [])["data"][0]
    gap = trace["y"].index(None)
    assert trace["x"][gap - 1 : gap + 1] == [3000, 83000]
    assert {*trace["y"]} == {9.0, None}
    assert len(trace["y"]) <= most + 2


def test_every_figure_fits_plotlys_own_schema() -> None:
    resize = ResizeMark(10.0, 9, 2, 1)
    points = [StepPoint(1.0, 1, 9.0, 1.0, 1.0), StepPoint(2.0, 2, 8.0, 1.0, 0.5)]
    figures = [
        _allocation_figure([Change(0.0, 1, "a", 1)], 4, 0.0, 9.0),
        cluster_throughput_figure([WorkSpan(1.0, 2.0, 64.0)], 0.0, 60.0, 5.0),
        loss_figure(points, [EpochPoint(0, 2, {"val_loss": 0.4})], [resize]),
        job_throughput_figure(points, [resize]),
        job_allocation_figure([resize], "--job-3", 0.0, 20.0),
        batch_figure(
            [dataclasses.replace(p, learning_rate=0.1) for p in points], [BatchChange(1, 8)]
        ),
    ]
    for figure in figures:
        # The page puts the style sheet's colours in the place of their names.
        drawn = json.loads(re.sub(r'"--[a-z0-9-]+"', '"#000000"', json.dumps(figure)))
        assert plotly.graph_objects.Figure(data=drawn["data"], layout=drawn["layout"]).data
