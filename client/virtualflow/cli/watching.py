"""A job shown while it runs: a progress bar on terminals, otherwise a line for each news."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import click
from rich.progress import BarColumn, Progress, ProgressColumn, TaskProgressColumn, TextColumn

from virtualflow.answers import ENDED, Job
from virtualflow.cli import screen
from virtualflow.cli.common import ExitCode, counted
from virtualflow.client import Client
from virtualflow.progress import job_progress

#: Of a log without a terminal: a line at least at each so many parts of the whole.
_PARTS = 10
#: Columns of the progress bar, each from a width of the terminal on.
_COLUMNS: tuple[tuple[int, str], ...] = (
    (0, "{task.fields[headline]}"),
    (40, "bar"),
    (0, "percent"),
    (60, "{task.fields[text]}"),
    (90, "{task.fields[held]}"),
    (115, "{task.fields[speed]}"),
    (75, "{task.fields[end]}"),
)


def job_watch(client: Client, job_id: int, timeout_s: float | None, *, as_json: bool) -> NoReturn:
    """Show a job until it has ended, then exit with the code of how it ended."""
    context = click.get_current_context()
    try:
        if as_json:
            for job in client.watch(job_id, timeout_s=timeout_s):
                screen.print_json_line(job)
        elif screen.console().is_terminal:
            job = _bar(client, job_id, timeout_s)
        else:
            job = _lines(client, job_id, timeout_s)
    except KeyboardInterrupt:
        screen.note(
            f"Stopped watching; job {job_id} goes on. `virtualflow watch {job_id}` resumes."
        )
        context.exit(ExitCode.INTERRUPTED)
    if not as_json:
        _result(job)
    context.exit(ExitCode.FINE if job["status"] == "finished" else ExitCode.JOB_FAILED)


def _lines(client: Client, job_id: int, timeout_s: float | None) -> Job:
    shown: object = None
    for job in _warned(client.watch(job_id, timeout_s=timeout_s), screen.note):
        part = int((job_progress(job).fraction or 0.0) * _PARTS)
        if shown != (news := (_headline(job), job["num_accelerators"], part)):
            click.echo(_line(job))
            shown = news
    return job


def _bar(client: Client, job_id: int, timeout_s: float | None) -> Job:
    out = screen.console()
    columns: dict[str, ProgressColumn] = {"bar": BarColumn(None), "percent": TaskProgressColumn()}
    shown_columns = [
        columns.get(name) or TextColumn(name, markup=False)
        for width, name in _COLUMNS
        if out.width >= width
    ]
    shown = ""
    with Progress(*shown_columns, console=out, transient=True) as bar:
        task = bar.add_task("", total=None, headline="", text="", held="", speed="", end="")
        for job in _warned(client.watch(job_id, timeout_s=timeout_s), bar.console.print):
            if shown != (shown := f"{job['status']} {_reason(job)}"):
                bar.console.print(_line(job))
            fraction = job_progress(job).fraction
            total = 1.0 if fraction is not None and job["status"] == "running" else None
            bar.update(task, total=total, completed=fraction or 0.0, refresh=True, **_fields(job))
    return job


def _warned(jobs: Iterator[Job], say: Callable[[str], object]) -> Iterator[Job]:
    """Pass jobs on; say once what their validation warns of."""
    is_said = False
    for job in jobs:
        if not is_said and (texts := screen.warnings(job)):
            is_said = True
            for text in texts:
                say(f"Warning: {text}")
        yield job


def _headline(job: Job) -> str:
    return f"#{job['id']} {screen.plain(job['status'])}"


def _reason(job: Job) -> str:
    is_waiting = job["status"] == "pending"
    return (job["policy_reason"] if is_waiting else "") or job["status_reason"]


def _fields(job: Job) -> dict[str, Any]:
    progress = job_progress(job)
    speed = job["examples_per_s"] if job["status"] == "running" else None
    return {
        "headline": _headline(job),
        "text": progress.text,
        "held": counted(job["num_accelerators"], "accelerator"),
        "speed": f"{speed:,.0f} examples/s" if speed else "",
        "end": _end(job),
    }


def _end(job: Job) -> str:
    if job["expected_end"]:
        return f"ends {screen.until(job['expected_end'])}"
    earliest, latest = job["expected_start_earliest_at"], job["expected_start_latest_at"]
    if job["status"] == "pending" and earliest and latest:
        return f"starts {screen.when(earliest)} to {screen.when(latest)}"
    return ""


def _line(job: Job) -> str:
    fields = _fields(job)
    if job["status"] != "running":
        fields["speed"] = ""
    words = [fields[name] for name in ("text", "held", "speed", "end")]
    parts = [time.strftime("%H:%M:%S"), fields["headline"], *words]
    loss = "" if job["loss"] is None else f"loss {job['loss']:.4g}"
    reason = _reason(job) and screen.plain(_reason(job))
    return "  ".join(part for part in [*parts, loss, reason] if part)


def _result(job: Job) -> None:
    """Say how a job ended, and what to do next."""
    assert job["status"] in ENDED
    for name, value in job["metrics"].items():
        click.echo(f"{screen.plain(name)}\t{screen.plain(value)}")
    if job["error_traceback"]:
        screen.note(job["error_traceback"])
    names = [file["name"] for file in job["files"]]
    for name in {"model.keras", "model.weights.h5"}.intersection(names):
        screen.note(f"The model: virtualflow download {job['id']} {name}")
