"""Growing and shrinking a job that trains: how long it takes, and how little the others notice.

Two measurements. *Resizes* go through web, worker, beat and two agents as processes of their own:
a node with one accelerator is opened to a job and closed again. Asked is when the request is sent;
grown is when the first step of the larger membership is complete, and shrunk when the control plane
counts the accelerator as free, which it does when the trainer's process is gone. Agents have fork
servers, and once, with the smallest model, they have not. A shrink waits for the end of a step; so
the step's time stands beside it.

*Pauses* are what the trainers that stay notice of a trainer that joins: from the last step of the
old membership to the first completed step of the new one, less a normal step: the shorter one of
those of before and after, as the first step still has the old mapping where joiners listen. Models
of 0.1, 10 and 100 million parameters grow from one trainer to two and shrink back. Beside the
middle one stands the usual way, timed alike: all trainers save a checkpoint and stop, fresh
processes start and restore it. The digests before and after each growth have to be the same.

    python -m benchmarks.growth [--repeats 7] [--large-repeats 2] [--resizes 5] [--large-resizes 1]

Optimizers are Adam (state: 3 x parameters), for 100 million parameters SGD with momentum (2 x).
"""

from __future__ import annotations

import argparse
import datetime
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import figures_print
from benchmarks.pauses import (
    BATCH,
    COMPARED,
    DEADLINE_S,
    JOB,
    SIZES,
    Pause,
    Size,
    growths_s,
    pauses_of,
)
from tests.support.stack import Stack, embedded_stack

#: The moments that count are the control plane's own. Asking for them every 10 ms took a good part
#: of a processor from what is measured.
LOOK_EVERY_S = 0.1


