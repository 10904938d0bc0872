"""Helpers of the REST views: visible jobs, actor, versions, body fields, query parameters."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping, Set
from itertools import islice
from typing import Any, ClassVar

from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db.models import Count, IntegerField, OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.http import HttpRequest
from rest_framework import serializers
from rest_framework.request import Request

from jobs.exceptions import InvalidInputError, NotFoundError, messages_by_field
from jobs.models import Allocation, Job
from jobs.query_values import FLAGS_HELP, flag_read, number_read, whole_read
from jobs.selectors.access import job_change_check, job_rows_visible_to, jobs_visible_to
from jobs.selectors.filter_fields import UtcDateTimeField
from jobs.services.lifecycle.events import user_actor

#: Output fields of a job that are columns, and nothing else.
_PLAIN_COLUMNS = {
    field.name
    for field in Job._meta.concrete_fields  # noqa: SLF001  public by its documentation
    if not field.is_relation
}
ETAG = re.compile(r'(?:W/)?"(\d{1,10})\.(\d{1,10})"')
#: ETag of the policy: the number of its version.
NUMBER_ETAG = re.compile(r'(?:W/)?"(\d{1,10})"')
#: ETag of a project, a user or prices: a digest of what can be changed.
DIGEST_ETAG = re.compile(r'(?:W/)?"([0-9a-f]{16})"')


def visible_jobs(request: Request, job_id: int | None = None) -> QuerySet[Job]:
    """Return the jobs visible to the user, or one, with the number of accelerators each holds."""
    held = (
        Allocation.objects.filter(
            job=OuterRef("pk"), released_at=None, release_requested_at=None, stop_requested_at=None
        )
        .order_by()
        .values("job")
        .annotate(number=Count("id"))
        .values("number")
    )
    person = request.user
    jobs = jobs_visible_to(person) if job_id is None else job_rows_visible_to(person, job_id)
    return jobs.annotate(num_accelerators=Coalesce(Subquery(held, output_field=IntegerField()), 0))


def visible_job(request: Request, job_id: int, fields: Set[str] | None = None) -> Job:
    """Find one job with all its columns, or with those that the given output fields are made of.

    Raises:
        NotFoundError: no job has this id, or the user may not see it.
    """
    columns = None if fields is None else fields - {"num_accelerators"}
    if columns is not None and columns <= _PLAIN_COLUMNS:
        # Most of the time of a poll would go into the SQL of the other seventy.
        one = job_rows_visible_to(request.user, job_id)
        jobs = one if columns == fields else visible_jobs(request, job_id)
        jobs = jobs.select_related(None).defer(None).only("version", "revision", "owner", *columns)
    else:
        jobs = visible_jobs(request, job_id).defer(None)
    job = jobs.first()
    if job is None:
        raise NotFoundError("There is no such job, or it is not yours.")
    return job


def job_exists(request: Request, job_id: int) -> Job:
    """Like `visible_job`, without the heavy columns."""
    job = job_rows_visible_to(request.user, job_id).first()
    if job is None:
        raise NotFoundError("There is no such job, or it is not yours.")
    return job


def changeable_job(request: Request, job_id: int) -> Job:
    """Like `job_exists`, for a request that changes the job.

    Raises:
        ForbiddenError: the user may see the job only.
    """
    job = job_exists(request, job_id)
    job_change_check(request.user, job)
    return job


def person(request: Request) -> User:
    """Return the requesting user; permissions admit authenticated users only."""
    assert isinstance(request.user, User)
    return request.user


def plain(request: Request) -> HttpRequest:
    """Return the Django request inside a REST framework request."""
    return request._request  # noqa: SLF001 - DRF has no public name for it


def actor(request: Request) -> str:
    """Return the requesting user as an actor of events."""
    return user_actor(request.user)


def etag(revision: int, version: int) -> str:
    """Return the ETag of a job; its first part changes only with status and user changes."""
    return f'"{revision}.{version}"'


def version_expected(request: Request, pattern: re.Pattern[str], noun: str) -> str | None:
    """Read the version in If-Match; None for an unconditional change.

    Raises:
        InvalidInputError: the header is not an ETag of this pattern.
    """
    header = request.headers.get("If-Match", "*").strip()
    if header == "*":
        return None
    match = pattern.fullmatch(header)
    if match is None:
        raise InvalidInputError.of(if_match=f"Send the ETag of the {noun} as you read it.")
    return match[1]


def revision_expected(request: Request) -> int | None:
    """Read the revision of a job in If-Match; see `version_expected`."""
    revision = version_expected(request, ETAG, "job")
    return None if revision is None else int(revision)


def body(request: Request, *known: str) -> Mapping[str, Any]:
    """Return the fields of the body.

    Args:
        known: all that it may have; none: a serializer checks it.

    Raises:
        InvalidInputError: the body is not an object, or has another field.
    """
    if not isinstance(request.data, Mapping):
        raise InvalidInputError("The body must be an object.")
    if known and (errors := unknown_fields(request.data, known)):
        raise InvalidInputError("The input is not valid.", fields=errors)
    return request.data


def no_body(request: Request) -> None:
    """Check that a request whose address says all has no field beside it.

    Raises:
        InvalidInputError: it has one.
    """
    if request.data:
        raise InvalidInputError("This request takes no fields; send no body, or {}.")


def text_field(values: Mapping[str, Any], name: str, limit: int = 500) -> str:
    """Read an optional text field of the body.

    Raises:
        InvalidInputError: the value is no text, too long, or has a NUL.
    """
    value = values.get(name, "")
    if not isinstance(value, str) or len(value) > limit or "\0" in value:
        raise InvalidInputError.of(**{name: f"Give text of at most {limit} characters, no NUL."})
    return value


def number_param(request: Request, name: str, low: float, high: float) -> float | None:
    """Read a number within bounds from the query string; None without a value.

    Raises:
        InvalidInputError: the value is not such a number.
    """
    text = request.query_params.get(name)
    if not text:
        return None
    value = number_read(text)
    if value is None or not low <= value <= high:
        raise InvalidInputError.of(**{name: f"Give a number from {low:.15g} to {high:.15g}."})
    return value


def whole_param(request: Request, name: str, high: int) -> int | None:
    """Read a whole number from 0 on from the query string; None without a value.

    Raises:
        InvalidInputError: the value is no such number.
    """
    text = request.query_params.get(name)
    if not text:
        return None
    value = whole_read(text)
    if value is None or value > high:
        raise InvalidInputError.of(**{name: f"Give a whole number from 0 to {high}."})
    return value


def time_param(request: Request, name: str) -> datetime.datetime | None:
    """Read a time with an offset from the query string; None without a value.

    Raises:
        InvalidInputError: the value is no time, or far from the present.
    """
    text = request.query_params.get(name, "")
    try:
        return UtcDateTimeField(required=False).clean(text)
    except ValidationError:
        raise InvalidInputError.of(**{name: "Give a time like 2026-03-01T12:00:00Z."}) from None


def flag_param(request: Request, name: str) -> bool:
    """Read a boolean from the query string; without a value it is false.

    Raises:
        InvalidInputError: the value is none of the accepted words.
    """
    text = request.query_params.get(name)
    if not text:
        return False
    if (flag := flag_read(text)) is None:
        raise InvalidInputError.of(**{name: FLAGS_HELP})
    return flag


def chosen_fields(request: Request, known: tuple[str, ...]) -> set[str] | None:
    """Read `?fields=a,b`; None means the default fields.

    Raises:
        InvalidInputError: a field does not exist; the error names it.
    """
    text = request.query_params.get("fields")
    if not text:
        return None
    names = {name.strip() for name in text.strip(", ").split(",")}
    unknown = sorted(names - set(known))
    if unknown:
        raise InvalidInputError.of(fields=f"No such field: {', '.join(unknown)}.")
    return names


#: Unknown fields or query parameters that an answer names: each with all known ones.
UNKNOWN_LIMIT = 20
UNKNOWN_TEXT = "There is no such field; use {}."


class BodySerializer(serializers.Serializer):
    """A body that has no other fields than those of the serializer.

    Attributes:
        unknown_text: message about another field; `{}` stands for the names of the known ones.
    """

    unknown_text: ClassVar = UNKNOWN_TEXT

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        """Refuse unknown fields before anything else: a known one may be meant."""
        given = data if isinstance(data, Mapping) else {}
        if errors := unknown_fields(given, self.fields, self.unknown_text):
            raise serializers.ValidationError(errors)
        return super().to_internal_value(data)


def unknown_fields(
    given: Iterable[Any], known: Iterable[str], text: str = UNKNOWN_TEXT
) -> dict[str, list[str]]:
    """Return messages about the first fields that are not known; `{}` in `text` names those."""
    names = list(known)
    unknown = (str(name)[:60] for name in given if name not in names)
    return {name: [text.format(", ".join(names))] for name in islice(unknown, UNKNOWN_LIMIT)}


def checked(
    serializer: type[serializers.Serializer], values: Mapping[str, Any], *, partial: bool = False
) -> dict[str, Any]:
    """Return the valid fields of a body.

    Raises:
        InvalidInputError: with messages for every wrong field.
    """
    filled = serializer(data=values, partial=partial)
    if not filled.is_valid():
        fields = messages_by_field(filled.errors)
        raise InvalidInputError("The input is not valid.", fields=fields)
    return dict(filled.validated_data)
