"""The command `submit`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from virtualflow.answers import Outlook
from virtualflow.cli import screen
from virtualflow.cli.common import as_json, timeout
from virtualflow.cli.watching import job_watch
from virtualflow.client import Client

_CODE_ENDINGS = (".py", ".zip")
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_STARTS = {"now": "It would start at once.", "after_release": "It would start within moments."}


@click.command()
@click.argument("file", type=_FILE, required=False)
@click.option("--code", type=_FILE, help="Code of the job, a .py or .zip file.")
@click.option("--template", help="Start from a ready job; `virtualflow templates` lists them.")
@click.option("--name", help="Name of the job.")
@click.option("--tag", "tags", multiple=True, help="A tag to find it by; may be repeated.")
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
    changes: tuple[str, ...],
    dry_run: bool,
    watch: bool,
    key: str | None,
    timeout_s: float | None,
    as_json: bool,
) -> None:
    """Submit a job: FILE is a spec (YAML or JSON), or the code itself (.py or .zip)."""
    if file is not None and file.suffix.lower() in _CODE_ENDINGS:
        if code is not None:
            raise click.UsageError(
                "FILE is code already: leave out --code, or give a spec as FILE."
            )
        file, code = None, file
    if file is None and code is None and template is None:
        raise click.UsageError("Give a spec or code as FILE, or --template NAME.")
    fields = _changes(changes)
    fields |= {k: v for k, v in (("template", template), ("name", name)) if v is not None}
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


def _changes(changes: tuple[str, ...]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for change in changes:
        name, equals, text = change.partition("=")
        if not equals or not name.strip():
            raise click.BadParameter(f"{change!r:.60} is not KEY=VALUE.", param_hint="--set")
        try:
            values[name.strip()] = json.loads(text)
        except (ValueError, RecursionError):
            values[name.strip()] = text
    return values


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
