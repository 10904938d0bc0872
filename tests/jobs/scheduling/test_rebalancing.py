"""Virtual nodes that move between running members: for stragglers, on trial, and not for noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from controlplane.core.virtual_nodes.rebalance_trial import MOVE_COOL_DOWN_S
from jobs.models import Event, Generation, Job, StepTimeProfile
from tests.jobs.kinds_world import KindsWorld, active, counts, mixing_job, settled, split
from tests.support.setups import setup_once

pytestmark = pytest.mark.django_db


def job_of(world: KindsWorld, num: int, **fields: Any) -> Job:
    job = mixing_job(allow_mixed_kinds=False, num_virtual_nodes=16, global_batch_size=64, **fields)
    settled(world, job, num)
    return job


@setup_once
def on_two() -> tuple[KindsWorld, Job]:
    """Let a job begin on both accelerators of a node."""
    world = KindsWorld("fast fast", has_profiles=False)
    return world, job_of(world, 2)


def train_until(
    world: KindsWorld, job: Job, is_so: Callable[[], object], report_s: float = 2.0
) -> None:
    """Let a job train and the control plane look on until something holds, within ten minutes."""
    end_s, num_steps = world.now_s + 600.0, 1
    while not is_so():
        assert world.now_s < end_s, "it never came about"
        step_s = world.train_timed(job, num_steps)
        num_steps = math.ceil(report_s / step_s)
        if world.cycle():
            world.settle(1)


def train_for(world: KindsWorld, job: Job, seconds: float, report_s: float = 2.0) -> None:
    """Let a job train and the control plane look on, until so many seconds of it are over."""
    end_s = world.now_s + seconds
    train_until(world, job, lambda: world.now_s >= end_s, report_s)


def moves_of(job: Job) -> list[Generation]:
    return list(job.generations.filter(actor="system:mapping", phase__in=["active", "closed"]))


def told(job: Job, kind: str) -> list[str]:
    return [row.message for row in Event.objects.filter(job=job, kind=kind).order_by("id")]


def test_noise_moves_nothing() -> None:
    """Four equal accelerators, each report of each up to 30 % off, for two minutes."""
    world = KindsWorld("fast fast", "fast fast", has_profiles=False)
    job = job_of(world, 4)
    random = Random(30)
    world.noise = lambda: random.uniform(0.7, 1.3)
    train_for(world, job, 120.0, report_s=5.0)
    assert moves_of(job) == []
    assert counts(job) == [4, 4, 4, 4]


def test_a_short_burst_moves_nothing() -> None:
    """A validation beside one of them makes it four times slower, for ten seconds."""
    world, job = on_two()
    second = split(job)[1][0]
    train_for(world, job, 30.0, report_s=5.0)
    world.factor[second] = 4.0
    train_for(world, job, 10.0)
    world.factor[second] = 1.0
    train_for(world, job, 40.0, report_s=5.0)
    assert moves_of(job) == []


def test_nothing_moves_while_members_have_just_begun() -> None:
    world, job = on_two()
    world.factor[split(job)[1][0]] = 2.0
    began = active(job)
    assert began.switched_at is not None
    train_until(world, job, lambda: moves_of(job))
    asked = moves_of(job)[0].requested_at
    assert 29.0 <= (asked - began.switched_at).total_seconds() <= 37.0


def test_a_straggler_gets_fewer_virtual_nodes_and_gets_them_back() -> None:
    world, job = on_two()
    second = split(job)[1][0]
    train_for(world, job, 10.0)
    first = active(job).number
    world.factor[second] = 1.9
    train_for(world, job, 35.0)
    # 10 and 19 ms each: 11 + 5 are done after 110 ms, 8 + 8 after 152; the exchange takes 4.
    assert counts(job) == [11, 5]
    moved = active(job)
    assert moved.number == first + 1
    assert moved.actor == "system:mapping"
    assert moved.reason == (
        f"slot {second} is 1.9x slower: 8 → 5 virtual nodes; a step takes 114 ms instead of 156 ms"
    )
    asked = Event.objects.filter(job=job, kind="resize_requested").first()
    assert asked is not None
    assert asked.message.startswith("Virtual nodes move among the same 2 accelerators: slot ")
    # The straggler has not taught its kind to be slow.
    (samples,) = StepTimeProfile.objects.filter(measures="compute").values_list(
        "samples", flat=True
    )
    assert samples["8"][2] < 0.09
    # It paid; nothing moves back and forth, also after the cool-down.
    train_for(world, job, 70.0, report_s=5.0)
    assert active(job).number == moved.number
    assert told(job, "move_kept") == [
        "Moving virtual nodes paid: a step takes 114 ms, 156 ms before; 114 ms were expected"
    ]
    world.factor[second] = 1.0
    train_for(world, job, 40.0, report_s=5.0)
    assert counts(job) == [8, 8]


def test_a_cool_down_lies_between_two_moves() -> None:
    world, job = on_two()
    second = split(job)[1][0]
    train_for(world, job, 5.0)
    world.factor[second] = 3.0
    train_until(world, job, lambda: moves_of(job))
    moved = active(job)
    assert counts(job) == [12, 4]
    train_for(world, job, 36.0)  # it is judged: it paid
    assert len(told(job, "move_kept")) == 1
    world.factor[second] = 1.0
    train_until(world, job, lambda: active(job).number != moved.number)
    waited_s = (active(job).requested_at - moved.requested_at).total_seconds()
    assert MOVE_COOL_DOWN_S <= waited_s <= MOVE_COOL_DOWN_S + 5.0
    assert counts(job) == [8, 8]


def test_a_move_that_did_not_pay_is_taken_back_once_and_not_tried_again_soon() -> None:
    """The two share one processor: who has more to do holds the other one up as well."""
    world, job = on_two()
    second = split(job)[1][0]
    world.factor[second] = 1.9
    train_until(world, job, lambda: moves_of(job))
    world.extra_s = 0.04  # 156 ms before, 114 promised, 154 with this
    assert counts(job) == [11, 5]
    train_until(world, job, lambda: counts(job) != [11, 5])
    world.extra_s = 0.0
    undone = active(job)
    assert counts(job) == [8, 8]
    assert told(job, "move_undone") == [
        "Taken back: moving virtual nodes did not pay: a step takes 154 ms, 156 ms before; "
        "114 ms were expected. No other move for 120 s"
    ]
    event = Event.objects.get(job=job, kind="move_undone")
    assert event.data == {
        "before_s": pytest.approx(0.156),
        "promised_s": pytest.approx(0.114),
        "measured_s": pytest.approx(0.154),
        "failures": 1,
    }
    train_for(world, job, 115.0, report_s=5.0)
    assert active(job).number == undone.number
    train_for(world, job, 10.0)  # then once more
    again = active(job)
    # Another split: what the rows of 11 + 5 cost to exchange is known by now.
    assert (counts(job), again.number) == ([10, 6], undone.number + 1)
    world.extra_s = 0.2  # every stretch is far slower: that needs no half minute
    train_until(world, job, lambda: active(job).number != again.number)
    assert (active(job).requested_at - again.requested_at).total_seconds() < 20.0
    assert told(job, "move_undone")[1].endswith("No other move for 240 s")


def test_after_a_vain_move_resizes_split_by_kind_alone() -> None:
    world, job = on_two()
    world.factor[split(job)[1][0]] = 1.9
    train_until(world, job, lambda: moves_of(job))
    world.extra_s = 0.3
    train_until(world, job, lambda: told(job, "move_undone"))
    train_for(world, job, 40.0, report_s=5.0)
    world.add_node("fast", 2)
    settled(world, job, 4)
    assert counts(job) == [4, 4, 4, 4]


def test_a_trial_ends_with_its_membership() -> None:
    world, job = on_two()
    world.factor[split(job)[1][0]] = 1.9
    train_until(world, job, lambda: moves_of(job))
    world.add_node("fast", 1)
    settled(world, job, 3)
    world.extra_s = 1.0
    train_for(world, job, 20.0)
    job.refresh_from_db()
    assert job.moves["trial"] is None
    assert told(job, "move_undone") == told(job, "move_kept") == []
