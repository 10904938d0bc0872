"""Losses of steps: whoever leads, the stored series has every step once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.django import TestCase

from controlplane.core.values.lifecycle import JobStatus
from jobs.models import Job, StepReport
from jobs.selectors.series import step_bins_of
from jobs.services.lifecycle.missed_reports import start_of, steps_known, steps_unreported
from tests.jobs.losses import newest
from tests.jobs.world import World
from tests.support.builders import at, job_make
from tests.support.rows import generation_make
from tests.support.setups import setup_once

pytestmark = pytest.mark.django_db


@setup_once
def training() -> tuple[World, Job]:
    world = World(num_nodes=3)
    job = job_make(max_accelerators=3)
    world.settle()
    return world, Job.objects.get(id=job.pk)


def tell(world: World, job: Job, first: int, last: int, generation: int | None = None) -> None:
    """Let the leader report steps; the loss of a step is its number."""
    world.tell(world.steps_say(job, first, last, generation, loss=(first + last) / 2))


def spans(job: Job) -> list[tuple[int, int, float | None, int]]:
    rows = StepReport.objects.filter(job=job).order_by("first_step")
    return list(rows.values_list("first_step", "last_step", "loss", "examples"))


def test_the_next_leader_is_asked_for_the_steps_after_those_that_were_heard_of() -> None:
    world, job = training()
    first_asked = newest(job).membership.steps_known
    assert first_asked == 0
    start = steps_known(job)
    tell(world, job, start + 1, start + 8)
    tell(world, job, start + 9, start + 12)
    _, leader = world.leader_of(job)
    world.kill(job, leader.slot)
    assert newest(job).is_recovery
    assert newest(job).membership.steps_known == start + 12


def test_a_gap_is_asked_for_again() -> None:
    world, job = training()
    start = steps_known(job)
    tell(world, job, start + 1, start + 4)
    tell(world, job, start + 9, start + 12)
    assert steps_known(job) == start + 4
    tell(world, job, start + 5, start + 8)
    assert steps_known(job) == start + 12
    assert Job.objects.get(id=job.pk).step == start + 12  # a gap that closes is no step back


def test_the_same_steps_told_by_two_leaders_count_once() -> None:
    world, job = training()
    start = steps_known(job)
    before = newest(job).number
    tell(world, job, start + 1, start + 6)
    _, leader = world.leader_of(job)
    world.kill(job, leader.slot)
    world.follow_all()
    known = spans(job)
    tell(world, job, start + 1, start + 6, before)  # exactly the same
    tell(world, job, start + 3, start + 5, before)  # some of it
    assert spans(job) == known
    tell(world, job, start + 5, start + 10, before)  # and some more
    told = spans(job)[len(known) :]
    assert [(first, last) for first, last, _, _ in told] == [(start + 7, start + 10)]
    assert told[0][3] == 4 * 32
    assert steps_known(job) == start + 10
    job.refresh_from_db()
    assert job.step == start + 10


def test_a_report_around_a_known_one_fills_both_sides() -> None:
    world, job = training()
    start = steps_known(job)
    tell(world, job, start + 4, start + 5)
    tell(world, job, start + 1, start + 8)
    own = [(a - start, b - start) for a, b, _, _ in spans(job) if a > start]
    assert own == [(1, 3), (4, 5), (6, 8)]
    assert sum(step_bin.examples for step_bin in step_bins_of(job) if step_bin.step > start) == (
        8 * 32
    )


def test_steps_that_are_done_again_after_a_new_start_are_told_again() -> None:
    world, job = training()
    start = steps_known(job)
    tell(world, job, start + 1, start + 6)
    world.kill(job, *[trainer.slot for _, trainer in world.trainers_of(job)])
    job.refresh_from_db()
    assert job.status == JobStatus.PENDING
    world.settle()
    known = steps_known(Job.objects.get(id=job.pk))
    tell(world, job, known + 1, known + 3)
    assert steps_known(Job.objects.get(id=job.pk)) == known + 3
    assert StepReport.objects.filter(job=job, generation=newest(job).number).exists()


def test_spans_that_make_no_sense_are_not_taken() -> None:
    world, job = training()
    count = job.step_reports.count()
    tell(world, job, 9, 5)
    assert job.step_reports.count() == count


class TestAnyOrder(TestCase):
    @given(
        st.lists(st.tuples(st.integers(1, 40), st.integers(0, 12)), max_size=12).map(
            lambda told: [(first, first + more) for first, more in told]
        )
    )
    def test_no_step_is_stored_twice_and_none_is_lost(self, told: list[tuple[int, int]]) -> None:
        job = job_make()
        generation_make(job)
        job.generation = 1
        for first, last in told:
            for span in list(steps_unreported(job, start_of(job, 1), first, last)):
                StepReport.objects.create(
                    job=job,
                    generation=1,
                    first_step=span[0],
                    last_step=span[1],
                    epoch=0,
                    examples=1,
                    seconds=1.0,
                    num_accelerators=1,
                    at=at(0),
                )
        rows = StepReport.objects.filter(job=job).values_list("first_step", "last_step")
        stored = [step for first, last in rows for step in range(first, last + 1)]
        wanted = {step for first, last in told for step in range(first, last + 1)}
        assert len(stored) == len(set(stored))
        assert set(stored) == wanted
        known = steps_known(job)
        assert set(range(1, known + 1)) <= wanted
        assert known + 1 not in wanted
