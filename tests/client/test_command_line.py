"""The command line as a whole: every command, wrong use, terminals, completion, documents."""

from __future__ import annotations

import io
import json
import re
import ssl
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import click
import pytest
import trustme
from virtualflow import answers
from virtualflow.cli import __path__ as cli_path
from virtualflow.cli.common import ExitCode, local_time
from virtualflow.cli.completing import STATUSES
from virtualflow.cli.main import cli
from virtualflow.credentials import SERVER_VARIABLE, TOKEN_VARIABLE
from virtualflow.transport import _tls_context

from controlplane.core.values.lifecycle import JobStatus
from tests.client.conftest import Shell, Site
from tests.client.scripted_site import Answer, file_of, problem, scripted_site
from tests.support.builders import job_make, node_make
from tests.support.oidc_provider import start_provider
from tests.support.rows import artifact_make, log_add
from tests.test_docs import ROOT

#: A name that would clear the screen, ring, set the title, and turn the reading direction.
HOSTILE = "a\x1b[2J\x07\x1b]0;x\x07\u202eb\x9b31m[red]c\u200dd"
HARMFUL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")


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
            assert "[red]c\u200dd" in shown, arguments  # joiners are harmless


#: Arguments with which each command reaches the site.
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "submit": ("--template", "tabular"), "clone": (1,), "fork": (1, "--now"),
    "validate": ("--template", "tabular"), "secrets": ("ls",),
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


def test_every_command_is_offered_and_in_the_table() -> None:
    modules = [import_module(f"virtualflow.cli.{one.name}") for one in iter_modules(cli_path)]
    values = [one for module in modules for one in vars(module).values()]
    made = {one for one in values if isinstance(one, click.Command)}
    lacking = made - {cli, *every_command(cli)}
    assert [one.name for one in lacking] == [], "client/virtualflow/cli/main.py adds each"
    assert set(cli.commands) == {*ARGUMENTS, *OFFLINE}, "ARGUMENTS needs those of each command"


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
    missing = [name for name in cli.commands if f"`virtualflow {name}" not in page]
    assert missing == [], "each needs a row of the table of commands in docs/client.md"