def main() -> int:
    """Run everything, print the tables and the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7, help="pauses of each size")
    parser.add_argument("--large-repeats", type=int, default=2, help="of 100 million parameters")
    parser.add_argument(
        "--resizes", type=int, default=5, help="through the control plane, of each size"
    )
    parser.add_argument("--large-resizes", type=int, default=1, help="of 100 million parameters")
    options = parser.parse_args()
    print(f"{os.cpu_count()} processors, other load at the start: {os.getloadavg()[0]:.1f}")
    smallest = SIZES[0]
    cold_s, cold_shrinks_s = resizes("cold", smallest, options.resizes, ("--no-fork-servers",))
    print_times({f"grow {smallest.name}, cold": cold_s, "shrink": cold_shrinks_s})
    warm: dict[str, tuple[list[float], list[float]]] = {}
    for size in SIZES:
        number = options.large_resizes if size.name == "100m" else options.resizes
        warm[size.name] = resizes("warm", size, number, ())
        grows_s, shrinks_s = warm[size.name]
        print_times({f"grow {size.name}, warm": grows_s, f"shrink {size.name}": shrinks_s})
    pauses: dict[str, list[Pause]] = {}
    for size in SIZES:
        repeats = options.large_repeats if size.name == "100m" else options.repeats
        pauses[size.name] = pauses_of(size, repeats)
        print_pauses(size, pauses[size.name])
    grown = {name: growths_s(found, "live") for name, found in pauses.items()}
    restarts_s = growths_s(pauses[COMPARED], "restart")
    # A pause can come out at nothing or below it; a millisecond is as fine as this goes.
    ratios = [
        restart_s / max(live_s, 0.001)
        for live_s, restart_s in zip(grown[COMPARED], restarts_s, strict=True)
    ]
    figures = {
        "warm_grow_s": round(statistics.median(warm[smallest.name][0]), 2),
        "cold_grow_s": round(statistics.median(cold_s), 2),
        "shrink_s": round(statistics.median(warm[smallest.name][1] + cold_shrinks_s), 2),
        **{
            f"{what}_{size.name}": round(statistics.median(warm[size.name][way]), 2)
            for size in SIZES[1:]
            for way, what in enumerate(("warm_grow_s", "shrink_s"))
        },
        **{f"pause_ms_{name}": round(1e3 * statistics.median(s), 1) for name, s in grown.items()},
        "restart_over_pause": round(statistics.median(ratios), 1),
    }
    figures_print("growth", figures)
    return 0


# ---- resizes through the control plane ---------------------------------------------------------


def resizes(
    what: str, size: Size, number: int, agent_options: Sequence[str]
) -> tuple[list[float], list[float]]:
    """Open and close the second node so often; gives the seconds of all growths and shrinkings."""
    grows_s, shrinks_s = [], []
    options = ["--emulate", "1", *agent_options]
    with (
        tempfile.TemporaryDirectory(prefix="virtualflow-growth-") as folder,
        embedded_stack(Path(folder), options_for=lambda _: options) as stack,
    ):
        second = next(n["id"] for n in stack.get("nodes/")["results"] if n["name"] == "node-b")
        stack.post(f"nodes/{second}/cordon/", {"reason": "not yet"})
        job_id = submit(stack, size)
        wait(stack, "its first steps", lambda: newest_phase(stack, job_id) == (1, "active", 1))
        for repeat in range(number):
            if what == "warm":
                wait(stack, "a fork server", lambda: fork_server_is_warm(stack))
            grows_s.append(grow(stack, second, job_id))
            settle(stack, job_id, size)
            shrinks_s.append(shrink(stack, second, job_id))
            step_ms = settle(stack, job_id, size)
            print(
                f"{size.name}, {what} {repeat + 1}: grown after {grows_s[-1]:.2f} s, "
                f"shrunk after {shrinks_s[-1]:.2f} s (a step alone: {step_ms:.0f} ms)",
                flush=True,
            )
        stack.post(f"jobs/{job_id}/cancel/", {"reason": "measured"})
        wait(stack, "its end", lambda: state_of(stack, job_id)["status"] == "cancelled")
    return grows_s, shrinks_s


def submit(stack: Stack, size: Size) -> int:
    """Submit a job that takes every accelerator that it can get."""
    body = {
        "name": "grows and shrinks",
        "code": JOB,
        "settings": {"hidden_units": size.hidden_units, "optimizer": size.optimizer},
        "global_batch_size": BATCH,
        "num_virtual_nodes": 4,
        "max_accelerators": 2,
        "stop": {"kind": "steps", "limit": 10_000_000},
        "seed": 7,
    }
    return int(stack.post("jobs/", body, expect=201)["id"])


def grow(stack: Stack, node_id: int, job_id: int) -> float:
    """Open the node; gives the seconds to the first step on both accelerators."""
    before = newest(stack, job_id)["number"]
    requested_at = time.time()
    stack.post(f"nodes/{node_id}/uncordon/", {"reason": "to grow"})
    wait(
        stack,
        "the larger membership",
        lambda: (row := newest(stack, job_id))["number"] > before and row["first_step_at"],
    )
    row = newest(stack, job_id)
    assert row["num_members"] == 2, row
    moments = ("requested_at", "ready_at", "switched_at", "first_step_at")
    decided_s, ready_s, switched_s, stepped_s = (
        seconds_since_epoch(row[moment]) - requested_at for moment in moments
    )
    print(
        f"  decided after {decided_s:.2f} s, joiner ready {ready_s:.2f} s, "
        f"switched {switched_s:.2f} s, first step {stepped_s:.2f} s"
    )
    return stepped_s


def shrink(stack: Stack, node_id: int, job_id: int) -> float:
    """Close the node; gives the seconds until its accelerator is free."""
    requested_at = time.time()
    stack.post(f"nodes/{node_id}/drain/", {"reason": "to shrink"})
    wait(stack, "the free accelerator", lambda: tenure_ends(stack, job_id).count(None) == 1)
    return max(filter(None, tenure_ends(stack, job_id))) - requested_at


def tenure_ends(stack: Stack, job_id: int) -> list[float | None]:
    """Tell of each accelerator that a job ever had when it was free again; None: not yet."""
    allocations = stack.get(f"jobs/{job_id}/allocations/")["allocations"]
    moments = [row["released_at"] for row in allocations]
    return [moment and seconds_since_epoch(moment) for moment in moments]


def wait(stack: Stack, what: str, condition: Callable[[], Any]) -> None:
    """Wait for something that the product does."""
    stack.wait_for(what, condition, DEADLINE_S, look_every_s=LOOK_EVERY_S)


def state_of(stack: Stack, job_id: int) -> dict[str, Any]:
    """Read a job; one that has failed ends the benchmark."""
    state: dict[str, Any] = stack.get(f"jobs/{job_id}/")
    assert state["status"] not in ("failed", "invalid"), state
    return state


def newest(stack: Stack, job_id: int) -> dict[str, Any]:
    """Give a job's newest generation; number 0 when there is none."""
    rows = stack.get(f"jobs/{job_id}/generations/")["results"]
    none = {"number": 0, "phase": "", "num_members": 0, "first_step_at": None}
    return max(rows, key=lambda row: row["number"], default=none)


