"""Fields and form of filters: times with any offset, numbers of rows, flags."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, ClassVar

import django_filters
from django import forms
from django.core.exceptions import ValidationError
from django_filters.fields import IsoDateTimeField
from drf_spectacular.utils import extend_schema_field

from jobs.query_values import FLAGS_HELP, WHOLE_LIMIT, flag_read, whole_read

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


class IdField(forms.Field):
    """The number of a row, from 1 to `WHOLE_LIMIT`."""

    def to_python(self, value: str | None) -> int | None:
        """Return the number; None for an empty text.

        Raises:
            ValidationError: the text is no such number.
        """
        if not value:
            return None
        if not (number := whole_read(value)):
            raise ValidationError("Give a number, such as 7.")
        return number


@extend_schema_field({"type": "integer", "minimum": 1, "maximum": WHOLE_LIMIT})
class IdFilter(django_filters.Filter):
    """`?sweep=3`."""

    field_class = IdField


class QueryFlagField(forms.Field):
    """A truth value."""

    widget = forms.TextInput

    def to_python(self, value: str | None) -> bool | None:
        """Return the value; None for an empty text.

        Raises:
            ValidationError: the text is no flag.
        """
        if not value:
            return None
        if (flag := flag_read(value)) is None:
            raise ValidationError(FLAGS_HELP)
        return flag


@extend_schema_field({"type": "boolean"})
class FlagFilter(django_filters.Filter):
    """`?is_active=true`."""

    field_class = QueryFlagField


class FilterForm(forms.Form):
    """Form whose refusal of a choice names those that there are."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for field in self.fields.values():
            if isinstance(field, forms.ChoiceField):
                choices: Any = field.choices
                names = ", ".join(str(name) for name, _ in choices if name)
                field.error_messages["invalid_choice"] = f"Choose one of {names}."
