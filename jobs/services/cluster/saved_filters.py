"""Named filters of the list of jobs, each user's own."""

from __future__ import annotations

import datetime

from django.contrib.auth.models import User
from django.db import transaction
from django.http import QueryDict

from jobs.exceptions import InvalidInputError, NotFoundError
from jobs.models import Job, SavedFilter
from jobs.selectors.job_filter import REPEATABLE, JobFilter
from jobs.submission import unprintable

FILTERS_LIMIT = 30
NAME_LIMIT = 60
QUERY_LIMIT = 2000


def filter_save(user: User, name: str, query: str, now: datetime.datetime) -> SavedFilter:
    """Keep a filter by a name, in place of one of the same name.

    Args:
        query: of the address of the list, such as `status=live&tag=baseline`.

    Raises:
        InvalidInputError: name or query are out of bounds, or the user has too many.
    """
    # Parameters without a value select nothing, and `GET jobs/` refuses them.
    parts = (part for part in query.lstrip("?").split("&") if part.partition("=")[2])
    name, query = name.strip(), "&".join(parts)
    if not 0 < len(name) <= NAME_LIMIT or unprintable(name):
        raise InvalidInputError.of(name=f"Give 1 to {NAME_LIMIT} printable characters.")
    _query_check(query)
    with transaction.atomic():
        User.objects.select_for_update(no_key=True).get(id=user.pk)  # serialises concurrent changes
        mine = SavedFilter.objects.filter(owner=user)
        if mine.exclude(name=name).count() >= FILTERS_LIMIT:
            raise InvalidInputError.of(name=f"You have {FILTERS_LIMIT} filters; delete one first.")
        row, _ = mine.update_or_create(
            owner=user, name=name, defaults={"query": query, "changed_at": now}
        )
    return row


def filter_delete(user: User, filter_id: int) -> None:
    """Delete a filter of the user.

    Raises:
        NotFoundError: the user has no such filter.
    """
    if not SavedFilter.objects.filter(owner=user, pk=filter_id).delete()[0]:
        raise NotFoundError("There is no such filter, or it is not yours.")


def _query_check(query: str) -> None:
    if len(query) > QUERY_LIMIT or not QueryDict(query):
        raise InvalidInputError.of(query=f"Give a filter of 1 to {QUERY_LIMIT} characters.")
    given = QueryDict(query)
    found = JobFilter(given, queryset=Job.objects.none())
    unknown = sorted({*given} - {*found.base_filters})
    if unknown:
        known = ", ".join(sorted(found.base_filters))
        raise InvalidInputError.of(query=f"There is no filter “{unknown[0]}”; use {known}.")
    repeated = {name for name, texts in given.lists() if len(texts) > 1}
    if once := sorted(name for name in repeated if not isinstance(found.filters[name], REPEATABLE)):
        raise InvalidInputError.of(query=f"{once[0]}: give this once.")
    if not found.is_valid():
        texts = (f"{name}: {text}" for name, texts in found.errors.items() for text in texts)
        raise InvalidInputError.of(query=" ".join(texts))
