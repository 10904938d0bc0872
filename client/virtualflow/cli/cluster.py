"""Commands about nodes and policies."""

from __future__ import annotations

from collections import Counter
from typing import Any

import click
from rich.progress import Progress

from virtualflow.answers import Node, Replay
from virtualflow.cli import screen
from virtualflow.cli.common import as_json, reason, timeout
from virtualflow.cli.exit_codes import ExitCode
from virtualflow.cli.screen import Column, when
from virtualflow.client import Client

_NODES_LIMIT = 10_000
_NODE_COLUMNS = (
    Column("node", lambda node: node["name"]),
    Column("status", lambda node: node["status"], is_status=True),
    Column("accelerators", lambda node: _accelerators(node)),
    Column("host", lambda node: node["host"], at_width=90),
    Column("isolation", lambda node: node["isolation"], at_width=100),
    Column("last seen", lambda node: when(node["last_seen_at"]), at_width=60),
    Column("quarantine", lambda node: node["quarantine_reason"], at_width=120),
)
#: Figures of a replay, in the order and with the units of the What-if page.
_MEASURES = (
    ("mean_jct_s", "mean completion time", "s"),
    ("median_jct_s", "median completion time", "s"),
    ("p90_jct_s", "90th percentile of completion times", "s"),
    ("mean_queueing_s", "mean time until the first step", "s"),
    ("makespan_s", "until the last job was done", "s"),
    ("utilisation", "accelerators in use", "%"),
    ("resizes_per_job", "resizes per job", ""),
    ("worst_fairness", "worst finish-time fairness", ""),
)


def _accelerators(node: Node) -> str:
    kinds = Counter(row["kind"] for row in node["accelerators"] if row["is_present"])
    return ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))


@click.command()
@as_json
def nodes(as_json: bool) -> None:
    """List the nodes and their accelerators."""
    with Client.from_login() as client:
        found = sorted(client.nodes(), key=lambda node: node["name"])
    if as_json:
        return screen.print_json(found)
    return screen.print_table(_NODE_COLUMNS, found, "There are no nodes yet.")


@click.command()
@click.argument("node")
@reason
@as_json
def cordon(node: str, reason: str, as_json: bool) -> None:
    """Give NODE, a name or a number, no new work (admins).

    Nothing is moved: its jobs keep what they have. Also ends a drain.
    """
    with Client.from_login() as client:
        found = client.cordon(_node_number(client, node), reason)
    return _tell(found, "takes no new work; its jobs stay", as_json=as_json)


@click.command()
@click.argument("node")
@reason
@as_json
def drain(node: str, reason: str, as_json: bool) -> None:
    """Take NODE, a name or a number, out of the pool (admins).

    It gets no new work, and the policy moves its jobs to other nodes, live where there is room;
    otherwise they save their state and wait.
    """
    with Client.from_login() as client:
        found = client.drain(_node_number(client, node), reason)
    return _tell(found, "takes no more work; its jobs move away", as_json=as_json)


@click.command()
@click.argument("node")
@reason
@as_json
def uncordon(node: str, reason: str, as_json: bool) -> None:
    """Give NODE, a name or a number, work again after a cordon or a drain (admins)."""
    with Client.from_login() as client:
        found = client.uncordon(_node_number(client, node), reason)
    return _tell(found, "takes work again", as_json=as_json)


def _tell(node: Node, text: str, *, as_json: bool) -> None:
    if as_json:
        return screen.print_json(node)
    return click.echo(f"{screen.plain(node['name'])} {text}.")


def _node_number(client: Client, node: str) -> int:
    found = list(client.nodes())
    for row in found:
        if node in (row["name"], str(row["id"])):
            return row["id"]
    names = ", ".join(sorted(row["name"] for row in found)[:20]) or "none yet"
    raise click.BadParameter(
        f"There is no node {node!r:.60}. Nodes: {screen.plain(names)}.", param_hint="NODE"
    )


@click.command()
@as_json
def templates(as_json: bool) -> None:
    """List the ready jobs that `submit --template` starts from."""
    with Client.from_login() as client:
        found = client.templates()
    if as_json:
        return screen.print_json(found)
    columns = (
        Column("name", lambda row: row["name"]),
        Column("title", lambda row: row["title"]),
        Column("description", lambda row: row["description"], at_width=90),
    )
    return screen.print_table(columns, found)


@click.command()
@click.argument("policy")
@click.option(
    "--accelerators", multiple=True, metavar="KIND=NUMBER",
    help="Another number of this kind than the cluster has.",
)  # fmt: skip
@click.option("--hours", type=int, default=24, show_default=True, help="How far back.")
@timeout
@as_json
def simulate(
    policy: str,
    accelerators: tuple[str, ...],
    hours: int,
    timeout_s: float | None,
    as_json: bool,
) -> None:
    """Replay the cluster's past as if POLICY had been in force (admins)."""
    size = dict(_kind_and_number(text) for text in accelerators)
    with Client.from_login() as client:
        replay = client.simulate(policy, accelerators=size, hours=hours)
        try:
            replay = _replay_watch(client, replay, timeout_s)
        except KeyboardInterrupt:
            screen.note(f"Stopped waiting; the site goes on with replay {replay['id']}.")
            click.get_current_context().exit(ExitCode.INTERRUPTED)
    if as_json:
        screen.print_json(replay)
    elif replay["status"] == "done":
        _replay_table(replay)
    if replay["status"] != "done":
        screen.note(f"Replay {replay['id']} {replay['status']}: {replay['error']}")
        click.get_current_context().exit(ExitCode.JOB_FAILED)


def _kind_and_number(text: str) -> tuple[str, int]:
    kind, _, number = text.partition("=")
    if not kind or not (number.isascii() and number.isdecimal()) or len(number) > 9:
        raise click.BadParameter(
            f"{text!r:.60} is not KIND=NUMBER, such as cpu=8.", param_hint="--accelerators"
        )
    return kind, int(number)


def _replay_watch(client: Client, replay: Replay, timeout_s: float | None) -> Replay:
    out = screen.console(is_error=True)
    with Progress(console=out, transient=True, disable=not out.is_terminal) as bar:
        task = bar.add_task(f"replay {replay['id']}", total=1.0)
        for found in client.watch_replay(replay["id"], timeout_s=timeout_s):
            replay = found
            bar.update(task, completed=replay["progress"])
    return replay


def _replay_table(replay: Replay) -> None:
    result: dict[str, Any] = replay["result"]
    figures = [result.get(name) or {} for name in ("recorded", "as_is", "changed")]
    rows = [
        (text, [_figure(values.get(name), unit) for values in figures])
        for name, text, unit in _MEASURES
    ]
    as_it_was = f"replayed as it was ({result.get('as_is_policy', '')})"
    columns = screen.row_columns(["recorded", as_it_was, f"with {replay['policy']}"])
    screen.print_table(columns, rows)


def _figure(value: float | None, unit: str) -> str:
    if value is None:
        return screen.EMPTY
    return {"%": f"{value:.0%}", "s": f"{value:,.0f} s"}.get(unit, f"{value:.2f}")
