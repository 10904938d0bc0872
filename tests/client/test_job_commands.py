"""Commands about submitted jobs, on a live site."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path

import pytest
from virtualflow.cli.common import ExitCode

from controlplane.core.expected_starts import ExpectedStart
from controlplane.core.values.lifecycle import JobStatus
from jobs.models import Job, Secret
from jobs.sealing import unseal
from jobs.selectors.policy_preview import Preview, StartChange
from jobs.services.lifecycle.search_rows import metric_values_write
from tests.client.conftest import Shell, Site
from tests.client.test_jobs import file_make
from tests.support.builders import job_make
from tests.support.rows import log_add


def test_ls_filters_and_limits(site: Site, logged_in: Shell) -> None:
    jobs = [job_make(site.ada, name=f"job {i}") for i in range(3)]
    job_make(site.ada, status=JobStatus.FAILED, name="other")
    ended = logged_in("ls", "--status", "waiting", "--name", "job", "--limit", "2")
    lines = [line.split("\t") for line in ended.out.splitlines()]
    assert lines[0][:3] == ["job", "name", "status"]
    assert [line[0] for line in lines[1:]] == [str(jobs[2].pk), str(jobs[1].pk)]
    assert "more than 2" in ended.err
    found = json.loads(logged_in("ls", "--search", f"#{jobs[0].pk}", "--json").out)
    assert [job["name"] for job in found] == ["job 0"]
    ended = logged_in("ls", "--after", "yesterday")
    assert (ended.code, "'--after'" in ended.err) == (ExitCode.USAGE, True)


def test_saved_filters_are_kept_used_and_deleted(site: Site, logged_in: Shell) -> None:
    wanted = [
        job_make(site.ada, name=f"cnn {number}", status=JobStatus.FAILED) for number in range(2)
    ]
    job_make(site.ada, name="cnn waits")
    job_make(site.ada, name="other", status=JobStatus.FAILED)
    ended = logged_in("filters", "save", "lost", "?status=failed&status=invalid&name=cnn")
    assert (ended.code, ended.out) == (0, "Filter lost is saved.\n")
    saved = json.loads(logged_in("filters", "save", "all", "order=name", "--json").out)
    assert (saved["name"], saved["query"]) == ("all", "order=name")
    listed = json.loads(logged_in("filters", "ls", "--json").out)
    assert [row["name"] for row in listed] == ["all", "lost"]
    assert "lost\tstatus=failed" in logged_in("filters", "ls").out

    def names(*options: str) -> list[str]:
        return [job["name"] for job in json.loads(logged_in("ls", *options, "--json").out)]

    assert names("--filter", "lost") == [job.name for job in reversed(wanted)]
    assert names("--filter", "lost", "--order", "name") == [job.name for job in wanted]
    assert names("--filter", "lost", "--status", "waiting") == ["cnn waits"]
    assert len(names("--filter", "all")) == 4

    ended = logged_in("filters", "save", "odd", "colour=red")
    assert (ended.code, "query: There is no filter" in ended.err) == (ExitCode.REFUSED, True)
    assert logged_in("filters", "rm", "all").code == 0
    for arguments in (("filters", "rm", "all"), ("ls", "--filter", "all")):
        ended = logged_in(*arguments)
        assert (ended.code, "use lost" in ended.err) == (ExitCode.USAGE, True)
    assert [row["name"] for row in json.loads(logged_in("filters", "ls", "--json").out)] == ["lost"]


@pytest.mark.parametrize(
    ("text", "value"),
    [("s3cr3t-key\n", "s3cr3t-key"), ("two\nlines\n\n", "two\nlines\n"), ("s3cr3t\r\n", "")],
)
def test_secrets_are_stored_listed_and_deleted(
    site: Site, logged_in: Shell, text: str, value: str
) -> None:
    ended = logged_in("secrets", "set", "S3_KEY", text=text)
    if not value:  # six characters are too few
        assert (ended.code, "value: Give text" in ended.err) == (ExitCode.REFUSED, True)
        return
    assert (ended.code, ended.out) == (0, "Secret S3_KEY is stored.\n")
    assert unseal(Secret.objects.get().sealed) == value
    listed = logged_in("secrets", "ls", "--json")
    assert [row["name"] for row in json.loads(listed.out)] == ["S3_KEY"]
    assert logged_in("secrets", "rm", "S3_KEY").code == 0
    assert json.loads(logged_in("secrets", "ls", "--json").out) == []
    assert logged_in("secrets", "rm", "S3_KEY").code == ExitCode.REFUSED


def test_a_secret_of_another_encoding_is_refused(site: Site, logged_in: Shell) -> None:
    ended = logged_in("secrets", "set", "S3_KEY", text="caf\ufffd 12345678")
    assert (ended.code, "UTF-8" in ended.err) == (ExitCode.USAGE, True)
    assert not Secret.objects.exists()


def test_show(site: Site, logged_in: Shell) -> None:
    job = job_make(site.ada, name="mine", step=40, settings={"units": 8}, metrics={"loss": 0.5},
                   facts={"warnings": ["few steps"]})  # fmt: skip
    file_make(job, "model.keras", b"weights")
    metric_values_write(job, {0: {"val_accuracy": 0.75}})
    metric_values_write(job, {1: {"val_accuracy": 0.5}})
    facts = dict(line.split("\t", 1) for line in logged_in("show", f"#{job.pk}").out.splitlines())
    assert facts["best metric"] == "val_accuracy 0.75 in epoch 1, now 0.5"
    assert facts["progress"] == "step 40 of 100"
    assert facts["validation warns"] == "few steps"
    assert (facts["settings.units"], facts["metrics.loss"]) == ("8", "0.5")
    assert facts["file model.keras"] == "7 bytes"
    assert json.loads(logged_in("show", job.pk, "--json").out)["name"] == "mine"


def test_logs(site: Site, logged_in: Shell) -> None:
    job = job_make(site.ada, status=JobStatus.FINISHED)
    log_add(job, "one\ntwo\n")
    assert logged_in("logs", job.pk, "--slot", "0").out == "one\ntwo\n"
    assert logged_in("logs", job.pk, "--slot", "0", "-f").out == "one\ntwo\n"
    assert logged_in("logs", job.pk, "--slot", "0", "--all").out == "one\ntwo\n"
    assert json.loads(logged_in("logs", job.pk, "--slot", "0", "--json").out)["text"]
    for option in ("-f", "--all", "--json"):
        assert logged_in("logs", job.pk, "--slot", "9", option).err == (
            "There is no text in this log.\n"
        )
    for options in (("-f", "--all"), ("-C", "1"), ("-f", "-C", "1")):
        assert logged_in("logs", job.pk, *options).code == ExitCode.USAGE
    assert logged_in("logs", job.pk, "--search", "TWO", "-C", "1").out == "0-0- one\n0:4: two\n"
    assert logged_in("logs", job.pk, "--level", "error").out == ""
    found = json.loads(logged_in("logs", job.pk, "--search", "two", "--json").out)
    ended = logged_in("logs", job.pk, "--search", "three")
    assert (ended.code, ended.out, ended.err) == (0, "", "No line matches.\n")
    assert (found["text"], found["before"]) == ("two", [])
    assert logged_in("logs", job.pk, "--search", "two", "--all").code == ExitCode.USAGE
    assert logged_in("logs", job.pk, "--level", "loud").code == ExitCode.REFUSED


def test_compare(site: Site, logged_in: Shell) -> None:
    one = job_make(site.ada, settings={"units": 8, "same": 1, "rate": 0.123451})
    two = job_make(site.ada, settings={"units": 16, "same": 1, "rate": 0.123452}, seed=3)
    metric_values_write(one, {0: {"loss": 0.5}})
    found = json.loads(logged_in("compare", one.pk, two.pk, "--json").out)
    assert [job["id"] for job in found["jobs"]] == [one.pk, two.pk]
    rates = [0.123451, 0.123452]
    assert found["settings"] == {
        "seed": [0, 3], "settings.units": [8, 16], "settings.rate": rates,
    }  # fmt: skip
    assert found["metrics"]["loss"]["best"] == [0.5, None]
    rows = [line.split("\t") for line in logged_in("compare", one.pk, two.pk).out.splitlines()]
    assert ["settings.units", "8", "16"] in rows
    assert ["settings.rate", *map(str, rates)] in rows
    assert f"settings.rate\t{rates[0]}" in logged_in("show", one.pk).out
    assert ["best loss", "0.5", "\N{EN DASH}"] in rows
    changes = ("--name", "third", "--set", "settings.units=32", "--json")
    third = json.loads(logged_in("clone", two.pk, *changes).out)
    assert (third["name"], third["seed"]) == ("third", 3)
    assert third["settings"] == {**two.settings, "units": 32}
    submitted = logged_in("ls").out.splitlines()[1].split("\t")[10]
    assert datetime.fromisoformat(submitted).tzinfo, "in a pipe also of today"
    assert json.loads(logged_in("ls", "--idle", "--json").out) == []
    for command in ("ls --owner=", "ls --tag=", "ls --filter=", "usage --project="):
        assert logged_in(*command.split()).code == ExitCode.USAGE
    assert logged_in("submit", "--template", "tabular", "--project=").code == ExitCode.USAGE
    assert logged_in("compare", one.pk, one.pk).code == ExitCode.USAGE
    assert logged_in("compare", *range(1, 52)).code == ExitCode.REFUSED  # by the site's limit


def test_tags(site: Site, logged_in: Shell) -> None:
    job, other = job_make(site.ada), job_make(site.ada)
    ended = logged_in("tag", job.pk, 999_999, "--add", "sweep")
    assert (ended.code, ended.out) == (ExitCode.REFUSED, "1 job tagged.\n")
    assert "Job 999999: There is no such job" in ended.err
    listed = json.loads(logged_in("ls", "--tag", "sweep", "--json").out)
    assert [row["id"] for row in listed] == [job.pk]
    assert len(json.loads(logged_in("ls", "--order", "-priority", "--json").out)) == 2
    assert logged_in("tag", job.pk, "--remove", "sweep").code == 0
    assert json.loads(logged_in("ls", "--tag", "sweep", "--json").out) == []
    for options in ((), ("--add", "a", "--add", "b"), ("--add", "a", "--remove", "b")):
        assert logged_in("tag", job.pk, *options).code == ExitCode.USAGE
    ended = logged_in("submit", "--template", "tabular", "--tag", "a", "--tag", "b", "--json")
    assert json.loads(ended.out)["tags"] == ["a", "b"]
    assert other.tags == []


def test_download(site: Site, logged_in: Shell, tmp_path: Path) -> None:
    job = job_make(site.ada)
    file_make(job, "model.keras", b"weights")
    file_make(job, "history.csv", b"epoch")
    to = tmp_path / "to"
    to.mkdir()
    paths = json.loads(logged_in("download", job.pk, "--to", to, "--json").out)
    assert {Path(path).read_bytes() for path in paths} == {b"weights", b"epoch"}
    ended = logged_in("download", job.pk, "model.keras", "--to", to)
    assert (ended.code, "--force" in ended.err) == (ExitCode.USAGE, True)
    assert logged_in("download", job.pk, "model.keras", "--to", to, "--force").code == 0
    assert logged_in("download", job.pk, "../../up", "--to", to).code == ExitCode.USAGE


def test_download_makes_the_folder(site: Site, logged_in: Shell, tmp_path: Path) -> None:
    job = job_make(site.ada)
    file_make(job, "model.keras", b"weights")
    new = tmp_path / "new"
    assert logged_in("download", job.pk, "no.such", "--to", new).code == ExitCode.REFUSED
    assert not new.exists()
    for to, path in {
        new / "a": new / "a" / "model.keras",
        new / "v1.2": new / "v1.2" / "model.keras",
        new / "b" / "best.keras": new / "b" / "best.keras",
    }.items():
        ended = logged_in("download", job.pk, "model.keras", "--to", to, "--json")
        assert (json.loads(ended.out), path.read_bytes()) == ([str(path)], b"weights")
    ended = logged_in("download", job.pk, "--to", new / "c.keras", "--json")
    assert json.loads(ended.out) == [str(new / "c.keras" / "model.keras")], "all: a folder"


def test_download_replaces_files_only(site: Site, logged_in: Shell, tmp_path: Path) -> None:
    job = job_make(site.ada)
    file_make(job, "model.keras", b"weights")
    pipe, text = tmp_path / "pipe.keras", tmp_path / "text"
    os.mkfifo(pipe)
    text.write_text("mine")
    for to in (pipe, text):
        ended = logged_in("download", job.pk, "model.keras", "--to", to, "--force")
        assert (ended.code, ended.out) == (ExitCode.USAGE, ""), ended.err
    assert (pipe.is_fifo(), text.read_text()) == (True, "mine")


def test_actions_on_several_jobs(site: Site, logged_in: Shell) -> None:
    one, two = job_make(site.ada).pk, job_make(site.ada).pk
    assert logged_in("pause", one, two, "--reason", "lunch").out.count("paused") == 2
    assert logged_in("resume", one, two, "--reason", "back").out.count("pending") == 2
    ended = logged_in("reprioritise", one, two, "--priority", "7", "--json")
    assert [job["priority"] for job in json.loads(ended.out)] == [7, 7]
    told = logged_in("reprioritise", one, two, "--tier", "idle")
    assert told.out.count("idle, priority 7") == 2
    listed = json.loads(logged_in("ls", "--tier", "idle", "--order=-tier", "--json").out)
    assert {job["id"] for job in listed} == {one, two}
    told = logged_in("reprioritise", one, "--tier", "normal", "--preview")
    assert (told.code, told.out) == (0, "No accelerators would change now.\n")
    assert (
        json.loads(logged_in("reprioritise", one, "--priority", 5, "--preview", "--json").out)[
            "moves"
        ]
        == []
    )
    assert logged_in("reprioritise", one).code == ExitCode.USAGE
    assert logged_in("reprioritise", one, "--tier", "urgent").code == ExitCode.REFUSED
    several = ("reprioritise", "--set", f"{one}=8", "--set", f"#{two}=normal:9")
    assert logged_in(*several, "--preview").out == "No accelerators would change now.\n"
    assert logged_in(*several).out == f"Job {one}: changed\nJob {two}: changed\n"
    answer = json.loads(logged_in(*several, "--json").out)
    assert [row["changed"] for row in answer["results"]] == [False, False]
    ended = logged_in("reprioritise", "--set", f"{one}=5", "--set", "999999=idle")
    assert (ended.code, ended.out) == (ExitCode.REFUSED, "")
    assert "Job 999999: There is no such job" in ended.err
    rows = Job.objects.filter(pk__in=[one, two]).order_by("pk")
    assert [*rows.values_list("tier", "priority")] == [("idle", 8), ("normal", 9)]
    for wrong in ("7", "7=", "7=royal", "7=idle:", "7=idle5", "7=:5", "=5", "x=5", "7=5:idle"):
        assert logged_in("reprioritise", "--set", wrong).code == ExitCode.USAGE, wrong
    assert logged_in("reprioritise", one, *several[1:]).code == ExitCode.USAGE
    assert logged_in("reprioritise", "--priority", 5, *several[1:]).code == ExitCode.USAGE
    ended = logged_in("cancel", one, 999_999, two)
    assert (ended.code, ended.out.count("cancelled")) == (ExitCode.REFUSED, 2)
    assert "Job 999999:" in ended.err
    ended = logged_in("reprioritise", two, "--priority", "5000")
    assert (ended.code, "priority: " in ended.err) == (ExitCode.REFUSED, True)


def test_a_preview_tells_starts(
    site: Site, logged_in: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_make(site.ada)
    change = StartChange(job, ExpectedStart(600.0, 1200.0), None)
    monkeypatch.setattr(
        "jobs.api.jobs.action_views.reprioritise_preview", lambda *_: Preview([], [change])
    )
    told = logged_in("reprioritise", job.pk, "--priority", 5, "--preview").out.splitlines()
    assert told == [
        "No accelerators would change now.",
        f"Job {job.pk} (a job): expected start in 10 min 0 s to 20 min 0 s → not known",
    ]
