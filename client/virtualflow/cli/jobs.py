"""Commands about jobs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import click
from rich.filesize import decimal

from virtualflow import answers
from virtualflow.cli import completing, screen
from virtualflow.cli.common import (
    ExitCode,
    as_json,
    empty_refuse,
    error_show,
    job_argument,
    jobs_argument,
    local_time,
    reason,
    timeout,
)
from virtualflow.cli.filters import filter_named
from virtualflow.cli.screen import Column, exact, when
from virtualflow.cli.watching import job_watch
from virtualflow.client import Client
from virtualflow.errors import VirtualFlowError
from virtualflow.progress import job_progress

TIERS = ("urgent", "normal", "idle")
_LISTED_LIMIT = 100_000
_OUTCOMES = ("status", "step", "epoch", "accelerator_hours")
_JOB_COLUMNS = (
    Column("job", lambda job: job["id"], is_number=True),
    Column("name", lambda job: job["name"]),
    Column("status", lambda job: job["status"], is_status=True),
    Column("owner", lambda job: job["owner"], at_width=90),
    Column("tier", lambda job: job["tier"], at_width=90),
    Column("priority", lambda job: job["priority"], at_width=70, is_number=True),
    Column("accelerators", lambda job: job["num_accelerators"], at_width=80, is_number=True),
    Column("step", lambda job: job["step"], at_width=60, is_number=True),
    Column("loss", lambda job: job["loss"], at_width=80, is_number=True),
    Column("tags", lambda job: job["tags"], at_width=120),
    Column("submitted", lambda job: when(job["submitted_at"]), at_width=100),
    Column("why", lambda job: job["policy_reason"] or job["status_reason"], at_width=140),
)


@click.command()
@click.option(
    "--filter",
    "saved",
    metavar="NAME",
    shell_complete=completing.filters,
    help="A saved filter; other options win.",
)
@click.option(
    "--status",
    multiple=True,
    shell_complete=completing.statuses,
    help="A status, or live, waiting, active, ended.",
)
@click.option("--search", "q", metavar="TEXT", help="A part of the name, or the number of one job.")
@click.option("--tier", multiple=True, type=click.Choice(TIERS), help="A tier.")
@click.option("--owner", help="User name.")
@click.option("--project", shell_complete=completing.projects, help="Name of a project.")
@click.option("--name", help="A part of the name.")
@click.option("--template", shell_complete=completing.templates, help="Name of a template.")
@click.option("--sweep", type=int, shell_complete=completing.sweeps, help="Number of a sweep.")
@click.option("--tag", multiple=True, help="A tag; several: jobs that have all of them.")
@click.option("--metric", multiple=True, help="A metric, also with a bound: 'val_accuracy>0.9'.")
@click.option("--setting", multiple=True, help="A setting's value: hidden_units=128.")
@click.option("--idle", is_flag=True, default=None, help="Hold accelerators and hardly use them.")
@click.option(
    "--order",
    help="submitted, name, status, tier, priority, duration or metric; from the largest on with -.",
)
@click.option(
    "--after",
    "submitted_after",
    type=local_time,
    metavar="TIME",
    help="Submitted then or later, such as 2026-11-25.",
)
@click.option(
    "--before",
    "submitted_before",
    type=local_time,
    metavar="TIME",
    help="Submitted earlier than this.",
)
@click.option("--limit", type=click.IntRange(1, _LISTED_LIMIT), default=50, show_default=True)
@as_json
def ls(saved: str | None, limit: int, as_json: bool, **query: Any) -> None:
    """List jobs, newest first unless told."""
    empty_refuse(saved, *query.values())
    with Client.from_login() as client:
        kept = filter_named(client, saved)["query"] if saved else ""
        found = client.jobs(query=kept, page_size=min(limit + 1, 200), **query)
        jobs = list(islice(found, limit + 1))
    if len(jobs) > limit:
        screen.note(f"There are more than {limit}; --limit shows them.")
    screen.print_table(_JOB_COLUMNS, jobs[:limit], "No job matches.", as_json=as_json)


def _best_text(best: answers.BestMetric) -> str:
    last = f", now {best['last']:.6g}" if best["is_last_worse"] else ""
    return f"{best['name']} {best['value']:.6g} in epoch {best['epoch'] + 1}{last}"


@click.command()
@job_argument
@as_json
def show(job: int, as_json: bool) -> None:
    """Show one job: state, reasons, progress, results."""
    with Client.from_login() as client:
        found = client.job(job)
    if as_json:
        return screen.print_json(found)
    progress = job_progress(found)
    starts = [when(found["expected_start_earliest_at"]), when(found["expected_start_latest_at"])]
    screen.print_facts(
        [
            ("job", found["id"]),
            ("name", found["name"]),
            ("tags", found["tags"]),
            ("note", found["note"]),
            ("owner", found["owner"]),
            ("project", found["project"]),
            ("forked from", found["forked_from"]),
            ("at step", found["forked_at_step"]),
            ("forks", found["forks"]),
            ("status", found["status"]),
            ("reason", found["status_reason"]),
            ("warning", found["warning"]),
            *[("validation warns", text) for text in screen.warnings(found)],
            ("error in", found["error_field"]),
            ("progress", progress.text),
            ("ends", found["expected_end"] and screen.until(found["expected_end"])),
            ("best metric", found["best_metric"] and _best_text(found["best_metric"])),
            ("starts", " to ".join(starts) if found["expected_start_latest_at"] else None),
            ("accelerators", found["num_accelerators"]),
            ("allocation reason", found["policy_reason"]),
            ("tier", found["tier"]),
            ("priority", found["priority"]),
            ("loss", found["loss"]),
            ("examples per second", found["examples_per_s"]),
            ("reproducibility", found["reproducibility"]),
            ("submitted", when(found["submitted_at"])),
            ("started", when(found["started_at"])),
            ("ended", when(found["ended_at"])),
            *[(f"metrics.{name}", value) for name, value in found["metrics"].items()],
            *[(f"settings.{name}", exact(value)) for name, value in found["settings"].items()],
            *[(f"file {file['name']}", decimal(file["size_bytes"])) for file in found["files"]],
            ("traceback", found["error_traceback"]),
        ]
    )
    return None


@click.command()
@job_argument
@timeout
@as_json
def watch(job: int, timeout_s: float | None, as_json: bool) -> None:
    """Follow a job until it has ended; Ctrl-C leaves it running.

    Exit code 0 when it finished, 1 when it failed, was invalid or cancelled. With --json, one line
    for each change.
    """
    with Client.from_login() as client:
        job_watch(client, job, timeout_s, as_json=as_json)


@click.command()
@job_argument
@click.option("--follow", "-f", is_flag=True, help="Go on until the job has ended.")
@click.option("--slot", type=click.IntRange(0), help="Only the trainer of this number.")
@click.option("--all", "is_whole", is_flag=True, help="From the beginning, trainer by trainer.")
@click.option("--search", default="", help="Lines with this text, whatever the case.")
@click.option("--level", help="Lines of this level or above: error, warning, info or debug.")
@click.option("--context", "-C", default=0, help="Lines to print about each match.")
@as_json
def logs(
    job: int,
    follow: bool,
    slot: int | None,
    is_whole: bool,
    search: str,
    level: str | None,
    context: int,
    as_json: bool,
) -> None:
    """Print the newest part of a job's log, or the lines that match."""
    if follow + is_whole + bool(search or level) > 1:
        raise click.UsageError("Give one of --follow, --all, and --search or --level.")
    if context and not (search or level):
        raise click.UsageError("Give --context with --search or --level.")
    with Client.from_login() as client:
        if search or level:
            found = client.search_log(job, search, level=level, context=context, slot=slot)
            return _print_matches(found, as_json=as_json)
        if follow:
            pieces = client.follow_log(job, slot=slot)
        elif is_whole:
            pieces = client.whole_log(job, slot=slot)
        else:
            part = client.log(job, slot=slot)
            if part["truncated"]:
                screen.note("Older text is left out; --all prints everything.")
            pieces = iter([part["text"]])
        try:
            _print_log(pieces, as_json=as_json)
        except KeyboardInterrupt:
            click.get_current_context().exit(ExitCode.INTERRUPTED)


