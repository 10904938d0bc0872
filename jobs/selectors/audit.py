"""The audit log: its filter, for REST and the page, and pages of it."""

from __future__ import annotations

import django_filters
from django.db.models import QuerySet

from jobs.models import AuditAction, AuditEntry
from jobs.selectors.filter_fields import FilterForm, TimeFilter

#: Rows of a page.
PAGE_SIZE = 50


class AuditFilter(django_filters.FilterSet):
    """`?action=login_failed&actor=user:ada&object=job:7&after=...`."""

    actor = django_filters.CharFilter(
        lookup_expr="icontains", max_length=160, label="part of the actor, as in user:ada"
    )
    action = django_filters.MultipleChoiceFilter(choices=[(a.value, a.value) for a in AuditAction])
    object = django_filters.CharFilter(
        lookup_expr="startswith", max_length=200, label="beginning of the object, as in job:7"
    )
    address = django_filters.CharFilter(max_length=45)
    after = TimeFilter("at", lookup_expr="gte")
    before = TimeFilter("at", lookup_expr="lt")

    class Meta:
        model = AuditEntry
        form = FilterForm
        fields = ("actor", "action", "object", "address")


def audit_page(
    entries: QuerySet[AuditEntry], before_id: int | None
) -> tuple[list[AuditEntry], bool]:
    """Read one page of audit entries, newest first; and whether there are older ones."""
    if before_id is not None:
        entries = entries.filter(pk__lt=before_id)
    rows = list(entries.order_by("-pk")[: PAGE_SIZE + 1])
    return rows[:PAGE_SIZE], len(rows) > PAGE_SIZE
