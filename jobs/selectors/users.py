"""Users with their limits and what they use of them."""

from __future__ import annotations

from typing import Any

import django_filters
from django.contrib.auth.models import User
from django.db.models import BigIntegerField, Count, OuterRef, QuerySet, Subquery, Sum
from django.db.models.functions import Coalesce

from jobs.exceptions import NotFoundError
from jobs.models import Artifact, Job
from jobs.models.jobs import LIVE_JOB_STATUSES
from jobs.selectors.filter_fields import FlagFilter


class UserFilter(django_filters.FilterSet):
    """`?q=ada&is_active=true&is_admin=false`."""

    q = django_filters.CharFilter(
        "username", lookup_expr="icontains", max_length=150, label="part of the name"
    )
    is_active = FlagFilter()
    is_admin = FlagFilter("is_staff")

    class Meta:
        model = User
        fields = ("is_active",)


def users_with_use() -> QuerySet[User]:
    """Return all users with `num_live_jobs`, `code_bytes` and `file_bytes`, and their limits."""
    jobs = Job.objects.filter(owner=OuterRef("pk")).order_by().values("owner")
    files = Artifact.objects.filter(job__owner=OuterRef("pk")).order_by().values("job__owner")
    live = jobs.filter(status__in=LIVE_JOB_STATUSES, trial_of=None)
    return User.objects.select_related("limits").annotate(
        num_live_jobs=_number(live.annotate(number=Count("id"))),
        code_bytes=_number(jobs.annotate(number=Sum("code_bytes"))),
        file_bytes=_number(files.annotate(number=Sum("size_bytes"))),
    )


def stored_bytes_of(user: User) -> int:
    """Return the size of the code and files of all jobs of a row of `users_with_use`."""
    return int(user.code_bytes + user.file_bytes)  # type: ignore[attr-defined]


def user_with_use(name: str) -> User:
    """Find a user by name, as in `users_with_use`.

    Raises:
        NotFoundError: no user has this name.
    """
    user = users_with_use().filter(username=name).first()
    if user is None:
        raise NotFoundError("There is no user of this name.")
    return user


def _number(rows: QuerySet[Any, Any]) -> Coalesce:
    return Coalesce(Subquery(rows.values("number"), output_field=BigIntegerField()), 0)
