"""Commands about the own notification channels."""

from __future__ import annotations

import click

from virtualflow.cli import completing, screen
from virtualflow.cli.common import as_json
from virtualflow.cli.screen import Column, when
from virtualflow.client import Client

_CHANNELS = (
    Column("id", lambda channel: channel["id"], is_number=True),
    Column("name", lambda channel: channel["name"]),
    Column("sent to", lambda channel: channel["address"]),
    Column("status", lambda channel: channel["paused_reason"] or "active"),
    Column("events", lambda channel: ", ".join(channel["events"]), at_width=100),
)
_DELIVERIES = (
    Column("id", lambda delivery: delivery["id"], is_number=True),
    Column("event", lambda delivery: delivery["kind"]),
    Column("status", lambda delivery: delivery["status"]),
    Column("attempts", lambda delivery: delivery["num_attempts"], is_number=True),
    Column("answer", lambda delivery: delivery["answer"]),
    Column("queued", lambda delivery: when(delivery["created_at"]), at_width=80),
)


@click.group()
def notifications() -> None:
    """Hear of your jobs by webhook, e-mail or chat."""


@notifications.command("ls")
@as_json
def channels(as_json: bool) -> None:
    """List the channels."""
    with Client.from_login() as client:
        found = client.channels()
    screen.print_table(_CHANNELS, found, as_json=as_json)


@notifications.command()
@click.argument("name")
@click.argument("address")
@click.option("--kind", type=click.Choice(["webhook", "email", "chat"]), default="webhook")
@click.option("--event", "events", multiple=True, help="Repeatable; by default ends of jobs.")
@click.option("--cluster-wide", is_flag=True, help="Of all jobs and nodes (admins).")
@as_json
def add(
    name: str, address: str, kind: str, events: tuple[str, ...], cluster_wide: bool, as_json: bool
) -> None:
    """Add the channel NAME that sends to ADDRESS; prints the signing key of a webhook, once."""
    with Client.from_login() as client:
        made = client.create_channel(
            name, address, kind=kind, events=events or None, is_cluster_wide=cluster_wide
        )
    if as_json:
        screen.print_json(made)
    else:
        click.echo(f"Channel {made['id']} sends to {screen.plain(made['address'])}.")
        if made["kind"] == "email":
            click.echo(f"Confirm it: `virtualflow notifications confirm {made['id']} CODE`,")
            click.echo("with the code that is mailed to the address.")
        if made["signing_key"]:
            click.echo(f"Signing key, shown only once: {screen.plain(made['signing_key'])}")


@notifications.command()
@click.argument("channel", type=int, shell_complete=completing.channels)
@as_json
def test(channel: int, as_json: bool) -> None:
    """Send a test message; `deliveries` shows what came of it."""
    with Client.from_login() as client:
        client.test_channel(channel)
    sentence = f"A message is on its way: `virtualflow notifications deliveries {channel}`."
    screen.print_answer({"channel": channel, "asked": True}, sentence, as_json=as_json)


@notifications.command()
@click.argument("channel", type=int, shell_complete=completing.channels)
@click.argument("code")
@as_json
def confirm(channel: int, code: str, as_json: bool) -> None:
    """Confirm a mail address with the CODE that was mailed to it; `test` mails it again."""
    with Client.from_login() as client:
        changed = client.confirm_channel(channel, code)
    screen.print_answer(changed, f"Channel {channel} is confirmed.", as_json=as_json)


@notifications.command()
@click.argument("channel", type=int, shell_complete=completing.channels)
@as_json
def deliveries(channel: int, as_json: bool) -> None:
    """List the messages of a channel, the newest first."""
    with Client.from_login() as client:
        screen.print_table(_DELIVERIES, client.deliveries(channel), as_json=as_json)


@notifications.command()
@click.argument("channel", type=int, shell_complete=completing.channels)
@as_json
def pause(channel: int, as_json: bool) -> None:
    """Pause a channel until `resume`; what happens meanwhile is not sent later."""
    _pause(channel, True, as_json)


@notifications.command()
@click.argument("channel", type=int, shell_complete=completing.channels)
@as_json
def resume(channel: int, as_json: bool) -> None:
    """Let a paused channel send again."""
    _pause(channel, False, as_json)


def _pause(channel: int, is_paused: bool, as_json: bool) -> None:
    with Client.from_login() as client:
        changed = client.change_channel(channel, is_paused=is_paused)
    sentence = f"Channel {channel} is {'paused' if is_paused else 'active'}."
    screen.print_answer(changed, sentence, as_json=as_json)


@notifications.command()
@click.argument("channel", type=int, shell_complete=completing.channels)
@as_json
def rm(channel: int, as_json: bool) -> None:
    """Delete a channel."""
    with Client.from_login() as client:
        client.delete_channel(channel)
    sentence = f"Channel {channel} is deleted."
    screen.print_answer({"channel": channel, "deleted": True}, sentence, as_json=as_json)
