"""Filter of jobs by query parameters, the same for REST and for the job page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import django_filters
from django.db.models import Q, QuerySet

from controlplane.core.values.lifecycle import JobStatus
from jobs.models import Job
from jobs.models.jobs import LIVE_JOB_STATUSES
from jobs.selectors.time_filter import TimeFilter

#: Names for several statuses.
STATUS_GROUPS: Mapping[str, tuple[JobStatus, ...]] = {
    "live": LIVE_JOB_STATUSES,
    "waiting": (JobStatus.VALIDATING, JobStatus.PENDING, JobStatus.PAUSED),
    "active": (JobStatus.STARTING, JobStatus.RUNNING, JobStatus.PREEMPTING),
    "ended": tuple(status for status in JobStatus if status not in LIVE_JOB_STATUSES),
}
_STATUSES = [*STATUS_GROUPS, *(status.value for status in JobStatus)]
#: Most digits of a job's number.
_DIGITS_LIMIT = 18


class JobFilter(django_filters.FilterSet):
    """`?status=live&status=failed&owner=ada&q=cnn&submitted_after=...`."""

    q = django_filters.CharFilter(
        method="filter_text", max_length=100, label="part of the name, or the job's number"
    )
    status = django_filters.MultipleChoiceFilter(
        choices=[(name, name) for name in _STATUSES],
        method="filter_status",
        label=f"a status, or a group of them: {', '.join(STATUS_GROUPS)}",
    )
    owner = django_filters.CharFilter(field_name="owner__username", max_length=150)
    name = django_filters.CharFilter(lookup_expr="icontains")
    template = django_filters.CharFilter()
    submitted_after = TimeFilter("submitted_at", lookup_expr="gte")
    submitted_before = TimeFilter("submitted_at", lookup_expr="lt")

    class Meta:
        model = Job
        fields = ("status", "owner", "name", "template")

    def filter_status(self, jobs: QuerySet[Job], _name: str, names: Sequence[str]) -> QuerySet[Job]:
        """Select jobs with one of the statuses or groups; no name selects all."""
        if not names:
            return jobs
        groups = [STATUS_GROUPS.get(name, (name,)) for name in names]
        return jobs.filter(status__in=[str(status) for group in groups for status in group])

    def filter_text(self, jobs: QuerySet[Job], _name: str, text: str) -> QuerySet[Job]:
        """Select jobs by a part of their name, or one by its number."""
        found = Q(name__icontains=text)
        number = text.removeprefix("#")
        if number.isdecimal() and len(number) <= _DIGITS_LIMIT:
            found |= Q(pk=int(number))
        return jobs.filter(found)
