"""Commands about the own notification channels."""

from __future__ import annotations

import click

from virtualflow.cli import completing, screen
from virtualflow.cli.common import as_json, row_number
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
_channel = click.argument("channel", shell_complete=completing.channels)


@click.group()
def notifications() -> None:
    """Hear of your jobs by webhook, e-mail or chat; CHANNEL is a name or a number."""


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
@_channel
@as_json
def test(channel: str, as_json: bool) -> None:
    """Send a test message; `deliveries` shows what came of it."""
    with Client.from_login() as client:
        number = _number(client, channel)
        client.test_channel(number)
    sentence = f"A message is on its way: `virtualflow notifications deliveries {number}`."
    screen.print_answer({"channel": number, "asked": True}, sentence, as_json=as_json)


@notifications.command()
@_channel
@click.argument("code")
@as_json
def confirm(channel: str, code: str, as_json: bool) -> None:
    """Confirm a mail address with the CODE that was mailed to it; `test` mails it again."""
    with Client.from_login() as client:
        changed = client.confirm_channel(_number(client, channel), code)
    screen.print_answer(changed, f"Channel {changed['id']} is confirmed.", as_json=as_json)


@notifications.command()
@_channel
@as_json
def deliveries(channel: str, as_json: bool) -> None:
    """List the messages of a channel, the newest first."""
    with Client.from_login() as client:
        found = client.deliveries(_number(client, channel))
        screen.print_table(_DELIVERIES, found, as_json=as_json)


@notifications.command()
@_channel
@as_json
def pause(channel: str, as_json: bool) -> None:
    """Pause a channel until `resume`; what happens meanwhile is not sent later."""
    _pause(channel, True, as_json)


@notifications.command()
@_channel
@as_json
def resume(channel: str, as_json: bool) -> None:
    """Let a paused channel send again."""
    _pause(channel, False, as_json)


def _pause(channel: str, is_paused: bool, as_json: bool) -> None:
    with Client.from_login() as client:
        changed = client.change_channel(_number(client, channel), is_paused=is_paused)
    sentence = f"Channel {changed['id']} is {'paused' if is_paused else 'active'}."
    screen.print_answer(changed, sentence, as_json=as_json)


@notifications.command()
@_channel
@as_json
def rm(channel: str, as_json: bool) -> None:
    """Delete a channel."""
    with Client.from_login() as client:
        number = _number(client, channel)
        client.delete_channel(number)
    sentence = f"Channel {number} is deleted."
    screen.print_answer({"channel": number, "deleted": True}, sentence, as_json=as_json)


def _number(client: Client, channel: str) -> int:
    return row_number(client.channels(), channel, "channel")
