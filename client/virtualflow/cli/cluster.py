"""Commands about nodes and policies."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import click

from virtualflow.answers import Accelerator, Node
from virtualflow.cli import completing, screen
from virtualflow.cli.common import as_json, reason, row_number
from virtualflow.cli.screen import Column, when
from virtualflow.client import Client

_NODE_COLUMNS = (
    Column("node", lambda node: node["name"]),
    Column("status", lambda node: node["status"], is_status=True),
    Column("accelerators", lambda node: _accelerators(node)),
    Column("host", lambda node: node["host"], at_width=90),
    Column("isolation", lambda node: node["isolation"], at_width=100),
    Column("last seen", lambda node: when(node["last_seen_at"]), at_width=60),
    Column("maintenance", lambda node: _maintenance(node), at_width=110),
    Column("quarantine", lambda node: node["quarantine_reason"], at_width=120),
)


@dataclass(frozen=True)
class _Use:
    """A row of `nodes --utilisation`."""

    node: Node
    accelerator: Accelerator

    def told(self, name: str, form: str, factor: float = 1.0) -> str:
        reading = self.accelerator["reading"]
        value = None if reading is None else reading.get(name)
        return form.format(value * factor) if isinstance(value, int | float) else screen.EMPTY


_USE_COLUMNS = (
    Column("node", lambda row: row.node["name"]),
    Column("accelerator", lambda row: str(row.accelerator["index"])),
    Column("kind", lambda row: row.accelerator["kind"], at_width=60),
    Column("used", lambda row: row.told("utilisation_percent", "{:.0f} %")),
    Column("memory", lambda row: row.told("memory_bytes", "{:.2f} GB", 1e-9)),
    Column("temperature", lambda row: row.told("temperature_c", "{:.0f} °C"), at_width=80),
    Column("power", lambda row: row.told("power_w", "{:.0f} W"), at_width=80),
    Column("note", lambda row: "idle but held" if row.accelerator["is_idle_held"] else ""),
)
MOVE_COLUMNS = (
    Column("job", lambda move: str(move["job"])),
    Column("name", lambda move: move["name"], at_width=90),
    Column("accelerators", lambda move: move["text"]),
    Column("within", lambda move: _seconds(move["within_s"])),
    Column("starts after", lambda move: _start(move["start_s"]), at_width=60),
)


def _accelerators(node: Node) -> str:
    kinds = Counter(row["kind"] for row in node["accelerators"] if row["is_present"])
    return ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))


def _maintenance(node: Node) -> str:
    if node["maintenance_from"] is None:
        return ""
    if node["status"] == "maintenance":
        return f"until {when(node['maintenance_until'])}"
    return f"from {when(node['maintenance_from'])}"


@click.group(invoke_without_command=True)
@click.option("--utilisation", is_flag=True, help="Show the use of each accelerator now.")
@as_json
@click.pass_context
def nodes(context: click.Context, utilisation: bool, as_json: bool) -> None:
    """List the nodes and their accelerators; `nodes window` is about their maintenance."""
    if context.invoked_subcommand is not None:
        return None
    with Client.from_login() as client:
        found = sorted(client.nodes(), key=lambda node: node["name"])
    if as_json:
        return screen.print_json(found)
    if utilisation:
        rows = [_Use(node, row) for node in found for row in node["accelerators"]]
        present = [row for row in rows if row.accelerator["is_present"]]
        return screen.print_table(_USE_COLUMNS, present, "There are no accelerators yet.")
    return screen.print_table(_NODE_COLUMNS, found, "There are no nodes yet.")


@click.command()
@click.argument("node", shell_complete=completing.nodes)
@reason
@as_json
def cordon(node: str, reason: str, as_json: bool) -> None:
    """Give NODE, a name or a number, no new work (admins).

    Nothing is moved: its jobs keep what they have. Also ends a drain.
    """
    with Client.from_login() as client:
        found = client.cordon(row_number(client.nodes(), node, "node"), reason)
    return _tell(found, "takes no new work; its jobs stay", as_json=as_json)


@click.command()
@click.argument("node", shell_complete=completing.nodes)
@click.option("--dry-run", is_flag=True, help="Show who would move where, and change nothing.")
@reason
@as_json
def drain(node: str, dry_run: bool, reason: str, as_json: bool) -> None:
    """Take NODE, a name or a number, out of the pool (admins).

    It gets no new work, and the policy moves its jobs to other nodes, live where there is room;
    otherwise they save their state and wait.
    """
    with Client.from_login() as client:
        if dry_run:
            preview = client.drain_preview(row_number(client.nodes(), node, "node"))
            if as_json:
                return screen.print_json(preview)
            return screen.print_table(MOVE_COLUMNS, preview["moves"], "No job would change.")
        found = client.drain(row_number(client.nodes(), node, "node"), reason)
    return _tell(found, "takes no more work; its jobs move away", as_json=as_json)


@click.command()
@click.argument("node", shell_complete=completing.nodes)
@reason
@as_json
def uncordon(node: str, reason: str, as_json: bool) -> None:
    """Give NODE, a name or a number, work again after a cordon or a drain (admins)."""
    with Client.from_login() as client:
        found = client.uncordon(row_number(client.nodes(), node, "node"), reason)
    return _tell(found, "takes work again", as_json=as_json)


def _tell(node: Node, text: str, *, as_json: bool) -> None:
    screen.print_answer(node, f"{screen.plain(node['name'])} {text}.", as_json=as_json)


def _seconds(value: float | None) -> str:
    return screen.EMPTY if value is None else f"{value:,.0f} s"


def _start(value: list[float] | None) -> str:
    return " to ".join(_seconds(end) for end in value) if value else screen.EMPTY


@click.command()
@as_json
def templates(as_json: bool) -> None:
    """List the ready jobs that `submit --template` starts from."""
    with Client.from_login() as client:
        found = client.templates()
    columns = (
        Column("name", lambda row: row["name"]),
        Column("title", lambda row: row["title"]),
        Column("description", lambda row: row["description"], at_width=90),
    )
    screen.print_table(columns, found, as_json=as_json)
