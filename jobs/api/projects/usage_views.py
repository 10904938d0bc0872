"""Usage by REST, as JSON or CSV."""

from __future__ import annotations

import csv
import datetime
import io
from collections.abc import Mapping
from typing import Any

from django.http import HttpResponse
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from jobs.api.negotiation import OneFormat
from jobs.api.requests import flag_param, person, time_param
from jobs.exceptions import InvalidInputError
from jobs.selectors.usage import Usage, UsageBy, usage_between, usage_table

#: Days of a usage without `since`.
DEFAULT_DAYS = 30
_DAYS_LIMIT = 3660
_FIELDS = ("by", "since", "until", "project", "csv")


class UsageRowSerializer(serializers.Serializer):
    """Use of a project, user or tag."""

    name = serializers.CharField(help_text="Empty: jobs without a project.")
    accelerator_hours = serializers.FloatField()
    hours = serializers.DictField(child=serializers.FloatField(), help_text="By kind.")
    idle_hours = serializers.FloatField(
        allow_null=True, help_text="Held and hardly used; null: too long a time to tell."
    )
    paused_hours = serializers.FloatField(
        help_text="Held while training stood still for a change of accelerators."
    )
    cost = serializers.FloatField(allow_null=True, help_text="Null: no kind of it has a price.")


class UsageSerializer(serializers.Serializer):
    """Use of accelerators between two times."""

    since = serializers.DateTimeField()
    until = serializers.DateTimeField()
    by = serializers.CharField()
    currency = serializers.CharField()
    rows = UsageRowSerializer(many=True)
    total = UsageRowSerializer(help_text="Of all jobs, each counted once.")


class UsageReport(APIView):
    """Accelerator-hours, waste and cost of the jobs that the user sees."""

    content_negotiation_class = OneFormat

    @extend_schema(
        responses={
            (200, "application/json"): UsageSerializer,
            (200, "text/csv"): OpenApiTypes.STR,
        },
        parameters=[
            OpenApiParameter("by", str, enum=[one.value for one in UsageBy]),
            OpenApiParameter("since", datetime.datetime, description="30 days ago by default."),
            OpenApiParameter("until", datetime.datetime, description="Now by default."),
            OpenApiParameter("project", str, description="Only jobs of this project."),
            OpenApiParameter("csv", bool, description="Answer with a CSV file."),
        ],
    )
    def get(self, request: Request) -> Response | HttpResponse:
        """Get the usage by project, user or tag."""
        found = usage_of(
            person(request),
            request.query_params,
            since=time_param(request, "since"),
            until=time_param(request, "until"),
        )
        if flag_param(request, "csv"):
            return usage_csv(found)
        return Response(UsageSerializer(found).data)


def usage_of(
    user: Any,
    query: Mapping[str, str],
    *,
    since: datetime.datetime | None,
    until: datetime.datetime | None,
) -> Usage:
    """Return the usage that a query asks for.

    Raises:
        InvalidInputError: a parameter is unknown or wrong, or the time is empty or too long.
    """
    if unknown := sorted(name[:60] for name in query if name not in _FIELDS):
        fields = f"There is no such parameter; use {', '.join(_FIELDS)}."
        raise InvalidInputError.of(**dict.fromkeys(unknown, fields))
    names = [one.value for one in UsageBy]
    by = query.get("by") or UsageBy.PROJECT.value
    if by not in names:
        raise InvalidInputError.of(by=f"Choose one of {', '.join(names)}.")
    project = query.get("project", "")
    if len(project) > 40 or not project.isprintable():
        raise InvalidInputError.of(project="Give the name of a project.")
    now = timezone.now()
    until = min(until or now, now)
    since = since or until - datetime.timedelta(days=DEFAULT_DAYS)
    if not datetime.timedelta() < until - since <= datetime.timedelta(days=_DAYS_LIMIT):
        raise InvalidInputError.of(
            since=f"Give a time before {until:%Y-%m-%dT%H:%M:%SZ}, at most {_DAYS_LIMIT} days."
        )
    return usage_between(user, UsageBy(by), since, until, project)


def usage_csv(usage: Usage) -> HttpResponse:
    """Return the usage as a CSV file; the last row is the total."""
    text = io.StringIO()
    rows = usage_table(usage)
    rows[-1][0] = "total"
    csv.writer(text).writerows([_unformulated(cell) for cell in row] for row in rows)
    name = f"usage-{usage.by}-{usage.since:%Y%m%d}-{usage.until:%Y%m%d}.csv"
    return HttpResponse(
        text.getvalue(),
        content_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )


def _unformulated(cell: Any) -> Any:
    """Return a cell that a spreadsheet does not take for a formula."""
    return f"'{cell}" if isinstance(cell, str) and cell[:1] in ("=", "+", "-", "@", "\t") else cell
