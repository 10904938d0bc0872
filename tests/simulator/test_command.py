"""manage.py simulate: its table, its files, its mistakes."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from controlplane.simulator.page import FIGURES


def run(*arguments: str) -> str:
    out = StringIO()
    call_command("simulate", *arguments, stdout=out, stderr=StringIO())
    return out.getvalue()


def test_table_json_and_page(tmp_path: Path) -> None:
    data, page = tmp_path / "report.json", tmp_path / "report.html"
    shown = run(
        "--workload", "synthetic", "--jobs", "8", "--nodes", "8", "--policy", "fifo",
        "--compare", "weighted_fair", "--json", str(data), "--page", str(page),
    )  # fmt: skip
    rows = [line.split() for line in shown.splitlines()]
    assert [row[0] for row in rows[:3]] == ["policy", "fifo", "weighted_fair"]
    reports = json.loads(data.read_text())
    assert [report["policy"] for report in reports] == ["fifo", "weighted_fair"]
    for report in reports:
        completion = [job["completion_s"] for job in report["jobs"]]
        assert len(completion) == 8
        assert report["mean_jct_s"] == pytest.approx(sum(completion) / 8)
    shown_once = {title for title, _, _ in FIGURES.values()}
    assert {"median", "90 %", "99 %", "median wait", "restarts per job"} <= shown_once
    assert all(title in shown for title in shown_once)
    assert max(map(len, shown.splitlines()[:-2])) <= 100
    text = page.read_text()
    assert all(f"<th>{title}</th>" in text for title in shown_once)
    assert "Plotly.newPlot" in text
    assert "<script src" not in text  # works without a network
    assert text.count('class="figure"') == 5
    assert "on 32 gpu." in text
    assert "<th>batch sizes</th><td>submitted</td><td>submitted</td>" in text


def test_a_workload_of_no_jobs_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.csv"
    path.write_text("timestamp,duration,num_gpus\n")
    with pytest.raises(CommandError, match="no job in it"):
        run("--workload", str(path), "--policy", "fifo")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--workload", "nowhere.csv"), "--workload"),
        (("--workload", "synthetic", "--kinds", "v100"), "--kinds"),
        (("--workload", "synthetic", "--resize-cost", "much"), "--resize-cost"),
        (("--workload", "synthetic", "--round", "0"), "--round"),
        (("--workload", "synthetic", "--jobs", "0"), "--jobs: give a positive number"),
        (("--workload", "synthetic", "--nodes", "-2"), "--nodes"),
        (("--workload", "synthetic", "--compare", "nonsense"), "--compare.*invalid choice"),
        (("--workload", "synthetic", "--page", "nowhere/x.html"), "--page: there is no folder"),
        (("--workload", "synthetic", "--json", "."), "--json: . is a folder"),
    ],
)
def test_mistakes_name_the_option(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(CommandError, match=message):
        run(*arguments, "--policy", "fifo")
