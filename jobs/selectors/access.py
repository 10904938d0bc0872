"""Access rules: users see and change their own jobs and validations, admins all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.contrib.auth.models import AbstractBaseUser, AnonymousUser, User
from django.db.models import QuerySet

from jobs.exceptions import NotFoundError
from jobs.models import Job, UserLimits, Validation
from jobs.submission import PRIORITY_RANGE

Person = User | AbstractBaseUser | AnonymousUser

#: Job columns that lists leave out; some hold many kilobytes.
_HEAVY = ("settings", "facts", "metrics", "error_traceback", "throughput_by_count")


def is_admin(person: Person) -> bool:
    """Return whether a person may see and change all jobs."""
    return bool(getattr(person, "is_staff", False))


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits in force for a user: an admin's choice, or else the site's.

    Attributes:
        storage_limit_bytes: 0: there is none.
        chosen: names of those that an admin chose.
    """

    priority_ceiling: int
    share_factor: float
    live_jobs_limit: int
    storage_limit_bytes: int
    chosen: tuple[str, ...]


def limits_of(user_id: int | None, *, is_admin: bool) -> Limits:
    """Return the limits of a user; admins have no ceiling below the highest priority."""
    return limits_read(UserLimits.objects.filter(user_id=user_id or 0).first(), is_admin=is_admin)


def limits_read(row: UserLimits | None, *, is_admin: bool) -> Limits:
    """Return the limits in force for a user with this row."""
    row = row or UserLimits()
    found: dict[str, Any] = {
        "priority_ceiling": settings.PRIORITY_CEILING,
        "share_factor": 1.0,
        "live_jobs_limit": settings.LIVE_JOBS_LIMIT,
        "storage_limit_bytes": settings.STORAGE_LIMIT_BYTES,
    }
    chosen = {
        name: getattr(row, name)
        for name in found
        if getattr(row, name) is not None and (name != "share_factor" or row.share_factor != 1.0)
    }
    found |= chosen
    if is_admin:
        found["priority_ceiling"] = PRIORITY_RANGE[1]
    return Limits(**found, chosen=tuple(chosen))


def priority_ceiling(person: Person) -> int:
    """Return the highest priority that a person may give jobs."""
    return limits_of(person.pk, is_admin=is_admin(person)).priority_ceiling


def share_factors() -> dict[int, float]:
    """Return the share factors of the users for whom an admin chose another one than 1."""
    return dict(UserLimits.objects.exclude(share_factor=1.0).values_list("user", "share_factor"))


def jobs_visible_to(person: Person) -> QuerySet[Job]:
    """Return the jobs that a person may see, with their owners, without the heavy columns."""
    jobs = Job.objects.select_related("owner").defer(*_HEAVY)
    return jobs if is_admin(person) else jobs.filter(owner_id=person.pk)


def job_visible_to(person: Person, job_id: int) -> Job:
    """Find one job with all its columns.

    Raises:
        Job.DoesNotExist: no job has this id, or the person may not see it.
    """
    return jobs_visible_to(person).defer(None).select_related("owner").get(pk=job_id)


def validation_visible_to(person: Person, validation_id: int) -> Validation:
    """Find a validation without a job.

    Raises:
        NotFoundError: no validation has this id, or the person may not see it.
    """
    found = Validation.objects.filter(job=None, id=validation_id).select_related("owner")
    validation = (found if is_admin(person) else found.filter(owner_id=person.pk)).first()
    if validation is None:
        raise NotFoundError("There is no such validation, or it is not yours.")
    return validation
