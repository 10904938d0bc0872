"""Filter by a time with any offset, compared in UTC."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, ClassVar

import django_filters
from django.core.exceptions import ValidationError
from django_filters.fields import IsoDateTimeField

#: Databases know fewer offsets and years than Python; these are within all of them.
_YEARS = range(1900, 3000)


class UtcDateTimeField(IsoDateTimeField):
    """An ISO 8601 time."""

    default_error_messages: ClassVar[Mapping[str, str]] = {
        "invalid": "Give a time like 2026-03-01T12:00:00Z."
    }

    def clean(self, value: Any) -> datetime.datetime | None:
        """Return the time in UTC.

        Raises:
            ValidationError: it is no time, or far from the present.
        """
        at = super().clean(value)
        if at is not None and at.year not in _YEARS:
            raise ValidationError(f"Give a time from {_YEARS[0]} to {_YEARS[-1]}.")
        return None if at is None else at.astimezone(datetime.UTC)


class TimeFilter(django_filters.IsoDateTimeFilter):
    """`?after=2026-03-01T12:00:00Z`."""

    field_class = UtcDateTimeField