def completed(shell: Shell, monkeypatch: pytest.MonkeyPatch, words: str) -> list[str]:
    """Return what bash is offered at the end of some words."""
    monkeypatch.setenv("_VIRTUALFLOW_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", f"virtualflow {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(f"virtualflow {words}".split(" ")) - 1))
    return [line.removeprefix("plain,") for line in shell().out.split()]


def test_a_shell_completes_what_the_site_has(
    site: Site, logged_in: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = job_make(site.ada), job_make(site.ada, name=HOSTILE)
    others = job_make(site.admin)
    numbers = [str(second.pk), str(first.pk)]
    with site.client() as client:
        client.save_filter("mine", "status=live")
        number = client.create_channel("lab", "https://hooks.example/x")["id"]
    steps = (("pause", "lab", "paused by its owner"), ("resume", number, "active"))
    for act, channel, state in steps:
        logged_in("notifications", act, channel)
        assert state in logged_in("notifications", "ls").out
    node, _ = node_make("node-a")
    artifact_make(second, "metrics.json")
    for words, expected in (
        *((f"{command} ", numbers) for command in ("show", "logs", "watch", "download")),
        *((f"{command} ", numbers) for command in ("clone", "fork")),
        *((f"{command} ", numbers) for command in ("cancel", "pause", "resume", "reprioritise")),
        (f"compare {first.pk} ", numbers),
        ("ls --status f", ["finished", "failed"]),
        ("ls --filter ", ["mine"]),
        ("drain ", [node.name]),
        ("nodes window plan node", [node.name]),
        ("simulate fif", ["fifo"]),
        (f"download {second.pk} ", ["metrics.json"]),
        ("notifications test ", ["lab"]),
        ("ls --project ", []),
    ):
        assert completed(logged_in, monkeypatch, words) == expected, words
    assert str(others.pk) not in numbers
    assert "digits_cnn" in completed(logged_in, monkeypatch, "submit --template ")


@pytest.mark.parametrize("name", ["a b", "$(reboot)", "*", "-x;y", HOSTILE, "ä`b`"])
def test_a_shell_is_offered_no_value_that_it_could_read_otherwise(
    site: Site, logged_in: Shell, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    job = job_make(site.ada)
    artifact_make(job, name)
    assert completed(logged_in, monkeypatch, f"download {job.pk} ") == []


def test_without_a_site_nothing_is_completed(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    assert completed(shell, monkeypatch, "show ") == []  # not logged in
    monkeypatch.setenv(TOKEN_VARIABLE, "vfp_x")
    for answer in (problem(500), problem(401), Answer(200, b"<html>"), Answer(200, {"x": 1})):
        with scripted_site(answer) as site:
            monkeypatch.setenv(SERVER_VARIABLE, site.address)
            assert completed(shell, monkeypatch, "show ") == []
    policy = dict.fromkeys(answers.Policy.__annotations__, 7)
    with scripted_site(Answer(200, policy)) as site:  # of another version
        monkeypatch.setenv(SERVER_VARIABLE, site.address)
        assert completed(shell, monkeypatch, "simulate ") == []


def test_statuses_are_those_of_jobs() -> None:
    assert {*STATUSES} == {*JobStatus, "live", "waiting", "active", "ended"}


@pytest.mark.parametrize(
    ("zone", "given", "sent"),
    [
        ("Asia/Kolkata", "2026-03-01T12:00", "2026-03-01T12:00:00+05:30"),
        ("Europe/Berlin", "2026-07-01", "2026-07-01T00:00:00+02:00"),
        ("America/New_York", "2026-03-08T03:30", "2026-03-08T03:30:00-04:00"),
        ("America/New_York", "2026-11-01T01:30", "2026-11-01T01:30:00-04:00"),  # comes twice
        ("Asia/Kolkata", "2026-03-01T12:00Z", "2026-03-01T12:00Z"),
        ("Asia/Kolkata", "2026-03-01T12:00+01:00", "2026-03-01T12:00+01:00"),
    ],
)
def test_times_without_an_offset_are_local_as_tables_show_them(
    monkeypatch: pytest.MonkeyPatch, zone: str, given: str, sent: str
) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        assert local_time(given) == sent
    finally:
        monkeypatch.undo()
        time.tzset()


def test_every_option_for_a_time_takes_local_ones() -> None:
    found = {
        (command.name, option.name): getattr(option.type, "func", None)
        for command in every_command(cli)
        for option in command.params
        if option.opts[0] in ("--after", "--before", "--starts", "--ends", "--since", "--until")
    }
    assert len(found) == 6
    assert {*found.values()} == {local_time}


@pytest.mark.parametrize("given", ["yesterday", "0001-01-01"])
def test_what_is_no_time_is_refused_by_the_name_of_its_option(shell: Shell, given: str) -> None:
    ended = shell("ls", "--after", given)
    assert (ended.code, "--after" in ended.err, given in ended.err) == (ExitCode.USAGE, True, True)


def every_command(group: click.Group) -> Iterator[click.Command]:
    for command in group.commands.values():
        yield command
        if isinstance(command, click.Group):
            yield from every_command(command)


def test_every_command_prints_json() -> None:
    lacking = [
        command.name
        for command in every_command(cli)
        if not isinstance(command, click.Group)
        if "as_json" not in [option.name for option in command.params]
    ]
    assert lacking == ["completion"]


def test_an_unknown_authority_is_told_with_the_way_out(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _tls_context.cache_clear()
    monkeypatch.setenv(TOKEN_VARIABLE, "vfp_x")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    other = start_provider(tls=context)
    monkeypatch.setenv(SERVER_VARIABLE, other.address)
    try:
        ended = shell("ls")
        assert (ended.code, "SSL_CERT_FILE" in ended.err) == (ExitCode.UNREACHABLE, True)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "missing.pem"))
        _tls_context.cache_clear()
        ended = shell("ls")
        assert ended.code == ExitCode.USAGE
        assert "SSL_CERT_FILE: Name a file of certificates: No such file" in ended.err
    finally:
        other.stop()
        _tls_context.cache_clear()


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
@pytest.mark.parametrize("is_terminal", [False, True])
def test_characters_that_a_terminal_does_not_know(
    site: Site, logged_in: Shell, monkeypatch: pytest.MonkeyPatch, encoding: str, is_terminal: bool
) -> None:
    if is_terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
    job = job_make(site.ada, name="na\u00efve \u6a21\u578b \U0001f600", status=JobStatus.FAILED)
    log_add(job, "\u2713 one\n")
    for arguments in (
        ("ls",), ("show", job.pk), ("watch", job.pk), ("logs", job.pk), ("nodes",),
        ("compare", job.pk, job_make(site.ada).pk), ("cancel", job.pk), ("show", "\u6a21"),
        ("ls", "--json"), ("logs", job.pk, "--json"),
    ):  # fmt: skip
        with monkeypatch.context() as patch:
            written = [io.TextIOWrapper(io.BytesIO(), encoding) for _ in range(2)]
            patch.setattr("tests.client.conftest.sys.stdout", written[0])
            patch.setattr("tests.client.conftest.sys.stderr", written[1])
            assert logged_in(*arguments).code in (0, 1, 2, 3), arguments


class _Closed(io.StringIO):
    def write(self, _text: str) -> int:
        raise BrokenPipeError


def test_an_error_that_nobody_reads_keeps_its_exit_code(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.client.conftest.sys.stderr", _Closed())
    assert shell("ls").code == ExitCode.USAGE


def whole_job(**values: Any) -> dict[str, Any]:
    return dict.fromkeys(answers.Job.__annotations__, "") | {
        "id": 1, "version": 1, "status": "finished", "step": 2, "epoch": 1, "files": [],
        "stop": {"kind": "steps", "limit": 4, "new": 1}, "facts": {"new": 1}, "tuning": {},
        "batch_size_min": None, "metrics": {}, "settings": {}, "new": {}, "loss": None,
        "expected_end": {"earliest_at": None, "latest_at": "2026-03-01T12:00:00Z", "new": 1},
    } | values  # fmt: skip


@pytest.mark.parametrize("command", ["show", "watch"])
@pytest.mark.parametrize("lacking", [{"stop": {}}, {"facts": None}])
def test_a_field_that_is_missing_inside_an_object_is_no_failed_job(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, command: str, lacking: dict[str, Any]
) -> None:
    with scripted_site(Answer(200, whole_job(**lacking))) as site:
        monkeypatch.setenv(SERVER_VARIABLE, site.address)
        monkeypatch.setenv(TOKEN_VARIABLE, "vfp_x")
        ended = shell(command, 1)
    assert ended.code == ExitCode.UNREACHABLE
    assert "Fix: install the client of the site's version." in ended.err


@pytest.mark.parametrize("command", ["show", "watch"])
def test_what_a_newer_site_adds_is_left_out(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    with scripted_site(Answer(200, whole_job())) as site:
        monkeypatch.setenv(SERVER_VARIABLE, site.address)
        monkeypatch.setenv(TOKEN_VARIABLE, "vfp_x")
        ended = shell(command, 1)
    assert (ended.code, "by 2026-03-01" in ended.out) == (ExitCode.FINE, True)


@pytest.mark.usefixtures("no_pauses")
def test_what_is_done_is_told_when_the_site_fails(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "vfp_x")
    with scripted_site(Answer(200, whole_job(status="cancelled")), problem(500)) as site:
        monkeypatch.setenv(SERVER_VARIABLE, site.address)
        ended = shell("cancel", 1, 2, 3)
    assert (ended.code, ended.out) == (ExitCode.UNREACHABLE, "Job 1: cancelled, , priority \n")
    assert ("Job 2:" in ended.err, len(site.asked) > 1) == (True, True)
    assert not any("/3/" in asked.path for asked in site.asked)
    with scripted_site(file_of(b"a,b"), problem(500)) as site:
        monkeypatch.setenv(SERVER_VARIABLE, site.address)
        ended = shell("download", 1, "a.csv", "b.csv", "c.csv", "--to", tmp_path, "--json")
    files = [str(tmp_path / "a.csv")]
    assert (ended.code, json.loads(ended.out)) == (ExitCode.UNREACHABLE, files)
    assert ended.err.startswith("b.csv:\nError: ")