def newest_phase(stack: Stack, job_id: int) -> tuple[int, str, int]:
    """Give number, phase and members of a job's newest generation."""
    row = newest(stack, job_id)
    return row["number"], row["phase"], row["num_members"]


def settle(stack: Stack, job_id: int, size: Size) -> float:
    """Wait until a job has switched and done some more steps; gives milliseconds of one."""
    wait(stack, "the switch", lambda: newest(stack, job_id)["switched_at"])
    began_at, first = time.monotonic(), state_of(stack, job_id)["step"] or 0
    goal = first + 2 * size.num_steps
    wait(stack, "more steps", lambda: (state_of(stack, job_id)["step"] or 0) >= goal)
    num_steps = int(state_of(stack, job_id)["step"]) - first
    return 1e3 * (time.monotonic() - began_at) / num_steps


def fork_server_is_warm(stack: Stack) -> bool:
    """Return whether the second node has a warm fork server."""
    return any(stack.directory.glob("node-b/fork_servers/*/warm"))


def seconds_since_epoch(text: str) -> float:
    """Read a time of the REST interface."""
    return datetime.datetime.fromisoformat(text).timestamp()


# ---- what is printed ---------------------------------------------------------------------------


def percentiles(seconds: Sequence[float]) -> str:
    """Render the smallest, the middle, the 90th percentile and the largest."""
    ordered = sorted(seconds)
    ninetieth = ordered[min(len(ordered) - 1, round(0.9 * (len(ordered) - 1)))]
    shown = (ordered[0], statistics.median(ordered), ninetieth, ordered[-1])
    return "".join(f"{value:>10.3f}" for value in shown)


def print_times(rows: dict[str, list[float]]) -> None:
    """Print the resizes through the control plane."""
    print(f"\n{'seconds':32}{'least':>10}{'median':>10}{'90 %':>10}{'most':>10}")
    for name, seconds in rows.items():
        print(f"{name:32}{percentiles(seconds)}")
    print(flush=True)


def print_pauses(size: Size, pauses: Sequence[Pause]) -> None:
    """Print the pauses of one model size, and how late all steps before and after a change were."""
    kinds = ((True, "grow 1 to 2"), (False, "shrink 2 to 1"))
    printed = {
        "pause": "seconds",
        "beyond a step of before": "beyond_old_s",
        "late in all": "delay_s",
        "over": "caught_up_s",
        "late before": "slowed_s",
    }
    for what, value in printed.items():
        found = {
            f"{what} {size.name}, {way}, {text}": [
                getattr(pause, value)
                for pause in pauses
                if (pause.way, pause.is_growth) == (way, is_growth)
            ]
            for way in ("live", "restart")
            for is_growth, text in kinds
        }
        print_times({name: seconds for name, seconds in found.items() if seconds})


if __name__ == "__main__":
    sys.exit(main())
