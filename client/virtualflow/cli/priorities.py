"""Command `reprioritise`: the same priority or tier for jobs, or one for each."""

from __future__ import annotations

import re
from typing import Any

import click

from virtualflow import answers
from virtualflow.cli import completing, screen
from virtualflow.cli.common import as_json, counted, job_number, reason
from virtualflow.cli.jobs import TIERS, act_on_all
from virtualflow.client import Client

_CHANGE = re.compile(rf"([^=]+)=(?:({'|'.join(TIERS)})(?::(?=[0-9])|$))?([0-9]{{1,9}})?")


def job_change(text: str) -> dict[str, Any]:
    """Read `JOB=PRIORITY`, `JOB=TIER` or `JOB=TIER:PRIORITY`.

    Raises:
        click.BadParameter: it is none of them.
    """
    match = _CHANGE.fullmatch(text)
    if match is None or not (match[2] or match[3]):
        raise click.BadParameter(
            f"{text!r:.60} is not JOB=PRIORITY, JOB=TIER or JOB=TIER:PRIORITY."
        )
    change: dict[str, Any] = {"job": job_number(match[1])}
    change |= {"tier": match[2]} if match[2] else {}
    return change | ({"priority": int(match[3])} if match[3] else {})


@click.command()
@click.argument("jobs", type=job_number, nargs=-1, shell_complete=completing.jobs)
@click.option("--priority", type=int, help="1 to your ceiling.")
@click.option("--tier", type=click.Choice(TIERS), help="Strict; priorities count inside a tier.")
@click.option(
    "--set", "changes", type=job_change, multiple=True, metavar="JOB=[TIER:]PRIORITY",
    help="Values of one job, repeatable: all these jobs change, or none.",
)  # fmt: skip
@click.option("--preview", is_flag=True, help="Tell what would change now; no more.")
@reason
@as_json
def reprioritise(
    jobs: tuple[int, ...],
    priority: int | None,
    tier: str | None,
    changes: tuple[dict[str, Any], ...],
    preview: bool,
    reason: str,
    as_json: bool,
) -> None:
    """Change the priority or the tier of jobs."""
    is_common = priority is not None or tier is not None
    if bool(changes) == bool(jobs or is_common) or bool(jobs) != is_common:
        raise click.UsageError("Give JOBS with --priority, --tier, or both; or --set for each job.")
    if preview:
        return _preview(jobs, priority, tier, changes, as_json=as_json)
    if changes:
        return _change(changes, reason, as_json=as_json)

    def act(client: Client, job: int) -> answers.Job:
        return client.reprioritise(job, priority, reason, tier=tier)

    return act_on_all(jobs, act, as_json=as_json)


def _change(changes: tuple[dict[str, Any], ...], reason: str, *, as_json: bool) -> None:
    with Client.from_login() as client:
        found = client.act("reprioritise", changes=changes, all_or_none=True, reason=reason)
    if as_json:
        return screen.print_json(found)
    for row in found["results"]:
        click.echo(f"Job {row['job']}: {'changed' if row['changed'] else 'as before'}")
    return None


def _preview(
    jobs: tuple[int, ...],
    priority: int | None,
    tier: str | None,
    changes: tuple[dict[str, Any], ...],
    *,
    as_json: bool,
) -> None:
    with Client.from_login() as client:
        found = client.preview(jobs or None, priority=priority, tier=tier, changes=changes or None)
    if as_json:
        return screen.print_json(found)
    for move in found["moves"]:
        name = screen.plain(move["name"])
        wanted = counted(move["wanted"], "accelerator")
        click.echo(f"Job {move['job']} ({name}): {move['held']} → {wanted}")
    if num_others := found["num_others"]:
        click.echo(f"{counted(num_others, 'job')} of other people would change.")
    if not found["moves"] and not found["num_others"]:
        click.echo("No accelerators would change now.")
    for change in found["starts"]:
        name = screen.plain(change["name"])
        both = (_start_words(change["before"]), _start_words(change["after"]))
        click.echo(f"Job {change['job']} ({name}): expected start {' → '.join(both)}")
    return None


def _start_words(start: answers.Start | None) -> str:
    if start is None:
        return "not known"
    return f"in {screen.duration(start['earliest_s'])} to {screen.duration(start['latest_s'])}"
