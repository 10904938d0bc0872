"""Replays against a cluster that really ran: the same jobs under three policies, real trainers.

Twelve jobs of mixed sizes and priorities arrive over some minutes on two nodes with two emulated
accelerators each; the kernel holds the trainer of each accelerator to half a core. They run once
under `priority`, which gives a job its full demand or nothing, once under `weighted_fair` and once
under the default policy, each time on a fresh site. Then each site is asked by REST what would have
happened under the policy that ruled (fidelity), and the site of `priority` what would have happened
under the other two (prediction). Times count from when a job's code was found valid.

* completion_error, makespan_error: largest |replayed / recorded - 1| of the three runs: of the mean
  completion time, and from the first submission to the last end.
* makespan_change, mean_jct_change, median_jct_change, median_queue_change: the default policy over
  `priority`, as recorded; weighted_fair_... the same of `weighted_fair`.
* predicted_...: the same, as replays of the run under `priority` foretold it.

    python -m benchmarks.replay_fidelity [--scale 1.0] [--share 0.5] [--policies NAME ...]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.cpu_quota import CpuQuota
from benchmarks.figures import figures_print
from benchmarks.specs import CONVOLUTIONS
from controlplane.core.policies import DEFAULT_POLICY
from tests.support.stack import Stack, embedded_stack

BATCH_SIZE, NUM_VIRTUAL_NODES = 128, 8
SHARE = 0.5
BASELINE = "priority"
POLICIES = (BASELINE, "weighted_fair", DEFAULT_POLICY)
#: Figures of a replay whose changes are reported, and their names there.
CHANGES = ("makespan_s", "mean_jct_s", "median_jct_s", "median_queueing_s")
NAMES = ("makespan_change", "mean_jct_change", "median_jct_change", "median_queue_change")
ENDED = ("finished", "failed", "cancelled", "invalid")
RUN_LIMIT_S = 3600.0
REPLAY_LIMIT_S = 300.0
WATCH_EVERY_S = 0.1


@dataclass(frozen=True)
class Arrival:
    """One job of the workload.

    Attributes:
        after_s: seconds since the arrival before.
        demand: most accelerators; `priority` gives it these or none.
        num_steps: its length; with 32 filters a step takes about 0.1 s of a core.
    """

    after_s: float
    priority: int
    demand: int
    num_steps: int
    filters: int


#: More work than four accelerators do until the last arrival; the priorities are VirtualFlow's 1, 5
#: and 10 times a hundred.
ARRIVALS = (
    Arrival(0.0, 100, 4, 960, 32),
    Arrival(6.0, 1000, 2, 360, 32),
    Arrival(8.0, 500, 1, 360, 16),
    Arrival(10.0, 500, 4, 720, 32),
    Arrival(5.0, 100, 1, 480, 16),
    Arrival(14.0, 1000, 4, 360, 32),
    Arrival(9.0, 100, 2, 600, 32),
    Arrival(12.0, 500, 1, 240, 32),
    Arrival(16.0, 1000, 1, 360, 16),
    Arrival(7.0, 100, 4, 840, 32),
    Arrival(18.0, 500, 2, 360, 16),
    Arrival(10.0, 1000, 1, 240, 32),
)


def main() -> int:
    """Run the workload under each policy, replay it, print the table and the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=1.0, help="of the lengths of jobs and gaps")
    parser.add_argument(
        "--share",
        type=float,
        default=SHARE,
        help="of a core for each accelerator; with less of it jobs arrive further apart",
    )
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=list(POLICIES))
    options = parser.parse_args()
    if options.scale <= 0.0 or not 0.0 < options.share <= 1.0:
        parser.error("--scale must be positive, --share above 0 and at most 1")
    policies = [name for name in POLICIES if name in options.policies]
    answers: dict[str, dict[str, Any]] = {}
    predicted: dict[str, dict[str, Any]] = {}
    for policy in policies:
        with site_with(policy, options.share) as stack:
            run(stack, options.scale, SHARE / options.share)
            answers[policy] = replay(stack, policy)
            if policy == BASELINE:
                others = [name for name in policies if name != BASELINE]
                predicted = {name: replay(stack, name)["changed"] for name in others}
        show(policy, answers[policy])
    figures = fidelity(list(answers.values()))
    if BASELINE in answers:
        before = answers[BASELINE]
        for policy, after in answers.items():
            if policy != BASELINE:
                figures |= changes(policy, "", before["recorded"], after["recorded"])
                figures |= changes(policy, "predicted_", before["as_is"], predicted[policy])
    figures_print("replay_fidelity", figures)
    return 0


