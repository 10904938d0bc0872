"""The commands `submit`, `validate`, `clone` and `fork`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from virtualflow.answers import Job, Outlook
from virtualflow.cli import common, completing, screen
from virtualflow.cli.common import ExitCode, as_json, empty_refuse, job_argument, timeout
from virtualflow.cli.jobs import TIERS
from virtualflow.cli.watching import job_watch
from virtualflow.client import Client
from virtualflow.typed_site import given_only

_CODE_ENDINGS = (".py", ".zip")
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
#: Parameters of `Client.submit` and the like that are no fields of a submission.
_NO_FIELDS = ("code", "spec", "idempotency_key", "job_id", "self")
_STARTS = {"now": "It would start at once.", "after_release": "It would start within moments."}


@click.command()
@click.argument("file", type=FILE, required=False)
@click.option("--code", type=FILE, help="Code of the job, a .py or .zip file.")
@common.template
@click.option("--name", help="Name of the job.")
@click.option("--tag", "tags", multiple=True, help="A tag to find it by; may be repeated.")
@click.option("--tier", type=click.Choice(TIERS), help="Strict between tiers.")
@click.option(
    "--project", shell_complete=completing.projects, help="Project that the job belongs to."
)
@click.option(
    "--set", "changes", multiple=True, metavar="KEY=VALUE",
    help="Override a field, such as priority=80, settings.learning_rate=0.01, stop.limit=5. "
    "The value is JSON, or else text.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Check it and tell when it would start; no more.")
@click.option("--watch", is_flag=True, help="Stay until it has ended, as `virtualflow watch`.")
@click.option("--key", help="The same key with the same submission makes no second job.")
@timeout
@as_json
def submit(
    file: Path | None,
    code: Path | None,
    template: str | None,
    name: str | None,
    tags: tuple[str, ...],
    tier: str | None,
    project: str | None,
    changes: tuple[str, ...],
    dry_run: bool,
    watch: bool,
    key: str | None,
    timeout_s: float | None,
    as_json: bool,
) -> None:
    """Submit a job: FILE is a spec (YAML or JSON), or the code itself (.py or .zip)."""
    empty_refuse(template, name, project, tags)
    file, code = spec_and_code(file, code, template)
    given = {"template": template, "name": name, "tier": tier, "project": project}
    fields = changes_read(changes) | given_only(given)
    fields |= {"tags": list(tags)} if tags else {}
    with Client.from_login() as client:
        if dry_run:
            outlook = client.dry_run(file, code=code, **fields)
            return screen.print_json(outlook) if as_json else _outlook(outlook)
        job = client.submit(file, code=code, idempotency_key=key, **fields)
        if watch:
            screen.note(f"Job {job['id']} is submitted.")
            job_watch(client, job["id"], timeout_s, as_json=as_json)
        if as_json:
            return screen.print_json(job)
        click.echo(f"Job {job['id']} is submitted.")
        return screen.note(f"Follow it: virtualflow watch {job['id']}")


@click.command()
@click.argument("file", type=FILE, required=False)
@click.option("--code", type=FILE, help="Code of the job, a .py or .zip file.")
@click.option("--template", shell_complete=completing.templates, help="Start from a ready job.")
@common.changes
@timeout
@as_json
def validate(
    file: Path | None,
    code: Path | None,
    template: str | None,
    changes: tuple[str, ...],
    timeout_s: float | None,
    as_json: bool,
) -> None:
    """Build code on a node and measure its memory; FILE as of `submit`, nothing is submitted."""
    empty_refuse(template)
    file, code = spec_and_code(file, code, template)
    fields = changes_read(changes) | given_only({"template": template})
    with Client.from_login() as client:
        asked = client.validate(file, code=code, **fields)
        found = client.wait_validation(asked["id"], timeout_s=timeout_s)
    if as_json:
        screen.print_json(found)
    else:
        click.echo(f"Validation {found['id']} {found['status']}. {screen.plain(found['text'])}")
        for text in screen.warnings(found):
            screen.note(f"Warning: {text}")
        if found["error_traceback"]:
            screen.note(found["error_traceback"])
    if found["status"] != "passed":
        click.get_current_context().exit(ExitCode.JOB_FAILED)


def _copy_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        as_json,
        timeout,
        click.option("--key", help="The same key with the same request makes no second job."),
        click.option("--watch", is_flag=True, help="Stay until it has ended."),
        common.changes,
        click.option("--name", help="Name of the new job."),
        click.option("--code", type=FILE, help="Other code for it, a .py or .zip file."),
        job_argument,
    ):
        command = option(command)
    return command


@click.command()
@_copy_options
def clone(job: int, **options: Any) -> None:
    """Submit JOB again, with other settings."""
    _copy(job, "a clone of", Client.clone, {}, **options)


@click.command()
@click.option("--checkpoint", default="newest", help="Step of a kept checkpoint.")
@click.option("--now", is_flag=True, help="From the state that the job saves now.")
@_copy_options
def fork(job: int, checkpoint: str, now: bool, **options: Any) -> None:
    """Submit a job that starts from the state of JOB, with other settings."""
    if now and checkpoint != "newest":
        raise click.UsageError("Give --checkpoint or --now, not both.")
    state = {"checkpoint": "now" if now else checkpoint}
    _copy(job, "from the state of", Client.fork, state, **options)


def _copy(
    job: int,
    origin: str,
    submit: Callable[..., Job],
    fields: dict[str, Any],
    *,
    code: Path | None,
    name: str | None,
    changes: tuple[str, ...],
    watch: bool,
    key: str | None,
    timeout_s: float | None,
    as_json: bool,
) -> None:
    fields = fields | changes_read(changes) | given_only({"name": name, "code": code})
    with Client.from_login() as client:
        made = submit(client, job, idempotency_key=key, **fields)
        if watch:
            screen.note(f"Job {made['id']} is submitted.")
            job_watch(client, made["id"], timeout_s, as_json=as_json)
    if as_json:
        return screen.print_json(made)
    click.echo(f"Job {made['id']} is submitted, {origin} job {job}.")
    return screen.note(f"Compare them: virtualflow compare {job} {made['id']}")


def changes_read(changes: tuple[str, ...]) -> dict[str, Any]:
    """Read options KEY=VALUE; a value is JSON, or else text."""
    values: dict[str, Any] = {}
    for change in changes:
        name, equals, text = change.partition("=")
        if not equals or not name.strip():
            raise click.BadParameter(f"{change!r:.60} is not KEY=VALUE.", param_hint="--set")
        if name.strip() in _NO_FIELDS:
            raise click.BadParameter(
                f"{name.strip()} is not set so; see --help.", param_hint="--set"
            )
        try:
            values[name.strip()] = json.loads(text)
        except (ValueError, RecursionError):
            values[name.strip()] = text
    return values


def spec_and_code(
    file: Path | None, code: Path | None, template: str | None
) -> tuple[Path | None, Path | None]:
    """Return spec and code of FILE and --code, where these or a template are given."""
    if file is None and code is None and template is None:
        raise click.UsageError("Give a spec or code as FILE, or --template NAME.")
    if file is None or file.suffix.lower() not in _CODE_ENDINGS:
        return file, code
    if code is not None:
        raise click.UsageError("FILE is code already: leave out --code, or give a spec as FILE.")
    return None, file


def _outlook(outlook: Outlook) -> None:
    click.echo(_STARTS.get(outlook["starts"], "It would wait."))
    kinds = [f"{number} {kind}" for kind, number in outlook["accelerators"].items()]
    screen.print_facts(
        [
            ("accelerators", ", ".join(kinds)),
            ("jobs that would shrink", outlook["num_shrunk"] or None),
            ("why", outlook["reason"]),
            ("memory", outlook["memory"]),
        ]
    )
