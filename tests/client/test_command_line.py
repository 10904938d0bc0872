"""The command line on a live site: every command, for people, pipes and programs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone
from virtualflow import Client
from virtualflow.cli.exit_codes import ExitCode
from virtualflow.cli.main import cli
from virtualflow.credentials import SERVER_VARIABLE, TOKEN_VARIABLE, credentials_path

from controlplane.core.expected_starts import ExpectedStart
from controlplane.core.values.lifecycle import JobStatus
from jobs.models import Job, Node, Project, ProjectMembership, Replay, ReplayStatus, Sweep
from jobs.selectors.policy_preview import Preview, StartChange
from jobs.services.lifecycle.search_rows import metric_values_write
from tests.client.conftest import Shell, Site, nodes_now, played_to_the_end, wait_until
from tests.client.scripted_site import Answer, problem, scripted_site
from tests.client.test_jobs import SPEC, file_make, log_add
from tests.support.builders import CODE, START, job_make, steps_add
from tests.test_docs import ROOT

#: A name that would clear the screen, ring, set the title, and turn the reading direction.
HOSTILE = "a\x1b[2J\x07\x1b]0;x\x07\u202eb\x9b31m[red]c"
HARMFUL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(SPEC)
    return path


@pytest.fixture
def code(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_bytes(CODE)
    return path


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("virtualflow.transport._FIRST_PAUSE_S", 0.0)


# --- login ---------------------------------------------------------------------------------------


def test_login_keeps_the_token_for_its_owner_alone(site: Site, shell: Shell) -> None:
    ended = shell("login", site.address, text=site.token(site.ada) + "\n")
    assert (ended.code, ended.out) == (0, f"Logged in at {site.address} as ada.\n")
    assert site.token(site.ada) not in ended.out + ended.err
    path = credentials_path()
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert [child.name for child in path.parent.iterdir()] == [path.name]
    assert shell("ls").code == ExitCode.FINE
    path.chmod(0o640)
    ended = shell("ls")
    assert (ended.code, "chmod 600" in ended.err) == (ExitCode.USAGE, True)
    path.chmod(0o600)
    assert json.loads(shell("logout", "--json").out) == {"forgotten": True}
    ended = shell("ls")
    assert (ended.code, "virtualflow login" in ended.err) == (ExitCode.USAGE, True)


def test_the_environment_wins(site: Site, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell("login", site.address, text=site.token(site.ada))
    job_make(site.ada)
    monkeypatch.setenv(TOKEN_VARIABLE, site.token(site.admin))
    job_make(site.admin)
    assert len(json.loads(shell("ls", "--json").out)) == 2


def test_a_stored_token_goes_to_its_own_site_alone(
    site: Site, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell("login", site.address, text=site.token(site.ada))
    with scripted_site(Answer(200, {"results": []})) as other:
        monkeypatch.setenv(SERVER_VARIABLE, other.address)
        ended = shell("ls")
        assert (ended.code, other.asked) == (ExitCode.USAGE, [])
        assert "token: Run `virtualflow login`" in ended.err


@pytest.mark.parametrize("content", ["", "{", "[]", '{"server": 7, "token": "x"}', "\x00" * 10])
def test_a_damaged_file_says_what_to_do(shell: Shell, content: str) -> None:
    path = credentials_path()
    path.parent.mkdir(parents=True)
    path.write_text(content)
    path.chmod(0o600)
    ended = shell("ls")
    assert (ended.code, "virtualflow login" in ended.err) == (ExitCode.USAGE, True)


def test_a_wrong_token_is_not_stored(site: Site, shell: Shell) -> None:
    ended = shell("login", site.address, text="vfp_invented")
    assert ended.code == ExitCode.REFUSED
    assert "account page" in ended.err
    assert "vfp_invented" not in ended.out + ended.err
    assert not credentials_path().exists()


@pytest.mark.usefixtures("no_pauses")
def test_a_token_on_an_open_network_is_warned_of(shell: Shell) -> None:
    ended = shell("login", "http://127.1.1.1:9", text="vfp_x")
    assert "not encrypted" in ended.err


# --- submit, watch -------------------------------------------------------------------------------


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
                   throughput_by_count={"2": 10.0})  # fmt: skip
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


@pytest.mark.parametrize("status", [JobStatus.FAILED, JobStatus.INVALID, JobStatus.CANCELLED])
def test_a_job_that_went_wrong_is_exit_code_1(
    site: Site, logged_in: Shell, status: JobStatus
) -> None:
    job = job_make(site.ada, status=status, error_traceback="ValueError: no data")
    ended = logged_in("watch", job.pk)
    assert (ended.code, "ValueError: no data" in ended.err) == (ExitCode.JOB_FAILED, True)


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


def test_a_template_with_settings_and_a_key(site: Site, logged_in: Shell) -> None:
    arguments = ("submit", "--template", "tabular", "--name", "mine", "--key", "once", "--json",
                 "--set", "settings.text=abc", "--set", "settings.number=5")  # fmt: skip
    first, second = (json.loads(logged_in(*arguments).out) for _ in range(2))
    assert (first["id"], first["name"]) == (second["id"], "mine")
    assert (first["settings"]["text"], first["settings"]["number"]) == ("abc", 5)


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
        (("settings.a=" + "[" * 5000,), ExitCode.FINE, ()),
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


# --- the other commands --------------------------------------------------------------------------


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
    assert (ended.code, "submitted_after:" in ended.err) == (ExitCode.REFUSED, True)


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


@pytest.mark.parametrize("width", [40, 160])
def test_tables_fit_the_terminal(
    site: Site, logged_in: Shell, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    job_make(site.ada, name="a long name " * 8)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    shown = re.sub(r"\x1b\[[0-9;?]*m", "", logged_in("ls").out)
    assert max(map(len, shown.splitlines())) <= width
    assert ("priority" in shown, "submitted" in shown) == (width >= 80, width >= 100)


@pytest.mark.parametrize("is_terminal", [False, True])
def test_text_of_others_moves_no_cursor(
    site: Site, logged_in: Shell, monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    if is_terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("COLUMNS", "400")
    job = job_make(
        site.ada, status=JobStatus.FAILED, name=HOSTILE, status_reason=HOSTILE,
        settings={HOSTILE: HOSTILE}, metrics={HOSTILE: 1.0}, error_traceback=HOSTILE,
    )  # fmt: skip
    other = job_make(site.ada, name=HOSTILE)
    log_add(job, f"one\n{HOSTILE}\n")
    for arguments in (
        ("ls",), ("show", job.pk), ("watch", job.pk), ("logs", job.pk),
        ("compare", job.pk, other.pk), ("cancel", job.pk),
    ):  # fmt: skip
        ended = logged_in(*arguments)
        styles = r"\x1b\[[0-9;]*m|\x1b\[\?25[hl]|\x1b\[2K|\x1b\[1A|\r" if is_terminal else r"^$"
        shown = re.sub(styles, "", ended.out + ended.err)
        assert not HARMFUL.search(shown), arguments
        if arguments[0] != "cancel":
            assert "[red]c" in shown, arguments


def test_show(site: Site, logged_in: Shell) -> None:
    job = job_make(site.ada, name="mine", step=40, settings={"units": 8}, metrics={"loss": 0.5})
    file_make(job, "model.keras", b"weights")
    metric_values_write(job, 0, {"val_accuracy": 0.75})
    metric_values_write(job, 1, {"val_accuracy": 0.5})
    facts = dict(line.split("\t", 1) for line in logged_in("show", f"#{job.pk}").out.splitlines())
    assert facts["best metric"] == "val_accuracy 0.75 in epoch 1, now 0.5"
    assert facts["progress"] == "step 40 of 100"
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
    assert logged_in("logs", job.pk, "-f", "--all").code == ExitCode.USAGE
    assert logged_in("logs", job.pk, "--search", "TWO", "-C", "1").out == "0-0- one\n0:4: two\n"
    assert logged_in("logs", job.pk, "--level", "error").out == ""
    found = json.loads(logged_in("logs", job.pk, "--search", "two", "--json").out)
    assert (found["text"], found["before"]) == ("two", [])
    assert logged_in("logs", job.pk, "--search", "two", "--all").code == ExitCode.USAGE
    assert logged_in("logs", job.pk, "--level", "loud").code == ExitCode.REFUSED


def test_compare(site: Site, logged_in: Shell) -> None:
    one = job_make(site.ada, settings={"units": 8, "same": 1})
    two = job_make(site.ada, settings={"units": 16, "same": 1}, seed=3)
    metric_values_write(one, 0, {"loss": 0.5})
    found = json.loads(logged_in("compare", one.pk, two.pk, "--json").out)
    assert [job["id"] for job in found["jobs"]] == [one.pk, two.pk]
    assert found["settings"] == {"seed": [0, 3], "settings.units": [8, 16]}
    assert found["metrics"]["loss"]["best"] == [0.5, None]
    rows = [line.split("\t") for line in logged_in("compare", one.pk, two.pk).out.splitlines()]
    assert ["settings.units", "8", "16"] in rows
    assert ["best loss", "0.5", "\N{EN DASH}"] in rows
    assert logged_in("compare", one.pk, one.pk).code == ExitCode.USAGE


def test_tags(site: Site, logged_in: Shell) -> None:
    job, other = job_make(site.ada), job_make(site.ada)
    ended = logged_in("tag", job.pk, 999_999, "--add", "sweep")
    assert (ended.code, ended.out) == (ExitCode.REFUSED, "1 jobs tagged.\n")
    assert "Job 999999: There is no such job" in ended.err
    listed = json.loads(logged_in("ls", "--tag", "sweep", "--json").out)
    assert [row["id"] for row in listed] == [job.pk]
    assert len(json.loads(logged_in("ls", "--order", "-priority", "--json").out)) == 2
    assert logged_in("tag", job.pk, "--remove", "sweep").code == 0
    assert json.loads(logged_in("ls", "--tag", "sweep", "--json").out) == []
    assert logged_in("tag", job.pk).code == ExitCode.USAGE
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


def test_actions_on_several_jobs(site: Site, logged_in: Shell) -> None:
    one, two = job_make(site.ada).pk, job_make(site.ada).pk
    assert logged_in("pause", one, two, "--reason", "lunch").out.count("paused") == 2
    assert logged_in("resume", one, two).out.count("pending") == 2
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


def test_nodes_and_drain(site: Site, logged_in: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes_now()
    rows = [line.split("\t") for line in logged_in("nodes").out.splitlines()]
    assert [row[:3] for row in rows[1:]] == [[f"played{i}", "online", "2 cpu"] for i in range(2)]
    assert logged_in("drain", "played0").code == ExitCode.REFUSED
    monkeypatch.setenv(TOKEN_VARIABLE, site.token(site.admin))
    ended = logged_in("drain", "nowhere")
    assert (ended.code, "played0, played1" in ended.err) == (ExitCode.USAGE, True)
    told = json.loads(logged_in("cordon", "played0", "--reason", "disk", "--json").out)
    assert (told["is_cordoned"], told["is_draining"]) == (True, False)
    assert "its jobs move away" in logged_in("drain", "played0").out
    assert Node.objects.get(name="played0").is_draining
    assert "takes work again" in logged_in("uncordon", "played0").out
    assert not Node.objects.get(name="played0").is_cordoned


def test_maintenance(site: Site, logged_in: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes_now()
    start = datetime.now(UTC) + timedelta(hours=2)
    times = ("--starts", start.isoformat(), "--ends", (start + timedelta(hours=1)).isoformat())
    plan = ("nodes", "window", "plan")
    assert len(logged_in("nodes", "window", "ls").out.splitlines()) == 1
    assert logged_in(*plan, "played0", *times, "--reason", "disk").code == ExitCode.REFUSED
    monkeypatch.setenv(TOKEN_VARIABLE, site.token(site.admin))
    assert logged_in(*plan, "played0", *times).code == ExitCode.USAGE
    preview = json.loads(logged_in(*plan, "played0", "--dry-run", "--json").out)
    assert preview["change"] == "maintenance"
    ended = logged_in(*plan, "played0", "played1", *times, "--reason", "disk", "--json")
    first, second = json.loads(ended.out)
    assert [first["node_name"], second["node_name"]] == ["played0", "played1"]
    ended = logged_in(*plan, "played0", *times, "--reason", "again")
    assert (ended.code, "nodes: played0 has maintenance" in ended.err) == (ExitCode.REFUSED, True)
    assert "from " in logged_in("nodes").out.splitlines()[1]
    assert "cancelled" in logged_in("nodes", "window", "cancel", first["id"]).out
    (left,) = json.loads(logged_in("nodes", "window", "ls", "--json").out)
    assert left == second


def test_users(site: Site, logged_in: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    assert logged_in("users").code == ExitCode.REFUSED
    assert logged_in("users", "--factor", "2").code == ExitCode.USAGE
    monkeypatch.setenv(TOKEN_VARIABLE, site.token(site.admin))
    rows = [line.split("\t") for line in logged_in("users").out.splitlines()]
    assert [row[0] for row in rows] == ["user", "admin", "ada"]
    options = ("--factor", "2", "--ceiling", "300", "--storage-gib", "1.5", "--inactive")
    row = logged_in("users", "ada", *options).out.splitlines()[1].split("\t")
    assert row[:8] == ["ada", "no", "no", "300", "normal", "2", "0 of 1000", "0.00 of 1.5"]
    changed = json.loads(logged_in("users", "ada", "--reset", "--active", "--json").out)
    assert (changed["share_factor"], changed["is_active"], changed["chosen"]) == (1.0, True, [])
    ended = logged_in("users", "ada", "--factor", "11")
    assert (ended.code, "share_factor: " in ended.err) == (ExitCode.REFUSED, True)


def test_projects_and_usage(site: Site, logged_in: Shell) -> None:
    now = timezone.now()
    vision = Project.objects.create(
        name="vision", guaranteed=2, limit_by_kind={"t4": 3}, created_at=now
    )
    assert logged_in("projects", "vision").code == ExitCode.USAGE
    ProjectMembership.objects.create(project=vision, user=site.ada, role="operator", since=now)
    rows = [line.split("\t") for line in logged_in("projects").out.splitlines()]
    assert rows[1] == ["vision", "0", "2", "none, of t4 3", "0", "0", "0", "operator"]
    rows = [line.split("\t") for line in logged_in("projects", "vision").out.splitlines()]
    assert ["t4", "0", "0", "3", "0"] in rows
    assert ["ada", "operator"] in [row[:2] for row in rows]
    ended = logged_in("projects", "speech")
    assert (ended.code, "use vision" in ended.err) == (ExitCode.USAGE, True)
    ended = logged_in("submit", "--template", "tabular", "--project", "vision", "--json")
    assert json.loads(ended.out)["project"] == "vision"
    listed = json.loads(logged_in("ls", "--project", "vision", "--json").out)
    assert [job["project"] for job in listed] == ["vision"]
    assert json.loads(logged_in("usage", "--by", "user", "--json").out)["rows"] == []
    lines = logged_in("usage", "--csv").out.splitlines()
    assert lines[0].startswith("name,accelerator-hours,")
    assert lines[-1].startswith("all jobs,0.00,")


def test_templates(logged_in: Shell) -> None:
    assert "tabular" in logged_in("templates").out
    assert json.loads(logged_in("templates", "--json").out)[0]["name"]


FIGURES = {"mean_jct_s": 1234.5, "utilisation": 0.5, "resizes_per_job": 1.5}


@pytest.mark.parametrize("status", [ReplayStatus.DONE, ReplayStatus.FAILED])
def test_simulate(
    site: Site, logged_in: Shell, monkeypatch: pytest.MonkeyPatch, status: ReplayStatus
) -> None:
    nodes_now()
    monkeypatch.setenv(TOKEN_VARIABLE, site.token(site.admin))
    result = {"recorded": FIGURES, "as_is": FIGURES, "changed": {}, "as_is_policy": "fifo"}

    def answer() -> None:
        Replay.objects.update(status=status, result=result, error="It is stuck.")

    monkeypatch.setattr("jobs.services.cluster.replays.nudges.replay_asked", answer)
    ended = logged_in("simulate", "priority", "--accelerators", "cpu=8", "--hours", "2")
    assert Replay.objects.get().accelerators == {"cpu": 8}
    if status == ReplayStatus.DONE:
        rows = [line.split("\t") for line in ended.out.splitlines()]
        assert rows[0][1:] == ["recorded", "replayed as it was (fifo)", "with priority"]
        assert rows[1] == ["mean completion time", "1,234 s", "1,234 s", "\N{EN DASH}"]
    else:
        assert (ended.code, "It is stuck." in ended.err) == (ExitCode.JOB_FAILED, True)


def test_simulate_scenarios_side_by_side(
    site: Site, logged_in: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three over one history, as a table and as JSON; one of them fails the second time."""
    nodes_now()
    monkeypatch.setenv(TOKEN_VARIABLE, site.token(site.admin))

    def answer() -> None:
        for replay in Replay.objects.filter(result={}):
            changed = {**FIGURES, "mean_jct_s": 1000.0 * replay.pk}
            replay.result = {"recorded": FIGURES, "as_is": FIGURES, "changed": changed,
                             "num_jobs": 3, "as_is_policy": "fifo",
                             "as_is_accelerators": {"cpu": 4}}  # fmt: skip
            replay.status = ReplayStatus.DONE
            replay.save()

    monkeypatch.setattr("jobs.services.cluster.replays.nudges.replay_asked", answer)
    command = ("simulate", "priority", "--scenario", "sia,cpu=8", "--scenario", "fifo")
    ended = logged_in(*command)
    assert ended.code == 0, ended.err
    rows = [line.split("\t") for line in ended.out.splitlines()]
    told = ["recorded", "replayed as it was (fifo)"]
    assert rows[0][1:4] == [*told, "with priority"]
    assert [row.policy for row in Replay.objects.order_by("pk")] == ["priority", "sia", "fifo"]
    assert "with sia, 8 cpu" in rows[0]
    means = [f"{1000 * row.pk:,} s" for row in Replay.objects.order_by("pk")]
    assert rows[1] == ["Mean completion time", "1,234 s", "1,234 s", *means]
    found = json.loads(logged_in(*command, "--json").out)
    assert len(found["scenarios"]) == 3
    assert found["rows"][0]["name"] == "mean_jct_s"
    monkeypatch.setattr(
        "jobs.services.cluster.replays.nudges.replay_asked",
        lambda: Replay.objects.filter(result={}).update(
            status=ReplayStatus.FAILED, error="It is stuck."
        ),
    )
    ended = logged_in(*command)
    assert (ended.code, ended.err.count("It is stuck.")) == (ExitCode.JOB_FAILED, 3)
    ended = logged_in(*command, "--scenario", "fifo", "--scenario", "sia")
    assert (ended.code, "1 to 4 scenarios" in ended.err) == (ExitCode.REFUSED, True)


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


