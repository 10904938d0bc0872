"""manage.py simulate: its table, its files, its mistakes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from controlplane.simulator import code_version
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
    lines = shown.splitlines()
    assert lines[:3] == [
        "workload: synthetic, 8 jobs",
        "resize cost: start 10 s, pause 0.8 s, growth 5 s, release 1 s",
        "seed: 0",
    ]
    assert lines[3] == f"version: {code_version()}"
    assert [line.split()[0] for line in lines[5:8]] == ["policy", "fifo", "weighted_fair"]
    reports = json.loads(data.read_text())
    assert [report["policy"] for report in reports] == ["fifo", "weighted_fair"]
    for report in reports:
        completion = [job["completion_s"] for job in report["jobs"]]
        assert len(completion) == 8
        settings = report["settings"]
        assert (settings["workload"], settings["seed"]) == ("synthetic, 8 jobs", 0)
        assert settings["version"] == code_version()
        assert settings["resize_cost"].startswith("start 10 s, pause 0.8 s")
        assert report["mean_jct_s"] == pytest.approx(sum(completion) / 8)
    shown_once = {title for title, _, _ in FIGURES.values()}
    assert {"median", "90 %", "99 %", "median wait", "restarts per job"} <= shown_once
    assert all(title in shown for title in shown_once)
    assert max(map(len, lines)) <= 100
    text = page.read_text()
    assert all(f"<th>{title}</th>" in text for title in shown_once)
    assert "Plotly.newPlot" in text
    assert "<script src" not in text  # works without a network
    assert text.count('class="figure"') == 5
    assert "on 32 gpu." in text
    assert "workload: synthetic, 8 jobs; resize cost: start 10 s, pause" in text
    assert "seed: 0" in text
    assert f"version: {code_version()}" in text
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
        (("--workload", "synthetic", "--resize-cost", "flat:nan"), "--resize-cost: give measured"),
        (("--workload", "synthetic", "--round", "0.5"), "--round: give at least 1 second"),
        (("--workload", "synthetic", "--seed", "-1"), "--seed: give a number from 0"),
        (("--workload", "synthetic", "--cluster", "none.yaml"), "--cluster: cannot read none.yaml"),
        (("--workload", "synthetic", "--kind-speeds", "none"), "--kind-speeds: cannot read none:"),
        (("--workload", "synthetic", "--jobs", "0"), "--jobs: give a positive number"),
        (("--workload", "synthetic", "--nodes", "-2"), "--nodes"),
        (("--workload", "synthetic", "--compare", "nonsense"), "--compare.*invalid choice"),
        (("--workload", "synthetic", "--page", "nowhere/x.html"), "--page: there is no folder"),
        (("--workload", "synthetic", "--json", "."), "--json: . is a folder"),
        (("--workload", "a.csv", "--json", "./a.csv"), "--json: --workload names that file, too"),
    ],
)
def test_mistakes_name_the_option(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(CommandError, match=message):
        run(*arguments, "--policy", "fifo")


ROOT = Path(__file__).resolve().parents[2]
SIMULATE = (sys.executable, "manage.py", "simulate")
TINY = ("--workload", "synthetic", "--jobs", "4", "--policy", "sia")


def bare(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command as in a fresh checkout: without any variable but the path."""
    return subprocess.run(
        [*SIMULATE, *arguments], cwd=ROOT, env={"PATH": os.environ["PATH"]}, timeout=120,
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_it_runs_without_any_environment_variable(tmp_path: Path) -> None:
    """The result alone is on standard output; progress on standard error is not red."""
    path = tmp_path / "report.json"
    done = bare(*TINY, "--force-color", "--json", str(path))
    assert done.returncode == 0, done.stderr
    version = json.loads(path.read_text())[0]["settings"]["version"]
    assert done.stdout.splitlines()[3:6] == [f"version: {version}", "", done.stdout.splitlines()[5]]
    assert done.stdout.splitlines()[-1].startswith("sia")
    assert "sia: 4 of 4 jobs" in done.stderr
    assert f"Wrote {path}" in done.stderr
    assert "\x1b[31" not in done.stderr


def test_the_help_shows_every_default() -> None:
    done = bare("--help")
    assert done.returncode == 0, done.stderr
    ours = done.stdout.partition("options:")[2].partition("--version")[0]
    options = re.split(r"\n  --", ours)[1:]
    assert len(options) == 21
    without = [text.split()[0] for text in options if "default: " not in " ".join(text.split())]
    assert without == ["workload", "policy"]  # both are required


def test_ctrl_c_ends_it_with_one_sentence() -> None:
    asked = [*SIMULATE, "--workload", "synthetic", "--profiles", ".", "--policy", "sia"]
    with subprocess.Popen(
        asked, cwd=ROOT, env={"PATH": os.environ["PATH"]}, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as running:  # fmt: skip
        assert running.stderr is not None
        note = running.stderr.readline()  # the workload is read
        running.send_signal(signal.SIGINT)
        out, rest = running.communicate(timeout=60)
    assert note.startswith("--profiles is not used")
    assert running.returncode == 130
    assert out == ""
    assert rest.endswith("\nStopped by Ctrl-C before the end.\n")
    assert "Traceback" not in rest
