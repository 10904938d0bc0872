"""Losing trainers through the real control plane: from the loss to the next completed step.

One job trains on three accelerators of two nodes, with web, worker, beat and agents as processes of
their own, and is hit again and again: trainers are killed in every phase of their work, two at
once, one while the others recover; they are stopped so that they hang; lines to their peers and to
the control plane are cut; nodes fall silent, as without power; the control plane is killed, and
down for minutes. The survivors go on from memory. For comparison, all trainers are killed and the
job starts anew from its newest checkpoint, the usual way. In the end its digest has to be that of
an undisturbed job.

    python -m benchmarks.failure [--rounds 1] [--only NAME ...]

Some waits are part of the figures and of the design: a hang is seen when a trainer's pulse is older
than `--pulse-limit` of its agent, a lost node or agent when its lease is over (both 5 s here), a
peer that cannot be reached when two looks after 2 s of waiting were in vain. A control plane that
is away takes as long as it takes to start. The time "stood still" is the longest between two steps
that a survivor saw.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.failures.cases import CASES, Case, Hit
from benchmarks.failures.hits import DEADLINE_S, FatedJob, answers
from benchmarks.failures.links import open_links
from benchmarks.figures import figures_print
from tests.support.stack import Stack, embedded_stack

LEASE_S = 5.0
PULSE_LIMIT_S = 5.0
CHECKPOINT_EVERY_S = 5.0
NUM_ACCELERATORS = 3
PACE_S = 0.06
#: A hit job is given so many steps at its pace per case, and then very slow ones.
STEPS_PER_CASE, FIRST_STEPS, LAST_STEPS = 150, 200, 100
STEADY_STEPS = 10
FIGURES = ("kill_to_step_s", "hang_to_step_s", "node_loss_to_step_s", "restart_to_step_s")


@dataclass(frozen=True)
class Loss:
    """One measured loss, in seconds since it was done.

    Attributes:
        noticed_s: the control plane had recorded it.
        switched_s: the new membership was in place.
        step_s: the next step was complete.
        still_s: longest time between two steps of a survivor; None without survivors.
    """

    case: Case
    noticed_s: float
    switched_s: float
    step_s: float
    still_s: float | None


def main() -> int:
    """Run all cases, print the table and the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1, help="do everything so often")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="WORD", help="cases with such a word"
    )
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error(f"--rounds must be at least 1, got {options.rounds}")
    words = options.only or [""]
    chosen = [case for case in CASES if any(word in case.name for word in words)]
    if not chosen:
        names = "; ".join(case.name for case in CASES)
        parser.error(f"no case has one of {words} in its name; there are: {names}")
    variables: dict[str, Any] = {
        "VIRTUALFLOW_LEASE_S": str(LEASE_S),
        "VIRTUALFLOW_HEARTBEAT_S": "1",
        "VIRTUALFLOW_CHECKPOINT_EVERY_S": str(CHECKPOINT_EVERY_S),
        # Losses that are caused on purpose must not quarantine a node.
        "VIRTUALFLOW_QUARANTINE_DEATHS": "0",
    }
    hits = [case for case in chosen for _ in range(case.repeats)] * options.rounds
    with tempfile.TemporaryDirectory(prefix="virtualflow-failure-") as name:
        folder = Path(name)
        with (
            open_links(folder) as links,
            embedded_stack(
                folder,
                options_for=lambda _: ["--pulse-limit", str(PULSE_LIMIT_S)],
                address_for=links.address_for,
                **variables,
            ) as stack,
        ):
            losses, are_equal = run(stack, hits)
    figures: dict[str, Any] = {name: _median(losses, name) for name in FIGURES}
    figures["digests_equal"] = int(are_equal)
    print_table(losses, figures)
    figures_print("failure", figures)
    return 0 if are_equal else 1


