"""The commands `sweep` and `sweeps`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from virtualflow.answers import Sweep, SweepPreview
from virtualflow.cli import common, completing, screen
from virtualflow.cli.common import as_json, counted
from virtualflow.cli.screen import Column, when
from virtualflow.cli.submitting import FILE, changes_read, spec_and_code
from virtualflow.client import Client
from virtualflow.typed_site import given_only

_SHOWN_DRAWS = 20
_COLUMNS = (
    Column("sweep", lambda sweep: sweep["id"], is_number=True),
    Column("name", lambda sweep: sweep["name"]),
    Column("jobs", lambda sweep: sweep["num_jobs"], is_number=True),
    Column("of them", lambda sweep: _statuses(sweep)),
    Column("at once", lambda sweep: sweep["max_running"], is_number=True),
    Column("owner", lambda sweep: sweep["owner"], at_width=90),
    Column("submitted", lambda sweep: when(sweep["submitted_at"]), at_width=100),
)


@click.command()
@click.argument("file", type=FILE, required=False)
@click.option("--code", type=FILE, help="Code of the jobs, a .py or .zip file.")
@common.template
@click.option("--name", help="Name of the sweep, and with a number of each job.")
@click.option(
    "--over", "axes", multiple=True, metavar="SETTING=VALUES",
    help="A setting and its values, in JSON: a list, or a range such as "
    "learning_rate={\"low\": 1e-4, \"high\": 0.1, \"scale\": \"log\"}.",
)  # fmt: skip
@click.option("--draws", type=int, help="Random draws; without it a grid.")
@click.option("--seed", type=int, help="Of the draws.")
@click.option("--at-once", "max_running", type=int, help="Most jobs that run at once.")
@common.changes
@click.option("--dry-run", is_flag=True, help="Show the jobs; submit none.")
@click.option("--key", help="The same key with the same sweep makes no second one.")
@as_json
def sweep(
    file: Path | None,
    code: Path | None,
    template: str | None,
    name: str | None,
    axes: tuple[str, ...],
    draws: int | None,
    seed: int | None,
    max_running: int | None,
    changes: tuple[str, ...],
    dry_run: bool,
    key: str | None,
    as_json: bool,
) -> None:
    """Submit a sweep: FILE is a spec with `sweep: {space: ...}`, or with --over the code."""
    file, code = spec_and_code(file, code, template)
    fields = changes_read(changes) | given_only({"template": template, "name": name})
    plan = given_only({"num_draws": draws, "seed": seed, "max_running": max_running})
    if axes:
        fields["sweep"] = {"space": _space(axes), **plan}
    elif plan:
        raise click.UsageError("--draws, --seed and --at-once go with --over; or write them into "
                               "the spec.")  # fmt: skip
    elif file is None and "sweep" not in {name.partition(".")[0] for name in fields}:
        raise click.UsageError("Give --over SETTING=VALUES, or a spec with a sweep.")
    with Client.from_login() as client:
        if dry_run:
            preview = client.preview_sweep(file, code=code, **fields)
            return screen.print_json(preview) if as_json else _preview(preview)
        made = client.submit_sweep(file, code=code, idempotency_key=key, **fields)
    if as_json:
        return screen.print_json(made)
    jobs = _jobs_text(made["num_jobs"], made["max_running"])
    click.echo(f"Sweep {made['id']} is submitted: {jobs}.")
    return screen.note(f"Its jobs: virtualflow ls --sweep {made['id']}")


@click.command()
@click.argument(
    "sweep_id", metavar="[SWEEP]", type=int, required=False, shell_complete=completing.sweeps
)
@click.option("--at-once", "max_running", type=int, help="Change how many jobs run at once.")
@click.option("--pause", is_flag=True, help="Pause its jobs; none begins.")
@click.option("--resume", is_flag=True, help="Go on after --pause.")
@click.option("--cancel", is_flag=True, help="Cancel its jobs.")
@click.option("--reason", default="", help="Why; required of admins who change other people's.")
@as_json
def sweeps(
    sweep_id: int | None,
    max_running: int | None,
    reason: str,
    as_json: bool,
    **flags: bool,
) -> None:
    """List sweeps, or show, pause, resume, cancel or limit SWEEP."""
    actions = [name for name, is_given in flags.items() if is_given]
    if sweep_id is None and (actions or max_running is not None):
        raise click.UsageError("Say which: give the number of a sweep.")
    if len(actions) > 1:
        raise click.UsageError("Give one of --pause, --resume and --cancel.")
    with Client.from_login() as client:
        if sweep_id is None:
            return screen.print_table(_COLUMNS, client.sweeps(), "No sweeps yet.", as_json=as_json)
        if max_running is not None:
            client.limit_sweep(sweep_id, max_running, reason)
        match actions:
            case ["pause"]:
                one = client.pause_sweep(sweep_id, reason)
            case ["cancel"]:
                one = client.cancel_sweep(sweep_id, reason)
            case ["resume"]:
                one = client.resume_sweep(sweep_id, reason)
            case _:
                one = client.sweep(sweep_id)
    return screen.print_json(one) if as_json else _show(one)


def _show(sweep: Sweep) -> None:
    screen.print_facts(
        [
            ("sweep", sweep["id"]),
            ("name", sweep["name"]),
            ("owner", sweep["owner"]),
            ("jobs", f"{sweep['num_jobs']}: {_statuses(sweep)}"),
            ("at once", sweep["max_running"]),
            ("paused", "yes" if sweep["is_paused"] else None),
            ("draws", sweep["num_draws"]),
            *((name, _text(values)) for name, values in sweep["space"].items()),
            ("submitted", when(sweep["submitted_at"])),
        ]
    )


def _text(value: Any) -> str:
    return screen.log_text(json.dumps(value, ensure_ascii=False))


def _jobs_text(num_jobs: int, max_running: int) -> str:
    return f"{counted(num_jobs, 'job')}, {max_running} at once"


def _preview(preview: SweepPreview) -> None:
    click.echo(f"{_jobs_text(preview['num_jobs'], preview['max_running'])}:")
    for drawn in preview["settings"][:_SHOWN_DRAWS]:
        click.echo("  " + ", ".join(f"{name}={_text(value)}" for name, value in drawn.items()))
    if preview["num_jobs"] > _SHOWN_DRAWS:
        click.echo(f"  and {preview['num_jobs'] - _SHOWN_DRAWS} more")


def _statuses(sweep: Any) -> str:
    return ", ".join(f"{number} {status}" for status, number in sweep["statuses"].items())


def _space(axes: tuple[str, ...]) -> dict[str, Any]:
    space: dict[str, Any] = {}
    for axis in axes:
        name, equals, text = axis.partition("=")
        try:
            space[name.strip()] = json.loads(text) if equals and name.strip() else None
        except (ValueError, RecursionError):
            space[name.strip()] = None
        if not isinstance(space[name.strip()], list | dict):
            raise click.BadParameter(
                f"{axis!r:.60} is not SETTING=VALUES, such as units=[32,64].", param_hint="--over"
            )
    return space
