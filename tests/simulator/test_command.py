"""manage.py simulate: its table, its files, its mistakes."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command


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
    text = page.read_text()
    assert "Plotly.newPlot" in text
    assert "<script src" not in text  # works without a network
    assert text.count('class="figure"') == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--workload", "nowhere.csv"), "--workload"),
        (("--workload", "synthetic", "--kinds", "v100"), "--kinds"),
        (("--workload", "synthetic", "--resize-cost", "much"), "--resize-cost"),
        (("--workload", "synthetic", "--round", "0"), "--round"),
        (("--workload", "synthetic", "--jobs", "0"), "jobs"),
    ],
)
def test_mistakes_name_the_option(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(CommandError, match=message):
        run(*arguments, "--policy", "fifo")
