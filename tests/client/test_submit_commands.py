"""Submissions, sweeps and watching, by the command line on a live site."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from virtualflow import Client
from virtualflow.answers import Validation
from virtualflow.cli.common import ExitCode
from virtualflow.credentials import SERVER_VARIABLE, TOKEN_VARIABLE

from controlplane.core.values.lifecycle import JobStatus
from jobs.models import Job, Sweep
from tests.client.conftest import SPEC, Shell, Site, nodes_now, played_to_the_end, wait_until
from tests.client.scripted_site import Answer, scripted_site
from tests.support.builders import START, job_make, steps_add


def test_submit_and_watch_until_the_end(
    site: Site, logged_in: Shell, spec: Path, code: Path
) -> None:
    world = nodes_now()

    def play() -> None:
        wait_until(Job.objects.exists)
        played_to_the_end(world, Job.objects.get())

    with site.meanwhile(play):
        ended = logged_in("submit", spec, "--code", code, "--set", "stop.limit=100", "--watch")
    job = Job.objects.get()
    assert (ended.code, job.status, job.stop_limit) == (0, "finished", 100)
    lines = ended.out.splitlines()
    assert lines[-1] == "loss\t0.25"
    assert f"#{job.pk} finished" in lines[-2]
    assert f"Job {job.pk} is submitted." in ended.err


def test_watch_as_json_lines(site: Site, logged_in: Shell) -> None:
    world = nodes_now()
    job = job_make(site.ada, submitted_at=world.now)
    with site.meanwhile(lambda: played_to_the_end(world, job)):
        ended = logged_in("watch", job.pk, "--json")
    seen = [json.loads(line) for line in ended.out.splitlines()]
    assert (ended.code, seen[-1]["status"], ended.err) == (0, "finished", "")


@pytest.mark.parametrize("width", [40, 80, 140])
def test_watch_on_a_terminal_fits(
    site: Site, logged_in: Shell, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    job = job_make(site.ada, status=JobStatus.RUNNING, step=40, examples_per_s=10.0, loss=0.5,
                   throughput_by_count={"2": 10.0}, facts={"warnings": ["few"]})  # fmt: skip
    steps_add(job)

    def watch(client: Client, job_id: int, **_options: object) -> Iterator[Any]:
        yield client.job(job_id)
        Job.objects.filter(id=job_id).update(status="finished", ended_at=START)
        yield client.job(job_id)

    monkeypatch.setattr(Client, "watch", watch)
    ended = logged_in("watch", job.pk)
    assert ended.code == ExitCode.FINE
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", ended.out)
    bars = [line for line in shown.replace("\r", "\n").splitlines() if "%" in line]
    assert bars
    assert max(map(len, bars)) <= width
    assert any(f"#{job.pk} running" in line and "40%" in line for line in bars), bars
    assert (" to " in bars[0]) == (width >= 75)
    assert shown.count("Warning: few") == 1


@pytest.mark.parametrize("status", [JobStatus.FAILED, JobStatus.INVALID, JobStatus.CANCELLED])
def test_a_job_that_went_wrong_is_exit_code_1(
    site: Site, logged_in: Shell, status: JobStatus
) -> None:
    facts = {"warnings": ["few"]}
    job = job_make(site.ada, status=status, error_traceback="ValueError: no data", facts=facts)
    ended = logged_in("watch", job.pk)
    assert (ended.code, "ValueError: no data" in ended.err) == (ExitCode.JOB_FAILED, True)
    assert ended.err.startswith("Warning: few\n")


def test_a_watch_may_end_earlier_than_the_job(site: Site, logged_in: Shell) -> None:
    job = job_make(site.ada)
    ended = logged_in("watch", job.pk, "--timeout", "0.1")
    assert (ended.code, "it goes on" in ended.err) == (ExitCode.TIMED_OUT, True)


def test_ctrl_c_leaves_the_job_alone(
    site: Site, logged_in: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(client: Client, job_id: int, **_options: object) -> Iterator[Any]:
        yield client.job(job_id)
        raise KeyboardInterrupt

    job = job_make(site.ada)
    monkeypatch.setattr(Client, "watch", interrupt)
    ended = logged_in("watch", job.pk)
    assert ended.code == ExitCode.INTERRUPTED
    assert f"job {job.pk} goes on" in ended.err


def test_a_dry_run(site: Site, logged_in: Shell, spec: Path, code: Path) -> None:
    ended = logged_in("submit", spec, "--code", code, "--dry-run")
    assert (ended.code, ended.out.splitlines()[0]) == (0, "It would wait.")
    assert json.loads(logged_in("submit", code, "--dry-run", "--json", "--template", "tabular").out)
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    ("status", "code"), [("passed", ExitCode.FINE), ("failed", ExitCode.JOB_FAILED)]
)
def test_a_validation_is_waited_for(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, status: str, code: ExitCode
) -> None:
    running = dict.fromkeys(Validation.__annotations__) | {"id": 7, "status": "running"}
    facts = {"warnings": ["no setting 'widht' is read"]}
    over = running | {
        "status": status, "text": "It is over.", "error_traceback": "E", "facts": facts
    }  # fmt: skip
    with scripted_site(Answer(202, running), Answer(200, running), Answer(200, over)) as site:
        monkeypatch.setenv(SERVER_VARIABLE, site.address)
        monkeypatch.setenv(TOKEN_VARIABLE, "vfp_x")
        ended = shell("validate", "--template", "tabular", "--set", "seed=3")
    assert json.loads(site.asked[0].body) == {"template": "tabular", "seed": 3}
    assert [one.path.partition("?")[2] for one in site.asked] == ["", *["wait=25.000"] * 2]
    assert (ended.code, ended.out) == (code, f"Validation 7 {status}. It is over.\n")
    assert ended.err == "Warning: no setting 'widht' is read\nE\n"


def test_clones_have_the_code_of_a_file(site: Site, logged_in: Shell, code: Path) -> None:
    job = job_make(site.ada)
    code.write_text(code.read_text() + "# other")
    ended = logged_in("clone", job.pk, "--code", code, "--set", "settings.a=[1]", "--json")
    clone = Job.objects.get(pk=json.loads(ended.out)["id"])
    assert (clone.code.read(), clone.code_name) == (code.read_bytes(), code.name)
    assert clone.settings == {"a": [1]}


def test_a_template_with_settings_and_a_key(site: Site, logged_in: Shell) -> None:
    arguments = ("submit", "--template", "tabular", "--name", "mine", "--key", "once", "--json",
                 "--set", "settings.dropout=0.1")  # fmt: skip
    first, second = (json.loads(logged_in(*arguments).out) for _ in range(2))
    assert (first["id"], first["name"]) == (second["id"], "mine")
    assert first["settings"]["dropout"] == 0.1
    ended = logged_in("submit", "--template", "tabular", "--set", "code=train.py")
    assert (ended.code, "see --help" in ended.err) == (ExitCode.USAGE, True)


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        (("priority=1000",), ExitCode.REFUSED, ("priority:",)),
        (("seed=-1", "bogus=2"), ExitCode.REFUSED, ("seed: Give", "bogus: There is no such")),
        (("stop.kind=never",), ExitCode.REFUSED, ("stop_kind: Choose one of",)),
        (("settings=5",), ExitCode.REFUSED, ("settings:",)),
        (("priority",), ExitCode.USAGE, ("KEY=VALUE",)),
        (("=5",), ExitCode.USAGE, ("KEY=VALUE",)),
        (("name=\udcff",), ExitCode.USAGE, ("UTF-8",)),
        (("seed=" + "9" * 5000,), ExitCode.REFUSED, ("seed: Give",)),
        (
            ("settings.dropuot=" + "[" * 5000,),
            ExitCode.REFUSED,
            ("no setting dropuot; use dropout",),
        ),
    ],
)
def test_errors_of_a_submission_name_the_field(
    logged_in: Shell, code: ExitCode, changes: tuple[str, ...], words: tuple[str, ...]
) -> None:
    given = [part for change in changes for part in ("--set", change)]
    ended = logged_in("submit", "--template", "tabular", "--dry-run", *given)
    assert ended.code == code
    for word in words:
        assert word in ended.err


def test_a_sweep(site: Site, logged_in: Shell, code: Path, tmp_path: Path) -> None:
    spec = tmp_path / "sweep.yaml"
    spec.write_text(
        SPEC + "sweep:\n  max_running: 2\n  space: {units: [8, 16, 32], word: [كلمة]}\n"
    )
    ended = logged_in("sweep", spec, "--code", code, "--dry-run")
    assert (ended.code, ended.out.splitlines()[:2]) == (
        0, ["3 jobs, 2 at once:", '  units=8, word="كلمة"'],
    )  # fmt: skip
    assert not Job.objects.exists()
    made = json.loads(logged_in("sweep", spec, "--code", code, "--json").out)
    assert (made["num_jobs"], made["max_running"]) == (3, 2)
    listed = json.loads(logged_in("ls", "--sweep", made["id"], "--json").out)
    assert {job["sweep"] for job in listed} == {made["id"]}
    assert len(listed) == 3
    ended = logged_in("sweeps", "--json")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)[0]["id"] == made["id"]
    assert "3 validating" in logged_in("sweeps").out
    ended = logged_in("sweeps", made["id"], "--at-once", "1", "--pause")
    assert ended.code == 0, ended.err
    assert "paused" in ended.out
    assert Sweep.objects.get().max_running == 1
    ended = logged_in("sweeps", made["id"], "--resume", "--cancel")
    assert (ended.code, "Give one of" in ended.err) == (ExitCode.USAGE, True)
    assert "3 cancelled" in logged_in("sweeps", made["id"], "--cancel").out
    options = ("--over", "units=[1,2]", "--draws", "1", "--seed", "3", "--at-once", "1")
    made = json.loads(logged_in("sweep", code, *options, "--set", "name=a", "--set",
                                "global_batch_size=8", "--set", "stop.kind=steps", "--set",
                                "stop.limit=5", "--json").out)  # fmt: skip
    assert (made["num_jobs"], made["num_draws"], made["seed"]) == (1, 1, 3)
    for without_values in ((code, "--over", "units=8"), (code,), ("--template", "digits_cnn")):
        assert logged_in("sweep", *without_values).code == ExitCode.USAGE
    ended = logged_in("sweep", "--template", "digits_cnn", "--over", "units=[]")
    assert (ended.code, "sweep.space" in ended.err) == (ExitCode.REFUSED, True)
