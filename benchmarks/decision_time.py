"""Processor time of one decision, from the snapshot to the plan, for clusters of four sizes.

Every policy decides about the same clusters: 64 accelerators of one kind (16 nodes of 4, 40 jobs)
and 2,048, 10,240 and 100,000 of three kinds (nodes of 8; 1,000, 5,000 and 20,000 jobs). Jobs adapt
their batch sizes; their models are made up from the ranges that fits of real jobs come to. A
cluster is first brought to rest; then before every decision two in a hundred jobs end, as many new
ones arrive, and one in ten has reported something new, so that its predictions have to be worked
out again. `decide()` is timed as a whole: policy, check, places and plan, on one core.

Jobs of a cluster belong to one user and one tier, or to many (8, 50, 100 and 200 users, of unequal
size, one in ten with twice the claim of others), or to all three tiers as well (three in a hundred
urgent, one in five idle).

The column "cold" is a decision in a process that remembers nothing: no predictions, no population.
The column "frames" is the part of a decision outside of the policy itself, checks, places and plan:
shares of users, tiers, jobs that cannot start.

Figures are medians of the processor time, which other load changes least:

* ours_64_ms, ours_2048_ms, ours_10240_ms, ours_100000_s: `goodput_fair`;
* the same names ending in _users and _tiers: with many users, and with users and tiers;
* frames_2048_users, frames_2048_tiers, and so on: part of these decisions that frames take, 0 to 1;
* pollux_64_ms, sia_2048_ms: the peers, on the same clusters in the same minutes.

    python -m benchmarks.decision_time [--repeats 7] [--sizes 64 2048 10240 100000] [--all]

`--all` adds every other policy at every size below 100,000 but Pollux at the larger ones.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import os
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from benchmarks.figures import figures_print
from controlplane.core.cycle import decide
from controlplane.core.estimates.goodput import AdaptiveBatchPerformance, VirtualNodes
from controlplane.core.estimates.throughput import ThroughputModel
from controlplane.core.policies import POLICIES, SHARING, framed
from controlplane.core.policies.common.user_shares import Policy
from controlplane.core.values.tiers import Tier
from controlplane.core.values.types import (
    Accelerator,
    AcceleratorId,
    Decision,
    Job,
    JobId,
    Plan,
    Snapshot,
)

OURS = "goodput_fair"
ROUND_S = 60.0
ENDING_SHARE = 0.02
REPORTING_SHARE = 0.1
WARM_UPS = 4

#: How much longer each kind computes than the first.
KINDS = {"a100": 1.0, "v100": 2.1, "t4": 3.4}


class Mix(StrEnum):
    """Owners and tiers of the jobs."""

    ONE = ""  # one user, one tier
    USERS = "users"
    TIERS = "tiers"  # many users, and all tiers


@dataclass(frozen=True)
class Size:
    """A cluster: nodes by kind, accelerators of a node, jobs in the system, and their users."""

    nodes: Mapping[str, int]
    per_node: int
    num_jobs: int
    num_users: int = 1

    @property
    def num_accelerators(self) -> int:
        return sum(self.nodes.values()) * self.per_node

    @property
    def name(self) -> str:
        return f"{self.num_accelerators} accelerators, {self.num_jobs} jobs"


SIZES = {
    64: Size({"t4": 16}, 4, 40, 8),
    2048: Size({"a100": 64, "v100": 96, "t4": 96}, 8, 1000, 50),
    10240: Size({"a100": 320, "v100": 480, "t4": 480}, 8, 5000, 100),
    100_000: Size({"a100": 3125, "v100": 4687, "t4": 4688}, 8, 20_000, 200),
}

#: Subject of the figures.
CASES = (
    *((OURS, size, mix) for size in SIZES for mix in Mix),
    ("pollux", 64, Mix.ONE),
    ("sia", 2048, Mix.ONE),
)


@dataclass
class World:
    """A cluster in which jobs come and go and obey every plan at once."""

    size: Size
    policy: str
    random: np.random.Generator
    mix: Mix = Mix.ONE
    now: float = 0.0
    jobs: dict[JobId, Job] = field(default_factory=dict)
    held: dict[JobId, tuple[AcceleratorId, ...]] = field(default_factory=dict)
    carried: object | None = None
    num_jobs_ever: int = 0

    def __post_init__(self) -> None:
        self.owners = np.random.default_rng(2)  # of its own: the jobs are the same in every mix
        kinds = [kind for kind, count in self.size.nodes.items() for _ in range(count)]
        self.accelerators = tuple(
            Accelerator(node * self.size.per_node + index, node, index, kind)
            for node, kind in enumerate(kinds)
            for index in range(self.size.per_node)
        )
        for _ in range(self.size.num_jobs):
            self.arrive(self.random.uniform(-36_000.0, 0.0))

    def arrive(self, submitted_at: float) -> None:
        """Add a job that never ran."""
        self.num_jobs_ever += 1
        user, tier = self.owner()
        self.jobs[self.num_jobs_ever] = Job(
            id=self.num_jobs_ever,
            submitted_at=submitted_at,
            weight=float(self.random.choice([1.0, 1.0, 2.0, 4.0])),
            num_virtual_nodes=64,
            min_accelerators=int(self.random.choice([1, 1, 1, 1, 2, 4])),
            max_accelerators=int(self.random.choice([8, 16, 32, 64])),
            global_batch_size=256,
            remaining_examples=10.0 ** self.random.uniform(5.0, 8.0),
            performance=performance_of(self.random, self.size.nodes),
            resize_s=float(self.random.uniform(0.5, 3.0)),
            user=user,
            user_factor=2.0 if user % 10 == 9 else 1.0,
            tier=tier,
        )

    def owner(self) -> tuple[int, Tier]:
        """Draw the user of a new job, of whom some have far more than others, and its tier."""
        part, other = self.owners.random(2)
        user = int(self.size.num_users * part**2) if self.mix is not Mix.ONE else 0
        if self.mix is not Mix.TIERS or 0.03 <= other < 0.8:
            return user, Tier.NORMAL
        return user, Tier.URGENT if other < 0.03 else Tier.IDLE

    def pass_round(self) -> None:
        """Let some jobs end, as many arrive, and some report."""
        self.now += ROUND_S
        ending = self.random.random(len(self.jobs)) < ENDING_SHARE
        for job_id in [job_id for job_id, ends in zip(self.jobs, ending, strict=True) if ends]:
            del self.jobs[job_id]
            self.held.pop(job_id, None)
            self.arrive(self.now)
        for job_id, job in self.jobs.items():
            count = len(self.held.get(job_id, ()))
            performance = job.performance
            if self.random.random() < REPORTING_SHARE:
                performance = performance_of(self.random, self.size.nodes)
            self.jobs[job_id] = dataclasses.replace(
                job,
                performance=performance,
                attained_accelerator_s=job.attained_accelerator_s + count * ROUND_S,
                most_accelerators=max(job.most_accelerators, count),
                pending_since=None if count else job.pending_since,
            )

    def snapshot(self) -> Snapshot:
        """Give what a policy may know now."""
        return Snapshot(
            now=self.now,
            seed=0,
            accelerators=self.accelerators,
            jobs=tuple(self.jobs.values()),
            held=dict(self.held),
            carried=self.carried,
        )

    def obey(self, plan: Plan) -> None:
        """Apply a plan as if every trainer had changed at once."""
        for resize in plan.resizes:
            job = self.jobs[resize.job_id]
            changed = dataclasses.replace(
                job,
                num_resizes=job.num_resizes + bool(resize.held),
                changed_at=self.now,
                running_since=(job.running_since or self.now) if resize.wanted else None,
            )
            self.jobs[resize.job_id] = changed
            self.held[resize.job_id] = resize.wanted
        self.held = {job_id: row for job_id, row in self.held.items() if row}
        self.carried = plan.carried

    def forget(self) -> None:
        """Lose all that is only remembered."""
        self.carried = None
        for job_id, job in self.jobs.items():
            assert isinstance(job.performance, AdaptiveBatchPerformance)
            self.jobs[job_id] = dataclasses.replace(
                job, performance=dataclasses.replace(job.performance)
            )


def performance_of(
    random: np.random.Generator, nodes: Mapping[str, int]
) -> AdaptiveBatchPerformance:
    """Make up how fast a job goes: 2 to 200 ms a slice, exchanges of 5 to 100 % of that."""
    base_s = 10.0 ** random.uniform(-2.7, -0.7)
    local_s = base_s * random.uniform(0.05, 0.3)
    network_s = local_s * random.uniform(1.5, 4.0)
    model = ThroughputModel(
        compute_base_s=base_s * 0.3,
        compute_slope_s=base_s * 0.7 / 4.0,
        local_base_s=local_s,
        local_slope_s=local_s * 0.02,
        network_base_s=network_s,
        network_slope_s=network_s * 0.02,
        gamma=random.uniform(1.0, 4.0),
    )
    return AdaptiveBatchPerformance(
        {kind: model.slower(KINDS[kind]) for kind in nodes},
        VirtualNodes(64),
        submitted=256,
        low=256,
        high=4096,
        multiple=64,
        noise_scale=10.0 ** random.uniform(2.0, 4.5),
    )


@dataclass(frozen=True)
class Result:
    """Milliseconds of decisions, by the clock and of the processor, and of a cold one.

    `frames_ms` is the part of `processor_ms` that frames take, outside of the policy itself.
    """

    clock_ms: float
    worst_ms: float
    processor_ms: float
    frames_ms: float
    cold_ms: float
    num_resizes: float
    num_waiting: int


class Stopwatch:
    """A policy within its frames, and the processor time of either, in seconds."""

    def __init__(self, name: str) -> None:
        self.own_s = 0.0
        own: Policy = inspect.unwrap(POLICIES[name])

        def timed(snapshot: Snapshot) -> Decision:
            began = time.process_time()
            decision = own(snapshot)
            self.own_s += time.process_time() - began
            return decision

        self._framed = framed(timed, SHARING.get(name))

    def __call__(self, snapshot: Snapshot) -> float:
        """Decide once, and return the milliseconds that the frames took."""
        began, own_s = time.process_time(), self.own_s
        self._framed(snapshot)
        return (time.process_time() - began - (self.own_s - own_s)) * 1e3


def measure(policy: str, size: Size, repeats: int, mix: Mix = Mix.ONE) -> Result:
    """Bring a cluster to rest under a policy, then time decisions while jobs come and go."""
    world = World(size, policy, np.random.default_rng(1), mix)
    stopwatch = Stopwatch(policy)
    for _ in range(WARM_UPS):
        world.obey(decide(world.snapshot(), policy))
        world.pass_round()
    clock, processor, frames, resizes = [], [], [], []
    for _ in range(repeats):
        snapshot = world.snapshot()
        elapsed, used, plan = timed(snapshot, policy)
        clock.append(elapsed)
        processor.append(used)
        frames.append(stopwatch(snapshot))
        resizes.append(len(plan.resizes))
        world.obey(plan)
        world.pass_round()
    world.forget()
    cold_ms, _, plan = timed(world.snapshot(), policy)
    return Result(
        clock_ms=statistics.median(clock),
        worst_ms=max(clock),
        processor_ms=statistics.median(processor),
        frames_ms=statistics.median(frames),
        cold_ms=cold_ms,
        num_resizes=statistics.median(resizes),
        num_waiting=len(world.jobs) - len(world.held),
    )


def timed(snapshot: Snapshot, policy: str) -> tuple[float, float, Plan]:
    """Decide once; gives milliseconds by the clock and of the processor, and the plan."""
    began, began_using = time.perf_counter(), time.process_time()
    plan = decide(snapshot, policy)
    elapsed, used = time.perf_counter() - began, time.process_time() - began_using
    return elapsed * 1e3, used * 1e3, plan


def main() -> int:
    """Measure every case, print the table and the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--sizes", type=int, nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--all", action="store_true", help="every policy at every size")
    options = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    cases = list(CASES)
    if options.all:
        others = [(name, size, Mix.ONE) for size in SIZES if size < max(SIZES) for name in POLICIES]
        cases += [
            case for case in others if case not in CASES and (case[0] != "pollux" or case[1] == 64)
        ]
    print(
        f"{'policy':<28}{'median':>10}{'worst':>10}{'processor':>11}{'frames':>10}{'cold':>10}"
        f"{'resizes':>9}"
    )
    figures: dict[str, float] = {}
    for number in options.sizes:
        print(f"{SIZES[number].name}:")
        for policy, mix in [(name, mix) for name, size, mix in cases if size == number]:
            found = measure(policy, SIZES[number], options.repeats, mix)
            print(
                f"  {policy + ' ' + mix:<26}{found.clock_ms:>7.1f} ms{found.worst_ms:>7.1f} ms"
                f"{found.processor_ms:>8.1f} ms{found.frames_ms:>7.1f} ms{found.cold_ms:>7.0f} ms"
                f"{found.num_resizes:>9.0f}",
                flush=True,
            )
            if (policy, number, mix) in CASES:
                figures |= figures_of(policy, number, mix, found)
    figures_print("decision_time", figures)
    return 0


def figures_of(policy: str, num_accelerators: int, mix: Mix, found: Result) -> dict[str, float]:
    """Return figures by name: milliseconds, or seconds for the largest cluster, and parts."""
    end = f"_{mix}" if mix else ""
    name = f"{'ours' if policy == OURS else policy}_{num_accelerators}"
    figures = {f"{name}_ms{end}": round(found.processor_ms, 2)}
    if num_accelerators == max(SIZES):
        figures = {f"{name}_s{end}": round(found.processor_ms / 1e3, 3)}
    if mix is not Mix.ONE:
        figures[f"frames_{num_accelerators}{end}"] = round(found.frames_ms / found.processor_ms, 3)
    return figures


if __name__ == "__main__":
    sys.exit(main())
