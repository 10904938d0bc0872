"""API tokens that are good now."""

from __future__ import annotations

import datetime
import functools
from typing import Any

from django.contrib.auth.models import User
from django.db import connection
from django.db.models import Q, QuerySet

from jobs.models import ApiToken
from jobs.selectors.prepared import PreparedQuery

#: Stand for a time and a digest in SQL that is translated once.
_NOW, _DIGEST = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC), "digest"
#: Fields of a token's user that are read with it, in the model's order.
_USER_FIELDS = ("id", "is_superuser", "username", "is_staff", "is_active")


def tokens_valid(now: datetime.datetime) -> QuerySet[ApiToken]:
    """Select the API tokens that are good now, with their users."""
    in_time = Q(expires_at=None) | Q(expires_at__gt=now)
    tokens = ApiToken.objects.filter(in_time, revoked_at=None, user__is_active=True)
    return tokens.select_related("user")


def token_found(digest: str, now: datetime.datetime) -> ApiToken | None:
    """Return the API token with a digest, and its user; None if it is not good now.

    Columns of the user that requests seldom need are read when they are.
    """
    row = _token_query().first({_sql_time(_NOW): _sql_time(now), _DIGEST: digest})
    if row is None:
        return None
    names = _token_fields()
    token = ApiToken.from_db(connection.alias, names, row[: len(names)])
    token.user = User.from_db(connection.alias, _USER_FIELDS, row[len(names) :])
    return token


@functools.cache
def _token_fields() -> tuple[str, ...]:
    columns = ApiToken._meta.concrete_fields  # noqa: SLF001  public by its documentation
    return tuple(field.attname for field in columns)


@functools.cache
def _token_query() -> PreparedQuery:
    tokens = tokens_valid(_NOW).filter(digest=_DIGEST).select_related(None).order_by()
    return PreparedQuery(
        tokens.values_list(*_token_fields(), *(f"user__{name}" for name in _USER_FIELDS))
    )


def _sql_time(at: datetime.datetime) -> Any:
    """Return a time as a parameter of the database at hand."""
    return connection.ops.adapt_datetimefield_value(at)
