"""Command about replays of the cluster's past: `virtualflow simulate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click
from rich.progress import Progress

from virtualflow.answers import Replay, ReplayComparison
from virtualflow.cli import completing, screen
from virtualflow.cli.common import ExitCode, as_json, timeout
from virtualflow.client import Client

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


@click.command()
@click.argument("policy", shell_complete=completing.policies)
@click.option(
    "--accelerators", multiple=True, metavar="KIND=NUMBER",
    help="Another number of this kind than the cluster has.",
)  # fmt: skip
@click.option(
    "--resize-cost", type=float, metavar="SECONDS",
    help="How long each start and each resize stops a job; default: as measured.",
)  # fmt: skip
@click.option(
    "--scenario", "others", multiple=True,
    metavar="POLICY[,KIND=NUMBER...][,resize-cost=SECONDS]",
    help="Another scenario over the same history, side by side; up to three.",
)  # fmt: skip
@click.option("--hours", type=int, default=24, show_default=True, help="How far back.")
@timeout
@as_json
def simulate(
    policy: str,
    accelerators: tuple[str, ...],
    resize_cost: float | None,
    others: tuple[str, ...],
    hours: int,
    timeout_s: float | None,
    as_json: bool,
) -> None:
    """Replay the cluster's past as if POLICY had been in force (admins)."""
    scenarios = [_scenario(policy, accelerators, resize_cost, "--accelerators")]
    scenarios += [_other_scenario(text) for text in others]
    with Client.from_login() as client:
        first = client.simulate_scenarios(scenarios, hours=hours)
        try:
            ids = [first["id"]]
            if others:
                ids = [int(row["id"]) for row in client.comparison(first["id"])["scenarios"]]
            replays = _replays_watch(client, ids, timeout_s)
        except KeyboardInterrupt:
            screen.note(f"Stopped waiting; the site goes on with replay {first['id']}.")
            click.get_current_context().exit(ExitCode.INTERRUPTED)
        comparison = client.comparison(first["id"]) if others else None
    if as_json:
        screen.print_json(replays[0] if comparison is None else comparison)
    elif comparison is not None:
        _comparison_table(comparison)
    elif replays[0]["status"] == "done":
        _replay_table(replays[0])
    failed = [replay for replay in replays if replay["status"] != "done"]
    for replay in failed:
        screen.note(f"Replay {replay['id']} {replay['status']}: {replay['error']}")
    if failed:
        click.get_current_context().exit(ExitCode.JOB_FAILED)


def _scenario(
    policy: str, sizes: Sequence[str], resize_cost_s: float | None, option: str
) -> dict[str, Any]:
    size = dict(_kind_and_number(text, option) for text in sizes)
    return {"policy": policy, "accelerators": size, "resize_cost_s": resize_cost_s}


def _other_scenario(text: str) -> dict[str, Any]:
    policy, *parts = text.split(",")
    prefix = "resize-cost="
    costs = [part.removeprefix(prefix) for part in parts if part.startswith(prefix)]
    try:
        cost_s = float(costs[-1]) if costs else None
    except ValueError:
        raise click.BadParameter(
            f"{costs[-1]!r:.60} is not a number of seconds, such as resize-cost=30.",
            param_hint="--scenario",
        ) from None
    sizes = [part for part in parts if not part.startswith(prefix)]
    return _scenario(policy, sizes, cost_s, "--scenario")


def _kind_and_number(text: str, option: str) -> tuple[str, int]:
    kind, _, number = text.partition("=")
    if not kind or not (number.isascii() and number.isdecimal()) or len(number) > 9:
        raise click.BadParameter(
            f"{text!r:.60} is not KIND=NUMBER, such as cpu=8.", param_hint=option
        )
    return kind, int(number)


def _replays_watch(client: Client, ids: Sequence[int], timeout_s: float | None) -> list[Replay]:
    """Wait for replays one after the other, for `timeout_s` each at most."""
    out = screen.console(is_error=True)
    ended = []
    with Progress(console=out, transient=True, disable=not out.is_terminal) as bar:
        for number in ids:
            task = bar.add_task(f"replay {number}", total=1.0)
            for replay in client.watch_replay(number, timeout_s=timeout_s):
                bar.update(task, completed=replay["progress"])
            ended.append(replay)
    return ended


def _comparison_table(found: ReplayComparison) -> None:
    """Print the figures of all scenarios; titles name accelerators and costs of their own."""
    rows = []
    for row in found["rows"]:
        cells = [row["recorded"], row["as_is"], *row["scenarios"]]
        title = f"{row['title']}, {row['jobs']}" if row["jobs"] else row["title"]
        rows.append((title, [_figure(cell["value"], row["unit"]) for cell in cells]))
    titles = ["recorded", f"replayed as it was ({found['as_is_policy']})"]
    for scenario in found["scenarios"]:
        size = scenario["accelerators"]
        sizes = [f"{number} {kind}" for kind, number in size.items()]
        is_other = size != found["as_is_accelerators"]
        titles.append(_title(scenario, sizes if is_other else []))
    screen.print_table(screen.row_columns(titles), rows, "No scenario is done.")


def _replay_table(replay: Replay) -> None:
    result: dict[str, Any] = replay["result"]
    figures = [result.get(name) or {} for name in ("recorded", "as_is", "changed")]
    rows = [
        (text, [_figure(values.get(name), unit) for values in figures])
        for name, text, unit in _MEASURES
    ]
    for tier in result.get("tiers", ()):
        times = [tier[name].get("mean_jct_s") or None for name in ("recorded", "as_is", "changed")]
        text = f"mean completion, {tier['num_jobs']} {tier['tier']}"
        rows.append((text, [_figure(value, "s") for value in times]))
    as_it_was = f"replayed as it was ({result.get('as_is_policy', '')})"
    columns = screen.row_columns(["recorded", as_it_was, _title(replay, [])])
    screen.print_table(columns, rows)


def _title(scenario: Mapping[str, Any], sizes: Sequence[str]) -> str:
    cost_s = scenario.get("resize_cost_s")
    cost = [] if cost_s is None else [f"resize cost {cost_s:g} s"]
    return ", ".join([f"with {scenario['policy']}", *sizes, *cost])


def _figure(value: float | None, unit: str) -> str:
    if value is None:
        return screen.EMPTY
    return {"%": f"{100 * value:.0f} %", "s": f"{value:,.0f} s"}.get(unit, f"{value:.2f}")
