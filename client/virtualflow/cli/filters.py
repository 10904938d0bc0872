"""Commands about the own saved filters of the list of jobs."""

from __future__ import annotations

import click

from virtualflow.answers import SavedFilter
from virtualflow.cli import completing, screen
from virtualflow.cli.common import as_json
from virtualflow.cli.screen import Column, when
from virtualflow.client import Client

_COLUMNS = (
    Column("name", lambda row: row["name"]),
    Column("query", lambda row: row["query"]),
    Column("changed", lambda row: when(row["changed_at"]), at_width=80),
)


@click.group()
def filters() -> None:
    """Keep filters of the list of jobs by name, for `ls --filter NAME`."""


@filters.command("ls")
@as_json
def list_filters(as_json: bool) -> None:
    """List the filters."""
    with Client.from_login() as client:
        found = client.saved_filters()
    screen.print_table(_COLUMNS, found, "No filter is saved.", as_json=as_json)


@filters.command()
@click.argument("name")
@click.argument("query")
@as_json
def save(name: str, query: str, as_json: bool) -> None:
    """Keep QUERY, such as 'status=live&tag=baseline', as the filter NAME."""
    with Client.from_login() as client:
        saved = client.save_filter(name, query)
    screen.print_answer(saved, f"Filter {screen.plain(saved['name'])} is saved.", as_json=as_json)


@filters.command()
@click.argument("name", shell_complete=completing.filters)
@as_json
def rm(name: str, as_json: bool) -> None:
    """Delete the filter NAME."""
    with Client.from_login() as client:
        client.delete_filter(filter_named(client, name)["id"])
    sentence = f"Filter {screen.plain(name)} is deleted."
    screen.print_answer({"name": name, "deleted": True}, sentence, as_json=as_json)


def filter_named(client: Client, name: str) -> SavedFilter:
    """Return a saved filter.

    Raises:
        click.BadParameter: there is none of this name.
    """
    found = client.saved_filters()
    for row in found:
        if row["name"] == name:
            return row
    names = screen.plain(", ".join(row["name"] for row in found) or "none")
    raise click.BadParameter(f"You have no filter {name!r:.60}; use {names}.")
