"""What the tests about lost trainers share: a job that trains, and looks at what became of it."""

from __future__ import annotations

from typing import Any

from jobs.models import Allocation, Event, Generation, Job, Node
from jobs.services.cluster.nodes import nodes_expire
from tests.jobs.world import PlayedNode, World
from tests.support.builders import job_make
from tests.support.setups import setup_once

#: The first slots of four accelerators: four are declared for each.
A, B, C, D = 0, 4, 8, 12


@setup_once
def training(num_nodes: int = 2, **other: Any) -> tuple[World, Job]:
    """Let a job train on everything there is: two accelerators a node."""
    world = World(num_nodes)
    job = job_make(**other)
    world.settle(4)
    world.train(job)
    return world, fresh(job)


def fresh(job: Job) -> Job:
    return Job.objects.get(id=job.pk)


def newest(job: Job) -> Generation:
    return job.generations.order_by("-number")[0]


def slots(generation: Generation) -> list[int]:
    return list(generation.membership.slots)


def event(job: Job, kind: str) -> Event:
    return Event.objects.filter(job=job, kind=kind).latest("id")


def lose_node(world: World, played: PlayedNode) -> set[int]:
    world.now_s += 100
    Node.objects.exclude(id=played.node.pk).update(last_seen_at=world.now)
    played.trainers.clear()
    return nodes_expire(world.now)[1]


def newest_slot(job: Job) -> int:
    return Allocation.objects.filter(job=job, released_at=None).latest("slot").slot