def _print_matches(found: Iterator[answers.LogMatch], *, as_json: bool) -> None:
    """Print lines as grep does: trainer, place and text, with `-` for lines of context."""
    number = -1
    for number, match in enumerate(found):
        if as_json:
            screen.print_json_line(match)
            continue
        if number and (match["before"] or match["after"]):
            click.echo("--")
        about = [(line, "-") for line in match["before"]], [(line, "-") for line in match["after"]]
        for line, mark in (*about[0], (match, ":"), *about[1]):
            place = f"{line['slot']}{mark}{line['offset']}{mark}"
            click.echo(f"{place} {screen.log_text(line['text'])}")
    if number < 0:
        screen.note("No line matches.")


def _print_log(pieces: Iterator[str], *, as_json: bool) -> None:
    is_line_open, is_empty = False, True
    for piece in pieces:
        is_empty = is_empty and not piece
        if as_json:
            screen.print_json_line({"text": piece})
            continue
        if piece.startswith("\r") and is_line_open:
            # The text replaces the unfinished line before it.
            click.echo("\r\x1b[2K" if sys.stdout.isatty() else "", nl=not sys.stdout.isatty())
        text = screen.log_text(piece.removeprefix("\r"))
        click.echo(text, nl=False)
        sys.stdout.flush()
        is_line_open = not text.endswith("\n") if text else is_line_open
    if is_line_open and not as_json:
        click.echo()
    if is_empty:
        screen.note("There is no text in this log.")