def test_a_sweep(site: Site, logged_in: Shell, code: Path, tmp_path: Path) -> None:
    spec = tmp_path / "sweep.yaml"
    spec.write_text(
        SPEC + "sweep:\n  max_running: 2\n  space: {units: [8, 16, 32], deep: [true]}\n"
    )
    ended = logged_in("sweep", spec, "--code", code, "--dry-run")
    assert (ended.code, ended.out.splitlines()[:2]) == (
        0, ["3 jobs, 2 at once:", "  deep=true, units=8"],
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
    assert "3 cancelled" in logged_in("sweeps", made["id"], "--cancel").out
    options = ("--over", "units=[1,2]", "--draws", "1", "--seed", "3", "--at-once", "1")
    made = json.loads(logged_in("sweep", code, *options, "--set", "name=a", "--set",
                                "global_batch_size=8", "--set", "stop.kind=steps", "--set",
                                "stop.limit=5", "--json").out)  # fmt: skip
    assert (made["num_jobs"], made["num_draws"], made["seed"]) == (1, 1, 3)
    assert logged_in("sweep", code, "--over", "units=8").code == ExitCode.USAGE
    ended = logged_in("sweep", "--template", "digits_cnn", "--over", "units=[]")
    assert (ended.code, "sweep.space" in ended.err) == (ExitCode.REFUSED, True)


@pytest.mark.parametrize("size", ["cpu", "cpu=", "=3", "cpu=-1", "cpu=x", "cpu=1e9"])
def test_a_wrong_size_of_a_cluster(logged_in: Shell, size: str) -> None:
    for option, text in (("--accelerators", size), ("--scenario", f"fifo,{size}")):
        ended = logged_in("simulate", "fifo", option, text)
        assert (ended.code, "KIND=NUMBER" in ended.err) == (ExitCode.USAGE, True)


# --- all commands --------------------------------------------------------------------------------


#: Arguments with which each command reaches the site.
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "submit": ("--template", "tabular"), "fork": (1, "--now"),
    "watch": (1,), "logs": (1,), "show": (1,), "download": (1,), "compare": (1, 2),
    "cancel": (1,), "pause": (1,), "resume": (1,), "reprioritise": (1, "--priority", "5"),
    "tag": (1, "--add", "a"),
    "sweep": ("--template", "tabular", "--over", "units=[1,2]"), "sweeps": (1, "--pause"),
    "ls": (), "nodes": (), "templates": (), "simulate": ("fifo",),
    "cordon": ("node",), "drain": ("node",), "uncordon": ("node",),
    "projects": (), "usage": (), "login": (), "users": (), "notifications": ("ls",),
    "filters": ("ls",),
}  # fmt: skip
OFFLINE = {"logout", "completion"}


