"""Access rules: users see and change their own jobs and validations, admins all of them."""

from __future__ import annotations

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


def priority_ceiling(person: Person) -> int:
    """Return the highest priority that a person may give jobs; admins have no other limit."""
    if is_admin(person):
        return PRIORITY_RANGE[1]
    rows = UserLimits.objects.filter(user_id=person.pk or 0)
    ceiling = rows.values_list("priority_ceiling", flat=True).first()
    return settings.PRIORITY_CEILING if ceiling is None else ceiling


def live_jobs_limit(user_id: int) -> int:
    """Return how many jobs of a user may be live at a time."""
    rows = UserLimits.objects.filter(user_id=user_id)
    limit = rows.values_list("live_jobs_limit", flat=True).first()
    return settings.LIVE_JOBS_LIMIT if limit is None else limit


def storage_limit_bytes(user_id: int) -> int:
    """Return how much the files of a user's jobs may take; 0: there is no limit."""
    rows = UserLimits.objects.filter(user_id=user_id)
    limit = rows.values_list("storage_limit_bytes", flat=True).first()
    return settings.STORAGE_LIMIT_BYTES if limit is None else limit


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