def run(stack: Stack, hits: list[Case]) -> tuple[list[Loss], bool]:
    """Let one job suffer all losses.

    Returns:
        What each loss cost, and whether the job ended like an undisturbed one: with the same
        digest, steps and logs of every epoch.
    """
    slow_from = FIRST_STEPS + sum(STEPS_PER_CASE + int(hit.lasts_s / PACE_S) for hit in hits)
    num_steps = slow_from + LAST_STEPS
    settings = {"pace_s": PACE_S, "slow_from": slow_from}
    job = FatedJob(stack, "hit", num_steps, settings, max_accelerators=NUM_ACCELERATORS)
    losses: list[Loss] = []
    for case in hits:
        before = steady(job)
        slots = [member["slot"] for member in before["members"]]
        loss = measure(job, case, before["number"], case.hit(job, slots))
        losses.append(loss)
        print(f"{case.name}: {loss.step_s:.2f} s to the next step", flush=True)
    ended = [job.finish()]
    epochs = [job.epochs()]
    untouched = FatedJob(stack, "untouched", num_steps, settings, max_accelerators=1)
    ended.append(untouched.finish())
    epochs.append(untouched.epochs())
    ends = [(state["digest"], state["step"], state["metrics"]) for state in ended]
    return losses, ends[0] == ends[1] and epochs[0] == epochs[1]


def steady(job: FatedJob) -> dict[str, Any]:
    """Wait until it trains on all that it may have and got further; give the generation."""

    def has_all() -> dict[str, Any] | None:
        job.state()
        newest = next(iter(job.generations()), None)
        if newest is None or newest["phase"] != "active" or not newest["first_step_at"]:
            return None
        return newest if newest["num_members"] == NUM_ACCELERATORS else None

    newest: dict[str, Any] = job.stack.wait_for("a job that trains", has_all, DEADLINE_S)
    step = job.state()["step"]
    job.stack.wait_for("steps", lambda: job.state()["step"] > step + STEADY_STEPS, DEADLINE_S)
    return newest


def measure(job: FatedJob, case: Case, number: int, hit: Hit) -> Loss:
    """Wait for the next completed step after a loss."""

    def with_a_step() -> dict[str, Any] | None:
        newer = [row for row in job.generations() if row["number"] > number]
        # Not a growth that was asked for before, nor one that the loss undid.
        asked = [row for row in newer if _seconds(row["requested_at"]) > hit.at]
        return next((row for row in reversed(asked) if row["first_step_at"]), None)

    if case.without_site:
        job.stack.wait_for("the control plane", lambda: answers(job.stack), DEADLINE_S)
    # A dead agent stays dead until then.
    try:
        row: dict[str, Any] = job.stack.wait_for(
            f"a step after {case.name}", with_a_step, DEADLINE_S, revives=False, look_every_s=0.05
        )
    finally:
        hit.clean()
    noticed = [entry["noticed_at"] for entry in row["lost"]] or [row["requested_at"]]
    times = (min(noticed), row["switched_at"], row["first_step_at"])
    noticed_s, switched_s, step_s = (_seconds(text) - hit.at for text in times)
    return Loss(case, noticed_s, switched_s, step_s, row["pause_s"] if row["lost"] else None)


def _seconds(text: str) -> float:
    return datetime.datetime.fromisoformat(text).timestamp()


def _median(losses: list[Loss], figure: str) -> float | None:
    """Take the median over all losses that count for a figure."""
    found = [loss.step_s for loss in losses if loss.case.figure == figure]
    return round(statistics.median(found), 3) if found else None


def print_table(losses: list[Loss], figures: dict[str, Any]) -> None:
    """Print one row per case with medians, and what the restart costs beside the survival."""
    columns = ("times", "noticed", "switched", "next step", "at most", "stood still")
    print(f"\n{'seconds after the loss':<26}" + "".join(f"{name:>13}" for name in columns))
    for case in dict.fromkeys(loss.case for loss in losses):
        rows = [loss for loss in losses if loss.case == case]
        still = [loss.still_s for loss in rows if loss.still_s is not None]
        values = [
            f"{len(rows)}",
            f"{statistics.median(loss.noticed_s for loss in rows):.2f}",
            f"{statistics.median(loss.switched_s for loss in rows):.2f}",
            f"{statistics.median(loss.step_s for loss in rows):.2f}",
            f"{max(loss.step_s for loss in rows):.2f}",
            f"{statistics.median(still):.2f}" if still else "",
        ]
        print(f"{case.name:<26}" + "".join(f"{value:>13}" for value in values))
    print(f"\nlease {LEASE_S:.0f} s, pulse limit {PULSE_LIMIT_S:.0f} s")
    if figures["kill_to_step_s"] and figures["restart_to_step_s"]:
        ratio = figures["restart_to_step_s"] / figures["kill_to_step_s"]
        print(f"a restart from the checkpoint takes {ratio:.0f} times as long as survival\n")


if __name__ == "__main__":
    sys.exit(main())
