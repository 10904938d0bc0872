"""A world of several kinds of accelerator whose trainers take time, and how its jobs are split."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from controlplane.core.protocol.node_messages import WantedTrainer
from controlplane.core.values.lifecycle import GenerationPhase
from jobs.models import Generation, Job
from tests.jobs.world import PlayedNode, World, num_held
from tests.support.builders import accelerators, job_make, node_make

#: Seconds that a virtual node takes on each kind, and that every step takes beyond computing.
PACE_S = {"fast": 0.01, "slow": 0.03, "snail": 5.0}
SYNC_S = 0.004


class KindsWorld(World):
    """A world whose nodes differ in kind, and whose trainers take time.

    Attributes:
        factor: slot -> how many times as long as others of its kind it takes; 1 unless given.
        noise: gives another factor for each trainer at each report.
        extra_s: what a step takes beyond computing and the exchange.
    """

    def __init__(self, *kinds: str, has_profiles: bool = True) -> None:
        super().__init__(num_nodes=0)
        self.kinds: dict[int, str] = {}
        self.factor: dict[int, float] = {}
        self.noise: Callable[[], float] = lambda: 1.0
        self.extra_s = 0.0
        self.has_profiles = has_profiles
        self.asked: dict[int, bool] = {}
        for words in kinds:
            kind, *others = words.split()
            assert all(other == kind for other in others), "a node here has one kind"
            self.add_node(kind, len(others) + 1)

    def add_node(self, kind: str, number: int) -> None:
        node, _ = node_make(
            f"{kind}{len(self.nodes)}", number, accelerators=accelerators(number, kind)
        )
        self.nodes.append(PlayedNode(node))
        self.kinds[node.pk] = kind

    def measure(self, played: PlayedNode, orders: WantedTrainer) -> dict[str, Any]:
        self.asked[orders.slot] = orders.profile
        if not (orders.profile and self.has_profiles):
            return {}
        pace_s = PACE_S[self.kinds[played.node.pk]]
        profile = {str(number): pace_s * number for number in (1, 2, 4)}
        self.now_s += sum(profile.values())
        return {"profile": profile}

    def train_timed(self, job: Job, num_steps: int = 10) -> float:
        """Let a job's leader report steps as long as they take; gives the seconds of one."""
        members = split(job)
        compute_s = {
            str(slot): PACE_S[self.kinds[node_id]]
            * count
            * self.factor.get(slot, 1.0)
            * self.noise()
            for slot, node_id, count in members
        }
        step_s = max(compute_s.values()) + (SYNC_S if len(members) > 1 else 0.0) + self.extra_s
        self.train(job, num_steps, seconds=num_steps * step_s, loss=0.5, compute_s=compute_s)
        return step_s


def active(job: Job) -> Generation:
    return job.generations.get(phase=GenerationPhase.ACTIVE)


def split(job: Job) -> list[tuple[int, int, int]]:
    """List (slot, node, number of virtual nodes) of a job's members."""
    members = active(job).membership.members
    for row in members:
        low = row.virtual_nodes[0]
        assert row.virtual_nodes == (*range(low, low + len(row.virtual_nodes)),)
    taken = [number for row in members for number in row.virtual_nodes]
    assert taken == [*range(job.num_virtual_nodes)]
    return [(row.slot, row.node_id, len(row.virtual_nodes)) for row in members]


def counts(job: Job) -> list[int]:
    return [count for _, _, count in split(job)]


def settled(world: World, job: Job, num: int) -> None:
    """Bring a job to `num` accelerators with nothing under way."""

    def is_so() -> bool:
        row = job.generations.filter(phase=GenerationPhase.ACTIVE).first()
        is_calm = not job.generations.filter(phase__in=["preparing", "switching"]).exists()
        return row is not None and row.num_members == num == num_held(job) and is_calm

    world.until(is_so)


def mixing_job(**other: Any) -> Job:
    values = {"num_virtual_nodes": 8, "max_accelerators": 8, "allow_mixed_kinds": True}
    return job_make(**{**values, "stop_limit": 100_000, **other})
