"""Commands about the own secrets."""

from __future__ import annotations

import sys

import click

from virtualflow.cli import completing, screen
from virtualflow.cli.common import as_json
from virtualflow.cli.screen import Column, when
from virtualflow.client import Client

_COLUMNS = (
    Column("name", lambda row: row["name"]),
    Column("created", lambda row: when(row["created_at"])),
    Column("changed", lambda row: when(row["changed_at"]), at_width=80),
)
#: More than a site takes, and says so.
_READ_LIMIT = 32 * 1024


@click.group()
def secrets() -> None:
    """Keep passwords and keys for your jobs: `submit --set secrets=NAME`."""


@secrets.command("ls")
@as_json
def list_secrets(as_json: bool) -> None:
    """List the names; no value is ever shown."""
    with Client.from_login() as client:
        found = client.secrets()
    screen.print_table(_COLUMNS, found, "No secret is stored.", as_json=as_json)


@secrets.command("set")
@click.argument("name", shell_complete=completing.secrets)
@as_json
def set_secret(name: str, as_json: bool) -> None:
    """Store a value as NAME, in place of the one that it had.

    The value is asked for, or read from standard input, where one line end after it does not count.
    """
    value = _value()
    with Client.from_login() as client:
        stored = client.set_secret(name, value)
    sentence = f"Secret {screen.plain(stored['name'])} is stored."
    screen.print_answer(stored, sentence, as_json=as_json)


@secrets.command()
@click.argument("name", shell_complete=completing.secrets)
@as_json
def rm(name: str, as_json: bool) -> None:
    """Delete the secret NAME; jobs that name it fail."""
    with Client.from_login() as client:
        client.delete_secret(name)
    sentence = f"Secret {screen.plain(name)} is deleted."
    screen.print_answer({"name": name, "deleted": True}, sentence, as_json=as_json)


def _value() -> str:
    if sys.stdin is not None and sys.stdin.isatty():  # None: closed
        return str(click.prompt("Value (not shown)", hide_input=True, err=True))
    value = "" if sys.stdin is None else sys.stdin.read(_READ_LIMIT)
    if "\ufffd" in value:  # which stands for bytes of another encoding
        raise click.UsageError("The value is no text in UTF-8.")
    return value.removesuffix("\n").removesuffix("\r")