def test_every_command_is_in_the_table() -> None:
    assert set(cli.commands) == {*ARGUMENTS, *OFFLINE}


@pytest.mark.parametrize("command", ARGUMENTS)
@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.usefixtures("no_pauses")
def test_every_command_ends_with_its_code_and_without_a_traceback(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, command: str, as_json: bool
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "vfp_x")
    arguments = (command, *ARGUMENTS[command], *(["--json"] if as_json else []))
    for answer, code in (
        (problem(403, "permission_denied", errors={"field": ["Fix it."]}), ExitCode.REFUSED),
        (problem(500), ExitCode.UNREACHABLE),
        (Answer(200, b"<html>"), ExitCode.UNREACHABLE),
        (Answer(200, {"hello": 1}), ExitCode.UNREACHABLE),
    ):
        with scripted_site(answer) as site:
            monkeypatch.setenv(SERVER_VARIABLE, site.address)
            ended = shell(*arguments, text="vfp_x\n")
        acts_on_all = command in ("cancel", "pause", "resume", "reprioritise")
        is_partial = acts_on_all and as_json and code == ExitCode.REFUSED
        assert (ended.code, ended.out.strip()) == (code, "[]" if is_partial else "")
        assert "Traceback" not in ended.err
        assert "vfp_x" not in ended.err
        if code == ExitCode.REFUSED:
            assert "field: Fix it." in ended.err
    ended = shell(*arguments, text="vfp_x\n")
    assert (ended.code, "does not answer" in ended.err) == (ExitCode.UNREACHABLE, True)


