"""Commands about maintenance windows: `virtualflow nodes window`."""

from __future__ import annotations

import click

from virtualflow.answers import MaintenanceWindow
from virtualflow.cli import completing, screen
from virtualflow.cli.cluster import MOVE_COLUMNS
from virtualflow.cli.common import as_json, local_time, reason, row_number
from virtualflow.cli.screen import Column, when
from virtualflow.client import Client

_COLUMNS = (
    Column("id", lambda window: window["id"], is_number=True),
    Column("node", lambda window: window["node_name"]),
    Column("status", lambda window: window["status"]),
    Column("from", lambda window: when(window["starts_at"])),
    Column("until", lambda window: when(window["ends_at"])),
    Column("reason", lambda window: window["reason"], at_width=90),
)


@click.group()
def window() -> None:
    """Plan maintenance of nodes, and cancel it."""


@window.command()
@as_json
def ls(as_json: bool) -> None:
    """List the windows that are planned or under way, the next one first."""
    with Client.from_login() as client:
        found = client.windows()
    return _tell(found, as_json=as_json)


@window.command()
@click.argument("nodes", nargs=-1, required=True, shell_complete=completing.nodes)
@click.option(
    "--starts",
    type=local_time,
    metavar="TIME",
    help="As 2026-03-01T20:00; local, or with an offset.",
)
@click.option("--ends", type=local_time, metavar="TIME", help="At most 30 days after the start.")
@click.option("--dry-run", is_flag=True, help="Show who would move if it began now.")
@reason
@as_json
def plan(
    nodes: tuple[str, ...],
    starts: str | None,
    ends: str | None,
    dry_run: bool,
    reason: str,
    as_json: bool,
) -> None:
    """Plan maintenance of NODES, names or numbers (admins); --reason is required.

    Some minutes before, a node takes no new work. At the start its jobs move to other nodes, live
    where there is room; otherwise they save their state and wait.
    """
    if not dry_run and not (starts and ends and reason):
        raise click.UsageError("Give --starts, --ends and --reason, or --dry-run.")
    with Client.from_login() as client:
        known = list(client.nodes())
        numbers = [row_number(known, node, "node") for node in nodes]
        if dry_run:
            preview = client.preview_windows(numbers)
            if as_json:
                return screen.print_json(preview)
            return screen.print_table(MOVE_COLUMNS, preview["moves"], "No job would change.")
        found = client.plan_windows(numbers, starts or "", ends or "", reason)
    return _tell(found, as_json=as_json)


@window.command()
@click.argument("window_id", metavar="WINDOW", type=click.IntRange(1, 2**31 - 1))
@reason
@as_json
def cancel(window_id: int, reason: str, as_json: bool) -> None:
    """Cancel WINDOW, a number of `ls`, before or during it (admins)."""
    with Client.from_login() as client:
        found = client.cancel_window(window_id, reason)
    return screen.print_json(found) if as_json else _tell([found], as_json=False)


def _tell(windows: list[MaintenanceWindow], *, as_json: bool) -> None:
    screen.print_table(_COLUMNS, windows, "No maintenance is planned.", as_json=as_json)
