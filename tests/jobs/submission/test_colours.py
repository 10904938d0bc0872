"""Colours of new jobs: never that of another visible job while twelve or fewer are visible."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.django import TestCase

from controlplane.core.values.lifecycle import JobStatus
from jobs.models import Job
from jobs.models.jobs import NUM_COLOURS
from jobs.services.submission.colours import free_colour
from tests.support.builders import at, job_make, user_make


class ColoursTest(TestCase):
    """Jobs come and end in any order; the charts show the live ones and the last ended ones."""

    @given(ends=st.lists(st.integers(0, NUM_COLOURS - 2), max_size=30))
    def test_visible_jobs_differ(self, ends: list[int]) -> None:
        owner = user_make("ada")
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
            colour = free_colour()
            assert colour not in {job.colour for job in (*live, *ended)}
            live.append(job_make(owner, colour=colour))