@pytest.mark.parametrize("command", sorted(set(ARGUMENTS) - {"login"} | {"nonsense"}))
@pytest.mark.parametrize(
    "nonsense", [("--bogus",), ("-1",), ("x" * 10_000, "y"), ("\x1b[2J", "--limit", "x", "y")]
)
def test_wrong_use_is_exit_code_2(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, command: str, nonsense: tuple[str, ...]
) -> None:
    monkeypatch.setenv(SERVER_VARIABLE, "http://127.0.0.1:9")
    ended = shell(command, *ARGUMENTS.get(command, ()), *nonsense)
    assert (ended.code, ended.out) == (ExitCode.USAGE, "")
    assert "Traceback" not in ended.err


@pytest.mark.parametrize("number", ["0", "-5", "seven", "1.5", "9" * 30, "#", "", "\u0663"])
def test_what_is_no_number_of_a_job(shell: Shell, number: str) -> None:
    ended = shell("show", "--", number)
    assert (ended.code, "no number of a job" in ended.err) == (ExitCode.USAGE, True)


@pytest.mark.parametrize("shell_name", ["bash", "zsh", "fish"])
def test_completion(shell: Shell, shell_name: str) -> None:
    ended = shell("completion", shell_name)
    assert (ended.code, "_VIRTUALFLOW_COMPLETE" in ended.out) == (0, True)


def test_completion_knows_the_commands(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_VIRTUALFLOW_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "virtualflow re")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert shell().out.split() == ["plain,reprioritise", "plain,resume"]


def test_the_exit_codes_are_documented() -> None:
    page = (ROOT / "docs/client.md").read_text()
    rows = re.findall(r"^\| (\d+) \|", page, re.MULTILINE)
    assert [int(row) for row in rows] == [int(code) for code in ExitCode]


def test_every_command_is_documented() -> None:
    page = (ROOT / "docs/client.md").read_text()
    assert [name for name in cli.commands if f"`virtualflow {name}" not in page] == []