@click.command()
@jobs_argument
@as_json
def compare(jobs: tuple[int, ...], as_json: bool) -> None:
    """Compare jobs: the settings that differ, best and last values of metrics."""
    numbers = list(dict.fromkeys(jobs))
    if len(numbers) < 2:
        raise click.UsageError("Give at least two different jobs.")
    with Client.from_login() as client:
        found = client.compare(numbers)
    if as_json:
        screen.print_json(found)
        return
    if not found["settings"]:
        screen.note("All settings are the same.")
    rows = [
        *((name, [exact(one) for one in values]) for name, values in found["settings"].items()),
        *((name, [job.get(name) for job in found["jobs"]]) for name in _OUTCOMES),
    ]
    for name, metric in found["metrics"].items():
        rows += [(f"best {name}", metric["best"]), (f"last {name}", metric["last"])]
    columns = screen.row_columns(f"#{job['id']} {job['name']}" for job in found["jobs"])
    screen.print_table(columns, rows)


@click.command()
@jobs_argument
@click.option("--add", multiple=True, help="Tag to give the jobs.")
@click.option("--remove", multiple=True, help="Tag to take from the jobs.")
@reason
@as_json
def tag(
    jobs: tuple[int, ...],
    add: tuple[str, ...],
    remove: tuple[str, ...],
    reason: str,
    as_json: bool,
) -> None:
    """Tag jobs, or untag them."""
    if len(add + remove) != 1:
        raise click.UsageError("Give one --add TAG or --remove TAG.")
    with Client.from_login() as client:
        action = "tag" if add else "untag"
        answer = client.act(action, jobs, tag=(add + remove)[0], reason=reason)
    refused = [row for row in answer["results"] if not row["done"]]
    if as_json:
        screen.print_json(answer)
    else:
        number = len(answer["results"]) - len(refused)
        click.echo(f"{number} {'job' if number == 1 else 'jobs'} {action}ged.")
        for row in refused:
            screen.note(f"Job {row['job']}: {screen.plain(row['detail'])}")
    if refused:
        click.get_current_context().exit(ExitCode.REFUSED)


@click.command()
@job_argument
@click.argument("names", nargs=-1, shell_complete=completing.files)
@click.option(
    "--to", default=".", show_default=True, type=click.Path(path_type=Path),
    help="Folder of the new files, made if it is missing; with one of NAMES also a new file "
    "of the same ending.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Replace files that are there already.")
@as_json
def download(job: int, names: tuple[str, ...], to: Path, force: bool, as_json: bool) -> None:
    """Download result files and checkpoints; without NAMES, all of them."""
    is_file = len(names) == 1 and not to.is_dir() and to.suffix == Path(names[0]).suffix != ""
    if to.exists() and not (is_file or to.is_dir()):
        raise click.UsageError(f"{to} is no folder.")
    with Client.from_login() as client:
        wanted = names or [file["name"] for file in client.job(job, fields=("files",))["files"]]
        if not wanted:
            screen.note(f"Job {job} has no files yet.")
        new = {name: to if is_file else to / name for name in wanted}
        there = [name for name, path in new.items() if path.exists() and not force]
        if there:
            raise click.UsageError(f"Already there: {', '.join(there)}. --force replaces them.")
        paths: list[str] = []
        try:
            for name, path in new.items():
                paths.append(str(client.download(job, name, path)))
                if not as_json:
                    click.echo(screen.plain(paths[-1]))
        except VirtualFlowError:
            screen.note(f"{screen.plain(name)}:")
            raise
        finally:
            if as_json and (paths or not new):
                screen.print_json(paths)


@click.command()
@jobs_argument
@reason
@as_json
def cancel(jobs: tuple[int, ...], reason: str, as_json: bool) -> None:
    """End jobs for good."""
    act_on_all(jobs, lambda client, job: client.cancel(job, reason), as_json=as_json)


@click.command()
@jobs_argument
@reason
@as_json
def pause(jobs: tuple[int, ...], reason: str, as_json: bool) -> None:
    """Save the state of jobs and free their accelerators until they are resumed."""
    act_on_all(jobs, lambda client, job: client.pause(job, reason), as_json=as_json)


@click.command()
@jobs_argument
@reason
@as_json
def resume(jobs: tuple[int, ...], reason: str, as_json: bool) -> None:
    """Queue paused jobs again."""
    act_on_all(jobs, lambda client, job: client.resume(job, reason), as_json=as_json)


def act_on_all(
    jobs: tuple[int, ...], act: Callable[[Client, int], answers.Job], *, as_json: bool
) -> None:
    """Act on each job; what the site refuses for one of them does not keep it from the others.

    Any other error ends it, after the jobs that are done have been printed.
    """
    done, is_refused = [], False
    try:
        with Client.from_login() as client:
            for number in dict.fromkeys(jobs):
                try:
                    done.append(act(client, number))
                except VirtualFlowError as error:
                    screen.note(f"Job {number}:")
                    if not error.is_refusal:
                        raise
                    is_refused = True
                    error_show(error)
    finally:
        if done or is_refused:
            _done_print(done, as_json=as_json)
    if is_refused:
        click.get_current_context().exit(ExitCode.REFUSED)


def _done_print(done: list[answers.Job], *, as_json: bool) -> None:
    if as_json:
        screen.print_json(done)
        return
    for job in done:
        status = "pausing" if job["pause_requested"] else job["status"]
        click.echo(
            f"Job {job['id']}: {screen.plain(status)}, {job['tier']}, priority {job['priority']}"
        )