@contextmanager
def site_with(policy: str, share: float) -> Iterator[Stack]:
    """Run a site under a policy, all of whose trainers have a share of a core."""
    with (
        tempfile.TemporaryDirectory(prefix="virtualflow-replay-") as name,
        embedded_stack(Path(name), with_replayer=True, VIRTUALFLOW_POLICY=policy) as stack,
        CpuQuota() as quota,
        trainers_limited(stack, quota, share),
    ):
        yield stack


@contextmanager
def trainers_limited(stack: Stack, quota: CpuQuota, share: float) -> Iterator[None]:
    """Hold each trainer of a stack to a share of a core from its start on."""
    is_over = threading.Event()
    known: set[int] = set()

    def watch() -> None:
        while not is_over.wait(WATCH_EVERY_S):
            found = stack.running_trainers()
            for pid in found - known:
                with suppress(ProcessLookupError):
                    quota.limit(pid, share)
            known.update(found)

    thread = threading.Thread(target=watch, name="quota", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def run(stack: Stack, scale: float, stretch: float) -> None:
    """Submit all jobs at their times, `stretch` times as far apart, and wait for their ends.

    Raises:
        AssertionError: a job did not finish.
    """
    due = time.monotonic()
    for number, arrival in enumerate(ARRIVALS):
        due += arrival.after_s * scale * stretch
        time.sleep(max(due - time.monotonic(), 0.0))
        body = {
            "name": f"job {number}",
            "code": CONVOLUTIONS,
            "settings": {"filters": arrival.filters},
            "global_batch_size": BATCH_SIZE,
            "num_virtual_nodes": NUM_VIRTUAL_NODES,
            "priority": arrival.priority,
            "min_accelerators": 1,
            "max_accelerators": arrival.demand,
            "stop": {"kind": "steps", "limit": max(round(arrival.num_steps * scale), 1)},
            "seed": number,
        }
        stack.post("jobs/", body, expect=201)

    def statuses() -> list[str]:
        found = [row["status"] for row in stack.get("jobs/", page_size=50)["results"]]
        return found if all(status in ENDED for status in found) else []

    ended = stack.wait_for("all jobs to end", statuses, RUN_LIMIT_S)
    if ended.count("finished") != len(ARRIVALS):
        raise AssertionError(f"jobs ended as {ended}")


def replay(stack: Stack, policy: str) -> dict[str, Any]:
    """Ask a site what would have happened under a policy; returns the answer."""
    asked = stack.post("replays/", {"policy": policy, "hours": 1}, expect=201)

    def answer() -> dict[str, Any] | None:
        found: dict[str, Any] = stack.get(f"replays/{asked['id']}/")
        if found["status"] == "failed":
            raise AssertionError(found["error"])
        return found["result"] if found["status"] == "done" else None

    result: dict[str, Any] = stack.wait_for("the replay", answer, REPLAY_LIMIT_S)
    if result["num_jobs"] != len(ARRIVALS):
        raise AssertionError(f"{result['num_jobs']} jobs were replayed: {result['notes']}")
    return result


def show(policy: str, answer: Mapping[str, Any]) -> None:
    """Print the recorded and the replayed run of one policy."""
    print(f"\n{policy}", *answer["notes"], sep="\n  ")
    for row in answer["jobs"]:
        print(f"  {row['name']}: {row['recorded_s']:.1f} s, replayed {row['as_is_s']:.1f} s")
    for name, recorded in answer["recorded"].items():
        if recorded is not None:
            print(f"  {name}: {recorded:.2f}, replayed {answer['as_is'][name]:.2f}", flush=True)


def fidelity(answers: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Compare replays under the policy that ruled with what was recorded."""

    def error(name: str) -> float:
        ratios = [float(row["as_is"][name] / row["recorded"][name]) for row in answers]
        return max(abs(ratio - 1.0) for ratio in ratios)

    return {
        "completion_error": round(error("mean_jct_s"), 3),
        "makespan_error": round(error("makespan_s"), 3),
    }


def changes(
    policy: str, prefix: str, before: Mapping[str, float], after: Mapping[str, float]
) -> dict[str, float]:
    """Compute the changes of one policy over the baseline."""
    owner = "" if policy == DEFAULT_POLICY else f"{policy}_"
    return {
        f"{prefix}{owner}{name}": round(after[field] / before[field] - 1.0, 3)
        for name, field in zip(NAMES, CHANGES, strict=True)
    }


if __name__ == "__main__":
    sys.exit(main())
