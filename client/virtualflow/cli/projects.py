"""Commands about projects and usage."""

from __future__ import annotations

from typing import Any

import click

from virtualflow.answers import Project, UsageRow
from virtualflow.cli import completing, screen
from virtualflow.cli.common import as_json, empty_refuse, local_time
from virtualflow.cli.screen import Column, when
from virtualflow.client import Client

_COLUMNS = (
    Column("project", lambda row: row["name"]),
    Column("holds", lambda row: row["held"], is_number=True),
    Column("guaranteed", lambda row: _with_kinds(row, "guaranteed"), is_number=True),
    Column("limit", lambda row: _with_kinds(row, "limit"), is_number=True),
    Column("borrowed", lambda row: _with_kinds(row, "borrowed"), is_number=True),
    Column("jobs", lambda row: row["live_jobs"], is_number=True),
    Column("waiting", lambda row: row["waiting_jobs"], is_number=True, at_width=70),
    Column("your role", lambda row: row["role"], at_width=80),
)
_KIND_COLUMNS = (
    Column("kind", lambda row: row["kind"]),
    Column("holds", lambda row: row["held"], is_number=True),
    Column("guaranteed", lambda row: row["guaranteed"], is_number=True),
    Column("limit", lambda row: _limit(row["limit"]), is_number=True),
    Column("borrowed", lambda row: row["borrowed"], is_number=True),
)
_MEMBER_COLUMNS = (
    Column("user", lambda row: row["user"]),
    Column("role", lambda row: row["role"]),
    Column("since", lambda row: when(row["since"])),
)
_USAGE_COLUMNS = (
    Column("name", lambda row: row["name"]),
    Column("accelerator-hours", lambda row: f"{row['accelerator_hours']:.2f}", is_number=True),
    Column("held and idle", lambda row: _hours(row["idle_hours"]), is_number=True),
    Column("lost to resizes", lambda row: _hours(row["paused_hours"]), is_number=True),
    Column("cost", lambda row: _hours(row["cost"]), is_number=True),
)


def _limit(limit: int | None) -> str:
    return "none" if limit is None else str(limit)


def _with_kinds(row: Any, name: str) -> str:
    """Return a number of all kinds, and those of kinds: 8, of t4 2."""
    by_kind = [f"of {kind} {count}" for kind, count in row[f"{name}_by_kind"].items()]
    return ", ".join([_limit(row[name]), *by_kind])


def _kinds(project: Project) -> list[dict[str, Any]]:
    """Return a row for each kind that a project holds or has a quota of."""
    held, own, limits = (
        project["held_by_kind"],
        project["guaranteed_by_kind"],
        project["limit_by_kind"],
    )
    return [
        {
            "kind": kind,
            "held": held.get(kind, 0),
            "guaranteed": own.get(kind, 0),
            "limit": limits.get(kind),
            "borrowed": project["borrowed_by_kind"].get(kind, 0),
        }
        for kind in sorted({*held, *own, *limits})
    ]


def _hours(number: float | None) -> str:
    return "" if number is None else f"{number:.2f}"


@click.command()
@click.argument("name", required=False, shell_complete=completing.projects)
@as_json
def projects(name: str | None, as_json: bool) -> None:
    """List the projects and what they hold now, or kinds and members of the project NAME."""
    with Client.from_login() as client:
        found = client.projects()
        if name is None:
            return screen.print_table(_COLUMNS, found, "You are in no project.", as_json=as_json)
        chosen = [row["id"] for row in found if row["name"] == name]
        if not chosen:
            names = ", ".join(row["name"] for row in found)
            raise click.BadParameter(f"You have no project {name!r:.60}; use {names or 'none'}.")
        project = client.project(chosen[0])
    if as_json:
        return screen.print_json(project)
    screen.print_table(_COLUMNS, [project])
    if kinds := _kinds(project):
        screen.print_table(_KIND_COLUMNS, kinds)
    return screen.print_table(_MEMBER_COLUMNS, project["members"], "It has no members.")


@click.command()
@click.option("--by", type=click.Choice(["project", "user", "tag"]), default="project")
@click.option("--since", type=local_time, help="A time of ISO 8601; 30 days ago by default.")
@click.option("--until", type=local_time, help="A time of ISO 8601; now by default.")
@click.option("--project", shell_complete=completing.projects, help="Only jobs of this project.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV on standard output.")
@as_json
def usage(as_csv: bool, as_json: bool, **query: Any) -> None:
    """Show accelerator-hours, waste and cost by project, user or tag."""
    empty_refuse(*query.values())
    with Client.from_login() as client:
        if as_csv and not as_json:
            lines = client.usage_csv(**query).splitlines()
            return click.echo("\n".join(map(screen.log_text, lines)))
        found = client.usage(**query)
    if as_json:
        return screen.print_json(found)
    rows: list[UsageRow] = [*found["rows"], {**found["total"], "name": "all jobs"}]
    rows = [{**row, "name": row["name"] or "no project"} for row in rows]
    screen.note(
        f"From {when(found['since'])} to {when(found['until'])} {found['currency']}".strip()
    )
    return screen.print_table(_USAGE_COLUMNS, rows)
