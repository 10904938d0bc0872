"""Colours of jobs: never that of another visible job while twelve or fewer are visible."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.django import TestCase

from controlplane.core.values.lifecycle import JobStatus
from jobs.models import Job
from jobs.models.jobs import NUM_COLOURS
from jobs.services.lifecycle.colours import first_start_colour, free_colour
from jobs.services.submission.job_actions import job_pause, job_resume
from tests.jobs.world import World, settled
from tests.support.builders import at, job_make, user_make

NUM_JOBS = 20
#: Which of the live jobs ends next; if there is none of that number, none ends.
ENDS = st.lists(st.integers(0, NUM_COLOURS - 2), max_size=NUM_JOBS)


def visible_differ(ends: list[int], begin: Callable[[int], Job]) -> None:
    """Begin jobs and end others in any order; charts show the live and the last ended ones."""
    live: list[Job] = []
    ended: deque[Job] = deque()
    for number, end in enumerate(ends):
        if len(live) == NUM_COLOURS - 1 or end < len(live):
            job = live.pop(end % len(live))
            job.status, job.ended_at = JobStatus.CANCELLED.value, at(number)
            job.save()
            ended.append(job)
        while len(live) + len(ended) >= NUM_COLOURS:
            ended.popleft()
        job = begin(number)
        assert job.colour not in {one.colour for one in (*live, *ended)}
        live.append(job)


class ColoursTest(TestCase):
    """Jobs come, start and end in any order."""

    @given(ends=ENDS)
    def test_new_jobs_differ(self, ends: list[int]) -> None:
        owner = user_make("ada")
        visible_differ(ends, lambda number: job_make(owner, colour=free_colour()))

    @given(ends=ENDS, order=st.permutations(range(NUM_JOBS)))
    def test_started_jobs_differ_however_many_wait(self, ends: list[int], order: list[int]) -> None:
        owner = user_make("ada")
        waiting = [job_make(owner, colour=free_colour()) for _ in order]

        def start(number: int) -> Job:
            job = waiting[order[number]]
            job.colour = first_start_colour(job)
            job.status, job.started_at = JobStatus.STARTING.value, at(number)
            job.save()
            return job

        visible_differ(ends, start)

    def test_a_colour_that_nothing_shows_is_kept(self) -> None:
        owner = user_make("ada")
        jobs = [job_make(owner, colour=7) for _ in range(3)]
        assert [first_start_colour(job) for job in jobs] == [7, 7, 7]


@pytest.mark.django_db
def test_a_cluster_starts_jobs_in_colours_apart() -> None:
    world = World()
    jobs = [job_make(max_accelerators=1, colour=3) for _ in range(3)]
    world.settle(8)
    started = Job.objects.filter(pk__in=[job.pk for job in jobs], started_at__isnull=False)
    colours = list(started.values_list("colour", flat=True))
    assert len({*colours}) == len(colours) == 3
    assert 3 in colours


@pytest.mark.django_db
def test_a_job_that_has_been_paused_comes_back_in_its_colour() -> None:
    world, job = settled(max_accelerators=1)
    job_make(colour=job.colour, status=JobStatus.PAUSED, started_at=at(0))
    starts = job.generations.count()
    job_pause(job.pk, world.now, actor="user:owner")
    world.settle(8)
    job_resume(job.pk, world.now, actor="user:owner")
    world.settle(8)
    again = Job.objects.get(pk=job.pk)
    assert again.generations.count() > starts
    assert again.colour == job.colour
