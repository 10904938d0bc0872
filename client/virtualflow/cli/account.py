"""Commands about the user's own account at a site."""

from __future__ import annotations

import sys
from urllib.parse import urlsplit

import click

from virtualflow.cli import screen
from virtualflow.cli.common import as_json
from virtualflow.client import Client
from virtualflow.credentials import (
    SERVER_VARIABLE,
    Credentials,
    credentials_forget,
    credentials_path,
    credentials_store,
)
from virtualflow.transport import server_read, token_read

_LOCAL = ("localhost", "127.0.0.1", "::1")


@click.command()
@click.argument("server", required=False, envvar=SERVER_VARIABLE)
@as_json
def login(server: str | None, as_json: bool) -> None:
    """Keep the address of a site and a token for later commands.

    The token is asked for, or read from standard input; make one on the site's account page.
    """
    is_asked = sys.stdin is not None and sys.stdin.isatty()  # None: closed
    if server is None:
        server = click.prompt("Address of the site", err=True) if is_asked else ""
    server = server_read(server)
    if urlsplit(server).scheme == "http" and urlsplit(server).hostname not in _LOCAL:
        screen.note(f"Warning: {server} is not encrypted; others on the way can read the token.")
    if is_asked:
        token = click.prompt("Token (not shown)", hide_input=True, err=True)
    else:
        token = "" if sys.stdin is None else sys.stdin.readline(1000)
    credentials = Credentials(server, token_read(token))
    with Client(*credentials) as client:
        index = client.index()
    path = credentials_store(credentials)
    scopes = index["scopes"] or []
    if as_json:
        screen.print_json({"server": server, "user": index["user"], "scopes": scopes})
    else:
        click.echo(f"Logged in at {server} as {screen.plain(index['user'])}.")
        expiry = screen.when(index["token_expires_at"])
        screen.note(f"The token may: {screen.plain(scopes)}. It expires: {expiry}. Kept in {path}")


@click.command()
@as_json
def logout(as_json: bool) -> None:
    """Forget the stored address and token; the token itself stays valid."""
    was_there = credentials_forget()
    sentence = f"Deleted {credentials_path()}." if was_there else "There was nothing to forget."
    screen.print_answer({"forgotten": was_there}, sentence, as_json=as_json)
