"""Places in the queue: what moves a job to one, with as few other changes as possible."""

from __future__ import annotations

import pytest

from jobs.exceptions import ConflictError, NotFoundError
from jobs.models import Job
from jobs.selectors.queue_places import MOVED_LIMIT, places_moved
from tests.support.builders import job_make

pytestmark = pytest.mark.django_db


def queue_of(*standings: tuple[str, int]) -> list[int]:
    return [job_make(tier=tier, priority=priority).pk for tier, priority in standings]


def moved(job_id: int, position: int) -> dict[int, tuple[str, int]]:
    """Return the changes of a move, and check that they lead to the position."""
    places = {
        place.job_id: (place.tier, place.priority) for place in places_moved(job_id, position)
    }
    after = {row.pk: (row.tier, row.priority) for row in Job.objects.all()} | places
    order = sorted(after, key=lambda one: (TIERS.index(after[one][0]), -after[one][1], one))
    assert order.index(job_id) == min(position, len(order)) - 1
    assert next(iter(places)) == job_id
    others = [one for one in Job.objects.order_by("-tier", "-priority", "pk") if one.pk != job_id]
    assert [one.pk for one in others] == [one for one in order if one != job_id]
    return places


TIERS = ("urgent", "normal", "idle")


def test_a_job_comes_between_its_neighbours() -> None:
    first, second, third, last = queue_of(
        ("normal", 300), ("normal", 200), ("normal", 100), ("normal", 50)
    )
    assert moved(last, 1) == {last: ("normal", 300 + 1)}
    assert moved(last, 2) == {last: ("normal", 250)}
    assert moved(first, 2) == {first: ("normal", 150)}
    assert moved(first, 4) == {first: ("normal", 50 - 1)}
    assert moved(first, 99) == {first: ("normal", 49)}
    assert moved(second, 2) == {second: ("normal", 200)}
    assert moved(third, 3) == {third: ("normal", 100)}


def test_of_equal_priorities_the_older_job_is_first() -> None:
    first, _, third = queue_of(("normal", 100), ("normal", 100), ("normal", 90))
    assert moved(third, 1) == {third: ("normal", 101)}
    assert moved(first, 2) == {first: ("normal", 95)}
    # No number is free between the two: the one above is raised.
    assert moved(third, 2) == {third: ("normal", 101), first: ("normal", 101)}


def test_those_below_are_lowered_where_they_are_fewer() -> None:
    jobs = queue_of(*[("normal", 500)] * 6, ("normal", 100))
    assert moved(jobs[6], 6) == {jobs[6]: ("normal", 500), jobs[5]: ("normal", 499)}


def test_a_job_takes_the_tier_of_its_new_neighbours() -> None:
    urgent, normal, idle = queue_of(("urgent", 10), ("normal", 100), ("idle", 100))
    assert moved(idle, 1) == {idle: ("urgent", 100)}
    assert moved(idle, 2) == {idle: ("normal", 101)}
    assert moved(urgent, 3) == {urgent: ("idle", 10)}
    assert moved(urgent, 2) == {urgent: ("normal", 10)}
    assert moved(normal, 2) == {normal: ("normal", 100)}


def test_a_full_queue_has_no_room() -> None:
    queue_of(*[("normal", 1000)] * (MOVED_LIMIT + 1), *[("normal", 1)] * 2)
    last = Job.objects.latest("pk").pk
    assert moved(last, MOVED_LIMIT + 2)[last] == ("normal", 500)
    first = job_make(priority=1000).pk
    with pytest.raises(ConflictError, match="no room"):
        places_moved(first, 1)


def test_only_jobs_of_the_queue_are_moved() -> None:
    [job_id] = queue_of(("normal", 10))
    assert moved(job_id, 1) == {job_id: ("normal", 10)}
    with pytest.raises(NotFoundError):
        places_moved(job_id + 1, 1)
